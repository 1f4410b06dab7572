"""Activation functions of neural networks.

Invariants
----------
* Each saves one tensor: its result where that is enough for the derivative, else its operand.
* The gradient at a kink is torch's choice (relu: 0 at 0).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime._dispatch import call
from refruntime._ops import samples_inner as inner
from refruntime._ops.backward import fused_backward
from refruntime._ops.elementwise import pointwise
from refruntime._ops.opdef import NO_PARAMS, front, ops
from refruntime._ops.samples import ErrorSample, Sample, T, unary
from refruntime.errors import ArgumentValueError
from refruntime.kernels.mathtable import erf, exp, expm1, log1p, maximum, minimum, sigmoid, tanh

SQRT_HALF = math.sqrt(0.5)
# 1 / sqrt(2 pi), the density of the normal distribution at zero.
NORMAL_PEAK = 1.0 / math.sqrt(2.0 * math.pi)
TANH_SCALE = math.sqrt(2.0 / math.pi)
TANH_CUBIC = 0.044715
# Klambauer et al. 2017.
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805

_FLOATS: dict[str, Any] = {"refuse": "biu"}


def _backward(record: Any, value: str, *names: str) -> Any:
    """Return the rule that calls a fused backward with a saved value and params."""

    def vjp(g: Any, n: Any) -> Any:
        params = {name: getattr(n, name) for name in names} if names else NO_PARAMS
        return call(record, (g, getattr(n, value)), params)

    return vjp


# ---------------------------------------------------------------------------------------------
# Piecewise linear


@fused_backward
def relu_backward(grad: Any, out: Any) -> Any:
    """Gradient of relu from its result."""
    return grad if out > 0 else 0


RELU_BACKWARD: Any = relu_backward


@pointwise(vjp=_backward(RELU_BACKWARD, "out"), saves=("out",), refuse="b",
           reference=lambda x: np.maximum(x, 0), samples=unary())  # fmt: skip
def relu(input: Any) -> Any:
    """Return the positive part."""
    return maximum(input, 0)


@fused_backward
def leaky_relu_backward(grad: Any, input: Any, *, negative_slope: Any) -> Any:
    """Gradient of leaky_relu."""
    return grad if input > 0 else grad * negative_slope


LEAKY_RELU_BACKWARD: Any = leaky_relu_backward


@pointwise(vjp=_backward(LEAKY_RELU_BACKWARD, "input", "negative_slope"), saves=("input",),
           reference=lambda x, negative_slope=0.01: np.where(x > 0, x, x * negative_slope),
           samples=unary(negative_slope=0.2), method=False, **_FLOATS)  # fmt: skip
def leaky_relu(input: Any, *, negative_slope: float = 0.01) -> Any:
    """Return ``input`` where positive, else ``negative_slope * input``."""
    return input if input > 0 else input * negative_slope


@fused_backward
def hardtanh_backward(grad: Any, input: Any, *, min_val: Any, max_val: Any) -> Any:
    """Gradient of hardtanh."""
    return grad if input > min_val and input < max_val else 0


HARDTANH_BACKWARD: Any = hardtanh_backward


@pointwise(vjp=_backward(HARDTANH_BACKWARD, "input", "min_val", "max_val"), saves=("input",),
           reference=lambda x, min_val=-1.0, max_val=1.0: np.clip(x, min_val, max_val),
           samples=unary(min_val=-0.5, max_val=1.2), method=False, refuse="b")  # fmt: skip
def hardtanh(input: Any, *, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """Return the operand between two bounds."""
    return minimum(maximum(input, min_val), max_val)


@front(hardtanh.op, method=False, inplace=True)  # type: ignore[attr-defined]
def relu6(input: Any, *, out: Any = None) -> Any:
    """Return the operand between 0 and 6."""
    return hardtanh(input, 0.0, 6.0, out=out)


@fused_backward
def threshold_backward(grad: Any, input: Any, *, threshold: Any) -> Any:
    """Gradient of threshold."""
    return grad if input > threshold else 0


THRESHOLD_BACKWARD: Any = threshold_backward


def _threshold_samples() -> Any:
    for sample in unary()():
        yield Sample((*sample.args, 0.5, -1.0), name=sample.name, grad=sample.grad)


@pointwise(vjp=_backward(THRESHOLD_BACKWARD, "input", "threshold"), saves=("input",),
           reference=lambda x, threshold, value: np.where(x > threshold, x, value),
           samples=_threshold_samples, method=False, publish=False, name="threshold",
           refuse="b")  # fmt: skip
def threshold_(input: Any, *, threshold: Any, value: Any) -> Any:
    """Replace what is not above the threshold."""
    return value if input <= threshold else input


THRESHOLD: Any = threshold_


@front(THRESHOLD, method=False, inplace=True)
def threshold(input: Any, threshold: Any, value: Any, *, out: Any = None) -> Any:
    """Return `value` where the operand is not above `threshold`."""
    return call(THRESHOLD, (input,), {"threshold": threshold, "value": value}, out)


@fused_backward
def shrink_backward(grad: Any, input: Any, *, lambd: Any) -> Any:
    """Gradient of hardshrink and softshrink."""
    return 0 if input >= -lambd and input <= lambd else grad


SHRINK_BACKWARD: Any = shrink_backward


@pointwise(vjp=_backward(SHRINK_BACKWARD, "input", "lambd"), saves=("input",), inplace=False,
           reference=lambda x, lambd=0.5: np.where(np.abs(x) > lambd, x, 0),
           samples=unary(lambd=0.7), **_FLOATS)  # fmt: skip
def hardshrink(input: Any, *, lambd: float = 0.5) -> Any:
    """Return the operand, and 0 between ``-lambd`` and ``lambd``."""
    return 0 if input >= -lambd and input <= lambd else input


@pointwise(vjp=_backward(SHRINK_BACKWARD, "input", "lambd"), saves=("input",), inplace=False,
           reference=lambda x, lambd=0.5: np.sign(x) * np.maximum(np.abs(x) - lambd, 0),
           samples=unary(lambd=0.7), method=False, **_FLOATS)  # fmt: skip
def softshrink(input: Any, *, lambd: float = 0.5) -> Any:
    """Return the operand moved towards zero by `lambd`, at most to zero."""
    return input - lambd if input > lambd else input + lambd if input < -lambd else input * 0


@fused_backward
def hardsigmoid_backward(grad: Any, input: Any) -> Any:
    """Gradient of hardsigmoid."""
    return grad / 6 if input > -3 and input < 3 else 0


@fused_backward
def hardswish_backward(grad: Any, input: Any) -> Any:
    """Gradient of hardswish."""
    inner = grad * (input / 3 + 0.5)
    return 0 if input <= -3 else grad if input >= 3 else inner


HARDSIGMOID_BACKWARD: Any = hardsigmoid_backward
HARDSWISH_BACKWARD: Any = hardswish_backward


@pointwise(vjp=_backward(HARDSIGMOID_BACKWARD, "input"), saves=("input",), method=False,
           reference=lambda x: np.clip(x + 3, 0, 6) / 6, samples=unary(-4.0, 4.0),
           **_FLOATS)  # fmt: skip
def hardsigmoid(input: Any) -> Any:
    """Return ``relu6(input + 3) / 6``."""
    return minimum(maximum(input + 3, 0), 6) / 6


@pointwise(vjp=_backward(HARDSWISH_BACKWARD, "input"), saves=("input",), method=False,
           reference=lambda x: x * np.clip(x + 3, 0, 6) / 6, samples=unary(-4.0, 4.0),
           **_FLOATS)  # fmt: skip
def hardswish(input: Any) -> Any:
    """Return ``input * relu6(input + 3) / 6``."""
    return input * minimum(maximum(input + 3, 0), 6) / 6


# ---------------------------------------------------------------------------------------------
# Exponential below zero


@fused_backward
def elu_backward(grad: Any, input: Any, *, alpha: Any, scale: Any, input_scale: Any) -> Any:
    """Gradient of elu."""
    below = grad * (alpha * scale * input_scale * exp(input * input_scale))
    return below if input <= 0 else grad * scale


ELU_BACKWARD: Any = elu_backward


def _elu_reference(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x * input_scale, 0)))


@pointwise(vjp=_backward(ELU_BACKWARD, "input", "alpha", "scale", "input_scale"), saves=("input",),
           reference=_elu_reference, samples=unary(alpha=1.3), method=False, **_FLOATS)  # fmt: skip
def elu(input: Any, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """Return ``input`` where positive, else ``alpha * (exp(input) - 1)``."""
    below = alpha * expm1(input * input_scale)
    return (input if input > 0 else below) * scale


@front(elu.op, method=False, inplace=True)  # type: ignore[attr-defined]
def selu(input: Any, *, out: Any = None) -> Any:
    """Return elu with the constants that keep activations normalised."""
    return elu(input, SELU_ALPHA, SELU_SCALE, out=out)


@fused_backward
def celu_backward(grad: Any, input: Any, *, alpha: Any) -> Any:
    """Gradient of celu."""
    return grad if input > 0 else grad * exp(input / alpha)


CELU_BACKWARD: Any = celu_backward


def _celu_reference(x: Any, alpha: float = 1.0) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))


@pointwise(vjp=_backward(CELU_BACKWARD, "input", "alpha"), saves=("input",), method=False,
           reference=_celu_reference,
           samples=unary(alpha=1.5), **_FLOATS)  # fmt: skip
def celu(input: Any, *, alpha: float = 1.0) -> Any:
    """Return ``input`` where positive, else ``alpha * (exp(input / alpha) - 1)``."""
    return input if input > 0 else alpha * expm1(input / alpha)


# ---------------------------------------------------------------------------------------------
# Smooth


@fused_backward
def silu_backward(grad: Any, input: Any) -> Any:
    """Gradient of silu."""
    gate = sigmoid(input)
    return grad * (gate * (1 + input * (1 - gate)))


SILU_BACKWARD: Any = silu_backward


@pointwise(vjp=_backward(SILU_BACKWARD, "input"), saves=("input",), method=False,
           reference=lambda x: x / (1 + np.exp(-x)), samples=unary(-4.0, 4.0),
           **_FLOATS)  # fmt: skip
def silu(input: Any) -> Any:
    """Return ``input * sigmoid(input)``."""
    return input * sigmoid(input)


@fused_backward
def gelu_backward(grad: Any, input: Any) -> Any:
    """Gradient of gelu."""
    below = 0.5 * (1 + erf(input * SQRT_HALF))
    return grad * (below + input * (NORMAL_PEAK * exp(-0.5 * (input * input))))


@fused_backward
def gelu_tanh_backward(grad: Any, input: Any) -> Any:
    """Gradient of the tanh form of gelu."""
    square = input * input
    t = tanh(TANH_SCALE * (input + TANH_CUBIC * (square * input)))
    slope = TANH_SCALE * (1 + 3 * TANH_CUBIC * square)
    return grad * (0.5 * (1 + t) + 0.5 * (input * ((1 - t * t) * slope)))


GELU_BACKWARD: Any = gelu_backward
GELU_TANH_BACKWARD: Any = gelu_tanh_backward


def _gelu_reference(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(TANH_SCALE * (x + TANH_CUBIC * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x * SQRT_HALF))


def _gelu_samples() -> Any:
    yield from unary(-4.0, 4.0)()
    yield from unary(-4.0, 4.0, approximate="tanh")()


def _gelu_errors() -> Any:
    yield ErrorSample((T((2,)),), ValueError, "approximate", {"approximate": "sigmoid"})


@pointwise(publish=False, vjp=_backward(GELU_BACKWARD, "input"), saves=("input",),
           reference=_gelu_reference, samples=_gelu_samples, error_samples=_gelu_errors,
           **_FLOATS)  # fmt: skip
def gelu_(input: Any) -> Any:
    """Gate by the normal distribution."""
    return 0.5 * input * (1 + erf(input * SQRT_HALF))


@pointwise(
    publish=False,
    vjp=_backward(GELU_TANH_BACKWARD, "input"),
    saves=("input",),
    name="gelu_tanh",
    **inner.GELU_TANH,
    backward_name="GeluBackward0",
    **_FLOATS,
)
def _gelu_tanh(input: Any) -> Any:
    inner = TANH_SCALE * (input + TANH_CUBIC * (input * input * input))
    return 0.5 * input * (1 + tanh(inner))


GELU: Any = gelu_
GELU_TANH: Any = _gelu_tanh


@front(GELU, method=False, inplace=True)
def gelu(input: Any, *, approximate: str = "none", out: Any = None) -> Any:
    """Return ``input`` times the normal distribution function; `approximate` may be "tanh"."""
    if approximate not in ("none", "tanh"):
        raise ArgumentValueError(
            "gelu", what="approximate argument must be either none or tanh",
            expected="'none' or 'tanh'", got=repr(approximate),
        )  # fmt: skip
    return call(GELU_TANH if approximate == "tanh" else GELU, (input,), NO_PARAMS, out)


@fused_backward
def softplus_backward(grad: Any, input: Any, *, beta: Any, threshold: Any) -> Any:
    """Gradient of softplus."""
    scaled = input * beta
    return grad if scaled > threshold else grad * sigmoid(scaled)


SOFTPLUS_BACKWARD: Any = softplus_backward


@pointwise(vjp=_backward(SOFTPLUS_BACKWARD, "input", "beta", "threshold"), saves=("input",),
           reference=lambda x, beta=1.0, threshold=20.0: np.logaddexp(0, x * beta) / beta,
           samples=unary(beta=2.0), method=False, inplace=False, **_FLOATS)  # fmt: skip
def softplus(input: Any, *, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return ``log(1 + exp(beta * input)) / beta``; the operand itself above the threshold."""
    scaled = input * beta
    smooth = (maximum(scaled, 0) + log1p(exp(-abs(scaled)))) / beta
    return input if scaled > threshold else smooth


@fused_backward
def logsigmoid_backward(grad: Any, input: Any) -> Any:
    """Gradient of logsigmoid."""
    return grad * sigmoid(-input)


LOGSIGMOID_BACKWARD: Any = logsigmoid_backward


@pointwise(vjp=_backward(LOGSIGMOID_BACKWARD, "input"), saves=("input",), method=False,
           inplace=False, backward_name="LogSigmoidBackward0", aliases=("log_sigmoid",),
           reference=lambda x: -np.logaddexp(0, -x), samples=unary(-4.0, 4.0),
           **_FLOATS)  # fmt: skip
def logsigmoid(input: Any) -> Any:
    """Return the logarithm of the sigmoid."""
    return minimum(input, 0) - log1p(exp(-abs(input)))


@fused_backward
def mish_backward(grad: Any, input: Any) -> Any:
    """Gradient of mish."""
    t = tanh(maximum(input, 0) + log1p(exp(-abs(input))))
    return grad * (t + input * (sigmoid(input) * (1 - t * t)))


MISH_BACKWARD: Any = mish_backward


@pointwise(vjp=_backward(MISH_BACKWARD, "input"), saves=("input",), method=False,
           reference=lambda x: x * np.tanh(np.logaddexp(0, x)), samples=unary(-4.0, 4.0),
           **_FLOATS)  # fmt: skip
def mish(input: Any) -> Any:
    """Return ``input * tanh(softplus(input))``."""
    return input * tanh(maximum(input, 0) + log1p(exp(-abs(input))))


@fused_backward
def softsign_backward(grad: Any, input: Any) -> Any:
    """Gradient of softsign."""
    below = 1 + abs(input)
    return grad / (below * below)


SOFTSIGN_BACKWARD: Any = softsign_backward


@pointwise(vjp=_backward(SOFTSIGN_BACKWARD, "input"), saves=("input",), method=False,
           inplace=False, result="float", reference=lambda x: x / (1 + np.abs(x)),
           samples=unary())  # fmt: skip
def softsign(input: Any) -> Any:
    """Return ``input / (1 + abs(input))``."""
    return input / (1 + abs(input))


@front(method=False)
def tanhshrink(input: Any) -> Any:
    """Return ``input - tanh(input)``."""
    return ops.sub(input, ops.tanh(input))
