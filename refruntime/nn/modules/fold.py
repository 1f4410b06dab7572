"""Unfold and Fold: windows of an image as columns, and columns summed into an image."""

from __future__ import annotations

from typing import Any

from refruntime.nn import functional
from refruntime.nn.modules.module import Module

__all__ = ["Fold", "Unfold"]


class Unfold(Module):
    """(N, C, H, W) to (N, C * window, number of windows).

    Parameters
    ----------
    kernel_size, dilation, padding, stride : int or tuple of int
        The windows, as in a convolution.
    """

    def __init__(
        self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Any) -> Any:
        """Return the windows as columns."""
        return functional.unfold(
            input, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Fold(Module):
    """(N, C * window, number of windows) to (N, C, H, W), overlapping windows summed.

    Parameters
    ----------
    output_size : int or tuple of int
        (H, W).
    kernel_size, dilation, padding, stride : int or tuple of int
        The windows, as in a convolution.
    """

    def __init__(
        self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0,
        stride: Any = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Any) -> Any:
        """Return the image."""
        return functional.fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, "
            f"dilation={self.dilation}, padding={self.padding}, stride={self.stride}"
        )
