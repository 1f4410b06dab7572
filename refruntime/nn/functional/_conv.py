"""Convolutions and windows: torch's signatures over the registry's ops."""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ShapeError
from refruntime.nn.functional._image import constant_pad


def _sizes(value: Any, n: int) -> tuple[int, ...]:
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * n if len(given) == 1 else given


def _padded(
    op: str, input: Any, weight: Any, stride: Any, padding: Any, dilation: Any, n: int
) -> tuple[Any, Any]:
    """Turn ``same`` and ``valid`` into numbers; an odd total is padded on the right first."""
    if not isinstance(padding, str):
        return input, padding
    if padding == "valid":
        return input, 0
    if padding != "same":
        raise RuntimeError(f"{op}: expected padding 'valid' or 'same', got {padding!r}")
    if any(step != 1 for step in _sizes(stride, n)):
        raise RuntimeError(f"{op}: padding='same' is not supported for strided convolutions")
    totals = [
        d * (k - 1) for d, k in zip(_sizes(dilation, n), weight.shape[2:], strict=True)
    ]
    if all(total % 2 == 0 for total in totals):
        return input, tuple(total // 2 for total in totals)
    sides = [side for total in reversed(totals) for side in (0, total % 2)]
    return constant_pad(input, sides, 0.0), tuple(total // 2 for total in totals)


def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Convolve over one dimension: input (N, C, L), weight (O, C / groups, K)."""
    input, padding = _padded("conv1d", input, weight, stride, padding, dilation, 1)
    return ops.conv1d(input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Convolve over two dimensions: input (N, C, H, W), weight (O, C / groups, KH, KW)."""
    input, padding = _padded("conv2d", input, weight, stride, padding, dilation, 2)
    return ops.conv2d(input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Convolve over three dimensions: input (N, C, D, H, W), weight (O, C / groups, KD, KH, KW).

    The windows along depth become channels, and two dimensions are left.
    """
    bare = input.dim() == 4
    batch = input.unsqueeze(0) if bare else input
    if batch.dim() != 5:
        raise ShapeError(
            "conv3d", expected="4D (unbatched) or 5D (batched) input", got=f"{input.dim()}D"
        )
    batch, padding = _padded("conv3d", batch, weight, stride, padding, dilation, 3)
    pads, steps, gaps = _sizes(padding, 3), _sizes(stride, 3), _sizes(dilation, 3)
    if pads[0]:
        batch = constant_pad(batch, [0, 0, 0, 0, pads[0], pads[0]], 0.0)
    count, channels, _, height, width = batch.shape
    depth = weight.shape[2]
    # (N, C, windows, H, W, depth) -> (N, windows, C, depth, H, W)
    windows = batch.unfold(2, gaps[0] * (depth - 1) + 1, steps[0])[..., :: gaps[0]]
    windows = windows.permute(0, 2, 1, 5, 3, 4)
    n_windows = windows.shape[1]
    flat = windows.reshape(count * n_windows, channels * depth, height, width)
    kernel = weight.reshape(weight.shape[0], -1, *weight.shape[3:])
    out = ops.conv2d(flat, kernel, bias, steps[1:], pads[1:], gaps[1:], groups)
    out = out.reshape(count, n_windows, *out.shape[1:]).transpose(1, 2)
    return out.squeeze(0) if bare else out


def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Transpose a convolution over one dimension: weight (C, O / groups, K)."""
    return ops.conv_transpose1d(
        input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Transpose a convolution over two dimensions: weight (C, O / groups, KH, KW)."""
    return ops.conv_transpose2d(
        input, weight, bias, stride, padding, output_padding, groups, dilation
    )
