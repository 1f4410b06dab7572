"""Channels into space and back.

Source: Shi et al., "Real-time single image and video super-resolution", 2016.
"""

from __future__ import annotations

from typing import Any

from refruntime.nn import functional
from refruntime.nn.modules.module import Module

__all__ = ["ChannelShuffle", "PixelShuffle", "PixelUnshuffle"]


class PixelShuffle(Module):
    """(..., C * r * r, H, W) to (..., C, H * r, W * r).

    Parameters
    ----------
    upscale_factor : int
        r.
    """

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Any) -> Any:
        """Rearrange the input."""
        return functional.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(..., C, H * r, W * r) to (..., C * r * r, H, W).

    Parameters
    ----------
    downscale_factor : int
        r.
    """

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Any) -> Any:
        """Rearrange the input."""
        return functional.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Takes channels from each of `groups` groups in turn.

    Parameters
    ----------
    groups : int
        Divides the number of channels.
    """

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Any) -> Any:
        """Rearrange the input."""
        return functional.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"groups={self.groups}"
