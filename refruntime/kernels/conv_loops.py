"""Convolution loops: correlation by register tiles over a padded, phase-split image.

State
-----
A plan table (`conv_table`, made by `conv_plan`) describes one convolution. For a batch of images
and a group of channels the source is *packed*: zero padding is written out, and for a stride above
one the image is split into phases, so that every tap of the kernel is a constant byte offset. A
convolution is then one matrix product whose right operand is read in place at ``base +
offsets[k]``: no column matrix exists.

Invariants
----------
* Positions run over whole packed rows, so some columns are computed that no output has; only the
  columns of outputs are copied out.
* Packed memory ends in slack that is finite (zero), for tiles read whole vectors.
* A job is one part of the output with taps of its own: a forward has one, a transposed
  convolution of stride `s` has `s` to the power of its dimensions.
* Images, groups and panels are independent, or summed in order: results do not depend on threads.
"""

from __future__ import annotations

from typing import Any

from refruntime._native import ptr_i64
from refruntime.kernels.conv_table import (
    BATCH,
    BUFFER,
    CHANNELS,
    COLUMNS,
    DEPTH,
    DIRECT,
    GROUPS,
    HEIGHT,
    IMAGES,
    J_BLOCK,
    J_DEPTH,
    J_GROUP,
    J_LINES,
    J_OFFSETS,
    J_OUT,
    J_OUT_D,
    J_OUT_H,
    J_OUT_W,
    J_PANELS,
    J_PITCH,
    J_SOURCES,
    J_TAPS,
    J_WIDTH,
    JOB_SIZE,
    JOB_TABLE,
    JOBS,
    OUT_SIZE,
    PANELS,
    PHASE_TABLE,
    PHASES,
    PITCH,
    PRE,
    QD,
    QH,
    QW,
    ROWS,
    SINGLES,
    SLOT,
    SLOTS,
    STEP,
    TILE_ROWS,
    TILE_WIDTH,
    TILE_WIDTH_1,
    WIDTH,
)
from refruntime.kernels.variants import (
    ACC,
    Placeholder,
    device_template,
    load_T,
    ptr_ACC,
    ptr_D,
    ptr_T,
    size_ACC,
    size_T,
    store_D,
    template,
)

# Bound per dtype: the tiles, and whether elements are computed as they are in memory.
PLAIN: Any = Placeholder("PLAIN")
outer: Any = Placeholder("outer")
outer_1: Any = Placeholder("outer_1")
dot: Any = Placeholder("dot")
dot_1: Any = Placeholder("dot_1")
pad_row: Any = Placeholder("pad_row")
shift_row: Any = Placeholder("shift_row")


@device_template
def _pack_row(target, source, at, first, step, width, n):  # type: ignore[no-untyped-def]
    """``target[i] = source[at + first + i * step]`` where that is inside the row, else zero."""
    if PLAIN and step == 1:
        pad_row((target, source + at * size_T, first, width, n))
    else:
        t = ptr_ACC(target)
        p = ptr_T(source)
        low = min(n, max(0, (step - 1 - first) // step))
        high = max(low, min(n, (width - first + step - 1) // step))
        for i in range(low):
            t[i] = ACC(0)
        for i in range(low, high):
            t[i] = load_T(p, at + first + i * step)
        for i in range(high, n):
            t[i] = ACC(0)


@device_template
def _pack(buffer, source, g, first_image, here, group):  # type: ignore[no-untyped-def]
    """Pack the channels of one group of a batch of images; images that are missing become zero."""
    phases = ptr_i64(g[PHASE_TABLE])
    pitch, plane = g[PITCH], g[QD] * g[QH] * g[QW]
    depth, height, width = g[DEPTH], g[HEIGHT], g[WIDTH]
    for c in range(g[CHANNELS]):
        for phase in range(g[PHASES]):
            start_d = phases[3 * phase] - g[PRE]
            start_h = phases[3 * phase + 1] - g[PRE + 1]
            start_w = phases[3 * phase + 2] - g[PRE + 2]
            for image in range(g[BATCH]):
                channel = ((first_image + image) * g[GROUPS] + group) * g[CHANNELS] + c
                to = (c * g[PHASES] + phase) * pitch + image * plane
                for d in range(g[QD]):
                    z = d * g[STEP] + start_d
                    for h in range(g[QH]):
                        y = h * g[STEP + 1] + start_h
                        row = buffer + (to + (d * g[QH] + h) * g[QW]) * size_ACC
                        if image < here and 0 <= z < depth and 0 <= y < height:
                            at = ((channel * depth + z) * height + y) * width
                            _pack_row(row, source, at, start_w, g[STEP + 2], width, g[QW])
                        else:
                            # A row of zeros: of a source without width, whose address is not read.
                            _pack_row(row, source, 0, 0, 1, 0, g[QW])


@device_template
def _clear(address, first, end):  # type: ignore[no-untyped-def]
    p = ptr_ACC(address)
    for i in range(first, end):
        p[i] = ACC(0)


@device_template
def _clear_slack(buffer, g):  # type: ignore[no-untyped-def]
    """Zero what packing leaves between channels, and behind the last one."""
    used = g[BATCH] * g[QD] * g[QH] * g[QW]
    rows = g[CHANNELS] * g[PHASES]
    if g[PITCH] != used:
        for row in range(rows):
            _clear(buffer, row * g[PITCH] + used, row * g[PITCH] + g[PITCH])
    _clear(buffer, rows * g[PITCH], g[BUFFER])


@device_template
def _position(g, job, line):  # type: ignore[no-untyped-def]
    """Return the packed position of the first element of a line."""
    lines = job[J_LINES]
    image = line // (job[J_DEPTH] * lines)
    rest = line - image * job[J_DEPTH] * lines
    d = rest // lines
    return (image * g[QD] + d) * g[QH] * g[QW] + (rest - d * lines) * job[J_PITCH]


@device_template
def _target(g, job, line):  # type: ignore[no-untyped-def]
    """Return where a line goes, counted from the result's first image of the batch."""
    lines = job[J_LINES]
    image = line // (job[J_DEPTH] * lines)
    rest = line - image * job[J_DEPTH] * lines
    d = rest // lines
    h = rest - d * lines
    start = image * g[GROUPS] * g[ROWS] * g[OUT_SIZE]
    return start + job[J_OUT] + d * job[J_OUT_D] + h * job[J_OUT_H]


@device_template
def _copy_lines(out, columns, bias, g, job, base, channel, count, l0, l1):  # type: ignore[no-untyped-def]
    """Copy the outputs of `count` rows from the tile buffer, adding the bias."""
    o = ptr_D(out)
    b = ptr_T(bias)
    c = ptr_ACC(columns)
    first = _position(g, job, l0)
    for line in range(l0, l1):
        at = _position(g, job, line) - first
        to = base + _target(g, job, line)
        for m in range(count):
            shift = ACC(0)
            if bias != 0:
                shift += load_T(b, channel + m)
            if PLAIN and job[J_OUT_W] == 1:
                target = out + (to + m * g[OUT_SIZE]) * size_ACC
                source = columns + (at + m * g[COLUMNS]) * size_ACC
                shift_row((target, source, job[J_WIDTH], shift))
            else:
                for x in range(job[J_WIDTH]):
                    place = to + m * g[OUT_SIZE] + x * job[J_OUT_W]
                    store_D(o, place, c[at + m * g[COLUMNS] + x] + shift)


@device_template
def _run_tiles(panel, packed, g, job, columns, n, full):  # type: ignore[no-untyped-def]
    """Compute the product of one panel with `n` packed columns into the tile buffer."""
    taps, offsets = job[J_TAPS], job[J_OFFSETS]
    pitch = g[COLUMNS] * size_ACC
    width = g[TILE_WIDTH] if full else g[TILE_WIDTH_1]
    if taps == 0:
        for row in range(g[TILE_ROWS] if full else 1):
            _clear(columns, row * g[COLUMNS], row * g[COLUMNS] + n)
        return
    for low in range(0, n, width):
        # The last tile overlaps its neighbour rather than the end of the packed memory.
        at = max(0, min(low, n - width)) * size_ACC
        if full:
            outer((panel, packed + at, offsets, taps, columns + at, pitch))
        else:
            outer_1((panel, packed + at, offsets, taps, columns + at, pitch))


@device_template
def _run_job(out, bias, packed, columns, panels, g, job, base, here, group):  # type: ignore[no-untyped-def]
    """Compute one job for a packed batch, block of lines by block, panel by panel."""
    lines = here * job[J_DEPTH] * job[J_LINES]
    taps_bytes = job[J_TAPS] * size_ACC
    first_panel = panels + job[J_PANELS] + group * job[J_GROUP]
    for l0 in range(0, lines, job[J_BLOCK]):
        l1 = min(lines, l0 + job[J_BLOCK])
        p0 = _position(g, job, l0)
        n = _position(g, job, l1 - 1) + job[J_WIDTH] - p0
        here_packed = packed + p0 * size_ACC
        panel = first_panel
        row = 0
        # One loop for panels and single rows: each tile is then compiled into the kernel once.
        for index in range(g[PANELS] + g[SINGLES]):
            height = g[TILE_ROWS] if index < g[PANELS] else 1
            count = min(height, g[ROWS] - row)
            _run_tiles(panel, here_packed, g, job, columns, n, index < g[PANELS])
            to = base + row * g[OUT_SIZE]
            _copy_lines(out, columns, bias, g, job, to, group * g[ROWS] + row, count, l0, l1)
            panel += height * taps_bytes
            row += count


@template("void(" + "int64, " * 7 + "int64)")
def correlate(out, x, bias, panels, table, scratch, start, stop):  # type: ignore[no-untyped-def]
    """Compute all batches and groups; slot `s` takes every ``SLOTS``-th of them from the s-th."""
    g = ptr_i64(table)
    batches = (g[IMAGES] + g[BATCH] - 1) // g[BATCH]
    for slot in range(start, stop):
        buffer = scratch + slot * g[SLOT]
        columns = buffer
        if g[DIRECT] == 0:
            columns += g[BUFFER] * size_ACC
            _clear_slack(buffer, g)
        for unit in range(slot, batches * g[GROUPS], g[SLOTS]):
            group = unit % g[GROUPS]
            first_image = (unit // g[GROUPS]) * g[BATCH]
            here = min(g[BATCH], g[IMAGES] - first_image)
            packed = buffer
            if g[DIRECT] != 0:
                channel = (first_image * g[GROUPS] + group) * g[CHANNELS]
                packed = x + channel * g[PITCH] * size_ACC
            else:
                _pack(buffer, x, g, first_image, here, group)
            base = (first_image * g[GROUPS] + group) * g[ROWS] * g[OUT_SIZE]
            for j in range(g[JOBS]):
                job = ptr_i64(g[JOB_TABLE] + j * JOB_SIZE * 8)
                _run_job(out, bias, packed, columns, panels, g, job, base, here, group)


@template("void(" + "int64, " * 6 + "int64)")
def pack_panels(panels, weight, table, group_stride, row_stride, start, stop):  # type: ignore[no-untyped-def]
    """Pack the weights: panels of ``[taps][rows]``, then the single rows; a unit is a group."""
    g = ptr_i64(table)
    w = ptr_T(weight)
    height = g[TILE_ROWS]
    for group in range(start, stop):
        for j in range(g[JOBS]):
            job = ptr_i64(g[JOB_TABLE] + j * JOB_SIZE * 8)
            sources = ptr_i64(job[J_SOURCES])
            taps = job[J_TAPS]
            p = ptr_ACC(panels + job[J_PANELS] + group * job[J_GROUP])
            for panel in range(g[PANELS]):
                to = panel * taps * height
                first = group * group_stride + panel * height * row_stride
                count = min(height, g[ROWS] - panel * height)
                for k in range(taps):
                    for m in range(count):
                        p[to + k * height + m] = load_T(w, first + m * row_stride + sources[k])
                    for m in range(count, height):
                        p[to + k * height + m] = ACC(0)
            to = g[PANELS] * taps * height
            for single in range(g[SINGLES]):
                first = group * group_stride + (g[PANELS] * height + single) * row_stride
                for k in range(taps):
                    p[to + single * taps + k] = load_T(w, first + sources[k])


# ---------------------------------------------------------------------------------------------
# The gradient of the weight: dot products along the positions of a batch


@template("void(" + "int64, " * 4 + "int64)")
def pack_batches(target, x, table, start, stop):  # type: ignore[no-untyped-def]
    """Pack whole batches one behind the other; a unit is a batch and a group."""
    g = ptr_i64(table)
    for unit in range(start, stop):
        buffer = target + unit * g[BUFFER] * size_ACC
        first_image = (unit // g[GROUPS]) * g[BATCH]
        here = min(g[BATCH], g[IMAGES] - first_image)
        _clear_slack(buffer, g)
        _pack(buffer, x, g, first_image, here, unit % g[GROUPS])


@template("void(" + "int64, " * 10 + "int64)")
def weight_dots(  # type: ignore[no-untyped-def]
    sums, left, right, left_table, right_table, row_table, tap_table, blocks, chunk, start, stop
):
    """Add to ``sums[group][row][tap]`` the products of packed gradients with packed sources.

    A unit is a group, a panel of rows and one of `blocks` ranges of taps. `row_table` and
    `tap_table` hold byte offsets, padded to whole tiles.
    """
    a = ptr_i64(left_table)
    b = ptr_i64(right_table)
    job = ptr_i64(b[JOB_TABLE])
    batches = (a[IMAGES] + a[BATCH] - 1) // a[BATCH]
    panels = a[PANELS] + a[SINGLES]
    rows = a[PANELS] * a[TILE_ROWS] + a[SINGLES]
    n = a[PITCH]
    pitch = b[COLUMNS]
    for unit in range(start, stop):
        block = unit % blocks
        panel = (unit // blocks) % panels
        group = unit // (blocks * panels)
        full = panel < a[PANELS]
        row = panel * a[TILE_ROWS]
        if not full:
            row = a[PANELS] * a[TILE_ROWS] + panel - a[PANELS]
        step = a[TILE_WIDTH] if full else a[TILE_WIDTH_1]
        tiles = (job[J_TAPS] + step - 1) // step
        per = (tiles + blocks - 1) // blocks
        out = sums + (group * rows + row) * pitch * size_ACC
        for batch in range(batches):
            place = batch * a[GROUPS] + group
            p = left + place * a[BUFFER] * size_ACC
            q = right + place * b[BUFFER] * size_ACC
            for low in range(0, n, chunk):
                count = min(chunk, n - low)
                at = low * size_ACC
                for tile in range(block * per, min(tiles, block * per + per)):
                    tap = tile * step
                    cell = out + tap * size_ACC
                    starts = tap_table + tap * 8
                    rest = (q + at, starts, count, cell, pitch * size_ACC)
                    if full:
                        dot((p + at, row_table + row * 8, *rest))
                    else:
                        dot_1((p + at, row_table + row * 8, *rest))


@template("void(" + "int64, " * 7 + "int64)")
def store_sums(out, sums, pitch, rows, padded_rows, taps, start, stop):  # type: ignore[no-untyped-def]
    """Write the sums of whole tiles as the weight's gradient; a unit is a row of a group."""
    o = ptr_D(out)
    s = ptr_ACC(sums)
    for unit in range(start, stop):
        group = unit // rows
        row = unit % rows
        for k in range(taps):
            store_D(o, unit * taps + k, s[(group * padded_rows + row) * pitch + k])
