"""Padding, channel and pixel rearrangement, windows as columns.

Invariants
----------
* Non-constant padding reads through index lists, one dimension after the other, so that it is
  differentiable to any order.
"""

from __future__ import annotations

from typing import Any

from refruntime._dtypes import int64
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError, ShapeError


def pad(
    input: Any,
    pad: Any,
    mode: str = "constant",
    value: float | None = None,
) -> Any:
    """Add values around the last dimensions.

    Parameters
    ----------
    input : Tensor
    pad : tuple of int
        (left, right, top, bottom, ...): the last dimension first; negative sizes crop.
    mode : str
        ``constant``, ``reflect``, ``replicate`` or ``circular``.
    value : float, optional
        What is put there (``constant``); default 0.
    """
    sides = [int(side) for side in pad]
    if len(sides) % 2 or len(sides) > 2 * input.dim():
        raise ShapeError(
            "pad", what="Padding length must be divisible by 2 and at most twice the dimensions",
            expected=f"an even number up to {2 * input.dim()}", got=str(len(sides)),
        )  # fmt: skip
    if mode == "constant":
        return constant_pad(input, sides, 0.0 if value is None else value)
    if value is not None and value != 0:
        raise ArgumentValueError(
            "pad", what=f'Padding mode "{mode}" doesn\'t take in value argument', got=str(value)
        )
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    n = len(sides) // 2
    if input.dim() not in (n + 1, n + 2):
        raise NotImplementedError(
            f"pad: only 2D to 5D input with padding of the last 1 to 3 dimensions is supported in "
            f"mode {mode!r}, got {input.dim()}D input and {len(sides)} sizes"
        )
    for d in range(n):
        before, after = sides[2 * d], sides[2 * d + 1]
        if before or after:
            input = _pad_by_index(input, input.dim() - 1 - d, before, after, mode)
    return input


def constant_pad(input: Any, sides: list[int], value: float) -> Any:
    """Put one value around the last dimensions; negative sizes crop."""
    shape = list(input.shape)
    inner: list[slice] = [slice(None)] * input.dim()
    outer: list[slice] = [slice(None)] * input.dim()
    for d in range(len(sides) // 2):
        dim, before, after = input.dim() - 1 - d, sides[2 * d], sides[2 * d + 1]
        size = shape[dim]
        shape[dim] = size + before + after
        if shape[dim] < 0:
            raise ShapeError(
                "pad", what=f"the size of dimension {dim} would be negative",
                expected=f"sides that take at most {size}", got=f"({before}, {after})",
            )  # fmt: skip
        inner[dim] = slice(max(-before, 0), size - max(-after, 0))
        outer[dim] = slice(max(before, 0), shape[dim] - max(after, 0))
    kept = input[tuple(inner)]
    if tuple(kept.shape) == tuple(shape):
        return kept.clone()
    full = ops.full(shape, value, dtype=input.dtype, device=input.device)
    full[tuple(outer)] = kept
    return full


def _pad_by_index(input: Any, dim: int, before: int, after: int, mode: str) -> Any:
    size = input.shape[dim]
    limit = {"reflect": size - 1, "circular": size}.get(mode)
    if limit is not None and max(before, after) > limit:
        raise ShapeError(
            "pad",
            what=f"Padding size should be at most {limit} in mode {mode!r}: ({before}, {after}) at "
            f"dimension {dim} of input {list(input.shape)}",
            expected=f"at most {limit}", got=str(max(before, after)),
        )  # fmt: skip
    places = range(-before, size + after)
    if mode == "replicate":
        source = [min(max(i, 0), size - 1) for i in places]
    elif mode == "circular":
        source = [i % size for i in places]
    else:
        source = [size - 1 - abs(size - 1 - abs(i)) for i in places]
    return ops.index_select(input, dim, ops.tensor(source, dtype=int64, device=input.device))


def pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    """(..., C * r * r, H, W) to (..., C, H * r, W * r)."""
    r = upscale_factor
    if input.dim() < 3:
        raise ShapeError("pixel_shuffle", expected="at least 3 dimensions", got=str(input.dim()))
    *batch, channels, height, width = input.shape
    if r <= 0 or channels % (r * r):
        raise ShapeError(
            "pixel_shuffle", what="expects its input's 'channel' dimension to be divisible by the "
            "square of upscale_factor", got=f"{channels} channels and upscale_factor {r}",
        )  # fmt: skip
    n = len(batch)
    parts = input.reshape(*batch, channels // (r * r), r, r, height, width)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return parts.permute(order).reshape(*batch, channels // (r * r), height * r, width * r)


def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """(..., C, H * r, W * r) to (..., C * r * r, H, W)."""
    r = downscale_factor
    if input.dim() < 3:
        raise ShapeError("pixel_unshuffle", expected="at least 3 dimensions", got=str(input.dim()))
    *batch, channels, height, width = input.shape
    if r <= 0 or height % r or width % r:
        raise ShapeError(
            "pixel_unshuffle", what="expects height and width to be divisible by downscale_factor",
            got=f"{height} x {width} and downscale_factor {r}",
        )  # fmt: skip
    n = len(batch)
    parts = input.reshape(*batch, channels, height // r, r, width // r, r)
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return parts.permute(order).reshape(*batch, channels * r * r, height // r, width // r)


def channel_shuffle(input: Any, groups: int) -> Any:
    """Take channels from each of `groups` groups in turn."""
    batch, channels = input.shape[:2]
    if groups <= 0 or channels % groups:
        raise ShapeError(
            "channel_shuffle", what="number of channels must be divisible by groups",
            got=f"{channels} channels and {groups} groups",
        )  # fmt: skip
    parts = input.reshape(batch, groups, channels // groups, *input.shape[2:])
    return parts.transpose(1, 2).reshape(input.shape)


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    given = tuple(value)
    return given if len(given) == 2 else (given[0], given[0])


def _window_places(
    size: int, kernel: int, dilation: int, padding: int, stride: int, name: str
) -> list[list[int]]:
    """Return, for each element of the window, where it lies in each window, padding counted."""
    count = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    if count <= 0:
        raise ShapeError(
            name, what="the windows do not fit into the image",
            expected=f"a size of at least {dilation * (kernel - 1) + 1 - 2 * padding}",
            got=str(size),
        )  # fmt: skip
    return [[k * dilation + i * stride for i in range(count)] for k in range(kernel)]


def unfold(
    input: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    """Return the windows of images as columns: (N, C, H, W) to (N, C * window, windows)."""
    bare = input.dim() == 3
    images = input.unsqueeze(0) if bare else input
    if images.dim() != 4:
        raise ShapeError("unfold", expected="3D or 4D input", got=f"{input.dim()}D")
    kernel, gap = _pair(kernel_size), _pair(dilation)
    border, step = _pair(padding), _pair(stride)
    batch, channels, height, width = images.shape
    rows = _window_places(height, kernel[0], gap[0], border[0], step[0], "unfold")
    columns = _window_places(width, kernel[1], gap[1], border[1], step[1], "unfold")
    if any(border):
        sides = [border[1], border[1], border[0], border[0]]
        images = constant_pad(images, sides, 0.0)
    images = ops.index_select(images, 2, _flat(rows, images))
    images = ops.index_select(images, 3, _flat(columns, images))
    parts = images.reshape(
        batch, channels, kernel[0], len(rows[0]), kernel[1], len(columns[0])
    ).permute(0, 1, 2, 4, 3, 5)
    out = parts.reshape(batch, channels * kernel[0] * kernel[1], len(rows[0]) * len(columns[0]))
    return out.squeeze(0) if bare else out


def _flat(places: list[list[int]], like: Any) -> Any:
    flat = [place for line in places for place in line]
    return ops.tensor(flat, dtype=int64, device=like.device)


def fold(
    input: Any,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    """Sum columns into images: (N, C * window, windows) to (N, C, H, W)."""
    bare = input.dim() == 2
    columns = input.unsqueeze(0) if bare else input
    if columns.dim() != 3:
        raise ShapeError("fold", expected="2D or 3D input", got=f"{input.dim()}D")
    kernel, gap = _pair(kernel_size), _pair(dilation)
    border, step = _pair(padding), _pair(stride)
    height, width = _pair(output_size)
    rows = _window_places(height, kernel[0], gap[0], border[0], step[0], "fold")
    cols = _window_places(width, kernel[1], gap[1], border[1], step[1], "fold")
    batch, depth, count = columns.shape
    window = kernel[0] * kernel[1]
    if depth % window or count != len(rows[0]) * len(cols[0]):
        raise ShapeError(
            "fold",
            expected=f"(N, a multiple of {window}, {len(rows[0]) * len(cols[0])})",
            got=str(tuple(columns.shape)),
        )
    channels = depth // window
    parts = columns.reshape(batch, channels, *kernel, len(rows[0]), len(cols[0]))
    parts = parts.permute(0, 1, 2, 4, 3, 5).reshape(
        batch, channels, kernel[0] * len(rows[0]), kernel[1] * len(cols[0])
    )
    like = {"dtype": parts.dtype, "device": parts.device}
    wide = ops.zeros((batch, channels, parts.shape[2], width + 2 * border[1]), **like)
    wide = ops.index_add(wide, 3, _flat(cols, parts), parts)
    full = ops.zeros((batch, channels, height + 2 * border[0], width + 2 * border[1]), **like)
    full = ops.index_add(full, 2, _flat(rows, parts), wide)
    out = full[:, :, border[0] : border[0] + height, border[1] : border[1] + width]
    return out.squeeze(0) if bare else out
