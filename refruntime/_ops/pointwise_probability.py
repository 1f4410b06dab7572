"""Special functions of probability: the normal distribution's, entropies, scaled errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._ops.elementwise import pointwise
from refruntime._ops.opdef import NO_PARAMS, front, ops
from refruntime._ops.samples import Sample, T, binary, unary
from refruntime.errors import ArgumentValueError
from refruntime.kernels.mathtable import erfc, erfcx, isnan, log, log1p

TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)
SQRT_HALF = math.sqrt(0.5)
SQRT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)
INVERSE_SQRT_TWO_PI = 1.0 / math.sqrt(2.0 * math.pi)
INFINITY = math.inf


def _floating(x: Any) -> Any:
    """Return the dtype of the operand, or the default one for integers."""
    return x.dtype if x.dtype.is_floating_point else _dtypes.get_default_dtype()


def _erfcx_reference(x: Any) -> Any:
    x = np.asarray(x, np.float64)
    return np.exp(x * x) * np.vectorize(math.erfc, otypes=[np.float64])(x)


@pointwise(result="float", method=False, inplace=False, saves=("input", "out"),
           vjp=lambda g, n: ops.mul(g, ops.sub(ops.mul(ops.mul(n.input, 2), n.out),
                                               TWO_OVER_SQRT_PI)),
           reference=_erfcx_reference, samples=unary(-2.0, 3.0))  # fmt: skip
def erfcx_(input: Any) -> Any:
    """Return ``exp(input ** 2) * erfc(input)``."""
    return erfcx(input)


def _ndtr_vjp(g: Any, n: Any) -> Any:
    density = ops.exp(ops.mul(ops.square(n.input), -0.5))
    return ops.mul(g, ops.mul(density, INVERSE_SQRT_TWO_PI))


def _ndtr_reference(x: Any) -> Any:
    x = np.asarray(x, np.float64)
    return 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(-x * SQRT_HALF)


@pointwise(result="float", method=False, inplace=False, vjp=_ndtr_vjp, saves=("input",),
           reference=_ndtr_reference, samples=unary())  # fmt: skip
def ndtr(input: Any) -> Any:
    """Return the area under the standard normal density up to `input`."""
    return 0.5 * erfc(-input * SQRT_HALF)


def _log_ndtr_vjp(g: Any, n: Any) -> Any:
    # Density over area; the scaled form divides no tiny numbers.
    scaled = ops.erfcx(ops.mul(n.input, -SQRT_HALF))
    return ops.mul(g, ops.div(SQRT_TWO_OVER_PI, scaled))


@pointwise(result="float", method=False, inplace=False, vjp=_log_ndtr_vjp, saves=("input",),
           reference=lambda x: np.log(_ndtr_reference(x)), samples=unary(-3.0, 3.0))  # fmt: skip
def log_ndtr(input: Any) -> Any:
    """Return the logarithm of `ndtr`, also where that would round to 0."""
    scaled = input * SQRT_HALF
    below = log(0.5 * erfcx(-scaled)) - scaled * scaled
    return below if input < -1 else log1p(-0.5 * erfc(scaled))


def _entr_reference(x: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where(x > 0, -x * np.log(x), np.where(x == 0, 0.0, -np.inf))


def _entr_samples() -> Any:
    yield from unary(0.1, 3.0)()
    yield Sample((T((3,), values=[-1.0, 0.0, 2.0]),), grad=False, name="borders")


@pointwise(result="float", method=False, inplace=False, saves=("input",),
           vjp=lambda g, n: ops.mul(g, ops.sub(-1, ops.log(n.input))),
           reference=_entr_reference, samples=_entr_samples)  # fmt: skip
def entr(input: Any) -> Any:
    """Return ``-input * log(input)``: 0 at 0, and minus infinity below."""
    inside = 0 if input == 0 else -input * log(input)
    return input if isnan(input) else inside if input >= 0 else -INFINITY


def _xlog1py_vjp(g: Any, n: Any) -> tuple[Any, Any]:
    gx = gy = None
    if n.needs[0]:
        flat = ops.logical_and(ops.eq(n.input, 0), ops.le(n.other, -1))
        gx = ops.where(flat, 0.0, ops.mul(g, ops.log1p(n.other)))
    if n.needs[1]:
        gy = ops.mul(g, ops.div(n.input, ops.add(n.other, 1)))
    return gx, gy


def _xlog1py_reference(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where(np.isnan(y), np.nan, np.where(x == 0, 0.0, x * np.log1p(y)))


@pointwise(publish=False, result="float", vjp=_xlog1py_vjp, saves=("input", "other"),
           reference=_xlog1py_reference, samples=binary(0.2, 3.0, number=None))  # fmt: skip
def xlog1py_(input: Any, other: Any) -> Any:
    """Product with a logarithm."""
    return other if isnan(other) else 0 if input == 0 else input * log1p(other)


XLOG1PY: Any = xlog1py_


@front(XLOG1PY, method=False)
def xlog1py(input: Any, other: Any, *, out: Any = None) -> Any:
    """Return ``input * log1p(other)``, and 0 where `input` is 0."""
    return call(XLOG1PY, (input, other), NO_PARAMS, out)


@front(method=False)
def ndtri(input: Any, *, out: Any = None) -> Any:
    """Return the number below which the given area of the standard normal density lies."""
    # Twice the area less one, in float64: small areas would be lost in the difference.
    value = ops.erfinv(ops.sub(ops.mul(ops.to(input, _dtypes.float64), 2), 1))
    return ops.mul(ops.to(value, _floating(input)), math.sqrt(2.0), out=out)


@front(inplace=True)
def mvlgamma(input: Any, p: int, *, out: Any = None) -> Any:
    """Return the logarithm of the gamma function of dimension `p`."""
    if p < 1:
        raise ArgumentValueError("mvlgamma", expected="p of at least 1", got=str(p))
    steps = ops.mul(ops.arange(p, dtype=_floating(input), device=input.device), -0.5)
    total = ops.sum(ops.lgamma(ops.add(ops.unsqueeze(input, -1), steps)), -1)
    return ops.add(total, p * (p - 1) / 4 * math.log(math.pi), out=out)
