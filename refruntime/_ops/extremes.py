"""Extremes and their places: max, min, amax, amin, aminmax, argmax, argmin.

Invariants
----------
* NaN wins; of equal elements, the first one's place is returned.
* ``amax``, ``amin`` and the full ``max`` and ``min`` share a gradient evenly among equal extremes;
  ``max`` and ``min`` over a dimension give it to the element at the returned place.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta
from refruntime._layout import wrap_dim
from refruntime._ops import samples_inner as inner
from refruntime._ops import samples_reduce as samples
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.reductions import Dims, dims_of, reduced_meta, restored
from refruntime._ops.results import named_result
from refruntime.errors import IndexRangeError, KernelMissingError, ShapeError
from refruntime.kernels import arg_reduce, reduce, reduce_cuda

_ALL: dict[str, Any] = {"dim": None, "keepdim": False}


def _check_not_empty(op: str, meta: TensorMeta, dim: Dims) -> None:
    if meta.dtype.is_complex:
        raise KernelMissingError(
            op, what=f"\"{op}\" not implemented for '{meta.dtype.name.capitalize()}'",
            expected="an ordered dtype", got=str(meta.dtype), remedy="compare abs() or .real",
        )  # fmt: skip
    if meta.numel:
        return
    if dim is None:
        raise ShapeError(
            op,
            what=f"{op}(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument.",
            expected="a tensor with elements, or dim=",
            got=f"shape {tuple(meta.shape)}",
            remedy="name a dimension whose size is not zero",
        )
    for d in dim:
        if meta.shape[d] == 0:
            raise IndexRangeError(
                op,
                what=f"{op}(): Expected reduction dim {d} to have non-zero size.",
                expected="a size above zero",
                got=f"shape {tuple(meta.shape)}",
                remedy="reduce another dimension, or check the tensor's shape",
            )


def _extreme_rule(op: str) -> Any:
    @lru_cache(maxsize=4096)
    def infer(input: TensorMeta, *, dim: Dims, keepdim: bool) -> TensorMeta:
        _check_not_empty(op, input, dim)
        return reduced_meta(input, dim, keepdim, input.dtype)

    return infer


def _shared_vjp(g: Any, n: Any) -> Any:
    """Share the gradient among the elements that equal the extreme."""
    meta, dim, keep = n.metas[0], n.dim, n.keepdim
    out = restored(n.out, meta, dim, keep)
    chosen = ops.eq(n.input, out)
    if bool(ops.any(ops.isnan(out))):
        chosen = ops.logical_or(chosen, ops.logical_and(ops.isnan(out), ops.isnan(n.input)))
    every = tuple(range(meta.ndim)) if dim is None else dim
    count = ops.sum(chosen, every, keepdim=dim is not None)
    return ops.mul(chosen, ops.div(restored(g, meta, dim, keep), count))


def _extreme_op(name: str, cpu: Any, cuda: Any, **fields: Any) -> OpDef:
    return register(
        OpDef(
            name, ("input",), batch="reduction",
            infer=_extreme_rule(fields.pop("called", name)), cpu=cpu,
            cuda=cuda, vjp=_shared_vjp, saves=("input", "out"), **fields,
        )
    )  # fmt: skip


AMAX = _extreme_op("amax", reduce.amax_cpu, reduce_cuda.amax_cuda, **samples.AMAX)
AMIN = _extreme_op("amin", reduce.amin_cpu, reduce_cuda.amin_cuda, **samples.AMIN)
MAX = _extreme_op(
    "max", reduce.amax_cpu, reduce_cuda.amax_cuda, backward_name="MaxBackward1", **samples.MAX
)
MIN = _extreme_op(
    "min", reduce.amin_cpu, reduce_cuda.amin_cuda, backward_name="MinBackward1", **samples.MIN
)


@front(AMAX)
def amax(input: Any, dim: Any = (), keepdim: bool = False, *, out: Any = None) -> Any:
    """Return the largest elements over `dim` (all dimensions when empty)."""
    require_tensor("amax", input)
    params = {"dim": dims_of("amax", input.meta, dim), "keepdim": keepdim}
    return call(AMAX, (input,), params, out)


@front(AMIN)
def amin(input: Any, dim: Any = (), keepdim: bool = False, *, out: Any = None) -> Any:
    """Return the smallest elements over `dim` (all dimensions when empty)."""
    require_tensor("amin", input)
    params = {"dim": dims_of("amin", input.meta, dim), "keepdim": keepdim}
    return call(AMIN, (input,), params, out)


@front()
def aminmax(input: Any, *, dim: int | None = None, keepdim: bool = False, out: Any = None) -> Any:
    """Return the smallest and the largest elements, as ``(min, max)``."""
    require_tensor("aminmax", input)
    low, high = (None, None) if out is None else out
    pair = (amin(input, dim, keepdim, out=low), amax(input, dim, keepdim, out=high))
    return named_result("aminmax", "min", "max")(pair)


# ---------------------------------------------------------------------------------------------
# With places


def _placed_rule(op: str) -> Any:
    def infer(input: TensorMeta, *, dim: int, keepdim: bool) -> tuple[TensorMeta, TensorMeta]:
        dims = (dim,) if input.ndim else ()
        _check_not_empty(op, input, dims)
        values = reduced_meta(input, dims, keepdim, input.dtype)
        return values, reduced_meta(input, dims, keepdim, _dtypes.int64)

    return infer


def selected_vjp(g: Any, n: Any) -> Any:
    """Give the gradient of the values to the elements at the returned places."""
    g, places, meta = g[0], n.out1, n.metas[0]
    if g is None:
        return None
    if not meta.ndim:
        return g
    if not n.keepdim:
        g, places = ops.unsqueeze(g, n.dim), ops.unsqueeze(places, n.dim)
    zeros = ops.zeros(tuple(meta.shape), dtype=g.dtype, device=g.device)
    return ops.scatter(zeros, n.dim, places, g)


def _placed_op(name: str, called: str, cpu: Any, cuda: Any, **fields: Any) -> OpDef:
    return register(
        OpDef(
            name, ("input",), batch="along",
            infer=_placed_rule(called), cpu=cpu, cuda=cuda, vjp=selected_vjp,
            saves=("out1",), nondiff_outputs=(1,), backward_name=f"{called.capitalize()}Backward0",
            **fields,
        )
    )  # fmt: skip


MAX_AT = _placed_op("max_at", "max", arg_reduce.max_at_cpu, arg_reduce.max_at_cuda, **inner.MAX_AT)
MIN_AT = _placed_op("min_at", "min", arg_reduce.min_at_cpu, arg_reduce.min_at_cuda, **inner.MIN_AT)


def _placed(op: OpDef, name: str, input: Any, dim: Any, keepdim: bool, out: Any) -> Any:
    params = {"dim": wrap_dim(dim, input.meta.ndim, name), "keepdim": keepdim}
    if out is not None:
        out = tuple(out)
    return named_result(name, "values", "indices")(call(op, (input,), params, out))


@front(MAX)
def max(
    input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None, out: Any = None
) -> Any:
    """Return the largest element; with `dim`, values and indices; of two tensors, the maximum."""
    require_tensor("max", input)
    if other is not None or isinstance(dim, TensorImpl):
        return ops.maximum(input, dim if other is None else other, out=out)
    if dim is None:
        return call(MAX, (input,), _ALL, out)
    return _placed(MAX_AT, "max", input, dim, keepdim, out)


@front(MIN)
def min(
    input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None, out: Any = None
) -> Any:
    """Return the smallest element; with `dim`, values and indices; of two tensors, the minimum."""
    require_tensor("min", input)
    if other is not None or isinstance(dim, TensorImpl):
        return ops.minimum(input, dim if other is None else other, out=out)
    if dim is None:
        return call(MIN, (input,), _ALL, out)
    return _placed(MIN_AT, "min", input, dim, keepdim, out)


def _place_rule(op: str) -> Any:
    def infer(input: TensorMeta, *, dim: int | None, keepdim: bool) -> TensorMeta:
        dims = None if dim is None else (dim,) if input.ndim else ()
        _check_not_empty(op, input, dims)
        return reduced_meta(input, dims, keepdim, _dtypes.int64)

    return infer


ARGMAX = register(
    OpDef("argmax", ("input",), batch="place", **samples.ARGMAX,
          infer=_place_rule("argmax"), cpu=arg_reduce.argmax_cpu,
          cuda=arg_reduce.argmax_cuda)
)  # fmt: skip
ARGMIN = register(
    OpDef("argmin", ("input",), batch="place", **samples.ARGMIN,
          infer=_place_rule("argmin"), cpu=arg_reduce.argmin_cpu,
          cuda=arg_reduce.argmin_cuda)
)  # fmt: skip


def _place(op: OpDef, input: Any, dim: Any, keepdim: bool, out: Any) -> Any:
    require_tensor(op.name, input)
    wrapped = None if dim is None else wrap_dim(dim, input.meta.ndim, op.name)
    return call(op, (input,), {"dim": wrapped, "keepdim": keepdim}, out)


@front(ARGMAX)
def argmax(input: Any, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """Return the place of the largest element, along `dim` or in row-major order."""
    return _place(ARGMAX, input, dim, keepdim, out)


@front(ARGMIN)
def argmin(input: Any, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """Return the place of the smallest element, along `dim` or in row-major order."""
    return _place(ARGMIN, input, dim, keepdim, out)
