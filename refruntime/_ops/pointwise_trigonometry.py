"""Angles: circular and hyperbolic functions and their inverses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime._dispatch import call
from refruntime._ops.backward import fused_backward
from refruntime._ops.elementwise import pointwise
from refruntime._ops.opdef import ops
from refruntime._ops.samples import binary, unary
from refruntime.kernels.mathtable import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cos,
    cosh,
    hypot,
    rsqrt,
    sin,
    sinh,
    tan,
    tanh,
)

pi = math.pi
DEGREE = pi / 180.0


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, ops.cos(n.input)), saves=("input",),
           reference=np.sin, samples=unary(-6.0, 6.0))  # fmt: skip
def sin_(input: Any) -> Any:
    """Return the sine."""
    return sin(input)


@pointwise(result="float", vjp=lambda g, n: ops.neg(ops.mul(g, ops.sin(n.input))),
           saves=("input",), reference=np.cos, samples=unary(-6.0, 6.0))  # fmt: skip
def cos_(input: Any) -> Any:
    """Return the cosine."""
    return cos(input)


@fused_backward
def tan_backward(grad: Any, out: Any) -> Any:
    """Gradient of the tangent from its result."""
    return grad * (1 + out * out)


@fused_backward
def tanh_backward(grad: Any, out: Any) -> Any:
    """Gradient of tanh from its result."""
    return grad * (1 - out * out)


TAN_BACKWARD: Any = tan_backward
TANH_BACKWARD: Any = tanh_backward


@pointwise(result="float", vjp=lambda g, n: call(TAN_BACKWARD, (g, n.out)), saves=("out",),
           reference=np.tan, samples=unary(-1.2, 1.2))  # fmt: skip
def tan_(input: Any) -> Any:
    """Return the tangent."""
    return tan(input)


@pointwise(result="float", vjp=lambda g, n: call(TANH_BACKWARD, (g, n.out)), saves=("out",),
           reference=np.tanh, samples=unary(-3.0, 3.0))  # fmt: skip
def tanh_(input: Any) -> Any:
    """Return the hyperbolic tangent."""
    return tanh(input)


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, ops.cosh(n.input)), saves=("input",),
           reference=np.sinh, samples=unary())  # fmt: skip
def sinh_(input: Any) -> Any:
    """Return the hyperbolic sine."""
    return sinh(input)


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, ops.sinh(n.input)), saves=("input",),
           reference=np.cosh, samples=unary())  # fmt: skip
def cosh_(input: Any) -> Any:
    """Return the hyperbolic cosine."""
    return cosh(input)


# ---------------------------------------------------------------------------------------------
# Inverses


@fused_backward
def asin_backward(grad: Any, input: Any) -> Any:
    """Gradient of the arc sine."""
    return grad * rsqrt(1 - input * input)


@fused_backward
def atan_backward(grad: Any, input: Any) -> Any:
    """Gradient of the arc tangent."""
    return grad / (1 + input * input)


@fused_backward
def asinh_backward(grad: Any, input: Any) -> Any:
    """Gradient of asinh."""
    return grad * rsqrt(input * input + 1)


@fused_backward
def acosh_backward(grad: Any, input: Any) -> Any:
    """Gradient of acosh."""
    return grad * rsqrt(input * input - 1)


@fused_backward
def atanh_backward(grad: Any, input: Any) -> Any:
    """Gradient of atanh."""
    return grad / (1 - input * input)


ASIN_BACKWARD: Any = asin_backward
ATAN_BACKWARD: Any = atan_backward
ASINH_BACKWARD: Any = asinh_backward
ACOSH_BACKWARD: Any = acosh_backward
ATANH_BACKWARD: Any = atanh_backward


@pointwise(result="float", vjp=lambda g, n: call(ASIN_BACKWARD, (g, n.input)), saves=("input",),
           reference=np.arcsin, samples=unary(-0.9, 0.9), aliases=("arcsin",))  # fmt: skip
def asin_(input: Any) -> Any:
    """Return the arc sine."""
    return asin(input)


@pointwise(result="float", vjp=lambda g, n: ops.neg(call(ASIN_BACKWARD, (g, n.input))),
           saves=("input",), reference=np.arccos, samples=unary(-0.9, 0.9),
           aliases=("arccos",))  # fmt: skip
def acos_(input: Any) -> Any:
    """Return the arc cosine."""
    return acos(input)


@pointwise(result="float", vjp=lambda g, n: call(ATAN_BACKWARD, (g, n.input)), saves=("input",),
           reference=np.arctan, samples=unary(-3.0, 3.0), aliases=("arctan",))  # fmt: skip
def atan_(input: Any) -> Any:
    """Return the arc tangent."""
    return atan(input)


@pointwise(result="float", vjp=lambda g, n: call(ASINH_BACKWARD, (g, n.input)), saves=("input",),
           reference=np.arcsinh, samples=unary(-3.0, 3.0), aliases=("arcsinh",))  # fmt: skip
def asinh_(input: Any) -> Any:
    """Return the inverse hyperbolic sine."""
    return asinh(input)


@pointwise(result="float", vjp=lambda g, n: call(ACOSH_BACKWARD, (g, n.input)), saves=("input",),
           reference=np.arccosh, samples=unary(1.2, 4.0), aliases=("arccosh",))  # fmt: skip
def acosh_(input: Any) -> Any:
    """Return the inverse hyperbolic cosine."""
    return acosh(input)


@pointwise(result="float", vjp=lambda g, n: call(ATANH_BACKWARD, (g, n.input)), saves=("input",),
           reference=np.arctanh, samples=unary(-0.9, 0.9), aliases=("arctanh",))  # fmt: skip
def atanh_(input: Any) -> Any:
    """Return the inverse hyperbolic tangent."""
    return atanh(input)


@fused_backward
def atan2_backward(grad: Any, across: Any, along: Any) -> Any:
    """Gradient of atan2 with respect to the coordinate `along`; `across` is the other one."""
    square = across * across + along * along
    return 0 if square == 0 else grad * (across / square)


ATAN2_BACKWARD: Any = atan2_backward


def _atan2_vjp(g: Any, n: Any) -> Any:
    return (
        call(ATAN2_BACKWARD, (g, n.other, n.input)) if n.needs[0] else None,
        ops.neg(call(ATAN2_BACKWARD, (g, n.input, n.other))) if n.needs[1] else None,
    )


@pointwise(result="float", vjp=_atan2_vjp, saves=("input", "other"), reference=np.arctan2,
           samples=binary(0.2, 2.0, right=(-2.0, -0.2), number=None),
           aliases=("arctan2",))  # fmt: skip
def atan2_(input: Any, other: Any) -> Any:
    """Return the angle of the point (`other`, `input`)."""
    return atan2(input, other)


def _hypot_vjp(g: Any, n: Any) -> Any:
    scaled = ops.div(g, n.out)
    return (
        ops.mul(scaled, n.input) if n.needs[0] else None,
        ops.mul(scaled, n.other) if n.needs[1] else None,
    )


@pointwise(vjp=_hypot_vjp, saves=("input", "other", "out"), reference=np.hypot, refuse="biu",
           samples=binary(0.2, 3.0, number=None))  # fmt: skip
def hypot_(input: Any, other: Any) -> Any:
    """Return the length of the vector (`input`, `other`)."""
    return hypot(input, other)


@pointwise(result="float", vjp=lambda g, n: ops.mul(g, DEGREE), reference=np.deg2rad,
           samples=unary(), backward_name="Deg2RadBackward0")  # fmt: skip
def deg2rad(input: Any) -> Any:
    """Return degrees in radians."""
    return input * DEGREE


@pointwise(result="float", vjp=lambda g, n: ops.div(g, DEGREE), reference=np.rad2deg,
           samples=unary(), backward_name="Rad2DegBackward0")  # fmt: skip
def rad2deg(input: Any) -> Any:
    """Return radians in degrees."""
    return input / DEGREE


@fused_backward
def sinc_backward(grad: Any, input: Any) -> Any:
    """Gradient of sinc."""
    angle = input * pi
    return 0 if input == 0 else grad * ((angle * cos(angle) - sin(angle)) / (angle * input))


SINC_BACKWARD: Any = sinc_backward


@pointwise(result="float", vjp=lambda g, n: call(SINC_BACKWARD, (g, n.input)), saves=("input",),
           reference=np.sinc, samples=unary(0.3, 3.0))  # fmt: skip
def sinc(input: Any) -> Any:
    """Return ``sin(pi * input) / (pi * input)``, 1 at zero."""
    angle = input * pi
    return 1 if input == 0 else sin(angle) / angle
