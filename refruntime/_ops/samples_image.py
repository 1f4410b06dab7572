"""Samples and NumPy references of convolution, pooling, columns, resampling and padding.

State: none. Invariants: references compute in float64 and take what the front functions take; they
go from window to window, unlike the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from refruntime._ops.opdef import ops
from refruntime._ops.samples import ErrorSample, Sample, T

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]

# ---------------------------------------------------------------------------------------------
# Convolution


def _padded(x: Array, padding: Ints, value: float = 0.0) -> Array:
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)], constant_values=value)


def _taken(offset: Ints, counts: Ints, stride: Ints, dilation: Ints) -> tuple[Any, ...]:
    """Return the index of what one element of the kernel meets."""
    spans = zip(offset, counts, stride, dilation, strict=True)
    return (..., *(slice(o * d, o * d + s * (n - 1) + 1, s) for o, n, s, d in spans))


def _grouped(x: Array, groups: int) -> Array:
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _convolution(
    x: Array, weight: Array, bias: Array | None, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int,
) -> Array:  # fmt: skip
    if transposed:
        result = _spread(x, weight, stride, padding, dilation, output_padding, groups)
    else:
        result = _slid(x, weight, stride, padding, dilation, groups)
    return result if bias is None else result + bias.reshape(-1, *[1] * (x.ndim - 2))


def _slid(
    x: Array, weight: Array, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Array:
    kernel = weight.shape[2:]
    wide = _padded(x, padding)
    each = zip(wide.shape[2:], kernel, stride, dilation, strict=True)
    counts = tuple((size - d * (k - 1) - 1) // s + 1 for size, k, s, d in each)
    rows = weight.reshape(groups, -1, *weight.shape[1:])
    result = np.zeros((len(x), groups, rows.shape[1], *counts))
    for offset in np.ndindex(*kernel):
        part = _grouped(wide[_taken(offset, counts, stride, dilation)], groups)
        result += np.einsum("ngc...,goc->ngo...", part, rows[(..., *offset)])
    return result.reshape(len(x), -1, *counts)


def _spread(
    x: Array, weight: Array, stride: Ints, padding: Ints, dilation: Ints, extra: Ints, groups: int
) -> Array:
    kernel, counts = weight.shape[2:], x.shape[2:]
    each = zip(counts, kernel, stride, dilation, extra, strict=True)
    whole = tuple((n - 1) * s + d * (k - 1) + 1 + e for n, k, s, d, e in each)
    columns = weight.reshape(groups, -1, *weight.shape[1:])
    result = np.zeros((len(x), groups, weight.shape[1], *whole))
    for offset in np.ndindex(*kernel):
        part = np.einsum("ngc...,gco->ngo...", _grouped(x, groups), columns[(..., *offset)])
        result[_taken(offset, counts, stride, dilation)] += part
    inside = tuple(slice(p, size - p) for p, size in zip(padding, whole, strict=True))
    return result.reshape(len(x), -1, *whole)[(..., *inside)]


def _convolutions() -> Iterable[Sample]:
    one, two = (1,), (1, 1)
    row = T((2, 3, 7)), T((4, 3, 3)), T((4,))
    yield Sample((*row, one, (0,), one, False, (0,), 1))
    yield Sample((*row, (2,), (1,), (2,), False, (0,), 1))
    plane = T((2, 4, 5, 6)), T((4, 2, 3, 2)), T((4,))
    yield Sample((*plane, two, (1, 0), two, False, (0, 0), 2), name="groups")
    yield Sample((*plane[:2], None, (2, 1), (0, 1), (1, 2), False, (0, 0), 2), name="no bias")
    depthwise = T((1, 3, 5, 5), layout="transposed"), T((3, 1, 3, 3), layout="strided"), None
    yield Sample((*depthwise, two, two, two, False, (0, 0), 3), name="depthwise")
    box = T((1, 2, 3, 4, 3)), T((2, 2, 2, 2, 2)), T((2,))
    yield Sample((*box, (1, 2, 1), (0, 1, 0), (1, 1, 1), False, (0, 0, 0), 1))
    back = T((2, 4, 3, 4)), T((4, 3, 3, 2)), T((6,))
    yield Sample((*back, (2, 1), (1, 0), two, True, (1, 0), 2), name="transposed groups")
    yield Sample((T((1, 2, 4)), T((2, 3, 3)), None, (3,), (0,), (2,), True, (0,), 1))
    empty = T((0, 3, 7)), T((4, 3, 3)), T((4,))
    yield Sample((*empty, one, (0,), one, False, (0,), 1), grad=False, name="empty")


def _convolution_errors() -> list[ErrorSample]:
    def case(x: Ints, weight: Ints, match: str, groups: int = 1) -> ErrorSample:
        rest = ((1, 1), (0, 0), (1, 1), False, (0, 0), groups)
        return ErrorSample((T(x), T(weight), None, *rest), RuntimeError, match)

    return [
        case((1, 2, 5, 5), (4, 3, 3, 3), "to have 3 channels, but got 2 channels"),
        case((1, 3, 2, 2), (4, 3, 3, 3), "Kernel size can't be greater"),
        case((1, 3, 5, 5), (4, 1, 3, 3), "divisible by groups=3", 3),
        case((3, 5, 5), (4, 3, 3, 3), "expected 4D input"),
    ]


CONVOLUTION: dict[str, Any] = {
    "samples": _convolutions, "error_samples": _convolution_errors, "reference": _convolution,
}  # fmt: skip


def _weight_gradient(
    grad: Array, x: Array, *, stride: Ints, padding: Ints, dilation: Ints, groups: int, kernel: Ints
) -> Array:
    wide, counts = _padded(x, padding), grad.shape[2:]
    result = np.zeros((groups, grad.shape[1] // groups, x.shape[1] // groups, *kernel))
    positions = "xyz"[: len(kernel)]
    for offset in np.ndindex(*kernel):
        part = _grouped(wide[_taken(offset, counts, stride, dilation)], groups)
        equation = f"ngo{positions},ngc{positions}->goc"
        result[(..., *offset)] = np.einsum(equation, _grouped(grad, groups), part)
    return result.reshape(grad.shape[1], -1, *kernel)


def _weight_gradients() -> Iterable[Sample]:
    plain: dict[str, Any] = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
    yield Sample((T((2, 4, 5)), T((2, 3, 7))), {**plain, "kernel": (3,)})
    plane = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    yield Sample((T((2, 4, 3, 4)), T((2, 2, 5, 6))), {**plane, "kernel": (3, 2)})


CONVOLUTION_WEIGHT: dict[str, Any] = {
    "samples": _weight_gradients, "reference": _weight_gradient,
}  # fmt: skip

# ---------------------------------------------------------------------------------------------
# Pooling and columns


def _max_pool(x: Array, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Any:
    size = x.shape[2:]
    places = np.broadcast_to(np.arange(np.prod(size)).reshape(size), x.shape)
    wide, at = _padded(x, padding, -np.inf), _padded(places, padding)
    each = zip(wide.shape[2:], kernel, stride, dilation, strict=True)
    counts = tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in each)
    taken = [_taken(offset, counts, stride, dilation) for offset in np.ndindex(*kernel)]
    values = np.stack([wide[index] for index in taken])
    best = np.argmax(values, 0)[None]
    found = np.stack([at[index] for index in taken])
    return [np.take_along_axis(array, best, 0)[0] for array in (values, found)]


def _max_pools() -> Iterable[Sample]:
    def case(shape: Ints, *args: Ints, layout: str = "contiguous") -> Sample:
        pool = getattr(ops, f"max_pool{len(shape) - 2}d")
        every = {"return_indices": True}
        return Sample((T(shape, layout=layout), *args), call=lambda *a: pool(*a, **every))

    yield case((2, 3, 8), (3,), (2,), (1,), (1,))
    yield case((2, 2, 5, 6), (2, 3), (2, 2), (1, 0), (1, 2))
    yield case((1, 2, 6, 4), (3, 3), (1, 1), (1, 1), (1, 1), layout="transposed")
    yield case((1, 2, 4, 3, 4), (2, 2, 2), (2, 1, 2), (0, 1, 0), (1, 1, 1))


MAX_POOL: dict[str, Any] = {
    "samples": _max_pools,
    "error_samples": lambda: [
        ErrorSample((T((2, 3)), 2), RuntimeError, "Expected 3D or 4D", call=_max_pool2d),
        ErrorSample((T((1, 2, 2)), 3), RuntimeError, "too small", call=_max_pool2d),
        ErrorSample((T((1, 4, 4)), 2, 2, 2), RuntimeError, "at most half", call=_max_pool2d),
    ],
    "reference": _max_pool,
}


def _max_pool2d(*args: Any) -> Any:
    return ops.max_pool2d(*args)


def _columns(x: Array, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Array:
    wide = _padded(x, padding)
    each = zip(wide.shape[2:], kernel, stride, dilation, strict=True)
    counts = tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in each)
    taken = [wide[_taken(offset, counts, stride, dilation)] for offset in np.ndindex(*kernel)]
    return np.stack(taken, 2).reshape(len(x), x.shape[1] * len(taken), -1)


def _images(
    x: Array, size: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> Array:
    """Add up columns: their places are the columns of the images of places."""
    channels = x.shape[1] // int(np.prod(kernel))
    count = channels * size[0] * size[1]
    # Places count from one: padding stays zero, and is dropped.
    numbers = np.arange(1, count + 1).reshape(1, channels, *size)
    places = _columns(numbers, kernel, dilation, padding, stride).ravel()
    rows = [np.bincount(places, row.ravel(), count + 1)[1:] for row in x]
    return np.stack(rows).reshape(len(x), channels, *size)


_SPREADS = (((2, 2), (1, 1), (0, 0), (1, 1)), ((3, 2), (1, 2), (1, 0), (2, 1)))
IM2COL: dict[str, Any] = {
    "samples": lambda: [
        *(Sample((T((2, 3, 5, 6)), *spread)) for spread in _SPREADS),
        Sample((T((1, 2, 4, 4), layout="transposed"), *_SPREADS[1])),
    ],
    "error_samples": lambda: [
        ErrorSample((T((1, 2, 2)), 3), RuntimeError, "must be at least one"),
    ],
    "reference": _columns,
}
COL2IM: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((2, 12, 20)), (5, 6), *_SPREADS[0])),
        Sample((T((1, 12, 12)), (5, 6), *_SPREADS[1])),
    ],
    "error_samples": lambda: [
        ErrorSample((T((1, 4, 5)), (3, 3), 2), RuntimeError, "number of sliding blocks 4"),
    ],
    "reference": _images,
}

# ---------------------------------------------------------------------------------------------
# Resampling


def _along(x: Array, counts: Ints, sample: Any) -> Array:
    """Apply ``sample(row, count)`` to each dimension behind batch and channels."""
    for dim, count in enumerate(counts, 2):
        x = np.apply_along_axis(sample, dim, x, count)
    return x


def _nearest(row: Array, count: int) -> Array:
    return row[np.arange(count) * len(row) // count]


def _linear(row: Array, count: int) -> Array:
    centres = (np.arange(count) + 0.5) * len(row) / count - 0.5
    return np.interp(centres, np.arange(len(row)), row)


def _aligned(row: Array, count: int) -> Array:
    return np.interp(np.linspace(0, len(row) - 1, count), np.arange(len(row)), row)


def _means(row: Array, count: int) -> Array:
    size = len(row)
    bounds = [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]
    return np.array([row[first:end].mean() for first, end in bounds])


def _interpolated(x: Array, counts: Ints, mode: str, align_corners: bool | None = None) -> Array:
    one = _aligned if align_corners else {"nearest": _nearest, "area": _means}.get(mode, _linear)
    return _along(x, counts, one)


def _pair_means(x: Array, kernel: int) -> Array:
    return _along(x, tuple(size // kernel for size in x.shape[2:]), _means)


def _resamples() -> Iterable[Sample]:
    def resize(*args: Any) -> Any:
        counts, mode, *align = args[1:]
        return ops.interpolate(args[0], counts, None, mode, *align)

    yield Sample((T((2, 3, 5)), (8,), "nearest"), call=resize)
    yield Sample((T((1, 2, 4, 5), layout="transposed"), (7, 3), "nearest"), call=resize)
    yield Sample((T((2, 2, 5)), (3,), "linear"), call=resize)
    for align in (False, True):
        yield Sample((T((1, 2, 4, 3)), (6, 5), "bilinear", align), call=resize)
    yield Sample((T((1, 1, 3, 4, 2)), (4, 3, 3), "trilinear", False), call=resize)
    yield Sample((T((1, 2, 5, 6)), (3, 4), "area"), call=resize)
    pool = T((1, 2, 6, 4), layout="strided")
    yield Sample((pool, 2), call=lambda *a: ops.avg_pool2d(*a), reference=_pair_means)


def _resize_errors() -> list[ErrorSample]:
    def resize(*args: Any, **kwargs: Any) -> Any:
        return ops.interpolate(*args, **kwargs)

    return [
        ErrorSample((T((1, 2, 4)),), ValueError, "only one of size or scale_factor", call=resize),
        ErrorSample((T((1, 2, 4)), 0), RuntimeError, "greater than 0", call=resize),
        ErrorSample(
            (T((1, 2, 4)), 3), ValueError, "does not support mode", {"mode": "bilinear"}, resize
        ),
    ]


RESAMPLE: dict[str, Any] = {
    "samples": _resamples, "error_samples": _resize_errors, "reference": _interpolated,
}  # fmt: skip

# ---------------------------------------------------------------------------------------------
# Padding


def _constant_pad(x: Array, pad: Ints, value: float = 0.0) -> Array:
    pairs = [pad[i : i + 2] for i in range(0, len(pad), 2)][::-1]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    grown = np.pad(x, [(max(a, 0), max(b, 0)) for a, b in pairs], constant_values=value)
    cut = zip(pairs, grown.shape, strict=True)
    return grown[tuple(slice(max(-a, 0), size - max(-b, 0)) for (a, b), size in cut)]


PAD: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((5,)), (1, 2))), Sample((T((2, 3, 4)), (1, 0, 2, 1), 1.5)),
        Sample((T((3, 4)), (-1, 2, 1, -1))), Sample((T((3, 4)), (-1, -1))),
        Sample((T((4, 3), layout="transposed"), (2, 2))),
        Sample((T((4, 3), layout="strided"), (0, 1, 1, 0))), Sample((T((2, 2)), (0, 0))),
        Sample((T((0, 2)), (1, 1)), grad=False, name="empty"),
    ],
    "error_samples": lambda: [
        ErrorSample((T((3,)), (1,)), RuntimeError, "must be even"),
        ErrorSample((T((3,)), (1, 1, 1, 1)), RuntimeError, "no more than twice"),
        ErrorSample((T((3,)), (-2, -2)), RuntimeError, "negative output size"),
    ],
    "reference": _constant_pad,
}  # fmt: skip
