"""Linear maps: Linear, Bilinear, Identity."""

from __future__ import annotations

import math
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.nn import functional, init
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter

__all__ = ["Bilinear", "Identity", "Linear"]


def unset(*shape: int, device: Any = None, dtype: Any = None) -> Parameter:
    """Make a parameter whose values `reset_parameters` will set."""
    return Parameter(ops.empty(shape, device=device, dtype=dtype))


class Identity(Module):
    """Returns its input; takes and ignores any arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """Return the input."""
        return input


class Linear(Module):
    """``y = x @ weight.T + bias``.

    Parameters
    ----------
    in_features, out_features : int
        The last sizes of input and output.
    bias : bool
        Whether a bias is added.
    device, dtype : optional
        Of the parameters.

    Notes
    -----
    Both parameters start uniform on ±1 / sqrt(in_features).
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = unset(out_features, in_features, device=device, dtype=dtype)
        if bias:
            self.bias = unset(out_features, device=device, dtype=dtype)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new first values."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Any) -> Any:
        """Map the last dimension."""
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear under the name that MultiheadAttention's output map has in torch."""


class Bilinear(Module):
    """``y_k = x1 @ weight_k @ x2 + bias_k``.

    Parameters
    ----------
    in1_features, in2_features, out_features : int
        The last sizes of both inputs and of the output.
    bias : bool
        Whether a bias is added.
    device, dtype : optional
        Of the parameters.
    """

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        self.weight = unset(out_features, in1_features, in2_features, device=device, dtype=dtype)
        if bias:
            self.bias = unset(out_features, device=device, dtype=dtype)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new first values."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Any, input2: Any) -> Any:
        """Map the last dimensions."""
        return functional.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
