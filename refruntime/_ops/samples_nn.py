"""Samples and NumPy references of layers: convolution, normalisation, pooling, padding, losses.

State: none. Invariants: references compute in float64, slowly and plainly, and take what the front
functions take.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._ops.samples import ErrorSample, Sample, T

Ints = tuple[int, ...]


# ---------------------------------------------------------------------------------------------
# Convolution


def _window(x: Any, tap: Ints, result: Ints, stride: Ints, dilation: Ints) -> tuple[Any, ...]:
    """Return the slices of a padded image that one tap of the kernel reads."""
    spatial = zip(tap, result, stride, dilation, strict=True)
    return tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, n, s, d in spatial)


def _padded(x: Any, padding: Ints) -> Any:
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])


def convolution(
    x: Any, weight: Any, bias: Any, stride: Ints, padding: Ints, dilation: Ints, transposed: bool,
    output_padding: Ints, groups: int,
) -> Any:  # fmt: skip
    """Convolve tap by tap."""
    if transposed:
        return _transposed(x, weight, bias, stride, padding, dilation, output_padding, groups)
    wide = _padded(x, padding)
    kernel, rows, channels = weight.shape[2:], weight.shape[0] // groups, weight.shape[1]
    result = tuple(
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(wide.shape[2:], kernel, stride, dilation, strict=True)
    )
    out = np.zeros((x.shape[0], weight.shape[0], *result))
    for group, tap in product(range(groups), np.ndindex(*kernel)):
        part = wide[:, group * channels : (group + 1) * channels]
        part = part[(slice(None), slice(None), *_window(wide, tap, result, stride, dilation))]
        own = slice(group * rows, (group + 1) * rows)
        out[:, own] += np.einsum("nc...,oc->no...", part, weight[(own, slice(None), *tap)])
    return out if bias is None else out + bias.reshape(1, -1, *(1 for _ in kernel))


def _transposed(
    x: Any, weight: Any, bias: Any, stride: Ints, padding: Ints, dilation: Ints, extra: Ints,
    groups: int,
) -> Any:  # fmt: skip
    kernel, rows, channels = weight.shape[2:], weight.shape[1], weight.shape[0] // groups
    source = x.shape[2:]
    whole = tuple(
        (size - 1) * s + d * (k - 1) + 1 + e
        for size, k, s, d, e in zip(source, kernel, stride, dilation, extra, strict=True)
    )
    out = np.zeros((x.shape[0], rows * groups, *whole))
    for group, tap in product(range(groups), np.ndindex(*kernel)):
        own = slice(group * channels, (group + 1) * channels)
        part = np.einsum("nc...,co->no...", x[:, own], weight[(own, slice(None), *tap)])
        place = _window(out, tap, source, stride, dilation)
        out[(slice(None), slice(group * rows, (group + 1) * rows), *place)] += part
    inner = tuple(slice(p, size - p) for p, size in zip(padding, whole, strict=True))
    out = out[(slice(None), slice(None), *inner)]
    return out if bias is None else out + bias.reshape(1, -1, *(1 for _ in kernel))


def _conv_case(x: T, weight: T, *rest: Any, bias: bool = True) -> Sample:
    rows = weight.shape[1] * rest[5] if rest[3] else weight.shape[0]
    return Sample((x, weight, T((rows,)) if bias else None, *rest), rtol=1e-4, atol=1e-5)


def _convolutions() -> Iterable[Sample]:
    none = (0, 0)
    plain = ((1, 1), (0, 0), (1, 1), False, none, 1)
    yield _conv_case(T((2, 3, 6, 5)), T((4, 3, 3, 2)), *plain)
    yield _conv_case(T((1, 2, 7, 8)), T((3, 2, 3, 3)), (2, 3), (1, 2), (1, 1), False, none, 1)
    yield _conv_case(T((2, 4, 6, 6)), T((6, 2, 3, 3)), (1, 1), (1, 1), (2, 1), False, none, 2)
    yield _conv_case(T((2, 3, 5, 5)), T((3, 1, 3, 3)), (1, 1), (1, 1), (1, 1), False, none, 3)
    yield _conv_case(T((3, 5, 4, 4)), T((9, 5, 1, 1)), *plain, bias=False)
    yield _conv_case(
        T((2, 2, 5, 6), layout="transposed"), T((2, 2, 2, 2), layout="strided"), *plain
    )
    yield _conv_case(T((2, 3, 9)), T((4, 3, 3)), (2,), (1,), (2,), False, (0,), 1)
    yield _conv_case(
        T((1, 2, 4, 5, 3)), T((3, 2, 2, 3, 2)), (1, 2, 1), (1, 1, 0), (1, 1, 1), False, (0, 0, 0), 1
    )
    yield _conv_case(T((2, 3, 4, 3)), T((3, 2, 3, 3)), (2, 2), (1, 1), (1, 1), True, (1, 0), 1)
    yield _conv_case(T((1, 4, 3, 3)), T((4, 3, 2, 3)), (3, 1), (0, 1), (1, 2), True, none, 2)


def _bad_convolutions() -> Iterable[ErrorSample]:
    plain = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    image = T((1, 4, 8, 8))
    yield ErrorSample((image, T((8, 3, 3, 3)), None, *plain), RuntimeError, "to have 3 channels")
    yield ErrorSample(
        (T((1, 3, 2, 2)), T((8, 3, 3, 3)), None, *plain), RuntimeError, "can't be greater than"
    )
    yield ErrorSample((image, T((8, 4, 3, 3)), T((7,)), *plain), RuntimeError, "expected bias")


CONVOLUTION: dict[str, Any] = {
    "samples": _convolutions, "error_samples": _bad_convolutions, "reference": convolution,
}  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Normalisation


def _normalised(x: Any, axes: Ints, eps: float) -> Any:
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + eps)


def _scaled(x: Any, weight: Any, bias: Any, shape: Ints) -> Any:
    if weight is not None:
        x = x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def _layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    return _scaled(_normalised(x, axes, eps), weight, bias, tuple(shape))


def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    return _scaled(
        x / np.sqrt((x**2).mean(axis=axes, keepdims=True) + eps), weight, None, tuple(shape)
    )


def _group_norm(
    x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    rows = x.reshape(x.shape[0], groups, -1)
    out = _normalised(rows, (2,), eps).reshape(x.shape)
    return _scaled(out, weight, bias, (1, -1, *(1 for _ in x.shape[2:])))


def _batch_norm(
    x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    row = (1, -1, *(1 for _ in x.shape[2:]))
    if training:
        out = _normalised(x, (0, *range(2, x.ndim)), eps)
    else:
        out = (x - mean.reshape(row)) / np.sqrt(var.reshape(row) + eps)
    return _scaled(out, weight, bias, row)


_UNEVEN = T((2, 3, 5), low=1.0, high=4.0)
LAYER_NORM: dict[str, Any] = {
    "samples": lambda: [
        Sample((_UNEVEN, (5,), T((5,)), T((5,)))), Sample((_UNEVEN, (3, 5))),
        Sample((T((3, 4), layout="transposed"), (4,), T((4,)))),
    ],
    "error_samples": lambda: [
        ErrorSample((T((2, 3)), (4,)), RuntimeError, r"Given normalized_shape=\[4\]"),
    ],
    "reference": _layer_norm,
}  # fmt: skip
RMS_NORM: dict[str, Any] = {
    "samples": lambda: [
        Sample((_UNEVEN, (5,), T((5,)), 1e-5)), Sample((T((4, 6)), (6,), None, 1e-3)),
    ],
    "error_samples": LAYER_NORM["error_samples"],
    "reference": _rms_norm,
}  # fmt: skip
GROUP_NORM: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((2, 6, 3, 2)), 3, T((6,)), T((6,)))), Sample((T((3, 4)), 2)),
        Sample((T((2, 4, 5), layout="transposed"), 4, T((4,)))),
    ],
    "error_samples": lambda: [
        ErrorSample((T((2, 4, 3)), 3), RuntimeError, "divisible by num_groups"),
    ],
    "reference": _group_norm,
}  # fmt: skip


def _statistics() -> tuple[T, T]:
    return T((3,), grad=False), T((3,), low=0.5, high=2.0, grad=False)


BATCH_NORM: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((4, 3, 2, 2)), None, None, T((3,)), T((3,)), True)),
        Sample((T((5, 3)), None, None, T((3,)), T((3,)), True)),
        Sample((T((2, 3, 4)), *_statistics(), T((3,)), T((3,)), False)),
        Sample((T((4, 3, 2), layout="transposed"), None, None, None, None, True)),
    ],
    "error_samples": lambda: [
        ErrorSample((T((1, 3)), None, None, None, None, True), ValueError, "more than 1 value"),
        ErrorSample((T((2, 3)), T((4,)), T((4,))), RuntimeError, "should contain 3 elements"),
    ],
    "reference": _batch_norm,
}  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Pooling, padding, windows


def _max_pool(
    x: Any, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    given = (kernel, stride or kernel, padding, dilation)
    k, s, p, d = (v if isinstance(v, tuple) else (v, v) for v in given)
    wide = np.pad(x, [(0, 0), (0, 0), (p[0], p[0]), (p[1], p[1])], constant_values=-np.inf)
    result = tuple((wide.shape[2 + i] - d[i] * (k[i] - 1) - 1) // s[i] + 1 for i in range(2))
    both = (slice(None), slice(None))
    windows = [wide[(*both, *_window(wide, tap, result, s, d))] for tap in np.ndindex(*k)]
    return np.max(windows, axis=0)


MAX_POOL: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((2, 3, 6, 4)), 2)), Sample((T((1, 2, 7, 5)), 3, 2, 1)),
        Sample((T((1, 1, 7, 7)), (2, 3), 1, 1, 2)), Sample((T((2, 2, 4, 6), layout="strided"), 2)),
    ],
    "error_samples": lambda: [
        ErrorSample((T((1, 1, 2, 2)), 3), RuntimeError, "output size that is too small"),
        ErrorSample((T((1, 1, 4, 4)), 2, 2, 2), RuntimeError, "pad should be at most half"),
    ],
    "reference": _max_pool,
}  # fmt: skip


def _im2col(x: Any, kernel: Any, dilation: int = 1, padding: int = 0, stride: int = 1) -> Any:
    wide = _padded(x, (padding, padding))
    sizes = zip(wide.shape[2:], kernel, strict=True)
    result = tuple((size - dilation * (k - 1) - 1) // stride + 1 for size, k in sizes)
    both, step, gap = (slice(None), slice(None)), (stride, stride), (dilation, dilation)
    taps = [wide[(*both, *_window(wide, tap, result, step, gap))] for tap in np.ndindex(*kernel)]
    return np.stack(taps, 2).reshape(x.shape[0], -1, result[0] * result[1])


def _col2im(
    columns: Any, size: Ints, kernel: Ints, dilation: int = 1, padding: int = 0, stride: int = 1
) -> Any:
    whole = tuple(extent + 2 * padding for extent in size)
    result = tuple((whole[i] - dilation * (kernel[i] - 1) - 1) // stride + 1 for i in range(2))
    taps = columns.reshape(columns.shape[0], -1, *kernel, *result)
    out = np.zeros((columns.shape[0], taps.shape[1], *whole))
    for tap in np.ndindex(*kernel):
        place = _window(out, tap, result, (stride,) * 2, (dilation,) * 2)
        out[(slice(None), slice(None), *place)] += taps[(slice(None), slice(None), *tap)]
    return out[:, :, padding : whole[0] - padding, padding : whole[1] - padding]


IM2COL: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((2, 3, 5, 4)), (2, 3))), Sample((T((1, 2, 6, 6)), (3, 2), 2, 1, 2)),
    ],
    "error_samples": lambda: [
        ErrorSample((T((1, 1, 2, 2)), (3, 3)), RuntimeError, "must be at least one"),
    ],
    "reference": _im2col,
}  # fmt: skip
COL2IM: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((2, 12, 8)), (3, 5), (2, 2))), Sample((T((1, 6, 9)), (6, 4), (3, 2), 1, 1, 2)),
    ],
    "error_samples": lambda: [
        ErrorSample((T((1, 12, 7)), (3, 5), (2, 2)), RuntimeError, "number of sliding blocks 8"),
    ],
    "reference": _col2im,
}  # fmt: skip


def _pad(x: Any, pad: Ints, value: float = 0) -> Any:
    pairs = [tuple(pad[i : i + 2]) for i in range(0, len(pad), 2)]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    grown = np.pad(x, [(max(a, 0), max(b, 0)) for a, b in pairs], constant_values=value)
    sides = zip(pairs, grown.shape, strict=True)
    return grown[tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in sides)]


PAD: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((2, 3)), (1, 2))), Sample((T((2, 3, 4)), (0, 1, 2, 0), 1.5)),
        Sample((T((3, 4), layout="transposed"), (-1, 2, 1, -1))),
    ],
    "error_samples": lambda: [
        ErrorSample((T((2, 3)), (1, 2, 3)), RuntimeError, "must be even"),
        ErrorSample((T((2, 3)), (-2, -2)), RuntimeError, "negative output size"),
    ],
    "reference": _pad,
}  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Losses


def _reduce(loss: Any, reduction: str) -> Any:
    if reduction == "none":
        return loss
    return np.mean(loss) if reduction == "mean" else np.sum(loss)


def _pair(loss: Any) -> Any:
    def reference(x: Any, t: Any, reduction: str = "mean", **named: Any) -> Any:
        return _reduce(loss(x - t, **named), reduction)

    return reference


def _smooth(d: Any, beta: float = 1.0) -> Any:
    return np.where(np.abs(d) < beta, d * d / (2 * beta), np.abs(d) - beta / 2)


def _huber(d: Any, delta: float = 1.0) -> Any:
    return np.where(np.abs(d) <= delta, d * d / 2, delta * (np.abs(d) - delta / 2))


def _pairs(**kwargs: Any) -> Any:
    def samples() -> Iterable[Sample]:
        for reduction in ("none", "mean", "sum"):
            yield Sample((T((3, 4)), T((3, 4)), reduction), dict(kwargs))
        turned = T((3, 4), layout="transposed"), T((3, 4), layout="strided")
        yield Sample(turned, dict(kwargs), name="transposed-strided")

    return samples


def _bad_reduction() -> list[ErrorSample]:
    return [ErrorSample((T((2,)), T((2,)), "avg"), ValueError, "not a valid value for reduction")]


MSE: dict[str, Any] = {
    "samples": _pairs(), "error_samples": _bad_reduction, "reference": _pair(np.square),
}  # fmt: skip
L1: dict[str, Any] = {**MSE, "reference": _pair(np.abs)}
SMOOTH_L1: dict[str, Any] = {**MSE, "samples": _pairs(beta=0.7), "reference": _pair(_smooth)}
HUBER: dict[str, Any] = {**MSE, "samples": _pairs(delta=0.7), "reference": _pair(_huber)}


def _nll(
    x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    factors = np.ones(x.shape[1]) if weight is None else weight
    counts = target != ignore_index
    known = np.where(counts, target, 0)
    picked = np.take_along_axis(x, np.expand_dims(known, 1), 1).squeeze(1)
    scale = factors[known] * counts
    if reduction == "none":
        return -picked * scale
    total = np.sum(-picked * scale)
    return total / np.sum(scale) if reduction == "mean" else total


def _classes(*shape: int, high: int) -> T:
    return T(shape, _dtypes.int64, 0, high)


NLL: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((5, 3)), _classes(5, high=2))),
        Sample((T((5, 3)), _classes(5, high=2), T((3,), low=0.5, grad=False), 1, "mean")),
        Sample((T((2, 4, 3)), _classes(2, 3, high=3), None, -100, "none")),
        Sample((T((4, 3), layout="transposed"), _classes(4, high=2), None, 0, "sum")),
    ],
    "error_samples": lambda: [
        ErrorSample((T((2, 3)), T((2,), _dtypes.int64, values=[0, 3])), IndexError, "Target 3 is"),
        ErrorSample((T((2, 3)), _classes(4, high=2)), ValueError, "Expected input batch_size"),
        ErrorSample((T((2, 3)), T((2,))), RuntimeError, "expected scalar type Long"),
    ],
    "reference": _nll,
}  # fmt: skip


def _bce(x: Any, t: Any, weight: Any = None, reduction: str = "mean") -> Any:
    return _reduce(-(t * np.log(x) + (1 - t) * np.log(1 - x)), reduction)


def _bce_logits(
    x: Any, t: Any, weight: Any = None, pos_weight: Any = 1.0, reduction: str = "mean"
) -> Any:
    loss = (1 - t) * x + (1 + (pos_weight - 1) * t) * np.log1p(np.exp(-x))
    return _reduce(loss, reduction)


_PROBABILITIES: dict[str, Any] = {"low": 0.05, "high": 0.95}
_SHAPES = ErrorSample((T((2,)), T((3,))), ValueError, "must be the same as input size")
BCE: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((3, 4), **_PROBABILITIES), T((3, 4), **_PROBABILITIES), None, reduction))
        for reduction in ("none", "mean", "sum")
    ],
    "error_samples": lambda: [_SHAPES],
    "reference": _bce,
}  # fmt: skip
BCE_LOGITS: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((3, 4)), T((3, 4), **_PROBABILITIES), None, T((4,), low=0.5), "mean")),
        Sample((T((3, 4)), T((3, 4), **_PROBABILITIES))),
    ],
    "error_samples": lambda: [_SHAPES],
    "reference": _bce_logits,
}  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Resampling


def resample(x: Any, taps: list[Any]) -> Any:
    """Multiply each of the last dimensions by the matrix of its taps."""
    for dim, one in enumerate(reversed(taps), 1):
        matrix = np.zeros((one.count, one.size))
        for place in range(one.count):
            for k in range(one.starts[place], one.starts[place + 1]):
                matrix[place, one.index[k]] += one.weight[k]
        x = np.moveaxis(np.moveaxis(x, -dim, -1) @ matrix.T, -1, -dim)
    return x
