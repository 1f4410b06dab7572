"""Pooling over one, two and three dimensions, all made of the two-dimensional ops.

Invariants
----------
* One dimension is two with a window of height 1; three dimensions are two, then one more along
  depth, since maxima and sums are separable.
* Indices count within the last dimensions of the input, flattened.
"""

from __future__ import annotations

from typing import Any

from refruntime._dtypes import int64
from refruntime._ops.opdef import ops
from refruntime.errors import KernelMissingError, ShapeError


def _sizes(value: Any, n: int) -> tuple[int, ...]:
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * n if len(given) == 1 else given


def _check_dims(op: str, input: Any, n: int) -> None:
    if input.dim() not in (n + 1, n + 2):
        raise ShapeError(
            op, expected=f"{n + 1}D or {n + 2}D input", got=f"{input.dim()}D",
            remedy="give channels, and a batch or none",
        )  # fmt: skip


# ---------------------------------------------------------------------------------------- maxima


def max_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the maximum of each window of ([N,] C, H, W).

    Parameters
    ----------
    input : Tensor
    kernel_size, stride, padding, dilation : int or tuple of int
        The windows; the stride is the kernel size by default.
    ceil_mode : bool
        Round the output size up.
    return_indices : bool
        Also return where the maxima stand.
    """
    apply = ops.max_pool2d_with_indices if return_indices else ops.max_pool2d
    return apply(input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the maximum of each window of ([N,] C, L); parameters as in `max_pool2d`."""
    _check_dims("max_pool1d", input, 1)
    kernel = _sizes(kernel_size, 1)
    step = kernel if stride is None or stride == [] else _sizes(stride, 1)
    result = max_pool2d(
        input.unsqueeze(-2), (1, *kernel), (1, *step), (0, *_sizes(padding, 1)),
        (1, *_sizes(dilation, 1)), ceil_mode, return_indices,
    )  # fmt: skip
    if return_indices:
        return tuple(part.squeeze(-2) for part in result)
    return result.squeeze(-2)


def max_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the maximum of each window of ([N,] C, D, H, W); parameters as in `max_pool2d`."""
    if return_indices:
        raise KernelMissingError(
            "max_pool3d", what="return_indices is not supported", expected="False", got="True"
        )
    kernel, step = _sizes(kernel_size, 3), _sizes(kernel_size if stride is None else stride, 3)
    border, gap = _sizes(padding, 3), _sizes(dilation, 3)
    planes = max_pool2d(
        _planes("max_pool3d", input), kernel[1:], step[1:], border[1:], gap[1:], ceil_mode
    )
    columns = max_pool2d(
        _columns(planes, input), (kernel[0], 1), (step[0], 1), (border[0], 0), (gap[0], 1),
        ceil_mode,
    )  # fmt: skip
    return _volumes(columns, planes, input)


def _planes(op: str, input: Any) -> Any:
    """([N,] C, D, H, W) to (N * C, D, H, W): depth as channels."""
    _check_dims(op, input, 3)
    return input.reshape(-1, *input.shape[-3:])


def _columns(planes: Any, input: Any) -> Any:
    """(N * C, D, H', W') to (N * C, 1, D, H' * W')."""
    return planes.reshape(planes.shape[0], 1, input.shape[-3], -1)


def _volumes(columns: Any, planes: Any, input: Any) -> Any:
    return columns.reshape(*input.shape[:-3], columns.shape[2], *planes.shape[2:])


# ----------------------------------------------------------------------------------------- means


def avg_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the mean of each window of ([N,] C, H, W).

    Parameters
    ----------
    input : Tensor
    kernel_size, stride, padding : int or tuple of int
        The windows; the stride is the kernel size by default.
    ceil_mode : bool
        Round the output size up.
    count_include_pad : bool
        Whether the padding counts.
    divisor_override : int, optional
        What the sums are divided by.
    """
    return ops.avg_pool2d(
        input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """Return the mean of each window of ([N,] C, L); parameters as in `avg_pool2d`."""
    _check_dims("avg_pool1d", input, 1)
    kernel = _sizes(kernel_size, 1)
    step = kernel if stride is None or stride == [] else _sizes(stride, 1)
    out = avg_pool2d(
        input.unsqueeze(-2), (1, *kernel), (1, *step), (0, *_sizes(padding, 1)), ceil_mode,
        count_include_pad,
    )  # fmt: skip
    return out.squeeze(-2)


def _window_sums(input: Any, sizes: tuple[Any, ...], ceil_mode: bool) -> Any:
    kernel, step, border = sizes
    planes = avg_pool2d(
        _planes("avg_pool3d", input), kernel[1:], step[1:], border[1:], ceil_mode,
        divisor_override=1,
    )  # fmt: skip
    columns = avg_pool2d(
        _columns(planes, input), (kernel[0], 1), (step[0], 1), (border[0], 0), ceil_mode,
        divisor_override=1,
    )  # fmt: skip
    return _volumes(columns, planes, input)


def avg_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the mean of each window of ([N,] C, D, H, W); parameters as in `avg_pool2d`."""
    kernel, step = _sizes(kernel_size, 3), _sizes(kernel_size if stride is None else stride, 3)
    border = _sizes(padding, 3)
    if ceil_mode and count_include_pad and divisor_override is None:
        raise KernelMissingError(
            "avg_pool3d", what="ceil_mode with count_include_pad is not supported",
            remedy="pad the input, or set divisor_override",
        )  # fmt: skip
    sums = _window_sums(input, (kernel, step, border), ceil_mode)
    if divisor_override is not None:
        return sums / divisor_override
    if not ceil_mode and (count_include_pad or not any(border)):
        return sums / (kernel[0] * kernel[1] * kernel[2])
    ones = ops.ones((1, *input.shape[-3:]), dtype=input.dtype, device=input.device)
    return sums / _window_sums(ones, (kernel, step, border), ceil_mode)


def lp_pool2d(
    input: Any,
    norm_type: float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: bool = False,
) -> Any:
    """Return the p-norm of each window of ([N,] C, H, W)."""
    height, width = _sizes(kernel_size, 2)
    powers = avg_pool2d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (powers.relu() * (height * width)).pow(1.0 / norm_type)


def lp_pool1d(
    input: Any,
    norm_type: float,
    kernel_size: int,
    stride: Any = None,
    ceil_mode: bool = False,
) -> Any:
    """Return the p-norm of each window of ([N,] C, L)."""
    (width,) = _sizes(kernel_size, 1)
    powers = avg_pool1d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (powers.relu() * width).pow(1.0 / norm_type)


# -------------------------------------------------------------------------------- adaptive sizes


def _targets(input: Any, output_size: Any, n: int) -> list[int]:
    given = output_size if isinstance(output_size, (tuple, list)) else [output_size] * n
    sizes = input.shape[input.dim() - n :]
    return [int(s) if t is None else int(t) for t, s in zip(given, sizes, strict=True)]


def _spans(size: int, target: int) -> list[tuple[int, int]]:
    """Return where each window begins and ends: as even as can be, overlapping if need be."""
    return [(i * size // target, -((-(i + 1) * size) // target)) for i in range(target)]


def _mean_over(input: Any, dim: int, target: int) -> Any:
    """Return the means of `target` windows along a dimension (counted from the end)."""
    size = input.shape[dim]
    if size == target:
        return input
    if target == 1:
        return input.mean(dim, keepdim=True)
    if size % target == 0:
        shape = list(input.shape)
        shape[dim : (dim + 1) or None] = [target, size // target]
        return input.reshape(shape).mean(dim)
    parts = [
        input.narrow(dim, begin, end - begin).mean(dim, keepdim=True)
        for begin, end in _spans(size, target)
    ]
    return ops.cat(parts, dim)


def _adaptive_mean(op: str, input: Any, output_size: Any, n: int) -> Any:
    _check_dims(op, input, n)
    targets = _targets(input, output_size, n)
    if all(target == 1 for target in targets):
        return input.mean(list(range(-n, 0)), keepdim=True)
    for d, target in enumerate(targets):
        input = _mean_over(input, d - n, target)
    return input


def adaptive_avg_pool1d(input: Any, output_size: Any) -> Any:
    """Return means over as many windows of ([N,] C, L) as `output_size` says."""
    return _adaptive_mean("adaptive_avg_pool1d", input, output_size, 1)


def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    """Return means over as many windows of ([N,] C, H, W) as `output_size` says."""
    return _adaptive_mean("adaptive_avg_pool2d", input, output_size, 2)


def adaptive_avg_pool3d(input: Any, output_size: Any) -> Any:
    """Return means over as many windows of ([N,] C, D, H, W) as `output_size` says."""
    return _adaptive_mean("adaptive_avg_pool3d", input, output_size, 3)


def _max_over(input: Any, places: Any, dim: int, target: int) -> tuple[Any, Any]:
    """Return the maxima of `target` windows along a dimension, and the places they come from."""
    size = input.shape[dim]
    if size == target:
        return input, places
    values, picked = [], []
    for begin, end in _spans(size, target):
        best, where = input.narrow(dim, begin, end - begin).max(dim, keepdim=True)
        values.append(best)
        picked.append(places.narrow(dim, begin, end - begin).gather(dim, where))
    return ops.cat(values, dim), ops.cat(picked, dim)


def _adaptive_max(op: str, input: Any, output_size: Any, n: int, indices: bool) -> Any:
    _check_dims(op, input, n)
    sizes = tuple(input.shape[input.dim() - n :])
    count = 1
    for size in sizes:
        count *= size
    places = ops.arange(count, dtype=int64, device=input.device).reshape(sizes).expand(input.shape)
    targets = _targets(input, output_size, n)
    # The last dimension first: ties then fall to the first place in row-major order.
    for d in reversed(range(n)):
        input, places = _max_over(input, places, d - n, targets[d])
    return (input, places.contiguous()) if indices else input


def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return maxima over as many windows of ([N,] C, L) as `output_size` says."""
    return _adaptive_max("adaptive_max_pool1d", input, output_size, 1, return_indices)


def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return maxima over as many windows of ([N,] C, H, W) as `output_size` says."""
    return _adaptive_max("adaptive_max_pool2d", input, output_size, 2, return_indices)


def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return maxima over as many windows of ([N,] C, D, H, W) as `output_size` says."""
    return _adaptive_max("adaptive_max_pool3d", input, output_size, 3, return_indices)
