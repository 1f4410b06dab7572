"""Normalization within a sample: layer, group, root mean square, local response.

Sources: Ba, Kiros, Hinton, 2016 (layer); Wu and He, 2018 (group); Zhang and Sennrich, 2019 (RMS).
"""

from __future__ import annotations

import numbers
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError
from refruntime.nn import functional, init
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter

__all__ = ["GroupNorm", "LayerNorm", "LocalResponseNorm", "RMSNorm"]


def _shape_of(normalized_shape: Any) -> tuple[int, ...]:
    if isinstance(normalized_shape, numbers.Integral):
        return (int(normalized_shape),)
    return tuple(normalized_shape)


class LayerNorm(Module):
    """Normalization over the last dimensions.

    Parameters
    ----------
    normalized_shape : int or tuple of int
        The sizes of the last dimensions.
    eps : float
        Added to the variance.
    elementwise_affine : bool
        Whether a scale (and a shift) for each element is learned.
    bias : bool
        Whether the shift is there.
    device, dtype : optional
        Of the parameters.
    """

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _shape_of(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        for name, present in (("weight", True), ("bias", bias)):
            value = None
            if elementwise_affine and present:
                value = Parameter(ops.empty(self.normalized_shape, device=device, dtype=dtype))
            self.register_parameter(name, value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set scale 1 and shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Any) -> Any:
        """Normalize the last dimensions."""
        return functional.layer_norm(
            input, self.normalized_shape, self.weight, self.bias, self.eps
        )

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """Division by the root mean square over the last dimensions.

    Parameters
    ----------
    normalized_shape : int or tuple of int
        The sizes of the last dimensions.
    eps : float, optional
        Added to the mean square; by default the machine epsilon of the dtype.
    elementwise_affine : bool
        Whether a scale for each element is learned.
    device, dtype : optional
        Of the parameter.
    """

    def __init__(
        self, normalized_shape: Any, eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _shape_of(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        if elementwise_affine:
            self.weight = Parameter(ops.empty(self.normalized_shape, device=device, dtype=dtype))
        else:
            self.register_parameter("weight", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set scale 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Any) -> Any:
        """Normalize the last dimensions."""
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(Module):
    """Normalization over groups of channels.

    Parameters
    ----------
    num_groups, num_channels : int
        Groups, and channels (dimension 1), which the former divides.
    eps : float
        Added to the variance.
    affine : bool
        Whether a scale and a shift for each channel are learned.
    device, dtype : optional
        Of the parameters.
    bias : bool
        Whether the shift is there.
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ArgumentValueError(
                "GroupNorm",
                what="num_channels must be divisible by num_groups",
                got=f"num_channels={num_channels}, num_groups={num_groups}",
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        for name, present in (("weight", affine), ("bias", affine and bias)):
            value = None
            if present:
                value = Parameter(ops.empty((num_channels,), device=device, dtype=dtype))
            self.register_parameter(name, value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set scale 1 and shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Any) -> Any:
        """Normalize the input, shaped (batch, channels, ...)."""
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """Division by a power of the mean square over neighbouring channels.

    Parameters
    ----------
    size : int
        How many neighbours count.
    alpha, beta, k : float
        ``x / (k + alpha * mean square) ** beta``.
    """

    def __init__(
        self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Any) -> Any:
        """Normalize the input, shaped (batch, channels, ...)."""
        return functional.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
