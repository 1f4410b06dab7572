"""Planning a convolution: which packed memory, which taps at which offsets, which tiles.

State
-----
Plans are cached by shapes, parameters, element size and number of threads. A `Plan` owns the tables
whose addresses its own table holds.

Invariants
----------
* Forward and transposed convolution are one thing here: along each dimension, a position `j` of a
  job reads the source at ``j * step + offset`` for each tap.
* A plan depends on nothing but its key, so it can be reused for any data.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from refruntime.kernels import conv_table as f
from refruntime.kernels.tiles import tile_shape

Triple = tuple[int, int, int]
Array = np.ndarray[Any, Any]

# Packed positions that one pass over the panels should have: enough for the tiles to be busy, few
# enough for the packed rows to stay in the second-level cache.
BLOCK_POSITIONS = 768
BATCH_POSITIONS = 512
# Result channels from which packing a copy for each tap in a row costs less than columns in vain.
COMPACT_ROWS = 48


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a convolution between a source and a result, in three dimensions.

    `transposed` says that the result is the larger side: what a gradient of the source is.
    """

    images: int
    groups: int
    channels: int
    rows: int
    source: Triple
    result: Triple
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a job: its outputs, and its taps as (kernel index, source offset)."""

    first: int
    count: int
    out_step: int
    taps: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Plan:
    """A table with what it points to, and the sizes of the memory that a call needs."""

    table: Array
    address: int
    panel_bytes: int
    scratch_bytes: int
    group_stride: int
    row_stride: int
    slots: int
    owned: list[Array] = field(default_factory=list)


def _axes(s: Shape, dim: int) -> list[Axis]:
    """Return the jobs along one dimension."""
    stride, pad, dilation = s.stride[dim], s.padding[dim], s.dilation[dim]
    taps = range(s.kernel[dim])
    if not s.transposed:
        offsets = tuple((t, t * dilation - pad) for t in taps)
        return [Axis(0, s.result[dim], 1, offsets)]
    axes = []
    for first in range(min(stride, s.result[dim])):
        shifts = [(t, first + pad - t * dilation) for t in taps]
        offsets = tuple((t, shift // stride) for t, shift in shifts if shift % stride == 0)
        axes.append(Axis(first, -(-(s.result[dim] - first) // stride), stride, offsets))
    return axes


@dataclass(slots=True)
class _Packing:
    """How the source is packed along each dimension."""

    step: Triple
    low: list[int]
    size: list[int]
    compact: bool

    def place(self, dim: int, offset: int) -> tuple[int, int]:
        """Return the phase and the shift in packed positions of a source offset."""
        above = offset - self.low[dim]
        if dim == 2 and self.compact:
            return above, 0
        return above % self.step[dim], above // self.step[dim]


def _packing(s: Shape, axes: list[list[Axis]], compact: bool) -> _Packing:
    step: Any = (1, 1, 1) if s.transposed else s.stride
    packing = _Packing(step, [], [], compact)
    for dim in range(3):
        offsets = [offset for axis in axes[dim] for _, offset in axis.taps]
        packing.low.append(min(offsets, default=0))
        sizes = [axis.count for axis in axes[dim]]
        for axis in axes[dim]:
            sizes += [axis.count + packing.place(dim, offset)[1] for _, offset in axis.taps]
        packing.size.append(max(sizes))
    return packing


def is_direct(s: Shape, plain: bool) -> bool:
    """Whether the source can serve as packed memory itself."""
    unit = s.stride == (1, 1, 1) and s.padding == (0, 0, 0)
    return plain and unit and not s.transposed


@lru_cache(maxsize=1024)
def plan_correlation(s: Shape, itemsize: int, plain: bool, threads: int) -> Plan:
    """Return the plan of a forward or transposed convolution.

    Parameters
    ----------
    s : Shape
        The sizes.
    itemsize : int
        Bytes of an element of packed memory: 4 or 8.
    plain : bool
        Whether the source has the packed element type.
    threads : int
        How many threads share the work.
    """
    axes = [_axes(s, dim) for dim in range(3)]
    narrow = _packing(s, axes, False)
    garbage = narrow.size[2] > 1.04 * max(axis.count for axis in axes[2])
    direct = is_direct(s, plain)
    compact = s.rows >= COMPACT_ROWS and garbage and not direct
    packing = _packing(s, axes, True) if compact else narrow
    if direct:
        packing.size = list(s.source)
        plan = _assemble(s, axes, packing, itemsize, threads, True)
        if plan is not None:
            return plan
        packing = _packing(s, axes, False)
    plan = _assemble(s, axes, packing, itemsize, threads, False)
    assert plan is not None
    return plan


def _assemble(
    s: Shape, axes: list[list[Axis]], packing: _Packing, itemsize: int, threads: int, direct: bool
) -> Plan | None:
    table = _source_table(s, packing, s.channels, s.rows, itemsize)
    plane = prod(packing.size)
    batch = 1 if direct else _even_batch(s.images, -(-BATCH_POSITIONS // plane), threads)
    phases = _phases(axes, packing)
    shape, single = tile_shape(itemsize), tile_shape(itemsize, 1)
    _set_batch(table, batch, plane, len(phases), shape.lanes, direct)
    table[f.DIRECT] = direct
    table[f.OUT_SIZE] = prod(s.result)
    _set_tiles(table, s.rows, shape.rows, shape.columns, single.columns)
    jobs, owned, panel_bytes = _jobs(s, axes, packing, phases, table, itemsize)
    spans = [span for job in jobs for span in _block_spans(job, table)]
    widest = max(shape.columns, single.columns if table[f.SINGLES] else 0)
    if direct and min(spans, default=0) < widest:
        return None
    table[f.COLUMNS] = -(-max(*spans, widest) // shape.lanes) * shape.lanes
    columns_bytes = int(shape.rows * table[f.COLUMNS] * itemsize)
    packed_bytes = 0 if direct else int(table[f.BUFFER] * itemsize)
    table[f.SLOT] = -(-(columns_bytes + packed_bytes) // 64) * 64
    units = -(-s.images // batch) * s.groups
    slots = max(1, min(units, threads))
    table[f.SLOTS] = slots
    _own(table, owned, f.PHASES, len(phases), np.array(phases, np.int64))
    _own(table, owned, f.JOBS, len(jobs), np.array(jobs, np.int64))
    taps = prod(s.kernel)
    group_stride = s.rows * s.channels * taps
    row_stride = taps if s.transposed else s.channels * taps
    return Plan(
        table, table.ctypes.data, panel_bytes, int(table[f.SLOT]) * slots, group_stride, row_stride,
        slots, owned,
    )  # fmt: skip


def _even_batch(images: int, limit: int, threads: int) -> int:
    """Return a batch of at most `limit` images that gives each thread the same number of them."""
    each = max(1, images // threads)
    return -(-each // -(-each // limit))


def _source_table(
    s: Shape, packing: _Packing, channels: int, rows: int, itemsize: int
) -> Array:
    table = np.zeros(f.SIZE, np.int64)
    table[f.IMAGES], table[f.GROUPS] = s.images, s.groups
    table[f.CHANNELS], table[f.ROWS] = channels, rows
    table[f.DEPTH : f.DEPTH + 3] = s.source
    table[f.STEP : f.STEP + 3] = packing.step
    table[f.PRE : f.PRE + 3] = [-low for low in packing.low]
    table[f.QD : f.QD + 3] = packing.size
    return table


def _set_batch(
    table: Array, batch: int, plane: int, phases: int, lanes: int, direct: bool
) -> None:
    """Set batch and pitch; packed rows are whole vectors, and slack follows the last."""
    table[f.BATCH] = batch
    table[f.PITCH] = plane if direct else -(-batch * plane // lanes) * lanes
    slack = 10 * lanes
    table[f.BUFFER] = table[f.CHANNELS] * phases * table[f.PITCH] + slack


def _set_tiles(table: Array, rows: int, height: int, width: int, width_1: int) -> None:
    """Split the rows into full panels and single rows: a panel that is half empty does not pay."""
    panels = (rows + height // 2) // height
    table[f.PANELS] = panels
    table[f.SINGLES] = max(0, rows - panels * height)
    table[f.TILE_ROWS] = height
    table[f.TILE_WIDTH], table[f.TILE_WIDTH_1] = width, width_1


def _own(table: Array, owned: list[Array], index: int, count: int, array: Array) -> None:
    owned.append(array)
    table[index], table[index + 1] = count, array.ctypes.data


def _phases(axes: list[list[Axis]], packing: _Packing) -> list[Triple]:
    """Return the phases that some tap reads, each as an offset in the source."""
    each: list[list[int]] = []
    for dim in range(3):
        offsets = {offset for axis in axes[dim] for _, offset in axis.taps}
        each.append(sorted({packing.place(dim, offset)[0] for offset in offsets}) or [0])
    return [(d, h, w) for d in each[0] for h in each[1] for w in each[2]]


def _jobs(
    s: Shape, axes: list[list[Axis]], packing: _Packing, phases: list[Triple], table: Array,
    itemsize: int,
) -> tuple[list[list[int]], list[Array], int]:  # fmt: skip
    """Return the job records, the tables that they point to, and the bytes of all panels."""
    jobs, owned, panel_bytes = [], [], 0
    full = int(table[f.PANELS] * table[f.TILE_ROWS] + table[f.SINGLES])
    for parts in itertools.product(*axes):
        offsets, sources = _taps(s, parts, packing, phases, table, itemsize)
        owned += [offsets, sources]
        record = [0] * f.JOB_SIZE
        record[f.J_TAPS] = len(offsets)
        record[f.J_OFFSETS], record[f.J_SOURCES] = offsets.ctypes.data, sources.ctypes.data
        record[f.J_PANELS], record[f.J_GROUP] = panel_bytes, full * len(offsets) * itemsize
        panel_bytes += record[f.J_GROUP] * s.groups
        _set_lines(record, s, parts, packing)
        jobs.append(record)
    return jobs, owned, panel_bytes


def _taps(
    s: Shape, parts: Sequence[Axis], packing: _Packing, phases: list[Triple], table: Array,
    itemsize: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Return for each channel and tap its byte offset in packed memory, and its weight."""
    number = {phase: index for index, phase in enumerate(phases)}
    pitch, (_, height, width) = int(table[f.PITCH]), packing.size
    kernel = prod(s.kernel)
    rows, weights = [], []
    for (t0, o0), (t1, o1), (t2, o2) in itertools.product(*(part.taps for part in parts)):
        (p0, q0), (p1, q1), (p2, q2) = (
            packing.place(dim, offset) for dim, offset in enumerate((o0, o1, o2))
        )
        rows.append(number[p0, p1, p2] * pitch + (q0 * height + q1) * width + q2)
        weights.append((t0 * s.kernel[1] + t1) * s.kernel[2] + t2)
    channels = np.arange(s.channels, dtype=np.int64)[:, None]
    offsets = channels * len(phases) * pitch + np.array(rows, np.int64)[None, :]
    channel_step = s.rows * kernel if s.transposed else kernel
    sources = channels * channel_step + np.array(weights, np.int64)[None, :]
    return np.ascontiguousarray(offsets.ravel() * itemsize), np.ascontiguousarray(sources.ravel())


def _set_lines(record: list[int], s: Shape, parts: Sequence[Axis], packing: _Packing) -> None:
    depth, lines, width = (part.count for part in parts)
    _, height, row = s.result
    pitch = packing.size[2]
    down = parts[1].out_step * row
    join = 1
    if pitch == width == row and parts[1].out_step == 1:
        # Lines that follow each other in both memories are copied as one.
        join = max(k for k in range(1, lines + 1) if lines % k == 0 and (k == 1 or k * row <= 1024))
    record[f.J_DEPTH], record[f.J_LINES], record[f.J_WIDTH] = depth, lines // join, join * width
    record[f.J_PITCH] = join * pitch
    record[f.J_BLOCK] = max(1, BLOCK_POSITIONS // max(1, join * pitch))
    record[f.J_OUT] = (parts[0].first * height + parts[1].first) * row + parts[2].first
    record[f.J_OUT_D] = parts[0].out_step * height * row
    record[f.J_OUT_H] = join * down
    record[f.J_OUT_W] = parts[2].out_step


def _block_spans(job: list[int], table: Array) -> list[int]:
    """Return how many packed positions each block of lines of a job spans."""
    images, rest = int(table[f.BATCH]), int(table[f.IMAGES] % table[f.BATCH])
    spans = set()
    for here in {images, rest} - {0}:
        total = here * job[f.J_DEPTH] * job[f.J_LINES]
        for low in range(0, total, job[f.J_BLOCK]):
            last = min(total, low + job[f.J_BLOCK]) - 1
            start, end = (_position(job, table, line) for line in (low, last))
            spans.add(end + job[f.J_WIDTH] - start)
    return sorted(spans)


def _position(job: list[int], table: Array, line: int) -> int:
    lines = job[f.J_LINES]
    plane_number, h = divmod(line, lines)
    image, d = divmod(plane_number, job[f.J_DEPTH])
    plane = int(table[f.QH] * table[f.QW])
    return (image * int(table[f.QD]) + d) * plane + h * job[f.J_PITCH]


# ---------------------------------------------------------------------------------------------
# The gradient of the weight


@dataclass(slots=True)
class GradientPlan:
    """The tables of a weight gradient: packed gradients on the left, packed source on the right."""

    left: Array
    right: Array
    rows: Array
    taps: Array
    count: int
    pitch: int
    padded_rows: int
    blocks: int
    units: int
    owned: list[Array]


# Positions of one dot product: rows of a panel and of the taps stay in the first-level cache.
DOT_POSITIONS = 1024


@lru_cache(maxsize=1024)
def plan_gradient(s: Shape, itemsize: int, threads: int) -> GradientPlan:
    """Return the plan of the gradient of the weight of the forward convolution `s`."""
    axes = [_axes(s, dim) for dim in range(3)]
    packing = _packing(s, axes, False)
    plane = prod(packing.size)
    phases = _phases(axes, packing)
    shape, single = tile_shape(itemsize), tile_shape(itemsize, 1)
    # Of the shape alone: it groups the sums, which must not depend on the number of threads.
    batch = max(1, min(-(-DOT_POSITIONS // plane), s.images))
    right = _source_table(s, packing, s.channels, s.rows, itemsize)
    _set_batch(right, batch, plane, len(phases), shape.lanes, False)
    owned: list[Array] = []
    offsets, sources = _taps(s, [axis[0] for axis in axes], packing, phases, right, itemsize)
    count = len(offsets)
    widest = max(shape.vectors, single.vectors)
    both = shape.vectors * single.vectors
    right[f.COLUMNS] = -(-count // both) * both
    taps = np.concatenate([offsets, np.full(int(right[f.COLUMNS]) - count + widest, offsets[-1])])
    record = [0] * f.JOB_SIZE
    record[f.J_TAPS] = count
    _own(right, owned, f.PHASES, len(phases), np.array(phases, np.int64))
    _own(right, owned, f.JOBS, 1, np.array([record], np.int64))
    left = _left_table(s, packing, batch, plane, shape.lanes, itemsize)
    _own(left, owned, f.PHASES, 1, np.zeros((1, 3), np.int64))
    _set_tiles(left, s.rows, shape.rows, shape.vectors, single.vectors)
    padded = int(left[f.PANELS] * shape.rows + left[f.SINGLES])
    rows = np.minimum(np.arange(padded), s.rows - 1) * int(left[f.PITCH]) * itemsize
    panels = int(left[f.PANELS] + left[f.SINGLES])
    blocks = max(1, min(-(-4 * threads // (s.groups * panels)), -(-count // shape.vectors)))
    owned += [sources]
    return GradientPlan(
        left, right, np.ascontiguousarray(rows, np.int64), taps, count, int(right[f.COLUMNS]),
        padded, blocks, s.groups * panels * blocks, owned,
    )  # fmt: skip


def _left_table(
    s: Shape, packing: _Packing, batch: int, plane: int, lanes: int, itemsize: int
) -> Array:
    """Describe the packing of the result's gradient: the same positions, zero where none is."""
    same = _Packing((1, 1, 1), [0, 0, 0], packing.size, False)
    table = _source_table(s, same, s.rows, s.rows, itemsize)
    table[f.DEPTH : f.DEPTH + 3] = s.result
    _set_batch(table, batch, plane, 1, lanes, False)
    return table
