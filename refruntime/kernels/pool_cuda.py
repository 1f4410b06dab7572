"""The GPU half of `kernels.pool` and `kernels.resample`: launches of pool.cu.

State
-----
Tables of windows and taps that were sent to a device, by what they describe; they are small.

Invariants
----------
* Signatures and results are those of the CPU kernels.
* The backward of max pooling gathers when it is told the windows, and is then reproducible; without
  them it adds at the places atomically.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from refruntime._device import Device
from refruntime._impl import TensorImpl
from refruntime.kernels import index as walks
from refruntime.kernels import launch
from refruntime.kernels.copy import fill_cuda
from refruntime.kernels.gpu import into_contiguous_cuda, packed_cuda, struct, upload
from refruntime.kernels.index import Route
from refruntime.kernels.pool import Window
from refruntime.kernels.resample import Taps

Windows = tuple[Window, ...]


def _in_three(values: tuple[Any, ...], fill: Any) -> tuple[Any, ...]:
    return (fill,) * (3 - len(values)) + tuple(values)


@lru_cache(maxsize=1024)
def _bounds(windows: Windows, device: Device) -> TensorImpl:
    """Return the bounds of all windows along the three dimensions, end to end, on the device."""
    return upload(np.array([pair for window in windows for pair in window], np.int64), device)


@lru_cache(maxsize=1024)
def _covers(source: tuple[int, ...], windows: Windows, device: Device) -> TensorImpl:
    """Return, for each position of the source, the range of windows that reach over it."""
    rows = []
    for size, window in zip(source, windows, strict=True):
        reach = np.zeros((size, 2), np.int64)
        for number, (first, end) in enumerate(window):
            reach[first:end, 1] = number + 1
        for number, (first, end) in reversed(list(enumerate(window))):
            reach[first:end, 0] = number
        rows.append(reach)
    return upload(np.concatenate(rows), device)


def _shape(source: tuple[int, ...], result: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    return struct(*source, *result, *steps)


@into_contiguous_cuda
def max_pool_cuda(
    out: tuple[TensorImpl, TensorImpl], x: TensorImpl, *, windows: Windows, steps: tuple[int, ...]
) -> None:
    """Max pooling over the last ``len(windows)`` dimensions; gives values and places."""
    count = out[0].meta.numel
    if not count:
        return
    x = packed_cuda(x)
    source = _in_three(tuple(x.meta.shape[-len(windows) :]), 1)
    windows, steps = _in_three(windows, ((0, 1),)), _in_three(steps, 1)
    shape = _shape(source, tuple(map(len, windows)), steps)
    launch.raw(
        "pool", "max_pool", (x.meta.dtype.ctype,), *launch.cover(count),
        (out[0].address(), out[1].address(), x.address(), shape,
         _bounds(windows, x.meta.device).address(), count),
    )  # fmt: skip


@into_contiguous_cuda
def max_pool_backward_cuda(
    out: TensorImpl, g: TensorImpl, places: TensorImpl, *, spatial: int,
    windows: Windows | None = None, **_: Any,
) -> None:  # fmt: skip
    """Add each gradient to the place that its maximum came from."""
    count = out.meta.numel
    if not count:
        return
    g, places = packed_cuda(g), packed_cuda(places)
    if windows is None:
        _add_at_places(out, g, places, spatial)
        return
    source = _in_three(tuple(out.meta.shape[-spatial:]), 1)
    result = _in_three(tuple(g.meta.shape[-spatial:]), 1)
    covers = _covers(source, _in_three(windows, ((0, 1),)), out.meta.device)
    launch.raw(
        "pool", "max_pool_backward", (out.meta.dtype.ctype,), *launch.cover(count),
        (out.address(), g.address(), places.address(), _shape(source, result, (1, 1, 1)),
         covers.address(), count),
    )  # fmt: skip


def _add_at_places(out: TensorImpl, g: TensorImpl, places: TensorImpl, spatial: int) -> None:
    fill_cuda(out, 0)
    size, each = prod(out.meta.shape[-spatial:]), prod(g.meta.shape[-spatial:])
    planes = out.meta.numel // size
    entry = ((each, 1), size, 1)
    route = Route((planes, each), (each, 1), (size, 0), (entry,), wrap=False)
    walks.run_walk_cuda(walks.add, out, g, (places,), route)


# ---------------------------------------------------------------------------------------------
# Weighted sums, and windows as columns

# Taps live as long as the caches that made them; an entry keeps its own alive.
_sent: dict[tuple[int, Device], tuple[Taps, tuple[TensorImpl, ...]]] = {}


def _taps(taps: Taps, device: Device) -> Any:
    """Return the struct ``Taps`` of cuda/pool.cu, its lists on the device."""
    key = id(taps), device
    if key not in _sent:
        # An empty list still needs an address that can be read.
        lists = (taps.starts, np.append(taps.index, 0), np.append(taps.weight, 0.0))
        _sent[key] = taps, tuple(upload(values, device) for values in lists)
    return struct(*(tensor.address() for tensor in _sent[key][1]))


@into_contiguous_cuda
def resample_cuda(out: TensorImpl, x: TensorImpl, *, rows: Taps, columns: Taps) -> None:
    """Resample the last two dimensions."""
    count, device = out.meta.numel, x.meta.device
    if not count:
        return
    x = packed_cuda(x)
    launch.raw(
        "pool", "resample", (x.meta.dtype.ctype,), *launch.cover(count),
        (out.address(), x.address(), rows.size, columns.size, rows.count, columns.count,
         _taps(rows, device), _taps(columns, device), count),
    )  # fmt: skip


def _column_shape(
    image: TensorImpl, kernel: Any, result: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    return struct(*image.meta.shape[-2:], *kernel, *result, *stride, *padding, *dilation)


@into_contiguous_cuda
def im2col_cuda(
    out: TensorImpl, x: TensorImpl, *, kernel: Any, result: Any, stride: Any, padding: Any,
    dilation: Any,
) -> None:  # fmt: skip
    """Copy the windows of each plane as columns."""
    count = out.meta.numel
    if not count:
        return
    x = packed_cuda(x)
    shape = _column_shape(x, kernel, result, stride, padding, dilation)
    args = (out.address(), x.address(), shape, count)
    launch.raw("pool", "im2col", (x.meta.dtype.ctype,), *launch.cover(count), args)


@into_contiguous_cuda
def col2im_cuda(
    out: TensorImpl, columns: TensorImpl, *, kernel: Any, result: Any, stride: Any, padding: Any,
    dilation: Any, **_: Any,
) -> None:  # fmt: skip
    """Add the columns of windows up into planes."""
    count = out.meta.numel
    if not count:
        return
    columns = packed_cuda(columns)
    shape = _column_shape(out, kernel, result, stride, padding, dilation)
    args = (out.address(), columns.address(), shape, count)
    launch.raw("pool", "col2im", (out.meta.dtype.ctype,), *launch.cover(count), args)
