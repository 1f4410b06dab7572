"""Exponentials, logarithms, powers and roots.

Invariants
----------
* Integers give floating-point results of the default dtype, but for `pow` and `square`, which keep
  the promoted dtype.
* A power with one of the usual exponents (2, 3, 1/2, -1, ...) runs without a logarithm.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorImpl
from refruntime._ops import samples_inner as inner
from refruntime._ops.backward import fused_backward
from refruntime._ops.elementwise import pointwise
from refruntime._ops.opdef import NO_PARAMS, front, ops
from refruntime._ops.samples import ErrorSample, Sample, T, binary, unary
from refruntime.errors import DTypeError
from refruntime.kernels.mathtable import (
    exp,
    exp2,
    expm1,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    maximum,
    rsqrt,
    sigmoid,
    sqrt,
)

LN2 = math.log(2.0)
LN10 = math.log(10.0)

# ---------------------------------------------------------------------------------------------
# Exponentials and logarithms


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, n.out), saves=("out",), reference=np.exp,
           samples=unary())  # fmt: skip
def exp_(input: Any) -> Any:
    """Return e to the power of `input`."""
    return exp(input)


@pointwise(result="float", vjp=lambda g, n: ops.mul(ops.mul(g, n.out), LN2), saves=("out",),
           reference=np.exp2, samples=unary())  # fmt: skip
def exp2_(input: Any) -> Any:
    """Return 2 to the power of `input`."""
    return exp2(input)


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, ops.add(n.out, 1)), saves=("out",),
           reference=np.expm1, samples=unary())  # fmt: skip
def expm1_(input: Any) -> Any:
    """Return ``exp(input) - 1``, accurate near zero."""
    return expm1(input)


@pointwise(result="float", vjp=lambda g, n: ops.div(g, n.input), saves=("input",), reference=np.log,
           samples=unary(0.1, 4.0))  # fmt: skip
def log_(input: Any) -> Any:
    """Return the natural logarithm."""
    return log(input)


@pointwise(result="float", vjp=lambda g, n: ops.div(g, ops.mul(n.input, LN2)), saves=("input",),
           reference=np.log2, samples=unary(0.1, 4.0))  # fmt: skip
def log2_(input: Any) -> Any:
    """Return the logarithm to base 2."""
    return log2(input)


@pointwise(result="float", vjp=lambda g, n: ops.div(g, ops.mul(n.input, LN10)), saves=("input",),
           reference=np.log10, samples=unary(0.1, 4.0))  # fmt: skip
def log10_(input: Any) -> Any:
    """Return the logarithm to base 10."""
    return log10(input)


@pointwise(result="float", vjp=lambda g, n: ops.div(g, ops.add(n.input, 1)), saves=("input",),
           reference=np.log1p, samples=unary(-0.9, 4.0),
           backward_name="Log1PBackward0")  # fmt: skip
def log1p_(input: Any) -> Any:
    """Return ``log(1 + input)``, accurate near zero."""
    return log1p(input)


@fused_backward
def sigmoid_backward(grad: Any, out: Any) -> Any:
    """Gradient of sigmoid from its result."""
    return grad * (out * (1 - out))


SIGMOID_BACKWARD: Any = sigmoid_backward


@pointwise(result="float", vjp=lambda g, n: call(SIGMOID_BACKWARD, (g, n.out)), saves=("out",),
           reference=lambda x: 1 / (1 + np.exp(-x)), samples=unary(-6.0, 6.0),
           aliases=("expit",))  # fmt: skip
def sigmoid_(input: Any) -> Any:
    """Return ``1 / (1 + exp(-input))``."""
    return sigmoid(input)


@fused_backward
def logaddexp_backward(grad: Any, input: Any, other: Any) -> Any:
    """Gradient of logaddexp with respect to its first operand."""
    return grad * (1 if input == other and isinf(input) else sigmoid(input - other))


LOGADDEXP_BACKWARD: Any = logaddexp_backward


def _logaddexp_vjp(g: Any, n: Any) -> Any:
    return (
        call(LOGADDEXP_BACKWARD, (g, n.input, n.other)) if n.needs[0] else None,
        call(LOGADDEXP_BACKWARD, (g, n.other, n.input)) if n.needs[1] else None,
    )


@pointwise(vjp=_logaddexp_vjp, saves=("input", "other"), reference=np.logaddexp, refuse="biu",
           samples=binary(number=None), inplace=False)  # fmt: skip
def logaddexp(input: Any, other: Any) -> Any:
    """Return ``log(exp(input) + exp(other))`` without overflow."""
    same = input == other and isinf(input)
    gap = -abs(input - other)
    return input if same else maximum(input, other) + log1p(exp(gap))


@pointwise(reference=np.logaddexp2, refuse="biu", samples=binary(number=None), inplace=False,
           saves=("input", "other"),
           vjp=lambda g, n: _logaddexp2_vjp(g, n))  # fmt: skip
def logaddexp2(input: Any, other: Any) -> Any:
    """Return ``log2(2**input + 2**other)`` without overflow."""
    same = input == other and isinf(input)
    gap = -abs(input - other)
    return input if same else maximum(input, other) + log1p(exp2(gap)) / LN2


def _logaddexp2_vjp(g: Any, n: Any) -> Any:
    first, second = ops.mul(n.input, LN2), ops.mul(n.other, LN2)
    return (
        call(LOGADDEXP_BACKWARD, (g, first, second)) if n.needs[0] else None,
        call(LOGADDEXP_BACKWARD, (g, second, first)) if n.needs[1] else None,
    )


def _xlogy_vjp(g: Any, n: Any) -> Any:
    return (
        ops.where(ops.logical_and(ops.eq(n.input, 0), ops.le(n.other, 0)), 0.0,
                  ops.mul(g, ops.log(n.other))) if n.needs[0] else None,
        ops.mul(g, ops.div(n.input, n.other)) if n.needs[1] else None,
    )  # fmt: skip


def _xlogy_reference(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where(np.isnan(y), np.nan, np.where(x == 0, 0.0, x * np.log(y)))


@pointwise(publish=False, result="float", vjp=_xlogy_vjp, saves=("input", "other"),
           reference=_xlogy_reference, samples=binary(0.2, 3.0, number=None))  # fmt: skip
def xlogy_(input: Any, other: Any) -> Any:
    """Product with a logarithm."""
    return other if isnan(other) else 0 if input == 0 else input * log(other)


XLOGY: Any = xlogy_


@front(XLOGY, inplace=True)
def xlogy(input: Any, other: Any, *, out: Any = None) -> Any:
    """Return ``input * log(other)``, and 0 where `input` is 0."""
    return call(XLOGY, (input, other), NO_PARAMS, out)


# ---------------------------------------------------------------------------------------------
# Roots and powers


@pointwise(result="float", vjp=lambda g, n: ops.div(g, ops.mul(n.out, 2)), saves=("out",),
           reference=np.sqrt, samples=unary(0.1, 4.0))  # fmt: skip
def sqrt_(input: Any) -> Any:
    """Return the square root."""
    return sqrt(input)


@fused_backward
def rsqrt_backward(grad: Any, out: Any) -> Any:
    """Gradient of rsqrt from its result."""
    return -0.5 * grad * (out * out * out)


RSQRT_BACKWARD: Any = rsqrt_backward


@pointwise(result="float", vjp=lambda g, n: call(RSQRT_BACKWARD, (g, n.out)), saves=("out",),
           reference=lambda x: 1 / np.sqrt(x), samples=unary(0.1, 4.0))  # fmt: skip
def rsqrt_(input: Any) -> Any:
    """Return ``1 / sqrt(input)``."""
    return rsqrt(input)


@fused_backward
def square_backward(grad: Any, input: Any) -> Any:
    """Gradient of a square."""
    return grad * (input * 2)


SQUARE_BACKWARD: Any = square_backward


def _square_vjp(g: Any, n: Any) -> Any:
    return call(SQUARE_BACKWARD, (g, n.input))


@pointwise(vjp=_square_vjp, saves=("input",), reference=np.square, samples=unary(),
           backward_name="PowBackward0")  # fmt: skip
def square(input: Any) -> Any:
    """Return ``input * input``."""
    return input * input


@fused_backward
def cube_backward(grad: Any, input: Any) -> Any:
    """Gradient of a third power."""
    return grad * (input * input * 3)


CUBE_BACKWARD: Any = cube_backward


@pointwise(
    publish=False,
    name="cube",
    **inner.CUBE,
    vjp=lambda g, n: call(CUBE_BACKWARD, (g, n.input)),
    saves=("input",),
    backward_name="PowBackward0",
)
def _cube(input: Any) -> Any:
    return input * input * input


@fused_backward
def pow_backward_input(grad: Any, input: Any, exponent: Any) -> Any:
    """Gradient of a power with respect to its base."""
    return 0 if exponent == 0 else grad * (exponent * input ** (exponent - 1))


@fused_backward
def pow_backward_exponent(grad: Any, input: Any, exponent: Any, out: Any) -> Any:
    """Gradient of a power with respect to its exponent."""
    return 0 if input == 0 and exponent >= 0 else grad * (out * log(input))


POW_BACKWARD_INPUT: Any = pow_backward_input
POW_BACKWARD_EXPONENT: Any = pow_backward_exponent


def _pow_vjp(g: Any, n: Any) -> Any:
    base = exponent = None
    if n.needs[0]:
        base = call(POW_BACKWARD_INPUT, (g, n.input, n.exponent))
    if n.needs[1]:
        exponent = call(POW_BACKWARD_EXPONENT, (g, n.input, n.exponent, n.out))
    return base, exponent


def _pow_samples() -> Any:
    yield from binary(0.3, 2.0, right=(-2.0, 2.0), number=None)()
    for number in (2, 3, 0.5, -0.5, -1, 1, 0, 2.5, -2):
        yield Sample((T((4,), low=0.4), number), name=f"exponent {number}")
    yield Sample((2.5, T((4,))), name="number base")
    yield Sample((T((4,), _dtypes.int64), T((4,), _dtypes.int64, low=0, high=4)), grad=False)


def _pow_errors() -> Any:
    yield ErrorSample((T((2,), _dtypes.int64), -1), RuntimeError, "negative integer powers")
    yield ErrorSample((T((2,)), T((3,))), RuntimeError, "must match the size")


@pointwise(publish=False, vjp=_pow_vjp, saves=("input", "exponent", "out"), reference=np.power,
           samples=_pow_samples, error_samples=_pow_errors,
           backward_name="PowBackward1")  # fmt: skip
def pow_(input: Any, exponent: Any) -> Any:
    """Power."""
    return input**exponent


POW: Any = pow_
CUBE: Any = _cube


def _usual_power(input: TensorImpl, exponent: Any) -> Any:
    """Return the record that raises `input` to a usual exponent, or None."""
    if exponent == 2:
        return square.op  # type: ignore[attr-defined]
    if exponent == 3:
        return CUBE
    if input.meta.dtype.is_floating_point:
        if exponent == 0.5:
            return sqrt_.op  # type: ignore[attr-defined]
        if exponent == -0.5:
            return rsqrt_.op  # type: ignore[attr-defined]
        if exponent == -1:
            return ops.reciprocal.op
    return None


@front(POW, inplace=True)
def pow(input: Any, exponent: Any, *, out: Any = None) -> Any:
    """Return ``input ** exponent``; either may be a number."""
    if isinstance(input, TensorImpl) and isinstance(exponent, (int, float)):
        dtype = input.meta.dtype
        if dtype.kind in "iu" and isinstance(exponent, int) and exponent < 0:
            raise DTypeError(
                "pow", what="Integers to negative integer powers are not allowed.",
                expected="an exponent of at least 0, or a float", got=f"{dtype} ** {exponent}",
                remedy="convert the base with .float()",
            )  # fmt: skip
        # The exponent's kind takes part in promotion: a float makes integers float.
        if dtype.is_floating_point or not isinstance(exponent, float):
            record = _usual_power(input, exponent)
            if record is not None:
                return call(record, (input,), NO_PARAMS, out)
    return call(POW, (input, exponent), NO_PARAMS, out)


@front(POW)
def float_power(input: Any, exponent: Any, *, out: Any = None) -> Any:
    """Return ``input ** exponent`` in float64."""
    wide = [ops.to(v, _dtypes.float64) if isinstance(v, TensorImpl) else float(v)
            for v in (input, exponent)]  # fmt: skip
    return pow(*wide, out=out)


@pointwise(vjp=lambda g, n: _ldexp_vjp(g, n), saves=("input", "other"), result="float",
           samples=binary(number=None), reference=lambda x, y: x * np.exp2(y))  # fmt: skip
def ldexp(input: Any, other: Any) -> Any:
    """Return ``input * 2**other``."""
    return input * exp2(other)


def _ldexp_vjp(g: Any, n: Any) -> Any:
    scaled = ops.mul(g, ops.exp2(n.other))
    return scaled, ops.mul(ops.mul(scaled, n.input), LN2) if n.needs[1] else None
