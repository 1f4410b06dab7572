"""Interpolation and sampling on grids.

Invariants
----------
* Interpolation is separable: each dimension reads through index lists and mixes what they give with
  fixed weights, so that it is differentiable to any order.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from refruntime._dtypes import float64, int64
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError, ShapeError

_SPATIAL = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}

# One dimension's rule: for each tap, the places it reads and their weights.
Taps = list[tuple[list[int], list[float]]]


def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """Resample signals, images or volumes to a size or by a factor.

    Parameters
    ----------
    input : Tensor
        (batch, channels, ...) with one to three further dimensions.
    size : int or tuple of int, optional
        The output size.
    scale_factor : float or tuple of float, optional
        What the input size is multiplied by.
    mode : str
        ``nearest``, ``nearest-exact``, ``linear``, ``bilinear``, ``bicubic``, ``trilinear``,
        ``area``.
    align_corners : bool, optional
        Whether the corner elements of both grids lie on each other.
    recompute_scale_factor : bool, optional
        Whether the factor is computed again from the sizes.
    antialias : bool
        Not supported.
    """
    n = input.dim() - 2
    _check_mode(mode, n, align_corners, antialias)
    sizes, factors = _target(input, size, scale_factor, n)
    if recompute_scale_factor or mode == "area":
        factors = None
    if mode == "area":
        from refruntime.nn.functional import _pool

        return getattr(_pool, f"adaptive_avg_pool{n}d")(input, sizes)
    for d in range(n):
        factor = None if factors is None else factors[d]
        taps = _taps(mode, input.shape[2 + d], sizes[d], bool(align_corners), factor)
        input = _resample(input, 2 + d, taps)
    return input


def _check_mode(mode: str, n: int, align_corners: bool | None, antialias: bool) -> None:
    if mode in ("nearest", "nearest-exact", "area"):
        if align_corners is not None:
            raise ArgumentValueError(
                "interpolate", what="align_corners option can only be set with the interpolating "
                "modes: linear | bilinear | bicubic | trilinear", got=f"mode={mode}",
            )  # fmt: skip
    elif mode not in _SPATIAL:
        raise NotImplementedError(
            f"interpolate: Input Error: got unknown mode {mode!r}; expected nearest, "
            "nearest-exact, linear, bilinear, bicubic, trilinear or area"
        )
    elif n != _SPATIAL[mode]:
        raise NotImplementedError(
            f"interpolate: Got {n + 2}D input, but {mode} mode needs {_SPATIAL[mode] + 2}D input"
        )
    if n not in (1, 2, 3):
        raise NotImplementedError(f"interpolate: expected 3D, 4D or 5D input, got {n + 2}D")
    if antialias:
        raise ArgumentValueError(
            "interpolate", what="antialias is not supported", expected="antialias=False",
            got="True", remedy="smooth the input before making it smaller",
        )  # fmt: skip


def _target(
    input: Any, size: Any, scale_factor: Any, n: int
) -> tuple[list[int], list[float] | None]:
    if (size is None) == (scale_factor is None):
        raise ArgumentValueError(
            "interpolate", what="only one of size or scale_factor should be defined",
            expected="one of them", got="both" if size is not None else "none",
        )  # fmt: skip
    given = size if size is not None else scale_factor
    values = list(given) if isinstance(given, (tuple, list)) else [given] * n
    if len(values) != n:
        raise ArgumentValueError(
            "interpolate", what="Input and output must have the same number of spatial dimensions",
            expected=f"{n} values", got=str(len(values)),
        )  # fmt: skip
    if size is not None:
        return [int(v) for v in values], None
    factors = [float(v) for v in values]
    sizes = [math.floor(float(s) * f) for s, f in zip(input.shape[2:], factors, strict=True)]
    return sizes, factors


def _taps(mode: str, size: int, target: int, aligned: bool, factor: float | None) -> Taps:
    if size == target and (factor is None or mode.startswith("nearest") or factor == 1.0):
        return [(list(range(size)), [1.0] * size)]
    if mode.startswith("nearest"):
        step = size / target if factor is None else 1.0 / factor
        shift = 0.5 if mode == "nearest-exact" else 0.0
        places = [min(math.floor((i + shift) * step), size - 1) for i in range(target)]
        return [(places, [1.0] * target)]
    centres = [_source(i, size, target, aligned, factor) for i in range(target)]
    return _cubic_taps(centres, size) if mode == "bicubic" else _linear_taps(centres, size)


def _source(i: int, size: int, target: int, aligned: bool, factor: float | None) -> float:
    """Return where output place i lies on the input's axis."""
    if aligned:
        return i * (size - 1) / (target - 1) if target > 1 else 0.0
    step = size / target if factor is None else 1.0 / factor
    return (i + 0.5) * step - 0.5


def _linear_taps(centres: list[float], size: int) -> Taps:
    lower, upper, shares = [], [], []
    for centre in centres:
        place = min(max(centre, 0.0), size - 1.0)
        left = math.floor(place)
        lower.append(left)
        upper.append(min(left + 1, size - 1))
        shares.append(place - left)
    return [(lower, [1.0 - s for s in shares]), (upper, shares)]


# The cubic convolution kernel's parameter (Keys, 1981), as in PyTorch.
_CUBIC = -0.75


def _cubic_weight(x: float) -> float:
    x = abs(x)
    if x <= 1:
        return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
    return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC


def _cubic_taps(centres: list[float], size: int) -> Taps:
    taps = []
    for offset in (-1, 0, 1, 2):
        places, weights = [], []
        for centre in centres:
            left = math.floor(centre)
            places.append(min(max(left + offset, 0), size - 1))
            weights.append(_cubic_weight(centre - left - offset))
        taps.append((places, weights))
    return taps


def _resample(input: Any, dim: int, taps: Taps) -> Any:
    if len(taps) == 1 and taps[0][0] == list(range(input.shape[dim])):
        return input
    shape = [1] * input.dim()
    shape[dim] = len(taps[0][0])
    total = None
    for places, weights in taps:
        part = ops.index_select(input, dim, ops.tensor(places, dtype=int64, device=input.device))
        if len(taps) > 1:
            scale = ops.tensor(weights, dtype=float64).to(part.dtype).reshape(shape)
            part = part * scale.to(input.device)
        total = part if total is None else total + part
    return total


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
