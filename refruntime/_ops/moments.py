"""Reductions that measure: var, std, norms, logsumexp, dist.

Invariants
----------
* `correction` is what is subtracted from the number of elements; ``unbiased=True`` means 1.
* The gradient of a norm at zero is zero, as in torch.
"""

from __future__ import annotations

import math
from typing import Any

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorMeta
from refruntime._layout import wrap_dim
from refruntime._ops import samples_reduce as samples
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.reductions import Dims, count_of, dims_of, reduced_meta, restored, spread
from refruntime.errors import ArgumentValueError, DTypeError
from refruntime.kernels import reduce as kernels
from refruntime.kernels import reduce_cuda as gpu
from refruntime.kernels import softmax

# ---------------------------------------------------------------------------------------------
# Variance


def _require_float(op: str, dtype: DType) -> None:
    if not dtype.is_floating_point:
        raise DTypeError(
            op,
            what=f"{op}: only support floating point and complex dtypes",
            expected="a floating-point dtype",
            got=str(dtype),
            remedy="convert the operand with .float()",
        )


def _var_rule(op: str) -> Any:
    def infer(input: TensorMeta, *, dim: Dims, keepdim: bool, correction: float) -> TensorMeta:
        _require_float(op, input.dtype)
        return reduced_meta(input, dim, keepdim, input.dtype)

    return infer


def _distances(x: Any, n: Any) -> Any:
    dims = tuple(range(x.ndim)) if n.dim is None else n.dim
    return ops.sub(x, ops.mean(x, dims, keepdim=True)) if dims else ops.zeros_like(x)


def _degrees(n: Any) -> float:
    degrees = max(0.0, count_of(n.metas[0], n.dim) - n.correction)
    return degrees if degrees else math.nan


def _var_vjp(g: Any, n: Any) -> Any:
    scaled = ops.mul(restored(g, n.metas[0], n.dim, n.keepdim), 2.0 / _degrees(n))
    return ops.mul(scaled, _distances(n.input, n))


def _std_vjp(g: Any, n: Any) -> Any:
    # d std = d var / (2 std), and zero where all elements are equal.
    flat = ops.eq(n.out, 0)
    scaled = ops.masked_fill(ops.div(g, n.out), flat, 0)
    scaled = ops.mul(restored(scaled, n.metas[0], n.dim, n.keepdim), 1.0 / _degrees(n))
    return ops.mul(scaled, _distances(n.input, n))


VAR = register(
    OpDef("var", ("input",), batch="reduction",
          **samples.VAR, infer=_var_rule("var"), cpu=kernels.var_cpu,
          cuda=gpu.var_cuda, vjp=_var_vjp,
          saves=("input",))
)  # fmt: skip
STD = register(
    OpDef("std", ("input",), batch="reduction",
          **samples.STD, infer=_var_rule("std"), cpu=kernels.std_cpu,
          cuda=gpu.std_cuda, vjp=_std_vjp,
          saves=("input", "out"))
)  # fmt: skip


def _var_mean_infer(
    input: TensorMeta, *, dim: Dims, keepdim: bool, correction: float
) -> tuple[TensorMeta, TensorMeta]:
    _require_float("var_mean", input.dtype)
    meta = reduced_meta(input, dim, keepdim, input.dtype)
    return meta, meta


def _var_mean_vjp(g: Any, n: Any) -> Any:
    total = None if g[0] is None else _var_vjp(g[0], n)
    if g[1] is None:
        return total
    of_mean = spread(ops.div(g[1], max(1, count_of(n.metas[0], n.dim))), n)
    return of_mean if total is None else ops.add(total, of_mean)


VAR_MEAN = register(
    OpDef("var_mean", ("input",), batch="reduction", **samples.VAR_MEAN,
          infer=_var_mean_infer, cpu=kernels.var_mean_cpu,
          cuda=gpu.var_mean_cuda,
          vjp=_var_mean_vjp, saves=("input",))
)  # fmt: skip


def _var_params(
    op: str, input: Any, dim: Any, unbiased: Any, keepdim: bool, correction: Any
) -> dict[str, Any]:
    require_tensor(op, input)
    if isinstance(dim, bool):
        # var(x, unbiased): a bool in the place of the dimensions.
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    return {
        "dim": dims_of(op, input.meta, dim), "keepdim": keepdim, "correction": correction,
    }  # fmt: skip


@front(VAR)
def var(
    input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None, out: Any = None, axis: Any = None,
) -> Any:  # fmt: skip
    """Return the variance over `dim`, dividing by the count less `correction` (1 by default)."""
    dim = dim if axis is None else axis
    return call(VAR, (input,), _var_params("var", input, dim, unbiased, keepdim, correction), out)


@front(STD)
def std(
    input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None, out: Any = None, axis: Any = None,
) -> Any:  # fmt: skip
    """Return the standard deviation over `dim`; see `var`."""
    dim = dim if axis is None else axis
    return call(STD, (input,), _var_params("std", input, dim, unbiased, keepdim, correction), out)


@front(VAR_MEAN, method=False)
def var_mean(
    input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> Any:  # fmt: skip
    """Return the variance and the mean over `dim`."""
    params = _var_params("var_mean", input, dim, unbiased, keepdim, correction)
    return call(VAR_MEAN, (input,), params)


@front(method=False)
def std_mean(
    input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> Any:  # fmt: skip
    """Return the standard deviation and the mean over `dim`."""
    params = _var_params("std_mean", input, dim, unbiased, keepdim, correction)
    deviation = call(STD, (input,), params)
    return deviation, call_mean(input, params)


def call_mean(input: Any, params: dict[str, Any]) -> Any:
    """Return the mean over the dimensions of a variance."""
    dim = params["dim"]
    dims = tuple(range(input.meta.ndim)) if dim is None else dim
    return ops.mean(input, dims, params["keepdim"])


# ---------------------------------------------------------------------------------------------
# Norms


def _norm_infer(input: TensorMeta, *, dim: Dims, keepdim: bool, ord: float) -> TensorMeta:
    if input.dtype.kind not in "fc":
        raise DTypeError(
            "linalg.vector_norm",
            what="linalg.vector_norm: Expected a floating point or complex tensor as input. "
            f"Got {input.dtype.name}",
            expected="a floating-point or complex dtype",
            got=str(input.dtype),
            remedy="convert the operand with .float()",
        )
    return reduced_meta(input, dim, keepdim, input.dtype.to_real())


def _norm_vjp(g: Any, n: Any) -> Any:
    x, order, meta = n.input, n.ord, n.metas[0]
    g = restored(g, meta, n.dim, n.keepdim)
    norm = restored(n.out, meta, n.dim, n.keepdim)
    if order == 0:
        return ops.zeros_like(x)
    if order == 1:
        return ops.mul(ops.sgn(x), g)
    if order == 2:
        return ops.mul(x, ops.masked_fill(ops.div(g, norm), ops.eq(norm, 0), 0))
    size = ops.abs(x)
    if math.isinf(order):
        largest = ops.eq(size, norm)
        dims = tuple(range(meta.ndim)) if n.dim is None else n.dim
        count = ops.sum(largest, dims, keepdim=True) if dims else 1
        return ops.mul(ops.sgn(x), ops.mul(ops.div(g, count), largest))
    return _power_norm_vjp(g, x, size, norm, order)


def _power_norm_vjp(g: Any, x: Any, size: Any, norm: Any, order: float) -> Any:
    """Differentiate a norm of general order: ``sgn(x) (|x| / norm) ** (order - 1) g``."""
    if order < 1:
        power = ops.masked_fill(ops.pow(size, order - 1), ops.eq(x, 0), 0)
        rest = ops.masked_fill(ops.pow(norm, 1 - order), ops.eq(norm, 0), 0)
        return ops.mul(ops.mul(ops.sgn(x), power), ops.mul(g, rest))
    power = ops.pow(size, order - 1)
    scale = ops.masked_fill(ops.div(g, ops.pow(norm, order - 1)), ops.eq(norm, 0), 0)
    return ops.mul(ops.mul(ops.sgn(x), power), scale)


VECTOR_NORM = register(
    OpDef("linalg_vector_norm", ("input",), batch="reduction", **samples.VECTOR_NORM,
          infer=_norm_infer, cpu=kernels.vector_norm_cpu,
          cuda=gpu.vector_norm_cuda,
          vjp=_norm_vjp, saves=("input", "out"), autocast="float32",
          backward_name="LinalgVectorNormBackward0")
)  # fmt: skip


@front(VECTOR_NORM, method=False)
def linalg_vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Return the vector norm of order `ord` over `dim`."""
    require_tensor("linalg.vector_norm", x)
    if dtype is not None:
        x = ops.to(x, dtype)
    params = {
        "dim": dims_of("linalg.vector_norm", x.meta, dim), "keepdim": keepdim, "ord": float(ord),
    }  # fmt: skip
    return call(VECTOR_NORM, (x,), params, out)


@front()
def norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None,
    dtype: DType | None = None,
) -> Any:  # fmt: skip
    """Return the `p`-norm of the elements over `dim`; ``"fro"`` is 2."""
    require_tensor("norm", input)
    if p == "nuc":
        return ops.linalg_matrix_norm(input, "nuc", (-2, -1) if dim is None else dim, keepdim)
    if isinstance(p, str) and p != "fro":
        raise ArgumentValueError(
            "norm", expected="a number, 'fro' or 'nuc'", got=repr(p), remedy="pass p=2"
        )
    order = 2.0 if p is None or p == "fro" else float(p)
    return linalg_vector_norm(input, order, dim, keepdim, dtype=dtype, out=out)


@front(inplace=True)
def renorm(input: Any, p: float, dim: int, maxnorm: float, *, out: Any = None) -> Any:
    """Shorten the slices along `dim` whose `p`-norm is above `maxnorm` to that norm."""
    require_tensor("renorm", input)
    dim = wrap_dim(dim, input.dim(), "renorm")
    others = [d for d in range(input.dim()) if d != dim]
    size = linalg_vector_norm(input, p, others, True)
    longer = ops.gt(size, maxnorm)
    # The small term is torch's: it keeps the result below the bound.
    factor = ops.where(longer, ops.div(maxnorm, ops.add(size, 1e-7)), 1.0)
    return ops.mul(input, ops.to(factor, input.dtype), out=out)


@front()
def dist(input: Any, other: Any, p: float = 2) -> Any:
    """Return the `p`-norm of ``input - other``."""
    return norm(ops.sub(input, other), p)


# ---------------------------------------------------------------------------------------------
# logsumexp


def _logsumexp_infer(input: TensorMeta, *, dim: Dims, keepdim: bool) -> TensorMeta:
    dtype = input.dtype
    if not dtype.is_floating_point:
        dtype = _dtypes.get_default_dtype()
    return reduced_meta(input, dim, keepdim, dtype)


def _logsumexp_vjp(g: Any, n: Any) -> Any:
    meta = n.metas[0]
    out = restored(n.out, meta, n.dim, n.keepdim)
    finite = ops.masked_fill(out, ops.isinf(out), 0)
    return ops.mul(restored(g, meta, n.dim, n.keepdim), ops.exp(ops.sub(n.input, finite)))


LOGSUMEXP = register(
    OpDef("logsumexp", ("input",), batch="reduction", **samples.LOGSUMEXP,
          infer=_logsumexp_infer, cpu=softmax.logsumexp_cpu,
          cuda=gpu.logsumexp_cuda,
          vjp=_logsumexp_vjp, saves=("input", "out"), autocast="float32")
)  # fmt: skip


@front(LOGSUMEXP)
def logsumexp(input: Any, dim: Any, keepdim: bool = False, *, out: Any = None) -> Any:
    """Return ``log(sum(exp(input)))`` over `dim`, safe from overflow."""
    require_tensor("logsumexp", input)
    params = {"dim": dims_of("logsumexp", input.meta, dim), "keepdim": keepdim}
    return call(LOGSUMEXP, (input,), params, out)
