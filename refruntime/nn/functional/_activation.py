"""Activation functions: torch's signatures over the registry's ops.

Invariants
----------
* ``inplace=True`` writes into the input and returns it; autograd then refuses it where torch would.
"""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ShapeError


def relu(input: Any, inplace: bool = False) -> Any:
    """Return max(input, 0) elementwise."""
    return ops.relu_(input) if inplace else ops.relu(input)


def relu6(input: Any, inplace: bool = False) -> Any:
    """Return min(max(input, 0), 6) elementwise."""
    return hardtanh(input, 0.0, 6.0, inplace)


def hardtanh(
    input: Any,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
) -> Any:
    """Return the input clipped to [min_val, max_val]."""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    apply = ops.hardtanh_ if inplace else ops.hardtanh
    return apply(input, min_val, max_val)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """Return the input where positive, else `negative_slope` times it."""
    apply = ops.leaky_relu_ if inplace else ops.leaky_relu
    return apply(input, negative_slope)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Return the input where positive, else ``alpha * (exp(input) - 1)``."""
    return ops.elu_(input, alpha) if inplace else ops.elu(input, alpha)


def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Return the input where positive, else ``alpha * (exp(input / alpha) - 1)``."""
    return ops.celu_(input, alpha) if inplace else ops.celu(input, alpha)


def selu(input: Any, inplace: bool = False) -> Any:
    """Return the scaled exponential linear unit of the input."""
    return ops.selu_(input) if inplace else ops.selu(input)


def silu(input: Any, inplace: bool = False) -> Any:
    """Return ``input * sigmoid(input)``."""
    return ops.silu_(input) if inplace else ops.silu(input)


def mish(input: Any, inplace: bool = False) -> Any:
    """Return ``input * tanh(softplus(input))``."""
    return ops.mish_(input) if inplace else ops.mish(input)


def hardswish(input: Any, inplace: bool = False) -> Any:
    """Return ``input * relu6(input + 3) / 6``."""
    return ops.hardswish_(input) if inplace else ops.hardswish(input)


def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    """Return ``relu6(input + 3) / 6``."""
    return ops.hardsigmoid_(input) if inplace else ops.hardsigmoid(input)


def threshold(
    input: Any,
    threshold: float,
    value: float,
    inplace: bool = False,
) -> Any:
    """Return the input where above `threshold`, else `value`."""
    apply = ops.threshold_ if inplace else ops.threshold
    return apply(input, threshold, value)


def rrelu(
    input: Any,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """Return the input where positive, else it times a slope (drawn while training)."""
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slope = ops.empty_like(input).uniform_(lower, upper)
    result = ops.where(input >= 0, input, input * slope)
    return input.copy_(result) if inplace else result


def gelu(input: Any, approximate: str = "none") -> Any:
    """Return ``input * Phi(input)``, exactly or (``approximate="tanh"``) nearly."""
    return ops.gelu(input, approximate=approximate)


def sigmoid(input: Any) -> Any:
    """Return ``1 / (1 + exp(-input))``."""
    return ops.sigmoid(input)


def tanh(input: Any) -> Any:
    """Return the hyperbolic tangent."""
    return ops.tanh(input)


def logsigmoid(input: Any) -> Any:
    """Return ``log(sigmoid(input))``."""
    return ops.logsigmoid(input)


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return ``log(1 + exp(beta * input)) / beta``, and the input itself above `threshold`."""
    return ops.softplus(input, beta, threshold)


def softsign(input: Any) -> Any:
    """Return ``input / (1 + |input|)``."""
    return input / (input.abs() + 1)


def tanhshrink(input: Any) -> Any:
    """Return ``input - tanh(input)``."""
    return input - input.tanh()


def hardshrink(input: Any, lambd: float = 0.5) -> Any:
    """Return the input where its magnitude is above `lambd`, else 0."""
    return ops.hardshrink(input, lambd)


def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """Return the input moved towards 0 by `lambd`."""
    return ops.softshrink(input, lambd)


def prelu(input: Any, weight: Any) -> Any:
    """Return the input where positive, else `weight` (one, or one a channel) times it."""
    if weight.numel() != 1:
        channels = input.shape[1] if input.dim() > 1 else 1
        if weight.numel() != channels:
            raise ShapeError(
                "prelu", expected=f"one weight, or one for each of {channels} channels",
                got=f"{weight.numel()} weights",
            )  # fmt: skip
        weight = weight.reshape([-1] + [1] * (input.dim() - 2)) if input.dim() > 1 else weight
    return ops.where(input > 0, input, weight * input)


def glu(input: Any, dim: int = -1) -> Any:
    """Return the first half along `dim` times the sigmoid of the second."""
    if input.dim() == 0:
        raise RuntimeError("glu does not support scalars because halving size must be even")
    if input.shape[dim] % 2:
        raise ShapeError(
            "glu", expected=f"an even size in dimension {dim}", got=str(input.shape[dim])
        )
    first, second = ops.chunk(input, 2, dim)
    return first * second.sigmoid()


def _implicit_dim(ndim: int) -> int:
    """Return the dimension that torch takes when none is given."""
    return 0 if ndim in (0, 1, 3) else 1


def softmax(
    input: Any,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
) -> Any:
    """Return exp(input) scaled to sum to 1 along `dim`."""
    dim = _implicit_dim(input.dim()) if dim is None else dim
    return ops.softmax(input, dim, dtype)


def log_softmax(
    input: Any,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
) -> Any:
    """Return the logarithm of `softmax`, computed stably."""
    dim = _implicit_dim(input.dim()) if dim is None else dim
    return ops.log_softmax(input, dim, dtype)


def softmin(
    input: Any,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
) -> Any:
    """Return the softmax of ``-input``."""
    return softmax(-input, dim, dtype=dtype)


def gumbel_softmax(
    logits: Any, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Any:
    """Draw from the Gumbel-softmax distribution; `hard` gives one-hot with soft gradients.

    Source: Jang, Gu, Poole, 2017; Maddison, Mnih, Teh, 2017.
    """
    noise = ops.empty_like(logits).exponential_().log().neg()
    soft = softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    place = soft.max(dim, keepdim=True)[1]
    one_hot = ops.zeros_like(logits).scatter_(dim, place, 1.0)
    return one_hot - soft.detach() + soft


def relu_(input: Any) -> Any:
    """Write `relu` into the input."""
    return relu(input, True)


def leaky_relu_(input: Any, negative_slope: float = 0.01) -> Any:
    """Write `leaky_relu` into the input."""
    return leaky_relu(input, negative_slope, True)


def elu_(input: Any, alpha: float = 1.0) -> Any:
    """Write `elu` into the input."""
    return elu(input, alpha, True)


def celu_(input: Any, alpha: float = 1.0) -> Any:
    """Write `celu` into the input."""
    return celu(input, alpha, True)


def selu_(input: Any) -> Any:
    """Write `selu` into the input."""
    return selu(input, True)


def hardtanh_(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """Write `hardtanh` into the input."""
    return hardtanh(input, min_val, max_val, True)


def threshold_(input: Any, threshold: float, value: float) -> Any:
    """Write `threshold` into the input."""
    apply = ops.threshold_
    return apply(input, threshold, value)


def rrelu_(
    input: Any,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
) -> Any:
    """Write `rrelu` into the input."""
    return rrelu(input, lower, upper, training, True)
