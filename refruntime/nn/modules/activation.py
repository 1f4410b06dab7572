"""Activations: modules around the functions of the same kind in `nn.functional`."""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.nn import functional, init
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "MultiheadAttention",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SELU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]


class _InplaceActivation(Module):
    """An activation with the setting `inplace`."""

    inplace: bool

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return "inplace=True" if self.inplace else ""


class ReLU(_InplaceActivation):
    """max(x, 0)."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.relu(input, self.inplace)


class ReLU6(_InplaceActivation):
    """min(max(x, 0), 6)."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.relu6(input, self.inplace)


class SELU(_InplaceActivation):
    """Scaled exponential linear unit (Klambauer et al., 2017)."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.selu(input, self.inplace)


class SiLU(_InplaceActivation):
    """x * sigmoid(x)."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.silu(input, self.inplace)


class Mish(_InplaceActivation):
    """x * tanh(softplus(x))."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.mish(input, self.inplace)


class Hardswish(_InplaceActivation):
    """x * relu6(x + 3) / 6."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.hardswish(input, self.inplace)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return ""


class Hardsigmoid(_InplaceActivation):
    """relu6(x + 3) / 6."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.hardsigmoid(input, self.inplace)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return ""


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return ops.sigmoid(input)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return ops.tanh(input)


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.logsigmoid(input)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.softsign(input)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.tanhshrink(input)


class GELU(Module):
    """Gaussian error linear unit.

    Parameters
    ----------
    approximate : str
        ``none`` or ``tanh``.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"approximate={self.approximate!r}"


class LeakyReLU(_InplaceActivation):
    """x where positive, else negative_slope * x."""

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"negative_slope={self.negative_slope}" + (", inplace=True" if self.inplace else "")


class _AlphaActivation(_InplaceActivation):
    """An activation with the setting `alpha`."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"alpha={self.alpha}" + (", inplace=True" if self.inplace else "")


class ELU(_AlphaActivation):
    """x where positive, else alpha * (exp(x) - 1)."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.elu(input, self.alpha, self.inplace)


class CELU(_AlphaActivation):
    """x where positive, else alpha * (exp(x / alpha) - 1)."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.celu(input, self.alpha, self.inplace)


class Hardtanh(_InplaceActivation):
    """x clipped to [min_val, max_val]."""

    def __init__(
        self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
    ) -> None:
        super().__init__(inplace)
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        text = f"min_val={self.min_val}, max_val={self.max_val}"
        return text + (", inplace=True" if self.inplace else "")


class Threshold(_InplaceActivation):
    """x where above `threshold`, else `value`."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold = threshold
        self.value = value

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        text = f"threshold={self.threshold}, value={self.value}"
        return text + (", inplace=True" if self.inplace else "")


class RReLU(_InplaceActivation):
    """x where positive, else x times a slope that is drawn while training."""

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        super().__init__(inplace)
        self.lower = lower
        self.upper = upper

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        text = f"lower={self.lower}, upper={self.upper}"
        return text + (", inplace=True" if self.inplace else "")


class _LambdaShrink(Module):
    """An activation with the setting `lambd`."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"{self.lambd}"


class Hardshrink(_LambdaShrink):
    """x where |x| > lambd, else 0."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.hardshrink(input, self.lambd)


class Softshrink(_LambdaShrink):
    """x moved towards 0 by lambd."""

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.softshrink(input, self.lambd)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta, and x itself above `threshold`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Any) -> Any:
        """Apply the function elementwise."""
        return functional.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"beta={self.beta}, threshold={self.threshold}"


class PReLU(Module):
    """x where positive, else weight * x with a learned weight.

    Parameters
    ----------
    num_parameters : int
        One weight for all, or one a channel (dimension 1).
    init : float
        Where the weights start.
    device, dtype : optional
        Of the parameter.
    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(ops.empty((num_parameters,), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weights to their first value."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Any) -> Any:
        """Apply the function."""
        return functional.prelu(input, self.weight)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"num_parameters={self.num_parameters}"


class GLU(Module):
    """The first half along `dim` times the sigmoid of the second."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        """Apply the function."""
        return functional.glu(input, self.dim)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"dim={self.dim}"


class _OverDim(Module):
    """A function along a dimension."""

    dim: int | None

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("dim", None)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"dim={self.dim}"


class Softmax(_OverDim):
    """exp(x) scaled to sum to 1 along `dim`."""

    def forward(self, input: Any) -> Any:
        """Apply the function."""
        return functional.softmax(input, self.dim, _stacklevel=5)


class LogSoftmax(_OverDim):
    """The logarithm of softmax along `dim`."""

    def forward(self, input: Any) -> Any:
        """Apply the function."""
        return functional.log_softmax(input, self.dim, _stacklevel=5)


class Softmin(_OverDim):
    """Softmax of -x along `dim`."""

    def forward(self, input: Any) -> Any:
        """Apply the function."""
        return functional.softmin(input, self.dim, _stacklevel=5)


class Softmax2d(Module):
    """Softmax over the channels of an image or of a batch of them."""

    def forward(self, input: Any) -> Any:
        """Apply the function."""
        if input.dim() not in (3, 4):
            raise ValueError(
                f"Softmax2d: expected input to be 3D or 4D, got {input.dim()}D instead"
            )
        return functional.softmax(input, -3, _stacklevel=5)


# Defined in a file of its own for its length; torch keeps it here.
from refruntime.nn.modules._attention import MultiheadAttention  # noqa: E402
