"""Padding, rearranging, columns, resampling: the registry's functions; and sampling on grids.

Invariants
----------
* Grids are read by gathering, so that sampling is differentiable to any order.
"""

from __future__ import annotations

import warnings
from typing import Any

from refruntime import _tensor as _tensor
from refruntime._dtypes import int64
from refruntime._ops.opdef import ops
from refruntime.errors import ShapeError

pad: Any = ops.pad
pixel_shuffle: Any = ops.pixel_shuffle
pixel_unshuffle: Any = ops.pixel_unshuffle
channel_shuffle: Any = ops.channel_shuffle
unfold: Any = ops.im2col
fold: Any = ops.col2im
interpolate: Any = ops.interpolate


def upsample(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Any:
    """Older name of `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Any, size: Any = None, scale_factor: Any = None) -> Any:
    """`interpolate` to the nearest element."""
    return interpolate(input, size, scale_factor, mode="nearest")


def upsample_bilinear(input: Any, size: Any = None, scale_factor: Any = None) -> Any:
    """Bilinear `interpolate` with aligned corners."""
    return interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)


def affine_grid(theta: Any, size: Any, align_corners: bool | None = None) -> Any:
    """Return the sampling grid of an affine map, for `grid_sample`.

    Parameters
    ----------
    theta : Tensor
        (N, 2, 3).
    size : tuple of int
        (N, C, H, W) of the output.
    align_corners : bool, optional
        Whether -1 and 1 are the centres of the corner elements; default False.
    """
    if theta.dim() != 3 or tuple(theta.shape[1:]) != (2, 3) or len(size) != 4:
        raise NotImplementedError(
            "affine_grid: only 2D maps are supported: expected theta of shape (N, 2, 3) and a size "
            f"of 4 numbers, got {tuple(theta.shape)} and {tuple(size)}"
        )
    height, width = int(size[2]), int(size[3])
    axes = []
    for length in (width, height):
        line = ops.linspace(-1, 1, length, dtype=theta.dtype, device=theta.device)
        axes.append(line if align_corners else line * ((length - 1) / length))
    xs = axes[0].reshape(1, width).expand(height, width)
    ys = axes[1].reshape(height, 1).expand(height, width)
    points = ops.stack([xs, ys, ops.ones_like(xs)], -1).reshape(1, height * width, 3)
    return points.matmul(theta.transpose(1, 2)).reshape(-1, height, width, 2)


def grid_sample(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """Read images at the points of a grid.

    Parameters
    ----------
    input : Tensor
        (N, C, H, W).
    grid : Tensor
        (N, H', W', 2): x and y, from -1 to 1.
    mode : str
        ``bilinear`` or ``nearest``.
    padding_mode : str
        What lies outside: ``zeros`` or ``border``.
    align_corners : bool, optional
        Whether -1 and 1 are the centres of the corner elements; default False.
    """
    if input.dim() != 4 or grid.dim() != 4 or grid.shape[-1] != 2:
        raise ShapeError(
            "grid_sample", expected="4D input and a grid (N, H, W, 2)",
            got=f"{tuple(input.shape)} and {tuple(grid.shape)}",
        )  # fmt: skip
    if mode not in ("bilinear", "nearest") or padding_mode not in ("zeros", "border"):
        raise NotImplementedError(
            "grid_sample: expected mode 'bilinear' or 'nearest' and padding_mode 'zeros' or "
            f"'border', got {mode!r} and {padding_mode!r}"
        )
    if align_corners is None:
        warnings.warn(
            "Default grid_sample behaviour is align_corners=False; name it to be sure.",
            stacklevel=2,
        )
    height, width = input.shape[2:]
    x = _unnormalized(grid[..., 0], width, bool(align_corners))
    y = _unnormalized(grid[..., 1], height, bool(align_corners))
    if padding_mode == "border":
        x, y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    if mode == "nearest":
        return _read(input, y.round(), x.round())
    left, top = x.floor(), y.floor()
    fx, fy = (x - left).unsqueeze(1), (y - top).unsqueeze(1)
    upper = _read(input, top, left) * (1 - fx) + _read(input, top, left + 1) * fx
    lower = _read(input, top + 1, left) * (1 - fx) + _read(input, top + 1, left + 1) * fx
    return upper * (1 - fy) + lower * fy


def _unnormalized(place: Any, size: int, aligned: bool) -> Any:
    return (place + 1) * ((size - 1) / 2) if aligned else ((place + 1) * size - 1) * 0.5


def _read(input: Any, y: Any, x: Any) -> Any:
    """Return the elements at whole places, 0 outside the image."""
    batch, channels, height, width = input.shape
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    flat = y.clamp(0, height - 1).to(int64) * width + x.clamp(0, width - 1).to(int64)
    places = flat.reshape(batch, 1, -1).expand(batch, channels, flat.shape[1] * flat.shape[2])
    values = input.reshape(batch, channels, height * width).gather(2, places)
    values = values.reshape(batch, channels, *y.shape[1:])
    return values * inside.unsqueeze(1).to(values.dtype)
