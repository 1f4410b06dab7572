"""Max pooling with places, its backward, and windows as columns (im2col, col2im).

State
-----
`_windows` caches, for each dimension's extents, the tables of window starts and ends.

Invariants
----------
* A tensor is seen as planes ``[D, H, W]``; missing dimensions have size one.
* Windows are tables (first and end index a window, clipped to the source), so plain, dilated,
  ceil-mode and adaptive pooling share one loop.
* Of equal elements the first in row-major order wins; NaN wins over all numbers. Places are counted
  in the plane.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from refruntime._impl import TensorImpl
from refruntime._native import ptr_i64
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl
from refruntime.kernels.reduce import GRAIN, into_contiguous
from refruntime.kernels.variants import T, load_T, ptr_T, store_T, template

Array = np.ndarray[Any, Any]
Window = tuple[tuple[int, int], ...]


@template("void(" + "int64, " * 6 + "int64)")
def max_pool_planes(out, places, x, table, windows, start, stop):  # type: ignore[no-untyped-def]
    """The largest element of each window, and where it is; a unit is a plane.

    `table` holds source and result sizes and the distances between elements of a window, each for
    depth, height, width; `windows` the bounds of all windows along the three, end to end.
    """
    g = ptr_i64(table)
    height, width = g[1], g[2]
    size = g[0] * height * width
    deep, high, wide = g[3], g[4], g[5]
    bounds_d = ptr_i64(windows)
    bounds_h = ptr_i64(windows + 16 * deep)
    bounds_w = ptr_i64(windows + 16 * (deep + high))
    p = ptr_T(x)
    o = ptr_T(out)
    place = ptr_i64(places)
    for plane in range(start, stop):
        base = plane * size
        to = plane * deep * high * wide
        for d in range(deep):
            for h in range(high):
                for w in range(wide):
                    first_w = bounds_w[2 * w]
                    at = (bounds_d[2 * d] * height + bounds_h[2 * h]) * width + first_w
                    best = load_T(p, base + at)
                    for z in range(bounds_d[2 * d], bounds_d[2 * d + 1], g[6]):
                        for y in range(bounds_h[2 * h], bounds_h[2 * h + 1], g[7]):
                            row = (z * height + y) * width
                            for i in range(row + first_w, row + bounds_w[2 * w + 1], g[8]):
                                value = load_T(p, base + i)
                                if value > best or value != value:
                                    best = value
                                    at = i
                    store_T(o, to, best)
                    place[to] = at
                    to += 1


@template("void(" + "int64, " * 6 + "int64)")
def add_at_places(out, g, places, size, count, start, stop):  # type: ignore[no-untyped-def]
    """Add each of `count` gradients of a plane to its place in a plane of `size`."""
    o = ptr_T(out)
    p = ptr_T(g)
    place = ptr_i64(places)
    for plane in range(start, stop):
        base = plane * size
        for i in range(base, base + size):
            store_T(o, i, T(0))
        for i in range(plane * count, plane * count + count):
            at = base + place[i]
            store_T(o, at, load_T(o, at) + load_T(p, i))


@template("void(" + "int64, " * 4 + "int64)")
def columns_of_planes(out, x, table, start, stop):  # type: ignore[no-untyped-def]
    """Copy the windows of a plane as columns: ``out[ky, kx, y, x]``; outside is zero.

    `table` holds source height and width, kernel, result, stride, padding, dilation, by pairs.
    """
    g = ptr_i64(table)
    height, width = g[0], g[1]
    p = ptr_T(x)
    o = ptr_T(out)
    for plane in range(start, stop):
        to = plane * g[2] * g[3] * g[4] * g[5]
        for ky in range(g[2]):
            for kx in range(g[3]):
                for y in range(g[4]):
                    row = y * g[6] - g[8] + ky * g[10]
                    for x_out in range(g[5]):
                        column = x_out * g[7] - g[9] + kx * g[11]
                        value = T(0)
                        if 0 <= row < height and 0 <= column < width:
                            value = load_T(p, (plane * height + row) * width + column)
                        store_T(o, to, value)
                        to += 1


@template("void(" + "int64, " * 4 + "int64)")
def planes_of_columns(out, columns, table, start, stop):  # type: ignore[no-untyped-def]
    """Add the columns of windows up into a plane: the transpose of `columns_of_planes`."""
    g = ptr_i64(table)
    height, width = g[0], g[1]
    p = ptr_T(columns)
    o = ptr_T(out)
    for plane in range(start, stop):
        base = plane * height * width
        for i in range(base, base + height * width):
            store_T(o, i, T(0))
        of = plane * g[2] * g[3] * g[4] * g[5]
        for ky in range(g[2]):
            for kx in range(g[3]):
                for y in range(g[4]):
                    row = y * g[6] - g[8] + ky * g[10]
                    for x_out in range(g[5]):
                        column = x_out * g[7] - g[9] + kx * g[11]
                        if 0 <= row < height and 0 <= column < width:
                            at = base + row * width + column
                            store_T(o, at, load_T(o, at) + load_T(p, of))
                        of += 1


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, CPU


@lru_cache(maxsize=1024)
def _tables(
    source: tuple[int, ...], windows: tuple[Window, ...], steps: tuple[int, ...]
) -> tuple[Array, Array]:
    result = [len(window) for window in windows]
    bounds = np.array([bound for window in windows for pair in window for bound in pair], np.int64)
    return np.array([*source, *result, *steps], np.int64), bounds


@lru_cache(maxsize=1024)
def pool_windows(
    size: int, count: int, kernel: int, stride: int, padding: int, dilation: int
) -> Window:
    """Return first and end index of each window along one dimension."""
    bounds = []
    for index in range(count):
        first = index * stride - padding
        end = min(first + (kernel - 1) * dilation + 1, size)
        while first < 0:
            first += dilation
        bounds.append((first, end))
    return tuple(bounds)


@lru_cache(maxsize=1024)
def adaptive_windows(size: int, count: int) -> Window:
    """Return the bounds of `count` windows that together cover `size` elements."""
    return tuple((i * size // count, -(-(i + 1) * size // count)) for i in range(count))


def _in_three(values: tuple[Any, ...], fill: Any) -> tuple[Any, ...]:
    return (fill,) * (3 - len(values)) + tuple(values)


@into_contiguous
def max_pool_cpu(
    out: tuple[TensorImpl, TensorImpl], x: TensorImpl, *, windows: tuple[Window, ...],
    steps: tuple[int, ...],
) -> None:  # fmt: skip
    """Max pooling over the last ``len(windows)`` dimensions; gives values and places."""
    x = contiguous_impl(x)
    spatial = len(windows)
    source = _in_three(tuple(x.meta.shape[-spatial:]), 1)
    table, bounds = _tables(source, _in_three(windows, ((0, 1),)), _in_three(steps, 1))
    size = source[0] * source[1] * source[2]
    if not out[0].meta.numel:
        return
    launch.parallel_for(
        max_pool_planes.for_dtypes(T=x.meta.dtype), x.meta.numel // size,
        max(1, GRAIN // (2 * size)), out[0].address(), out[1].address(), x.address(),
        table.ctypes.data, bounds.ctypes.data,
    )  # fmt: skip


@into_contiguous
def max_pool_backward_cpu(
    out: TensorImpl, g: TensorImpl, places: TensorImpl, *, spatial: int, **_: Any
) -> None:
    """Add each gradient to the place that its maximum came from."""
    g, places = contiguous_impl(g), contiguous_impl(places)
    if not out.meta.numel:
        return
    size = _size(out.meta.shape[-spatial:])
    count = _size(g.meta.shape[-spatial:])
    launch.parallel_for(
        add_at_places.for_dtypes(T=out.meta.dtype), out.meta.numel // size, max(1, GRAIN // size),
        out.address(), g.address(), places.address(), size, count,
    )  # fmt: skip


def _size(shape: Any) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


@lru_cache(maxsize=1024)
def _column_table(*fields: tuple[int, int]) -> Array:
    return np.array(fields, np.int64).ravel()


@into_contiguous
def im2col_cpu(
    out: TensorImpl, x: TensorImpl, *, kernel: Any, result: Any, stride: Any, padding: Any,
    dilation: Any,
) -> None:  # fmt: skip
    """Copy the windows of each plane as columns."""
    x = contiguous_impl(x)
    if not out.meta.numel:
        return
    source = tuple(x.meta.shape[-2:])
    table = _column_table(source, kernel, result, stride, padding, dilation)
    planes = _size(x.meta.shape[:-2])
    launch.parallel_for(
        columns_of_planes.for_dtypes(T=x.meta.dtype), planes,
        max(1, GRAIN * planes // out.meta.numel), out.address(), x.address(), table.ctypes.data,
    )  # fmt: skip


@into_contiguous
def col2im_cpu(
    out: TensorImpl, columns: TensorImpl, *, kernel: Any, result: Any, stride: Any, padding: Any,
    dilation: Any, **_: Any,
) -> None:  # fmt: skip
    """Add the columns of windows up into planes."""
    columns = contiguous_impl(columns)
    if not out.meta.numel:
        return
    source = tuple(out.meta.shape[-2:])
    table = _column_table(source, kernel, result, stride, padding, dilation)
    planes = _size(out.meta.shape[:-2])
    launch.parallel_for(
        planes_of_columns.for_dtypes(T=out.meta.dtype), planes,
        max(1, GRAIN * planes // max(1, columns.meta.numel)), out.address(), columns.address(),
        table.ctypes.data,
    )  # fmt: skip


