"""Weighted sums along rows and columns of planes: interpolation and average pooling, both ways.

State
-----
`Taps` are cached by the functions of `_ops.resample` that make them.

Invariants
----------
* Along each of the two dimensions, an output is a weighted sum of a few inputs, listed in `Taps`.
  The gradient is the same sum with the transposed lists, so one loop serves both directions.
* An output row is first summed over input rows into a row buffer (vectorised along the row), then
  over columns: memory is read and written once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime._impl import TensorImpl
from refruntime._native import ptr_f64, ptr_i64
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl
from refruntime.kernels.reduce import GRAIN, into_contiguous
from refruntime.kernels.variants import (
    ACC,
    device_template,
    load_T,
    ptr_ACC,
    ptr_T,
    store_T,
    template,
)

Array = np.ndarray[Any, Any]


class Taps:
    """Which inputs each output sums, with which weights, along one dimension.

    Parameters
    ----------
    size, count : int
        Number of inputs and outputs.
    starts : ndarray of int64, shape (count + 1,)
        Where the taps of an output start in the next two.
    index : ndarray of int64
        Inputs.
    weight : ndarray of float64
        Their weights.
    """

    __slots__ = ("_turned", "count", "index", "same", "size", "starts", "weight")

    def __init__(self, size: int, count: int, starts: Array, index: Array, weight: Array) -> None:
        self.size = size
        self.count = count
        self.starts = np.ascontiguousarray(starts, np.int64)
        self.index = np.ascontiguousarray(index, np.int64)
        self.weight = np.ascontiguousarray(weight, np.float64)
        lengths = np.diff(self.starts)
        # One or two taps everywhere have loops of their own, without a list in the innermost loop.
        self.same = int(lengths[0]) if count and (lengths == lengths[0]).all() else 0
        self._turned: Taps | None = None

    @property
    def turned(self) -> Taps:
        """The taps of the transposed sum."""
        if self._turned is None:
            outputs = np.repeat(np.arange(self.count), np.diff(self.starts))
            order = np.argsort(self.index, kind="stable")
            starts = np.searchsorted(self.index[order], np.arange(self.size + 1))
            self._turned = Taps(
                self.count, self.size, starts, outputs[order], self.weight[order]
            )
            self._turned._turned = self
        return self._turned


def identity_taps(size: int) -> Taps:
    """Return the taps that change nothing."""
    return Taps(size, size, np.arange(size + 1), np.arange(size), np.ones(size))


@device_template
def _sum_rows(buffer, p, at, width, starts, index, weight, y):  # type: ignore[no-untyped-def]
    """Sum the input rows of output row `y` into the buffer."""
    first, end = starts[y], starts[y + 1]
    if first == end:
        for x in range(width):
            buffer[x] = ACC(0)
        return
    row = at + index[first] * width
    factor = ACC(weight[first])
    for x in range(width):
        buffer[x] = load_T(p, row + x) * factor
    for k in range(first + 1, end):
        row = at + index[k] * width
        factor = ACC(weight[k])
        for x in range(width):
            buffer[x] += load_T(p, row + x) * factor


@device_template
def _sum_columns(o, to, buffer, count, starts, index, weight, same):  # type: ignore[no-untyped-def]
    """Sum the buffer's columns into an output row."""
    if same == 1:
        for x in range(count):
            store_T(o, to + x, buffer[index[x]] * ACC(weight[x]))
    elif same == 2:
        for x in range(count):
            first = buffer[index[2 * x]] * ACC(weight[2 * x])
            store_T(o, to + x, first + buffer[index[2 * x + 1]] * ACC(weight[2 * x + 1]))
    else:
        for x in range(count):
            total = ACC(0)
            for k in range(starts[x], starts[x + 1]):
                total += buffer[index[k]] * ACC(weight[k])
            store_T(o, to + x, total)


@template("void(" + "int64, " * 4 + "int64)")
def resample_planes(out, x, table, start, stop):  # type: ignore[no-untyped-def]
    """Resample each plane by the taps of rows and of columns; a unit is a row of the result.

    `table`: source height and width, result height and width, addresses of starts, index and weight
    for rows, the same for columns, the columns' common number of taps, and whether columns change.
    """
    g = ptr_i64(table)
    height, width, high, wide = g[0], g[1], g[2], g[3]
    row_starts, row_index, row_weight = ptr_i64(g[4]), ptr_i64(g[5]), ptr_f64(g[6])
    starts, index, weight = ptr_i64(g[7]), ptr_i64(g[8]), ptr_f64(g[9])
    p = ptr_T(x)
    o = ptr_T(out)
    memory = np.empty(width, ACC)
    buffer = ptr_ACC(memory.ctypes.data)
    for unit in range(start, stop):
        at = (unit // high) * height * width
        y = unit % high
        _sum_rows(buffer, p, at, width, row_starts, row_index, row_weight, y)
        _sum_columns(o, unit * wide, buffer, wide, starts, index, weight, g[10])
    # Keeps the buffer alive to here: the compiler sees no use through the pointer.
    memory[0] = ACC(0)


def _table(rows: Taps, columns: Taps) -> Array:
    addresses = [
        array.ctypes.data
        for taps in (rows, columns)
        for array in (taps.starts, taps.index, taps.weight)
    ]
    return np.array(
        [rows.size, columns.size, rows.count, columns.count, *addresses, columns.same], np.int64
    )


@into_contiguous
def resample_cpu(out: TensorImpl, x: TensorImpl, *, rows: Taps, columns: Taps) -> None:
    """Resample the last two dimensions."""
    if not out.meta.numel:
        return
    x = contiguous_impl(x)
    table = _table(rows, columns)
    kernel = resample_planes.for_dtypes(T=x.meta.dtype, ACC=x.meta.dtype.compute)
    units = out.meta.numel // columns.count
    work = columns.count + columns.size * max(1, len(rows.index) // max(1, rows.count))
    launch.parallel_for(
        kernel, units, max(1, GRAIN // work), out.address(), x.address(), table.ctypes.data
    )
