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
from refruntime._native import ptr_i32, ptr_i64
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl
from refruntime.kernels.reduce import GRAIN, into_contiguous
from refruntime.kernels.variants import (
    T,
    device_template,
    load_T,
    ptr_ACC,
    ptr_T,
    store_T,
    template,
)

Array = np.ndarray[Any, Any]
Window = tuple[tuple[int, int], ...]


@device_template
def _largest_of_rows(best, row_of, p, base, rows, width, first):  # type: ignore[no-untyped-def]
    """For each column the largest element of some rows, and which row it is in; vectorised."""
    begin, end, step = rows
    for x in range(width):
        best[x] = load_T(p, base + begin * width + x) if first else best[x]
        row_of[x] = begin if first else row_of[x]
    for row in range(begin, end, step):
        for x in range(width):
            value = load_T(p, base + row * width + x)
            wins = value > best[x] or value != value
            best[x] = value if wins else best[x]
            row_of[x] = row if wins else row_of[x]


@template("void(" + "int64, " * 6 + "int64)")
def max_pool_planes(out, places, x, table, windows, start, stop):  # type: ignore[no-untyped-def]
    """The largest element of each window, and where it is; a unit is a plane.

    `table` holds source and result sizes and the distances between elements of a window, each for
    depth, height, width; `windows` the bounds of all windows along the three, end to end.
    """
    g = ptr_i64(table)
    height, width = g[1], g[2]
    deep, high, wide, step = g[3], g[4], g[5], g[8]
    bounds_d = ptr_i64(windows)
    bounds_h = ptr_i64(windows + 16 * deep)
    bounds_w = ptr_i64(windows + 16 * (deep + high))
    p, o, place = ptr_T(x), ptr_T(out), ptr_i64(places)
    values = np.empty(width, T)
    rows = np.empty(width, np.int32)
    best, row_of = ptr_ACC(values.ctypes.data), ptr_i32(rows.ctypes.data)
    for plane in range(start, stop):
        base = plane * g[0] * height * width
        to = plane * deep * high * wide
        for d in range(deep):
            for h in range(high):
                for z in range(bounds_d[2 * d], bounds_d[2 * d + 1], g[6]):
                    bounds = (z * height + bounds_h[2 * h], z * height + bounds_h[2 * h + 1], g[7])
                    _largest_of_rows(best, row_of, p, base, bounds, width, z == bounds_d[2 * d])
                for w in range(wide):
                    at = bounds_w[2 * w]
                    largest, row = best[at], row_of[at]
                    for i in range(at + step, bounds_w[2 * w + 1], step):
                        # Of equal elements the first in row-major order: the one in an earlier row.
                        # No branches: which element wins is hard to predict.
                        value, row_i = best[i], row_of[i]
                        earlier = (value == largest) & (row_i < row)
                        wins = (value > largest) | (value != value) | earlier
                        largest = value if wins else largest
                        row = row_i if wins else row
                        at = i if wins else at
                    store_T(o, to, largest)
                    place[to] = row * width + at
                    to += 1
    # Keeps the buffers alive to here: the compiler sees no use through the pointers.
    values[0] = T(0)
    rows[0] = 0


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
        max_pool_planes.for_dtypes(T=x.meta.dtype, ACC=x.meta.dtype.compute), x.meta.numel // size,
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


