"""Gather and scatter along one dimension.

Invariants
----------
* gather and scatter pair entry p of `index` with the element of the tensor whose coordinate in
  `dim` is ``index[p]`` and whose other coordinates are p's own.
* Sums go in row-major order of the index, whatever the number of threads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call, copy_into
from refruntime._impl import TensorImpl, TensorMeta, meta_of, without_overlap
from refruntime._layout import wrap_dim
from refruntime._ops.index_reader import as_places
from refruntime._ops.indexing import follow
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime.errors import (
    DTypeError,
    IndexValueError,
    KernelMissingError,
    ShapeError,
)
from refruntime.kernels import index as walks
from refruntime.kernels.index import Route

# ---------------------------------------------------------------------------------------------
# Rules


def _check_index(op: str, x: TensorMeta, index: TensorMeta, dim: int, bounded: bool = True) -> None:
    """Check the dimensions and sizes of an index against the tensor that it points into."""
    if index.dtype.kind not in "iu":
        raise DTypeError(
            op, what=f"{op}(): Expected dtype int64 for index", expected="int64 or int32",
            got=str(index.dtype), remedy="convert the index with .long()",
        )  # fmt: skip
    if index.numel and index.ndim != x.ndim and (index.ndim or 1) != (x.ndim or 1):
        raise ShapeError(
            op, what="Index tensor must have the same number of dimensions as input tensor",
            expected=f"{x.ndim} dimensions", got=f"{index.ndim}", remedy="unsqueeze the index",
        )  # fmt: skip
    if not bounded or not index.numel:
        return
    for d, (size, limit) in enumerate(zip(index.shape, x.shape, strict=False)):
        if d != dim and size > limit:
            raise ShapeError(
                op, what=f"Size does not match at dimension {d} expected index {list(index.shape)} "
                f"to be no larger than self {list(x.shape)} apart from dimension {dim}",
                expected=f"a size of at most {limit}", got=size, remedy="narrow the index",
            )  # fmt: skip


@lru_cache(maxsize=4096)
def _route(x: TensorMeta, dim: int, index: TensorMeta, plain: TensorMeta) -> Route:
    """Return the walk over the shape of `index`; zero-dim tensors count as one-element vectors."""
    x_shape, x_strides = _at_least_one(x)
    space, steps = _at_least_one(index)
    plain_strides = _at_least_one(plain)[1]
    fixed = tuple(0 if d == dim else stride for d, stride in enumerate(x_strides))
    return Route(space, plain_strides, fixed, ((steps, x_shape[dim], x_strides[dim]),), wrap=False)


def _at_least_one(meta: TensorMeta) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (tuple(meta.shape), meta.strides) if meta.ndim else ((1,), (1,))


def _walk(
    op: str, move: Any, x: TensorImpl, plain: TensorImpl, index: TensorImpl, dim: int
) -> None:
    route = _route(x.meta, dim, index.meta, plain.meta)
    fault = follow(move, x, plain, (index,), route)
    if fault is None:
        return
    size = _at_least_one(x.meta)[0][dim]
    raise IndexValueError(
        op, what=f"index {fault[1]} is out of bounds for dimension {dim} with size {size}",
        expected=f"an index in [0, {size - 1}]", got=fault[1], remedy="check the index tensor",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# gather and scatter: records


def _gather_infer(input: TensorMeta, index: TensorMeta, *, dim: int) -> TensorMeta:
    _check_index("gather", input, index, dim)
    return meta_of(index.shape, input.dtype, input.device)


def _gather_kernel(out: TensorImpl, input: TensorImpl, index: TensorImpl, *, dim: int) -> None:
    _walk("gather", walks.get, input, out, index, dim)


def _gather_vjp(g: Any, n: Any) -> tuple[Any, None]:
    zeros = ops.zeros(tuple(n.metas[0].shape), dtype=g.dtype, device=g.device)
    return call(SCATTER_ADD, (zeros, n.index, g), {"dim": n.dim}), None


def _index(shape: tuple[int, ...], dtype: Any = _dtypes.int64) -> T:
    return T(shape, dtype, 0, 2)


def _gather_reference(x: Any, dim: int, index: Any) -> Any:
    if not x.ndim:
        return x
    corner = [slice(0, size) for size in index.shape]
    corner[dim] = slice(None)
    return np.take_along_axis(x[tuple(corner)], index.astype(np.int64), dim)


GATHER = register(
    OpDef(
        "gather",
        ("input", "index"),
        jvp="linear",
        batch="gather",
        infer=_gather_infer,
        cpu=_gather_kernel,
        cuda=_gather_kernel,
        vjp=_gather_vjp,
        saves=("index",),
        samples=lambda: [
            Sample((T((3, 4)), 0, _index((2, 4)))),
            Sample((T((3, 4), layout="transposed"), -1, _index((3, 5)))),
            Sample((T((3, 3, 3), layout="strided"), 1, _index((2, 3, 2)))),
            Sample((T(()), 0, T((), _dtypes.int64, values=0))),
            Sample((T((4,), _dtypes.int16), 0, _index((6,), _dtypes.int32)), grad=False),
        ],
        error_samples=lambda: [
            ErrorSample((T((3,)), 0, _index((1, 1))), RuntimeError, "same number of dimensions"),
            ErrorSample((T((3, 2)), 0, _index((1, 3))), RuntimeError, "no larger than self"),
            ErrorSample((T((2,)), 0, T((1,), _dtypes.int64, values=[2])), RuntimeError, "index 2"),
            ErrorSample((T((2,)), 0, T((1,))), RuntimeError, "int64"),
        ],
        reference=_gather_reference,
    )
)


def _scatter_infer(
    input: TensorMeta, index: TensorMeta, src: TensorMeta, *, dim: int, **params: Any
) -> TensorMeta:
    _check_index("scatter", input, index, dim)
    if src.dtype is not input.dtype:
        raise DTypeError(
            "scatter", what="scatter(): Expected self.dtype to be equal to src.dtype",
            expected=str(input.dtype), got=str(src.dtype), remedy="convert src",
        )  # fmt: skip
    if index.numel and (
        (src.ndim or 1) != (index.ndim or 1)
        or any(a > b for a, b in zip(index.shape, src.shape, strict=False))
    ):
        raise ShapeError(
            "scatter", what=f"Expected index {list(index.shape)} to be no larger than self "
            f"{list(input.shape)} apart from dimension {dim} and to be no larger size than src "
            f"{list(src.shape)}", expected="a src at least as large as the index",
            got=str(tuple(src.shape)), remedy="expand src or narrow the index",
        )  # fmt: skip
    return without_overlap(input)


def _scatter_kernel(name: str, move: Any) -> Any:
    def kernel(
        out: TensorImpl, input: TensorImpl, index: TensorImpl, src: TensorImpl, *, dim: int
    ) -> None:
        if out is not input:
            copy_into(out, input)
        _walk(name, move, out, src, index, dim)

    return kernel


def _src_gradient(g: Any, n: Any) -> Any:
    """Read the gradient where src was written, with zeros for the part of src not used."""
    if not n.needs[2]:
        return None
    part = call(GATHER, (g, n.index), {"dim": n.dim})
    for dim, (size, used) in enumerate(zip(n.metas[2].shape, part.shape, strict=False)):
        if size != used:
            shape = [*part.shape]
            shape[dim] = size
            rest = ops.zeros(tuple(shape), dtype=g.dtype, device=g.device)
            part = ops.slice_scatter(rest, part, dim, 0, used)
    return part


def _scatter_vjp(g: Any, n: Any) -> tuple[Any, None, Any]:
    return ops.scatter(g, n.dim, n.index, 0) if n.needs[0] else None, None, _src_gradient(g, n)


def _rows(columns: int) -> T:
    """Return an index whose entries differ along each dimension, so that no place is hit twice."""
    return T(
        (3, columns),
        _dtypes.int64,
        values=[[(r + c) % 3 for c in range(columns)] for r in range(3)],
    )


def _entries(index: Any, dim: int) -> Any:
    """Return, for NumPy, the full coordinates that an index along `dim` stands for."""
    coordinates = list(np.indices(index.shape))
    coordinates[dim] = index
    return tuple(coordinates)


def _part_of(src: Any, index: Any) -> Any:
    return src[tuple(slice(0, size) for size in index.shape)] if np.ndim(src) else src


def _scatter_reference(x: Any, dim: int, index: Any, src: Any) -> Any:
    out = x.copy()
    out[_entries(index, dim)] = _part_of(src, index)
    return out


def _scatter_add_reference(x: Any, dim: int, index: Any, src: Any) -> Any:
    out = x.copy()
    np.add.at(out, _entries(index, dim), _part_of(src, index))
    return out


SCATTER = register(
    OpDef(
        "scatter",
        ("input", "index", "src"),
        jvp="linear",
        batch="gather",
        infer=_scatter_infer,
        cpu=_scatter_kernel("scatter", walks.put),
        cuda=_scatter_kernel("scatter", walks.put),
        vjp=_scatter_vjp,
        saves=("index",),
        inplace=True,
        samples=lambda: [
            Sample((T((3, 4)), 0, _rows(4), T((3, 4)))),
            Sample((T((3, 4), layout="transposed"), 1, _rows(3), T((3, 4)))),
            Sample((T((3, 2)), 0, _rows(2), 1.5)),
        ],
        error_samples=lambda: [
            ErrorSample(
                (T((2,)), 0, _index((3,)), T((2,))), RuntimeError, "no larger size than src"
            ),
            ErrorSample(
                (T((2,)), 0, _index((1,)), T((1,), _dtypes.float64)), RuntimeError, "dtype"
            ),
        ],
        reference=_scatter_reference,
    )
)

SCATTER_ADD = register(
    OpDef(
        "scatter_add",
        ("input", "index", "src"),
        jvp="linear",
        batch="gather",
        infer=_scatter_infer,
        cpu=_scatter_kernel("scatter_add", walks.add),
        cuda=_scatter_kernel("scatter_add", walks.add),
        vjp=lambda g, n: (g, None, _src_gradient(g, n)),
        saves=("index",),
        inplace=True,
        samples=lambda: [
            Sample((T((3, 4)), 0, _index((5, 4)), T((5, 4)))),
            Sample((T((2, 3), layout="transposed"), -1, _index((2, 2)), T((2, 4)))),
            Sample((T((3,), _dtypes.int64), 0, _index((5,)), T((5,), _dtypes.int64)), grad=False),
        ],
        reference=_scatter_add_reference,
    )
)

_REDUCES = {
    "prod": walks.multiply, "amax": walks.maximum, "amin": walks.minimum, "sum": walks.add,
}  # fmt: skip
_NEUTRAL = {"prod": 1, "sum": 0, "amax": "lowest", "amin": "highest"}


def _reduce_kernel(
    out: TensorImpl, input: TensorImpl, index: TensorImpl, src: TensorImpl, *, dim: int,
    reduce: str, include_self: bool,
) -> None:  # fmt: skip
    if out is not input:
        copy_into(out, input)
    if not include_self:
        # The first value for a place replaces what was there; the others join it.
        _walk("scatter_reduce", walks.put, out, _neutral_like(src, reduce), index, dim)
    _walk("scatter_reduce", _REDUCES[reduce], out, src, index, dim)


def _neutral_like(src: TensorImpl, reduce: str) -> Any:
    value: Any = _NEUTRAL[reduce]
    dtype = src.meta.dtype
    if isinstance(value, str):
        sign = -1 if value == "lowest" else 1
        if dtype.is_floating_point:
            value = sign * float("inf")
        elif dtype is _dtypes.bool_:
            value = sign > 0
        else:
            limits = _dtypes.iinfo(dtype)
            value = limits.min if sign < 0 else limits.max
    filled = ops.full((), value, dtype=dtype, device=src.meta.device)
    return ops.expand(filled, src.meta.shape)


def _product_vjp(g: Any, n: Any) -> tuple[Any, None, Any]:
    """Multiply the gradient by the product of the other factors, which may hold zeros."""
    dim, index = n.dim, n.index
    zero_src, zero_x = ops.eq(n.src, 0), ops.eq(n.input, 0)
    factors = ops.masked_fill(n.input, zero_x, 1) if n.include_self else ops.ones_like(n.input)
    nonzero_src = ops.masked_fill(n.src, zero_src, 1)
    product = ops.scatter_reduce(factors, dim, index, nonzero_src, "prod")
    zeros = ops.to(ops.mul(zero_x, n.include_self), _dtypes.int64)
    zeros = ops.scatter_add(zeros, dim, index, ops.to(zero_src, _dtypes.int64))

    def without(value: Any, is_zero: Any, product: Any, zeros: Any) -> Any:
        divided = ops.div(product, ops.masked_fill(value, is_zero, 1))
        own = ops.to(is_zero, _dtypes.int64)
        return ops.where(ops.eq(zeros, own), divided, ops.zeros_like(divided))

    there = [ops.gather(part, dim, index) for part in (g, product, zeros)]
    source = ops.mul(there[0], without(n.src, zero_src, there[1], there[2]))
    if not n.include_self:
        return ops.scatter(g, dim, index, 0), None, source
    return ops.mul(g, without(n.input, zero_x, product, zeros)), None, source


def _extreme_reduce_vjp(g: Any, n: Any) -> tuple[Any, None, Any]:
    """Share the gradient evenly among the values that equal the result."""
    if n.reduce == "prod":
        return _product_vjp(g, n)
    chosen = ops.to(ops.eq(n.input, n.out), g.dtype)
    if not n.include_self:
        chosen = ops.scatter(chosen, n.dim, n.index, 0)
    taken = ops.to(ops.eq(n.src, ops.gather(n.out, n.dim, n.index)), g.dtype)
    share = ops.div(g, ops.scatter_add(chosen, n.dim, n.index, taken))
    source = ops.mul(taken, ops.gather(share, n.dim, n.index))
    return ops.mul(chosen, share), None, source


def _scatter_reduce_reference(
    x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> Any:
    ufunc = {"amax": np.maximum, "amin": np.minimum, "prod": np.multiply, "mean": np.add}[reduce]
    out, count = x.copy(), np.ones_like(x)
    if not include_self:
        out[_entries(index, dim)] = {"prod": 1, "amax": -np.inf, "amin": np.inf}[reduce]
    ufunc.at(out, _entries(index, dim), src)
    np.add.at(count, _entries(index, dim), 1)
    return out / count if reduce == "mean" else out


SCATTER_REDUCE = register(
    OpDef(
        "scatter_reduce",
        ("input", "index", "src"),
        batch="gather",
        infer=_scatter_infer,
        cpu=_reduce_kernel,
        cuda=_reduce_kernel,
        vjp=_extreme_reduce_vjp,
        saves=("input", "index", "src", "out"),
        inplace=True,
        samples=lambda: [
            Sample((T((3, 4)), 0, _index((5, 4)), T((5, 4)), "amax")),
            Sample((T((3, 4)), 1, _index((3, 4)), T((3, 4)), "amin"), {"include_self": False}),
            Sample((T((3,)), 0, _index((5,)), T((5,)), "prod")),
            Sample((T((3,)), 0, _index((5,)), T((5,)), "prod"), {"include_self": False}),
            Sample((T((3,)), 0, _index((5,)), T((5,)), "mean")),
        ],
        error_samples=lambda: [
            ErrorSample((T((2,)), 0, _index((1,)), T((1,)), "max"), RuntimeError, "must be one of")
        ],
        reference=_scatter_reduce_reference,
    )
)


# ---------------------------------------------------------------------------------------------
# gather and scatter: fronts


@front(GATHER)
def gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False, out: Any = None) -> Any:
    """Return ``input`` read along `dim` at `index`; the result has the index's shape."""
    require_tensor("gather", input)
    require_tensor("gather", index, "index")
    dim = wrap_dim(dim, input.meta.ndim, "gather")
    return call(GATHER, (input, places_of("gather", index)), {"dim": dim}, out)


def places_of(op: str, index: Any) -> Any:
    require_tensor(op, index, "index")
    return as_places(index) if index.meta.dtype.kind in "iu" else index


@front(SCATTER, inplace=True)
def scatter(
    input: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: Any = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Return a copy of `input` with `src` (a tensor or a number) written along `dim` at `index`."""
    require_tensor("scatter", input)
    src = value if src is None else src
    index = places_of("scatter", index)
    if not isinstance(src, TensorImpl):
        filled = ops.full((), src, dtype=input.meta.dtype, device=input.meta.device)
        src = ops.expand(filled, index.meta.shape)
    if reduce is not None:
        names = {"add": "sum", "multiply": "prod"}
        if reduce not in names:
            raise _bad_reduce("scatter", reduce, tuple(names))
        return scatter_reduce(input, dim, index, src, names[reduce], out=out)
    dim = wrap_dim(dim, input.meta.ndim, "scatter")
    return call(SCATTER, (input, index, src), {"dim": dim}, out)


def _bad_reduce(op: str, reduce: Any, names: tuple[str, ...]) -> KernelMissingError:
    return KernelMissingError(
        op, what=f"reduce argument must be one of {', '.join(names)}", expected=str(names),
        got=repr(reduce), remedy="name one of them",
    )  # fmt: skip


@front(SCATTER_ADD, inplace=True)
def scatter_add(input: Any, dim: int, index: Any, src: Any, *, out: Any = None) -> Any:
    """Return `input` with `src` added along `dim` at `index`."""
    require_tensor("scatter_add", input)
    dim = wrap_dim(dim, input.meta.ndim, "scatter_add")
    return call(SCATTER_ADD, (input, places_of("scatter_add", index), src), {"dim": dim}, out)


@front(SCATTER_REDUCE, inplace=True)
def scatter_reduce(
    input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True,
    out: Any = None,
) -> Any:  # fmt: skip
    """Return `input` with `src` joined along `dim` at `index`: sum, prod, mean, amax or amin."""
    require_tensor("scatter_reduce", input)
    if reduce not in (*_REDUCES, "mean"):
        raise _bad_reduce("scatter_reduce", reduce, (*_REDUCES, "mean"))
    dim = wrap_dim(dim, input.meta.ndim, "scatter_reduce")
    index = places_of("scatter_reduce", index)
    if reduce in ("sum", "mean"):
        base = input if include_self else scatter(input, dim, index, 0)
        total = call(
            SCATTER_ADD, (base, index, src), {"dim": dim}, None if reduce == "mean" else out
        )
        return total if reduce == "sum" else _mean(total, input, dim, index, include_self, out)
    params = {"dim": dim, "reduce": reduce, "include_self": include_self}
    return call(SCATTER_REDUCE, (input, index, src), params, out)


def _mean(total: Any, input: Any, dim: int, index: Any, include_self: bool, out: Any) -> Any:
    ones = ops.ones_like(input)
    counts = ones if include_self else scatter(ones, dim, index, 0)
    unit = ops.expand(ops.ones((), dtype=input.dtype, device=input.device), index.meta.shape)
    counts = ops.clamp(scatter_add(counts, dim, index, unit), min=1)
    if input.meta.dtype.is_floating_point:
        return ops.div(total, counts, out=out)
    return ops.floor_divide(total, counts, out=out)
