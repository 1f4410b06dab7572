"""Running results along a dimension: cumsum, cumprod, cummax, cummin.

Invariants
----------
* Integers and bools give int64, unless ``dtype=`` says otherwise.
* The derivative of a running product divides where it can, and multiplies out where an element is
  zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorMeta, meta_of
from refruntime._layout import wrap_dim
from refruntime._ops.opdef import Inplace, OpDef, front, ops, register, require_tensor
from refruntime._ops.results import named_result
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime.kernels import scan


def _running_infer(input: TensorMeta, *, dim: int, product: bool) -> TensorMeta:
    dtype = input.dtype if input.dtype.kind in "fc" else _dtypes.int64
    return meta_of(input.shape, dtype, input.device)


def _reversed_sum(g: Any, dim: int) -> Any:
    return ops.flip(ops.cumsum(ops.flip(g, dim), dim), dim)


def _cumsum_vjp(g: Any, n: Any) -> Any:
    return _reversed_sum(g, n.dim) if g.ndim else g


def _cumprod_vjp(g: Any, n: Any) -> Any:
    x = n.input
    if not x.ndim:
        return g
    if not bool(ops.any(ops.eq(x, 0))):
        return ops.div(_reversed_sum(ops.mul(g, n.out), n.dim), x)
    return _cumprod_vjp_with_zeros(g, x, n.dim)


def _cumprod_vjp_with_zeros(g: Any, x: Any, dim: int) -> Any:
    """Sum, for each element, the gradient times the products that leave the element out."""
    size = x.shape[dim]
    parts = []
    for k in range(size):
        before = ops.narrow(x, dim, 0, k)
        after = ops.narrow(x, dim, k + 1, size - k - 1)
        lead = ops.prod(before, dim, keepdim=True)
        products = ops.cumprod(ops.cat([lead, after], dim), dim)
        parts.append(ops.sum(ops.mul(ops.narrow(g, dim, k, size - k), products), dim, keepdim=True))
    return ops.cat(parts, dim)


def _samples(low: float) -> Any:
    return lambda: [
        Sample((T((5,), low=low), 0)),
        Sample((T((3, 4), low=low, layout="transposed"), 1)),
        Sample((T((2, 3, 2), low=low, layout="strided"), -2)),
        Sample((T((), low=low), 0)),
        Sample((T((4,), _dtypes.int32), 0), grad=False),
        Sample((T((0, 3)), 0), grad=False, name="empty"),
    ]


def _reference(numpy_scan: Any) -> Any:
    return lambda x, dim: numpy_scan(x, dim) if x.ndim else x


_ERRORS = [ErrorSample((T((2, 3)), 2), IndexError, "Dimension out of range")]

CUMSUM = register(
    OpDef(
        "cumsum",
        ("input",),
        jvp="linear",
        batch="along",
        infer=_running_infer,
        cpu=scan.running_cpu,
        cuda=scan.running_cuda,
        vjp=_cumsum_vjp,
        samples=_samples(-2.0),
        error_samples=lambda: _ERRORS,
        reference=_reference(np.cumsum),
        inplace=True,
        autocast="float32",
    )
)

CUMPROD = register(
    OpDef(
        "cumprod",
        ("input",),
        batch="along",
        infer=_running_infer,
        cpu=scan.running_cpu,
        cuda=scan.running_cuda,
        vjp=_cumprod_vjp,
        saves=("input", "out"),
        samples=_samples(0.5),
        error_samples=lambda: _ERRORS,
        reference=_reference(np.cumprod),
        inplace=True,
        autocast="float32",
    )
)


def _into(made: Any, out: Any) -> Any:
    """Return a composed result, or copy it to where it is wanted."""
    if out is None:
        return made
    return ops.copy_(out.target if isinstance(out, Inplace) else out, made)


def _running(op: OpDef, input: Any, dim: int, product: bool, dtype: DType | None, out: Any) -> Any:
    require_tensor(op.name, input)
    if dtype is not None:
        input = ops.to(input, dtype)
    dim = wrap_dim(dim, input.meta.ndim, op.name)
    if input.meta.dtype.is_complex and input.meta.ndim and not product:
        pairs = call(op, (ops.view_as_real(input),), {"dim": dim, "product": False})
        return _into(ops.view_as_complex(pairs), out)
    made = call(op, (input,), {"dim": dim, "product": product}, out)
    narrow = dtype is not None and dtype.kind not in "fc" and dtype is not _dtypes.int64
    return ops.to(made, dtype) if narrow and out is None else made


@front(CUMSUM, inplace=True)
def cumsum(input: Any, dim: int, *, dtype: DType | None = None, out: Any = None) -> Any:
    """Return running sums along a dimension."""
    return _running(CUMSUM, input, dim, False, dtype, out)


@front(CUMPROD, inplace=True)
def cumprod(input: Any, dim: int, *, dtype: DType | None = None, out: Any = None) -> Any:
    """Return running products along a dimension."""
    return _running(CUMPROD, input, dim, True, dtype, out)


def _log_infer(input: TensorMeta, *, dim: int) -> TensorMeta:
    floats = input.dtype.is_floating_point
    dtype = input.dtype if floats else _dtypes.get_default_dtype()
    return meta_of(input.shape, dtype, input.device)


def _log_vjp(g: Any, n: Any) -> Any:
    """Sum ``g exp(x - out)`` from the end, in logarithms, for either sign of `g` apart."""
    parts = []
    for logs in _log_sizes(g):
        later = ops.flip(ops.sub(logs, n.out), (n.dim,)) if g.dim() else ops.sub(logs, n.out)
        total = ops.logcumsumexp(later, n.dim)
        total = ops.flip(total, (n.dim,)) if g.dim() else total
        parts.append(ops.exp(ops.add(total, n.input)))
    return ops.sub(*parts)


def _log_sizes(values: Any) -> list[Any]:
    """Return the logarithms of the positive and of the negative numbers (-inf for the others)."""
    sizes = [ops.clamp(ops.mul(values, sign), min=0) for sign in (1, -1)]
    return [ops.masked_fill(ops.log(size), ops.eq(size, 0), -math.inf) for size in sizes]


def _log_jvp(op: OpDef, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
    """Sum ``t exp(x - out)`` up to each place, in logarithms, for either sign of `t` apart."""
    totals = [call(op, (ops.add(logs, primals[0]),), params) for logs in _log_sizes(tangents[0])]
    return ops.sub(*[ops.exp(ops.sub(total, out)) for total in totals])


LOGCUMSUMEXP = register(
    OpDef(
        "logcumsumexp",
        ("input",),
        jvp=_log_jvp,
        batch="along",
        infer=_log_infer,
        cpu=scan.log_running_cpu,
        cuda=scan.log_running_cuda,
        vjp=_log_vjp,
        saves=("input", "out"),
        samples=lambda: [
            Sample((T((5,)), 0), gradgrad=False),
            Sample((T((3, 4), low=-30, high=30), 1), gradgrad=False),
            Sample((T((2, 3, 2), layout="strided"), -2), gradgrad=False),
        ],
        error_samples=lambda: _ERRORS,
        reference=lambda x, dim: np.logaddexp.accumulate(x, dim),
        autocast="float32",
    )
)


@front(LOGCUMSUMEXP)
def logcumsumexp(input: Any, dim: int, *, out: Any = None) -> Any:
    """Return the logarithms of running sums of exponentials, safe from overflow."""
    require_tensor("logcumsumexp", input)
    params = {"dim": wrap_dim(dim, input.meta.ndim, "logcumsumexp")}
    return call(LOGCUMSUMEXP, (input,), params, out)


# ---------------------------------------------------------------------------------------------
# Running extremes


def _extreme_infer(input: TensorMeta, *, dim: int, largest: bool) -> tuple[TensorMeta, TensorMeta]:
    return (
        meta_of(input.shape, input.dtype, input.device),
        meta_of(input.shape, _dtypes.int64, input.device),
    )


def _extreme_vjp(g: Any, n: Any) -> Any:
    if g[0] is None:
        return None
    zeros = ops.zeros(tuple(n.metas[0].shape), dtype=g[0].dtype, device=g[0].device)
    return ops.scatter_add(zeros, n.dim, n.out1, g[0])


def _extreme_reference(ufunc: Any, x: Any, dim: int) -> list[Any]:
    values = ufunc.accumulate(x, dim)
    places = np.arange(x.shape[dim]).reshape(
        [-1 if d == dim % x.ndim else 1 for d in range(x.ndim)]
    )
    return [values, np.maximum.accumulate(np.where(x == values, places, 0), dim)]


def _extreme_op(name: str) -> OpDef:
    accumulate = np.maximum if name == "cummax" else np.minimum
    return register(
        OpDef(
            name, ("input",), batch="along",
            infer=_extreme_infer, cpu=scan.extreme_cpu, cuda=scan.extreme_cuda,
            vjp=_extreme_vjp, saves=("out1",), nondiff_outputs=(1,),
            samples=lambda: [
                Sample((T((5,)), 0)),
                Sample((T((3, 4), layout="transposed"), 1)),
                Sample((T((2, 3, 2), layout="strided"), -2)),
            ],
            error_samples=lambda: _ERRORS,
            reference=lambda x, dim: _extreme_reference(accumulate, x, dim),
        )
    )  # fmt: skip


CUMMAX, CUMMIN = _extreme_op("cummax"), _extreme_op("cummin")


def _extreme(op: OpDef, input: Any, dim: int, largest: bool) -> Any:
    require_tensor(op.name, input)
    dim = wrap_dim(dim, input.meta.ndim, op.name)
    result = named_result(op.name, "values", "indices")
    return result(call(op, (input,), {"dim": dim, "largest": largest}))


@front(CUMMAX)
def cummax(input: Any, dim: int) -> Any:
    """Return the largest element so far along a dimension, and its place."""
    return _extreme(CUMMAX, input, dim, True)


@front(CUMMIN)
def cummin(input: Any, dim: int) -> Any:
    """Return the smallest element so far along a dimension, and its place."""
    return _extreme(CUMMIN, input, dim, False)
