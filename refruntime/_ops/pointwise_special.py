"""Special functions: errors of the normal distribution, gamma and its logarithmic derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime._dispatch import call
from refruntime._ops import samples_inner as inner
from refruntime._ops.backward import fused_backward
from refruntime._ops.elementwise import pointwise
from refruntime._ops.opdef import METHODS, NO_PARAMS, front, ops
from refruntime._ops.samples import ErrorSample, Sample, T, unary
from refruntime.errors import ArgumentValueError, AutogradError
from refruntime.kernels.mathtable import (
    digamma,
    erf,
    erfc,
    erfinv,
    exp,
    i0e,
    i1e,
    lgamma,
    log,
    zeta,
)

TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)
HALF_SQRT_PI = math.sqrt(math.pi) / 2.0


def _each(function: Any) -> Any:
    return np.vectorize(function, otypes=[np.float64])


@fused_backward
def erf_backward(grad: Any, input: Any) -> Any:
    """Gradient of erf."""
    return grad * (TWO_OVER_SQRT_PI * exp(-(input * input)))


@fused_backward
def erfinv_backward(grad: Any, out: Any) -> Any:
    """Gradient of erfinv from its result."""
    return grad * (HALF_SQRT_PI * exp(out * out))


ERF_BACKWARD: Any = erf_backward
ERFINV_BACKWARD: Any = erfinv_backward


@pointwise(result="float", vjp=lambda g, n: call(ERF_BACKWARD, (g, n.input)), saves=("input",),
           reference=_each(math.erf), samples=unary(-3.0, 3.0))  # fmt: skip
def erf_(input: Any) -> Any:
    """Return the error function."""
    return erf(input)


@pointwise(result="float", vjp=lambda g, n: ops.neg(call(ERF_BACKWARD, (g, n.input))),
           saves=("input",), reference=_each(math.erfc), samples=unary(-3.0, 3.0))  # fmt: skip
def erfc_(input: Any) -> Any:
    """Return ``1 - erf(input)``, accurate far from zero."""
    return erfc(input)


def _erfinv_reference(y: Any) -> Any:
    low, high = np.full(np.shape(y), -7.0), np.full(np.shape(y), 7.0)
    for _ in range(90):
        middle = (low + high) / 2
        below = _each(math.erf)(middle) < y if np.size(y) else np.zeros(np.shape(y), bool)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


@pointwise(result="float", vjp=lambda g, n: call(ERFINV_BACKWARD, (g, n.out)), saves=("out",),
           reference=_erfinv_reference, samples=unary(-0.9, 0.9))  # fmt: skip
def erfinv_(input: Any) -> Any:
    """Return the inverse of the error function."""
    return erfinv(input)


@fused_backward
def logit_backward(grad: Any, input: Any) -> Any:
    """Gradient of logit."""
    return grad / (input * (1 - input))


@fused_backward
def logit_clamped_backward(grad: Any, input: Any, *, eps: Any) -> Any:
    """Gradient of logit with clamped operand."""
    inside = input >= eps and input <= 1 - eps
    return grad / (input * (1 - input)) if inside else 0


LOGIT_BACKWARD: Any = logit_backward
LOGIT_CLAMPED_BACKWARD: Any = logit_clamped_backward


def _logit_reference(x: Any, eps: float | None = None) -> Any:
    x = x if eps is None else np.clip(x, eps, 1 - eps)
    return np.log(x / (1 - x))


def _logit_samples() -> Any:
    yield from unary(0.05, 0.95)()
    yield Sample((T((6,), low=0.0, high=1.0),), {"eps": 0.2})


@pointwise(publish=False, result="float", vjp=lambda g, n: call(LOGIT_BACKWARD, (g, n.input)),
           saves=("input",), reference=_logit_reference, samples=_logit_samples)  # fmt: skip
def logit_(input: Any) -> Any:
    """Logarithm of the odds."""
    return log(input / (1 - input))


@pointwise(
    publish=False,
    name="logit_clamped",
    **inner.LOGIT_CLAMPED,
    result="float",
    saves=("input",),
    vjp=lambda g, n: call(LOGIT_CLAMPED_BACKWARD, (g, n.input), {"eps": n.eps}),
    backward_name="LogitBackward0",
)
def _logit_clamped(input: Any, *, eps: Any) -> Any:
    bounded = eps if input < eps else 1 - eps if input > 1 - eps else input
    return log(bounded / (1 - bounded))


LOGIT: Any = logit_
LOGIT_CLAMPED: Any = _logit_clamped


@front(LOGIT, inplace=True)
def logit(input: Any, eps: float | None = None, *, out: Any = None) -> Any:
    """Return ``log(input / (1 - input))``, the operand clamped by `eps` if given."""
    if eps is None:
        return call(LOGIT, (input,), NO_PARAMS, out)
    return call(LOGIT_CLAMPED, (input,), {"eps": float(eps)}, out)


# ---------------------------------------------------------------------------------------------
# Gamma


def _digamma_reference(x: Any) -> Any:
    step = 1e-5
    return (_each(math.lgamma)(x + step) - _each(math.lgamma)(x - step)) / (2 * step)


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, ops.digamma(n.input)), saves=("input",),
           reference=_each(math.lgamma), samples=unary(0.3, 4.0))  # fmt: skip
def lgamma_(input: Any) -> Any:
    """Return the logarithm of the magnitude of gamma."""
    return lgamma(input)


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, ops.polygamma(1, n.input)), saves=("input",),
           reference=_digamma_reference, samples=unary(0.5, 4.0))  # fmt: skip
def digamma_(input: Any) -> Any:
    """Return the derivative of lgamma."""
    return digamma(input)


def _polygamma_reference(n: int, x: Any) -> Any:
    k = np.arange(20000.0)
    total = (1 / (np.asarray(x)[..., None] + k) ** (n + 1)).sum(-1)
    # The rest of the sum, by the midpoint rule.
    total += 1 / (n * (x + len(k) - 0.5) ** n)
    return (-1.0) ** (n + 1) * math.factorial(n) * total


def _polygamma_samples() -> Any:
    for n in (1, 2, 3):
        for sample in unary(0.5, 4.0)():
            yield Sample((n, *sample.args), name=sample.name, grad=sample.grad)


def _polygamma_errors() -> Any:
    yield ErrorSample((-1, T((2,))), ValueError, "nonnegative")


@pointwise(publish=False, result="float", saves=("input",), inplace=False,
           vjp=lambda g, n: ops.mul(g, ops.polygamma(int(n.order) + 1, n.input)),
           reference=_polygamma_reference, samples=_polygamma_samples,
           error_samples=_polygamma_errors)  # fmt: skip
def polygamma_(input: Any, *, order: Any, factor: Any) -> Any:
    """Derivatives of digamma."""
    return factor * zeta(order + 1, input)


POLYGAMMA: Any = polygamma_


@front(POLYGAMMA, method=False)
def polygamma(n: int, input: Any, *, out: Any = None) -> Any:
    """Return the n-th derivative of digamma."""
    if n < 0:
        raise ArgumentValueError(
            "polygamma", what="polygamma(n, x) does not support negative n.",
            expected="a nonnegative order", got=str(n),
        )  # fmt: skip
    if n == 0:
        return call(digamma_.op, (input,), NO_PARAMS, out)  # type: ignore[attr-defined]
    factor = (-1.0) ** (n + 1) * math.factorial(n)
    return call(POLYGAMMA, (input,), {"order": float(n), "factor": factor}, out)


METHODS["polygamma"] = lambda self, n: polygamma(n, self)


def _zeta_vjp(g: Any, n: Any) -> Any:
    if n.needs[0]:
        raise AutogradError(
            "zeta", what="the derivative for 'input' is not implemented",
            expected="an 'other' that requires grad", got="an 'input' that does",
            remedy="detach 'input'",
        )  # fmt: skip
    slope = ops.mul(n.input, ops.zeta(ops.add(n.input, 1), n.other))
    return None, ops.neg(ops.mul(g, slope))


def _zeta_reference(s: Any, q: Any) -> Any:
    return _polygamma_reference(1, q) if np.all(s == 2) else _polygamma_reference(2, q) / -2


def _zeta_samples() -> Any:
    for power in (2.0, 3.0):
        exponents = T((5,), values=[power] * 5, grad=False)
        yield Sample((exponents, T((5,), low=0.5, high=4.0)))


@pointwise(result="float", reference=_zeta_reference, method=False, vjp=_zeta_vjp,
           saves=("input", "other"), inplace=False, samples=_zeta_samples)  # fmt: skip
def zeta_(input: Any, other: Any) -> Any:
    """Return Hurwitz's zeta function, the sum of ``(other + k) ** -input``."""
    return zeta(input, other)


# ---------------------------------------------------------------------------------------------
# Bessel


def _i0e_reference(x: Any) -> Any:
    return np.i0(x) * np.exp(-np.abs(x)) if np.size(x) else np.zeros(np.shape(x))


def _i1_reference(x: Any) -> Any:
    """Integrate ``exp(x cos t) cos t / pi`` over half a period, by the trapezoidal rule."""
    angles = np.linspace(0, np.pi, 201)
    weights = np.where((angles == 0) | (angles == np.pi), 0.5, 1.0) / 200
    values = np.exp(np.asarray(x)[..., None] * np.cos(angles)) * np.cos(angles)
    return (values * weights).sum(-1)


def _over(value: Any, x: Any) -> Any:
    """Return ``value / x`` for a value like ``x / 2`` near zero."""
    zero = ops.eq(x, 0)
    return ops.masked_fill(ops.div(value, ops.masked_fill(x, zero, 1)), zero, 0.5)


def _i1_slope(x: Any) -> Any:
    return ops.sub(ops.i0(x), _over(ops.i1(x), x))


def _i1e_slope(x: Any, out: Any) -> Any:
    turned = ops.add(ops.mul(out, ops.sgn(x)), _over(out, x))
    return ops.sub(ops.i0e(x), turned)


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, ops.i1(n.input)), saves=("input",),
           reference=lambda x: np.i0(x) if np.size(x) else np.zeros(np.shape(x)),
           samples=unary(-6.0, 6.0))  # fmt: skip
def i0(input: Any) -> Any:
    """Return the modified Bessel function of order 0."""
    return i0e(input) * exp(abs(input))


@pointwise(result="float", saves=("input", "out"), reference=_i0e_reference, method=False,
           vjp=lambda g, n: ops.mul(g, ops.sub(ops.i1e(n.input),
                                               ops.mul(ops.sgn(n.input), n.out))),
           inplace=False, samples=unary(-6.0, 6.0))  # fmt: skip
def i0e_(input: Any) -> Any:
    """Return ``exp(-abs(input))`` times the modified Bessel function of order 0."""
    return i0e(input)


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, _i1_slope(n.input)), saves=("input",),
           reference=_i1_reference, method=False, inplace=False,
           samples=unary(-6.0, 6.0))  # fmt: skip
def i1(input: Any) -> Any:
    """Return the modified Bessel function of order 1."""
    return i1e(input) * exp(abs(input))


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, _i1e_slope(n.input, n.out)),
           saves=("input", "out"), reference=lambda x: _i1_reference(x) * np.exp(-np.abs(x)),
           method=False, inplace=False, samples=unary(-6.0, 6.0))  # fmt: skip
def i1e_(input: Any) -> Any:
    """Return ``exp(-abs(input))`` times the modified Bessel function of order 1."""
    return i1e(input)
