"""Resampling of images: interpolate, and the separable weighted sum behind it.

Invariants
----------
* `resample` sums inputs by `Taps` along each dimension; interpolation and average pooling make taps
  from sizes and mode. Its derivative is itself with transposed taps.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from refruntime._dispatch import call
from refruntime._impl import TensorMeta, meta_of
from refruntime._ops import samples_nn
from refruntime._ops.arguments import ints_of
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.samples import Sample, T
from refruntime.errors import ArgumentValueError, ShapeError
from refruntime.kernels import resample as kernels
from refruntime.kernels.pool_cuda import resample_cuda
from refruntime.kernels.resample import Taps

Ints = tuple[int, ...]


def _resample_infer(input: TensorMeta, *, rows: Taps, columns: Taps) -> TensorMeta:
    shape = (*input.shape[:-2], rows.count, columns.count)
    return meta_of(shape, input.dtype, input.device)


def _resample_vjp(g: Any, n: Any) -> Any:
    return call(RESAMPLE, (g,), {"rows": n.rows.turned, "columns": n.columns.turned})


def _samples() -> list[Sample]:
    up, down = _linear_taps(4, 7, 4 / 7, False), _cubic_taps(5, 3, 5 / 3, False)
    nearest = _nearest_taps(3, 6, 0.5, False)
    return [
        Sample((T((2, 3, 4, 5)), [up, down])), Sample((T((2, 5)), [down])),
        Sample((T((1, 3, 4, 5)), [nearest, up, down])),
        Sample((T((4, 5), layout="transposed"), [up.turned.turned, down])),
    ]  # fmt: skip


RESAMPLE = register(
    OpDef("resample", ("input",), jvp="linear", batch="leading",
          samples=_samples, reference=samples_nn.resample,
          infer=_resample_infer, cpu=kernels.resample_cpu,
          cuda=resample_cuda,
          vjp=_resample_vjp)
)  # fmt: skip

_identity = cache(kernels.identity_taps)


@front(RESAMPLE, method=False)
def resample(x: Any, taps: list[Taps]) -> Any:
    """Resample the last ``len(taps)`` dimensions (one to three), each by its taps."""
    if len(taps) == 1:
        lifted = ops.unsqueeze(x, -2)
        params = {"rows": _identity(1), "columns": taps[0]}
        return ops.squeeze(call(RESAMPLE, (lifted,), params), -2)
    x = call(RESAMPLE, (x,), {"rows": taps[-2], "columns": taps[-1]})
    if len(taps) == 2:
        return x
    plane = x.shape[-2:]
    flat = ops.reshape(x, (*x.shape[:-2], plane[0] * plane[1]))
    params = {"rows": taps[0], "columns": _identity(plane[0] * plane[1])}
    result = call(RESAMPLE, (flat,), params)
    return ops.reshape(result, (*result.shape[:-1], *plane))


# ---------------------------------------------------------------------------------------------
# Interpolation


@cache
def _nearest_taps(size: int, count: int, scale: float, exact: bool) -> Taps:
    # In float32, as torch computes it: the choice at a tie depends on it.
    places = np.arange(count, dtype=np.float32) + np.float32(0.5 if exact else 0.0)
    index = np.minimum(np.floor(places * np.float32(scale)).astype(np.int64), size - 1)
    return Taps(size, count, np.arange(count + 1), index, np.ones(count))


def _centres(size: int, count: int, scale: float, align: bool) -> Any:
    places = np.arange(count, dtype=np.float64)
    if align:
        return places * ((size - 1) / (count - 1) if count > 1 else 0.0)
    return (places + 0.5) * scale - 0.5


@cache
def _linear_taps(size: int, count: int, scale: float, align: bool) -> Taps:
    centres = np.maximum(_centres(size, count, scale, align), 0.0)
    low = np.minimum(np.floor(centres).astype(np.int64), size - 1)
    rest = np.clip(centres - low, 0.0, 1.0)
    index = np.stack([low, np.minimum(low + 1, size - 1)], 1).ravel()
    weight = np.stack([1.0 - rest, rest], 1).ravel()
    return Taps(size, count, 2 * np.arange(count + 1), index, weight)


def _cubic(x: Any, a: float) -> Any:
    """Keys' cubic convolution kernel."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


@cache
def _cubic_taps(size: int, count: int, scale: float, align: bool) -> Taps:
    centres = _centres(size, count, scale, align)
    low = np.floor(centres).astype(np.int64)
    index = low[:, None] + np.arange(-1, 3)
    weight = _cubic(centres[:, None] - index, -0.75)
    index = np.clip(index, 0, size - 1)
    return Taps(size, count, 4 * np.arange(count + 1), index.ravel(), weight.ravel())


@cache
def _smooth_taps(size: int, count: int, scale: float, align: bool, cubic: bool) -> Taps:
    """Antialiasing: the filter is as wide as the scale, and its weights sum to one."""
    if align:
        scale = (size - 1) / (count - 1) if count > 1 else 0.0
    stretch = max(scale, 1.0)
    reach = (2.0 if cubic else 1.0) * stretch
    starts, index, weight = [0], [], []
    for place in range(count):
        centre = scale * (place + 0.5)
        first = max(int(centre - reach + 0.5), 0)
        window = np.arange(first, min(int(centre + reach + 0.5), size))
        distance = (window - centre + 0.5) / stretch
        factors = _cubic(distance, -0.5) if cubic else np.maximum(0.0, 1.0 - np.abs(distance))
        index += window.tolist()
        weight += (factors / factors.sum()).tolist()
        starts.append(len(index))
    return Taps(size, count, np.array(starts), np.array(index), np.array(weight))


_MODES = {"nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic", "area"}
_NDIM = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


def _target_sizes(
    x: Any, size: Any, scale_factor: Any, recompute: bool | None
) -> tuple[Ints, tuple[float, ...]]:
    """Return the sizes of the result, and the steps in the source for one in the result."""
    sizes = tuple(x.meta.shape[2:])
    ndim = len(sizes)
    if (size is None) == (scale_factor is None):
        raise ArgumentValueError(
            "interpolate", what="only one of size or scale_factor should be defined",
            expected="one of them", got="both" if size is not None else "neither",
        )  # fmt: skip
    if size is not None:
        wanted = ints_of("interpolate", "size", size)
        counts = wanted * ndim if len(wanted) == 1 else wanted
        _check_length("size", counts, ndim)
        return counts, tuple(s / c for s, c in zip(sizes, counts, strict=True))
    factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * ndim
    _check_length("scale_factor", factors, ndim)
    counts = tuple(math.floor(s * f) for s, f in zip(sizes, factors, strict=True))
    if recompute:
        return counts, tuple(s / c for s, c in zip(sizes, counts, strict=True))
    return counts, tuple(1.0 / float(f) for f in factors)


def _check_length(name: str, values: Any, ndim: int) -> None:
    if len(values) != ndim:
        raise ArgumentValueError(
            "interpolate",
            what=f"Input and output must have the same number of spatial dimensions, but got input "
            f"with {ndim} and {name} with {len(values)}",
            expected=f"{ndim} values", got=str(tuple(values)),
        )  # fmt: skip


@front(RESAMPLE, method=False)
def interpolate(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:  # fmt: skip
    """Resize the dimensions behind batch and channels to `size`, or by `scale_factor`."""
    require_tensor("interpolate", input)
    ndim = input.meta.ndim - 2
    if mode not in _MODES or ndim not in (1, 2, 3) or _NDIM.get(mode, ndim) != ndim:
        raise ArgumentValueError(
            "interpolate",
            what=f"Got {input.meta.ndim}D input, which does not support mode {mode!r}",
            expected="3D with linear, 4D with bilinear or bicubic, 5D with trilinear, or nearest",
            got=mode,
        )
    counts, steps = _target_sizes(input, size, scale_factor, recompute_scale_factor)
    if min(counts) < 1:
        raise ShapeError(
            "interpolate",
            what=f"Input and output sizes should be greater than 0, but got {counts}",
            expected="sizes above zero", got=str(counts), remedy="check size and scale_factor",
        )  # fmt: skip
    if mode == "area":
        return getattr(ops, f"adaptive_avg_pool{ndim}d")(input, counts)
    taps = [
        _taps_of(mode, one[0], one[1], one[2], bool(align_corners), antialias)
        for one in zip(input.meta.shape[2:], counts, steps, strict=True)
    ]
    return resample(input, taps)


def _taps_of(mode: str, size: int, count: int, step: float, align: bool, antialias: bool) -> Taps:
    if mode.startswith("nearest"):
        return _nearest_taps(size, count, step, mode == "nearest-exact")
    if antialias:
        return _smooth_taps(size, count, step, align, mode == "bicubic")
    if mode == "bicubic":
        return _cubic_taps(size, count, step, align)
    return _linear_taps(size, count, step, align)
