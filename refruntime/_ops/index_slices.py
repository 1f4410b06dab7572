"""Whole slices of a dimension, by an index vector: select, add, copy, fill.

Invariants
----------
* These are indexing with one index tensor: they share its kernels, and (but for `index_select`,
  which torch's graphs name) its records.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta, meta_of, requires_grad
from refruntime._layout import wrap_dim
from refruntime._ops.gather import places_of
from refruntime._ops.indexing import INDEX_BACKWARD, INDEX_PUT, index_kernel
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime.errors import ArgumentTypeError, DTypeError, IndexRangeError, ShapeError

_SMALL: dict[str, Any] = {"dtype": _dtypes.int64, "low": 0, "high": 2}


def _vector(op: str, index: Any) -> Any:
    """Return an index of one dimension as int64."""
    index = places_of(op, index)
    if index.meta.ndim > 1:
        raise IndexRangeError(
            op, what=f"{op}(): Index is supposed to be a vector", expected="one dimension",
            got=str(tuple(index.meta.shape)), remedy="flatten the index",
        )  # fmt: skip
    if index.meta.dtype.kind not in "iu":
        raise DTypeError(
            op, what=f"{op}(): Expected dtype int32/int64 for index", expected="int64 or int32",
            got=str(index.meta.dtype), remedy="convert the index with .long()",
        )  # fmt: skip
    return ops.reshape(index, (1,)) if not index.meta.ndim else index


def _select_infer(input: TensorMeta, index: TensorMeta, *, dim: int) -> TensorMeta:
    shape = (*input.shape[:dim], index.numel, *input.shape[dim + 1 :])
    return meta_of(shape if input.ndim else (), input.dtype, input.device)


def _select_kernel(out: TensorImpl, input: TensorImpl, index: TensorImpl, *, dim: int) -> None:
    index_kernel(out, input, index, dims=(dim,))


def _select_vjp(g: Any, n: Any) -> tuple[Any, None]:
    params = {"shape": tuple(n.metas[0].shape), "dims": (n.dim,)}
    return call(INDEX_BACKWARD, (g, n.index), params), None


INDEX_SELECT = register(
    OpDef(
        "index_select",
        ("input", "index"),
        jvp="linear",
        batch="index_select",
        infer=_select_infer,
        cpu=_select_kernel,
        cuda=_select_kernel,
        vjp=_select_vjp,
        saves=("index",),
        samples=lambda: [
            Sample((T((3, 4)), 0, T((5,), **_SMALL))),
            Sample((T((2, 3, 4), layout="transposed"), -2, T((2,), **_SMALL))),
            Sample((T((4, 3), layout="strided"), 1, T((), _dtypes.int64, values=2))),
        ],
        error_samples=lambda: [
            ErrorSample((T((3,)), 0, T((1, 1), **_SMALL)), IndexError, "supposed to be a vector"),
            ErrorSample((T((3,)), 0, T((1,), _dtypes.int64, values=[3])), IndexError, "index 3"),
            ErrorSample((T((3,)), 0, T((1,))), RuntimeError, "int32/int64"),
        ],
        reference=lambda x, dim, index: x.take(np.atleast_1d(index), dim),
    )
)


@front(INDEX_SELECT)
def index_select(input: Any, dim: int, index: Any, *, out: Any = None) -> Any:
    """Return the slices of `dim` at `index`, in its order."""
    require_tensor("index_select", input)
    dim = wrap_dim(dim, input.meta.ndim, "index_select")
    index = _vector("index_select", index)
    if not input.meta.ndim:
        return ops.reshape(index_select(ops.reshape(input, (1,)), 0, index, out=out), ())
    return call(INDEX_SELECT, (input, index), {"dim": dim}, out)


def _put_slices(
    op: str, input: Any, dim: int, index: Any, source: Any, accumulate: bool, out: Any
) -> Any:
    require_tensor(op, input)
    require_tensor(op, source, "source")
    dim = wrap_dim(dim, input.meta.ndim, op)
    index = _vector(op, index)
    shape = (*input.meta.shape[:dim], index.meta.numel, *input.meta.shape[dim + 1 :])
    if input.meta.ndim and tuple(source.meta.shape) != shape:
        raise ShapeError(
            op, what=f"{op}(): source and index do not fit the tensor", expected=str(shape),
            got=str(tuple(source.meta.shape)), remedy="give one slice an index",
        )  # fmt: skip
    params = {"dims": (dim,), "accumulate": accumulate}
    return call(INDEX_PUT, (input, source, index), params, out)


@front(INDEX_PUT, inplace=True)
def index_add(
    input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1, out: Any = None
) -> Any:
    """Return `input` with ``alpha * source`` added to the slices of `dim` at `index`."""
    source = source if alpha == 1 else ops.mul(source, alpha)
    return _put_slices("index_add", input, dim, index, source, True, out)


@front(INDEX_PUT, inplace=True)
def index_copy(input: Any, dim: int, index: Any, source: Any, *, out: Any = None) -> Any:
    """Return `input` with the slices of `dim` at `index` replaced by `source`."""
    return _put_slices("index_copy", input, dim, index, source, False, out)


@front(INDEX_PUT, inplace=True)
def index_fill(input: Any, dim: int, index: Any, value: Any, *, out: Any = None) -> Any:
    """Return `input` with the slices of `dim` at `index` set to `value`."""
    require_tensor("index_fill", input)
    if not isinstance(value, TensorImpl):
        value = ops.full((), value, dtype=input.meta.dtype, device=input.meta.device)
    if value.meta.ndim:
        raise ArgumentTypeError(
            "index_fill", what="index_fill_ only supports a 0-dimensional value tensor",
            expected="a number or a zero-dim tensor", got=str(tuple(value.meta.shape)),
            remedy="use index_copy",
        )  # fmt: skip
    dim = wrap_dim(dim, input.meta.ndim, "index_fill")
    index = _vector("index_fill", index)
    if requires_grad(value):
        # A slice named twice is filled once, and its gradient counts once.
        index = ops.unique(index)
    return call(INDEX_PUT, (input, value, index), {"dims": (dim,), "accumulate": False}, out)


@front(INDEX_PUT)
def index_reduce(
    input: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Return `input` with slices of `source` joined at `index`: prod, mean, amax or amin."""
    require_tensor("index_reduce", input)
    dim = wrap_dim(dim, input.meta.ndim, "index_reduce")
    places = _vector("index_reduce", index)
    if input.meta.ndim:
        places = ops.reshape(places, [-1 if d == dim else 1 for d in range(input.meta.ndim)])
        places = ops.expand(places, source.meta.shape)
    else:
        places = ops.reshape(places, source.meta.shape)
    return ops.scatter_reduce(input, dim, places, source, reduce, include_self=include_self)
