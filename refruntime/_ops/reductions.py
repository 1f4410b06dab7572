"""Reductions that add, multiply, count and test: sum, mean, prod, nansum, any, all, count_nonzero.

Invariants
----------
* In records `dim` is a sorted tuple of non-negative dimensions, or None for all of them; `dims_of`
  makes it from what torch accepts.
* Integers and bool are summed in int64; a mean of them is an error, as in torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorMeta, meta_of
from refruntime._layout import reduce_shape, wrap_dims
from refruntime._ops import samples_reduce as samples
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.reduction_plans import planned
from refruntime.errors import DTypeError
from refruntime.kernels import fold as folds
from refruntime.kernels import reduce as kernels
from refruntime.kernels import reduce_cuda as gpu

Dims = tuple[int, ...] | None
_ALL: dict[str, Any] = {"dim": None, "keepdim": False}
_ALL_AS_IS: dict[str, Any] = {**_ALL, "dtype": None}


def dims_of(op: str, meta: TensorMeta, dim: Any) -> Dims:
    """Return reduced dimensions in the records' form; an empty sequence stands for all."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return None
    wrapped = wrap_dims(dim, meta.ndim, op)
    return tuple(sorted(wrapped)) if meta.ndim else None


def reduced_meta(meta: TensorMeta, dim: Dims, keepdim: bool, dtype: DType) -> TensorMeta:
    """Return the meta of a reduction's result."""
    dims = range(meta.ndim) if dim is None else dim
    return meta_of(reduce_shape(meta.shape, dims, keepdim), dtype, meta.device)


def restored(value: Any, meta: TensorMeta, dim: Dims, keepdim: bool) -> Any:
    """Put reduced dimensions back with size one, so that `value` broadcasts against the operand."""
    if keepdim or dim is None or value is None:
        return value
    for d in dim:
        value = ops.unsqueeze(value, d)
    return value


def spread(g: Any, n: Any) -> Any:
    """Give every element of the operand the gradient of the output that it went into."""
    return ops.expand(restored(g, n.metas[0], n.dim, n.keepdim), n.metas[0].shape)


def count_of(meta: TensorMeta, dim: Dims) -> int:
    """Return how many elements one output comes from."""
    if dim is None:
        return meta.numel
    count = 1
    for d in dim:
        count *= meta.shape[d]
    return count


def torch_name(dtype: DType) -> str:
    """Return a dtype as torch's messages spell it: ``Long``, ``Bool``."""
    names = {"int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte",
             "float32": "Float", "float64": "Double", "float16": "Half"}  # fmt: skip
    return names.get(dtype.name, dtype.name.capitalize())


def _whole(dtype: DType) -> DType:
    return _dtypes.int64 if dtype.kind in "biu" else dtype


@lru_cache(maxsize=4096)
def _sum_infer(input: TensorMeta, *, dim: Dims, keepdim: bool, dtype: DType | None) -> TensorMeta:
    return reduced_meta(input, dim, keepdim, dtype or _whole(input.dtype))


SUM = register(
    OpDef(
        "sum", ("input",), jvp="linear", batch="reduction", **samples.SUM,
        infer=_sum_infer, cpu=kernels.sum_cpu, cuda=gpu.sum_cuda, vjp=spread,
        autocast="float32",
    )
)  # fmt: skip


SUM.run = planned(SUM, folds.SUM, lambda meta, dim: 1.0, _ALL_AS_IS)


@front(SUM)
def sum(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None,
    out: Any = None, axis: Any = None,
) -> Any:  # fmt: skip
    """Return the sum of all elements, or over `dim`.

    Integers and bool are summed as int64 unless `dtype` says otherwise.
    """
    require_tensor("sum", input)
    if axis is not None:
        dim = axis
    if dim is None and dtype is None and not keepdim:
        return call(SUM, (input,), _ALL_AS_IS, out)
    params = {"dim": dims_of("sum", input.meta, dim), "keepdim": keepdim, "dtype": dtype}
    return call(SUM, (input,), params, out)


def _average_infer(
    input: TensorMeta, *, dim: Dims, keepdim: bool, dtype: DType | None
) -> TensorMeta:
    result = dtype or input.dtype
    if not (result.is_floating_point or result.is_complex):
        role = "Input" if dtype is None else "Output"
        raise DTypeError(
            "mean",
            what=f"mean(): could not infer output dtype. {role} dtype must be either a floating "
            f"point or complex dtype. Got: {torch_name(result)}",
            expected="a floating-point or complex dtype",
            got=str(result),
            remedy="pass dtype=torch.float32, or convert with .float()",
        )
    return reduced_meta(input, dim, keepdim, result)


def _mean_vjp(g: Any, n: Any) -> Any:
    count = count_of(n.metas[0], n.dim)
    return spread(ops.div(g, count) if count else g, n)


MEAN = register(
    OpDef(
        "mean", ("input",), jvp="linear", batch="reduction",
        infer=lru_cache(maxsize=4096)(_average_infer), cpu=kernels.mean_cpu,
        cuda=gpu.mean_cuda,
        vjp=_mean_vjp, **samples.MEAN,
    )
)  # fmt: skip


def _mean_scale(meta: TensorMeta, dim: Dims) -> float:
    return 1.0 / (count_of(meta, dim) or float("nan"))


MEAN.run = planned(MEAN, folds.MEAN, _mean_scale, _ALL_AS_IS)


@front(MEAN)
def mean(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None,
    out: Any = None, axis: Any = None,
) -> Any:  # fmt: skip
    """Return the mean of all elements, or over `dim`.

    Raises
    ------
    DTypeError
        If the result would not be floating-point or complex.
    """
    require_tensor("mean", input)
    if axis is not None:
        dim = axis
    if dim is None and dtype is None and not keepdim:
        return call(MEAN, (input,), _ALL_AS_IS, out)
    params = {"dim": dims_of("mean", input.meta, dim), "keepdim": keepdim, "dtype": dtype}
    return call(MEAN, (input,), params, out)


def _nansum_vjp(g: Any, n: Any) -> Any:
    return ops.mul(spread(g, n), ops.logical_not(ops.isnan(n.input)))


NANSUM = register(
    OpDef(
        "nansum", ("input",), batch="reduction",
        infer=_sum_infer, cpu=kernels.nansum_cpu, cuda=gpu.nansum_cuda,
        vjp=_nansum_vjp,
        saves=("input",), **samples.NANSUM,
    )
)  # fmt: skip


@front(NANSUM)
def nansum(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Return the sum over `dim`, taking NaN as zero."""
    require_tensor("nansum", input)
    params = {"dim": dims_of("nansum", input.meta, dim), "keepdim": keepdim, "dtype": dtype}
    return call(NANSUM, (input,), params, out)


@front()
def nanmean(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Return the mean over `dim` of what is not NaN."""
    require_tensor("nanmean", input)
    present = ops.logical_not(ops.isnan(input))
    count = sum(present, dim, keepdim)
    return ops.div(nansum(input, dim, keepdim, dtype=dtype), count, out=out)


# ---------------------------------------------------------------------------------------------
# Products


def _prod_vjp(g: Any, n: Any) -> Any:
    x = n.input
    g = restored(g, n.metas[0], n.dim, n.keepdim)
    if not bool(ops.any(ops.eq(x, 0))):
        return ops.mul(g, ops.div(restored(n.out, n.metas[0], n.dim, n.keepdim), x))
    if n.dim is None:
        flat = ops.reshape(x, (-1,))
        return ops.mul(g, ops.reshape(_product_of_others(flat, 0), x.shape))
    return ops.mul(g, _product_of_others(x, n.dim[0]))


def _product_of_others(x: Any, dim: int) -> Any:
    """Return at each place the product of the other elements along `dim`; zeros do no harm."""
    size = x.shape[dim]
    if size == 1:
        return ops.ones_like(x)
    one = ops.ones_like(ops.narrow(x, dim, 0, 1))
    before = ops.cat([one, ops.cumprod(ops.narrow(x, dim, 0, size - 1), dim)], dim)
    backwards = ops.flip(x, [dim])
    after = ops.cat([one, ops.cumprod(ops.narrow(backwards, dim, 0, size - 1), dim)], dim)
    return ops.mul(before, ops.flip(after, [dim]))


PROD = register(
    OpDef(
        "prod", ("input",), batch="product",
        infer=_sum_infer, cpu=kernels.prod_cpu, cuda=gpu.prod_cuda,
        vjp=_prod_vjp,
        saves=("input", "out"), autocast="float32", **samples.PROD,
    )
)  # fmt: skip


@front(PROD)
def prod(
    input: Any, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Return the product of all elements, or over the dimension `dim`."""
    require_tensor("prod", input)
    params = {"dim": dims_of("prod", input.meta, dim), "keepdim": keepdim, "dtype": dtype}
    return call(PROD, (input,), params, out)


# ---------------------------------------------------------------------------------------------
# Tests and counts


def _test_infer(input: TensorMeta, *, dim: Dims, keepdim: bool) -> TensorMeta:
    dtype = input.dtype if input.dtype is _dtypes.uint8 else _dtypes.bool_
    return reduced_meta(input, dim, keepdim, dtype)


ANY = register(
    OpDef(
        "any",
        ("input",),
        batch="reduction",
        **samples.ANY,
        infer=_test_infer,
        cpu=kernels.any_cpu,
        cuda=gpu.any_cuda,
    )
)
ALL = register(
    OpDef(
        "all",
        ("input",),
        batch="reduction",
        **samples.ALL,
        infer=_test_infer,
        cpu=kernels.all_cpu,
        cuda=gpu.all_cuda,
    )
)


@front(ANY)
def any(input: Any, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """Return whether some element (over `dim`) differs from zero."""
    require_tensor("any", input)
    params = {"dim": dims_of("any", input.meta, dim), "keepdim": keepdim}
    return call(ANY, (input,), params, out)


@front(ALL)
def all(input: Any, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """Return whether all elements (over `dim`) differ from zero."""
    require_tensor("all", input)
    params = {"dim": dims_of("all", input.meta, dim), "keepdim": keepdim}
    return call(ALL, (input,), params, out)


def _count_infer(input: TensorMeta, *, dim: Dims, keepdim: bool) -> TensorMeta:
    return reduced_meta(input, dim, keepdim, _dtypes.int64)


COUNT_NONZERO = register(
    OpDef("count_nonzero", ("input",), batch="reduction", **samples.COUNT_NONZERO,
          infer=_count_infer, cpu=kernels.count_nonzero_cpu,
          cuda=gpu.count_nonzero_cuda)
)  # fmt: skip


@front(COUNT_NONZERO)
def count_nonzero(input: Any, dim: Any = None) -> Any:
    """Return how many elements (over `dim`) differ from zero."""
    require_tensor("count_nonzero", input)
    params = {"dim": dims_of("count_nonzero", input.meta, dim), "keepdim": False}
    return call(COUNT_NONZERO, (input,), params)
