"""Attention loops: scores of a few queries at a time, turned so that everything vectorises.

State
-----
A table of int64 (fields below) describes a call; each slot of scratch memory is laid out by
`kernels.attention`.

Invariants
----------
* Queries are taken `WIDTH` at a time (a *strip* of several tiles in the backward) and stand in
  columns: scores are ``[key][query]``, so softmax runs along contiguous queries, and both products
  are `OuterTile` products with packed keys or values on the left.
* The score matrix never exists: a block of keys by a strip of queries does.
* Queries behind the last are zero with an infinite log-sum-exp: their weights are zero.
* A unit of work owns all it writes: a head's queries, or a shared head's keys and values.
"""

from __future__ import annotations

import math
from typing import Any

from refruntime._native import ptr_i64, ptr_u8
from refruntime.kernels.tiles import maximum
from refruntime.kernels.variants import (
    ACC,
    Placeholder,
    device_template,
    load_T,
    ptr_ACC,
    ptr_T,
    size_ACC,
    store_T,
    template,
)

# Fields of the table.
SHARED = 0  # heads of keys and values
GROUP = 1  # query heads that share one of them
QUERIES, KEYS, WIDTH_E, WIDTH_V = 2, 3, 4, 5
ROWS = 6  # rows of an outer tile
BLOCK = 7  # keys that are scored together
CAUSAL = 8
MASK_KIND = 9  # 0 none, 1 bool, 2 added
MASK = 10  # its address; four strides follow
MASK_STEP = 11
HEADS = 15  # query heads of a sample
PARTS = 16  # shares of a shared head's query tiles
SLOT, SLOTS = 17, 18
OFFSETS = 19  # address of byte offsets of rows `WIDTH` (or a strip) wide
AREAS = 20  # byte offsets of the areas of a slot
SIZE = 32

WIDTH: Any = Placeholder("WIDTH")
outer: Any = Placeholder("outer")
dot: Any = Placeholder("dot")
exp: Any = Placeholder("exp")
log: Any = Placeholder("log")

_INF = math.inf


@device_template
def pack_rows(target, source, at, count, width, rows):  # type: ignore[no-untyped-def]
    """``[count, width]`` as panels of `rows` rows: ``[panel][column][row]``; missing rows are 0."""
    t = ptr_ACC(target)
    p = ptr_T(source)
    for panel in range((count + rows - 1) // rows):
        first = panel * rows
        base = first * width
        here = min(rows, count - first)
        for c in range(width):
            for r in range(here):
                t[base + c * rows + r] = load_T(p, at + (first + r) * width + c)
            for r in range(here, rows):
                t[base + c * rows + r] = ACC(0)


@device_template
def pack_columns(target, source, at, count, width, rows):  # type: ignore[no-untyped-def]
    """``[count, width]`` as panels of `rows` columns: ``[panel][row][column]``, zero behind."""
    t = ptr_ACC(target)
    p = ptr_T(source)
    for panel in range((width + rows - 1) // rows):
        first = panel * rows
        here = min(rows, width - first)
        for i in range(count):
            to = (panel * count + i) * rows
            for c in range(here):
                t[to + c] = load_T(p, at + i * width + first + c)
            for c in range(here, rows):
                t[to + c] = ACC(0)


@device_template
def turn_in(target, pitch, source, at, count, width, padded, scale):  # type: ignore[no-untyped-def]
    """``[count, width]`` turned to ``[padded][pitch]`` and scaled; zero where there is nothing."""
    t = ptr_ACC(target)
    p = ptr_T(source)
    for c in range(width):
        for i in range(count):
            t[c * pitch + i] = load_T(p, at + i * width + c) * scale
        for i in range(count, pitch):
            t[c * pitch + i] = ACC(0)
    for c in range(width * pitch, padded * pitch):
        t[c] = ACC(0)


@device_template
def add_mask(scores, pitch, g, head, key, keys, query, queries):  # type: ignore[no-untyped-def]
    """Add the mask to a block of scores ``[key][query]``."""
    s = ptr_ACC(scores)
    steps = (g[MASK_STEP], g[MASK_STEP + 1], g[MASK_STEP + 2], g[MASK_STEP + 3])
    base = (head // g[HEADS]) * steps[0] + (head % g[HEADS]) * steps[1]
    base += query * steps[2] + key * steps[3]
    if g[MASK_KIND] == 1:
        seen = ptr_u8(g[MASK])
        for r in range(keys):
            for q in range(queries):
                if seen[base + r * steps[3] + q * steps[2]] == 0:
                    s[r * pitch + q] = ACC(-_INF)
    elif g[MASK_KIND] == 2:
        added = ptr_T(g[MASK])
        for r in range(keys):
            for q in range(queries):
                s[r * pitch + q] += load_T(added, base + r * steps[3] + q * steps[2])


@device_template
def hide_later(scores, pitch, key, keys, query, queries):  # type: ignore[no-untyped-def]
    """Set scores of keys behind their query to minus infinity."""
    s = ptr_ACC(scores)
    for r in range(max(0, query - key + 1), keys):
        for q in range(min(queries, key + r - query)):
            s[r * pitch + q] = ACC(-_INF)


@device_template
def soften(scores, keys, peaks):  # type: ignore[no-untyped-def]
    """Turn a block of scores to weights relative to the largest so far; rescale what was before."""
    s = ptr_ACC(scores)
    peak = ptr_ACC(peaks)
    total = ptr_ACC(peaks + WIDTH * size_ACC)
    factor = ptr_ACC(peaks + 2 * WIDTH * size_ACC)
    shift = ptr_ACC(peaks + 3 * WIDTH * size_ACC)
    for q in range(WIDTH):
        factor[q] = peak[q]
    for r in range(keys):
        for q in range(WIDTH):
            peak[q] = maximum(peak[q], s[r * WIDTH + q])
    for q in range(WIDTH):
        # With nothing seen yet, the reference point may be any finite number.
        shift[q] = peak[q] if peak[q] > ACC(-_INF) else ACC(0)
        factor[q] = exp(factor[q] - shift[q])
        total[q] *= factor[q]
    for r in range(keys):
        for q in range(WIDTH):
            weight = exp(s[r * WIDTH + q] - shift[q])
            s[r * WIDTH + q] = weight
            total[q] += weight


@device_template
def attend(g, areas, slot, head, query, offsets, item):  # type: ignore[no-untyped-def]
    """Attend with the `WIDTH` queries in the slot's first area; leaves sums, totals and peaks."""
    rows, width_e, width_v = g[ROWS], g[WIDTH_E], g[WIDTH_V]
    queries = min(WIDTH, g[QUERIES] - query)
    turned, scores, sums, part = slot, slot + areas[1], slot + areas[2], slot + areas[3]
    peaks, packed_k, packed_v = slot + areas[4], slot + areas[5], slot + areas[6]
    peak, total = ptr_ACC(peaks), ptr_ACC(peaks + WIDTH * item)
    factor = ptr_ACC(peaks + 2 * WIDTH * item)
    acc, new = ptr_ACC(sums), ptr_ACC(part)
    panels_v = (width_v + rows - 1) // rows
    for q in range(WIDTH):
        peak[q] = ACC(-_INF)
        total[q] = ACC(0)
    for i in range(panels_v * rows * WIDTH):
        acc[i] = ACC(0)
    keys = g[KEYS]
    if g[CAUSAL] != 0:
        keys = min(keys, query + queries)
    for key in range(0, keys, g[BLOCK]):
        count = min(g[BLOCK], keys - key)
        for r in range(0, count, rows):
            panel = packed_k + (key + r) * width_e * item
            outer((panel, turned, offsets, width_e, scores + r * WIDTH * item, WIDTH * item))
        if g[MASK_KIND] != 0:
            add_mask(scores, WIDTH, g, head, key, count, query, queries)
        if g[CAUSAL] != 0:
            hide_later(scores, WIDTH, key, count, query, queries)
        soften(scores, count, peaks)
        for p in range(panels_v):
            panel = packed_v + (p * g[KEYS] + key) * rows * item
            outer((panel, scores, offsets, count, part + p * rows * WIDTH * item, WIDTH * item))
        for v in range(panels_v * rows):
            for q in range(WIDTH):
                acc[v * WIDTH + q] = acc[v * WIDTH + q] * factor[q] + new[v * WIDTH + q]


@template("void(" + "int64, " * 7 + "float64, int64, int64)")
def attention_forward(out, lse, q, k, v, table, scratch, scale, start, stop):  # type: ignore[no-untyped-def]
    """Attention and the log-sum-exp of each query; slot `s` takes every ``SLOTS``-th unit."""
    g = ptr_i64(table)
    areas = ptr_i64(table + AREAS * 8)
    item = size_ACC
    o = ptr_T(out)
    logs = ptr_ACC(lse)
    rows, width_e, width_v = g[ROWS], g[WIDTH_E], g[WIDTH_V]
    tiles = (g[QUERIES] + WIDTH - 1) // WIDTH
    work = tiles * g[GROUP]
    per = (work + g[PARTS] - 1) // g[PARTS]
    for index in range(start, stop):
        slot = scratch + index * g[SLOT]
        total = ptr_ACC(slot + areas[4] + WIDTH * item)
        peak = ptr_ACC(slot + areas[4])
        sums = ptr_ACC(slot + areas[2])
        for unit in range(index, g[SHARED] * g[PARTS], g[SLOTS]):
            shared, share = unit // g[PARTS], unit % g[PARTS]
            if share * per >= work:
                continue
            pack_rows(slot + areas[5], k, shared * g[KEYS] * width_e, g[KEYS], width_e, rows)
            pack_columns(slot + areas[6], v, shared * g[KEYS] * width_v, g[KEYS], width_v, rows)
            for tile in range(share * per, min(work, share * per + per)):
                head = shared * g[GROUP] + tile // tiles
                query = (tile % tiles) * WIDTH
                count = min(WIDTH, g[QUERIES] - query)
                first = head * g[QUERIES] + query
                turn_in(slot, WIDTH, q, first * width_e, count, width_e, width_e, ACC(scale))
                attend(g, areas, slot, head, query, g[OFFSETS], item)
                for i in range(count):
                    weight = ACC(0)
                    logs[first + i] = ACC(_INF)
                    if total[i] > ACC(0):
                        weight = ACC(1) / total[i]
                        logs[first + i] = peak[i] + log(total[i])
                    for c in range(width_v):
                        store_T(o, (first + i) * width_v + c, sums[c * WIDTH + i] * weight)


# ---------------------------------------------------------------------------------------------
# Backward


@device_template
def weigh(scores, slopes, keys, padded, pitch, wide, stats):  # type: ignore[no-untyped-def]
    """Turn scores to weights, and the slopes of weights to those of scores; zero behind `keys`."""
    s, d = ptr_ACC(scores), ptr_ACC(slopes)
    log_of, mean_of = ptr_ACC(stats), ptr_ACC(stats + pitch * size_ACC)
    for r in range(keys):
        for q in range(r * pitch, r * pitch + wide):
            weight = exp(s[q] - log_of[q - r * pitch])
            s[q] = weight
            d[q] = weight * (d[q] - mean_of[q - r * pitch])
    for q in range(keys * pitch, padded * pitch):
        s[q] = ACC(0)
        d[q] = ACC(0)


@device_template
def add_dots(left, right, offsets, keys, width, rows, step, n, sums, pitch):  # type: ignore[no-untyped-def]
    """``sums[key][column] += sum over queries of left[key] right[column]``, tile by tile."""
    for r in range(0, keys, rows):
        for c in range(0, width, step):
            cell = sums + (r * pitch + c) * size_ACC
            dot((left, offsets + r * 8, right, offsets + c * 8, n, cell, pitch * size_ACC))


@device_template
def store_rows(out, at, sums, pitch, count, width):  # type: ignore[no-untyped-def]
    """Write the first `width` columns of `count` rows of sums."""
    o = ptr_T(out)
    s = ptr_ACC(sums)
    for r in range(count):
        for c in range(width):
            store_T(o, at + r * width + c, s[r * pitch + c])


@device_template
def clear(address, count):  # type: ignore[no-untyped-def]
    """Set `count` numbers to zero."""
    p = ptr_ACC(address)
    for i in range(count):
        p[i] = ACC(0)


@device_template
def read_statistics(stats, strip, g_out, out, lse, first, count, width):  # type: ignore[no-untyped-def]
    """Put each query's log-sum-exp and the mean slope of its weights beside the strip."""
    slope, value, log_of = ptr_T(g_out), ptr_T(out), ptr_ACC(lse)
    logs, means = ptr_ACC(stats), ptr_ACC(stats + strip * size_ACC)
    for i in range(strip):
        logs[i] = ACC(_INF)
        means[i] = ACC(0)
    for i in range(count):
        mean = ACC(0)
        base = (first + i) * width
        for c in range(width):
            mean += load_T(slope, base + c) * load_T(value, base + c)
        logs[i] = log_of[first + i]
        means[i] = mean


@device_template
def back_block(g, areas, slot, head, query, count, key, here, strip, step):  # type: ignore[no-untyped-def]
    """Add what a block of keys and a strip of queries give to all three gradients."""
    item, offsets = size_ACC, g[OFFSETS]
    rows, width_e, width_v = g[ROWS], g[WIDTH_E], g[WIDTH_V]
    pitch_e = (width_e + step - 1) // step * step
    pitch_v = (width_v + step - 1) // step * step
    wide = (count + WIDTH - 1) // WIDTH * WIDTH
    padded = (here + rows - 1) // rows * rows
    turned, turned_g = slot + areas[0], slot + areas[1]
    scores, slopes = slot + areas[2], slot + areas[3]
    for r in range(0, here, rows):
        at_e = slot + areas[7] + (key + r) * width_e * item
        at_v = slot + areas[8] + (key + r) * width_v * item
        for t in range(0, wide, WIDTH):
            to = (r * strip + t) * item
            outer((at_e, turned + t * item, offsets, width_e, scores + to, strip * item))
            outer((at_v, turned_g + t * item, offsets, width_v, slopes + to, strip * item))
    if g[MASK_KIND] != 0:
        add_mask(scores, strip, g, head, key, here, query, count)
    if g[CAUSAL] != 0:
        hide_later(scores, strip, key, here, query, count)
    weigh(scores, slopes, here, padded, strip, wide, slot + areas[6])
    sums_k = slot + areas[10] + key * pitch_e * item
    sums_v = slot + areas[11] + key * pitch_v * item
    add_dots(scores, turned_g, offsets, here, width_v, rows, step, wide, sums_v, pitch_v)
    add_dots(slopes, turned, offsets, here, width_e, rows, step, wide, sums_k, pitch_e)
    panels = (width_e + rows - 1) // rows
    for p in range(panels):
        panel = slot + areas[9] + (p * g[KEYS] + key) * rows * item
        for t in range(0, wide, WIDTH):
            to = slot + areas[5] + (p * rows * strip + t) * item
            outer((panel, slopes + t * item, offsets, here, to, strip * item))
    total, new = ptr_ACC(slot + areas[4]), ptr_ACC(slot + areas[5])
    for c in range(panels * rows):
        for q in range(c * strip, c * strip + wide):
            total[q] += new[q]


@template("void(" + "int64, " * 13 + "float64, int64, int64)")
def attention_backward(  # type: ignore[no-untyped-def]
    gq, gk, gv, g_out, q, k, v, out, lse, table, scratch, strip, step, scale, start, stop
):
    """The gradients of queries, keys and values; a unit is a shared head.

    `strip` is the number of queries that are taken together, `step` the columns of a dot tile.
    """
    g = ptr_i64(table)
    areas = ptr_i64(table + AREAS * 8)
    rows, width_e, width_v, keys = g[ROWS], g[WIDTH_E], g[WIDTH_V], g[KEYS]
    pitch_e = (width_e + step - 1) // step * step
    pitch_v = (width_v + step - 1) // step * step
    padded = (keys + rows - 1) // rows * rows
    strips = (g[QUERIES] + strip - 1) // strip
    into = ptr_T(gq)
    for index in range(start, stop):
        slot = scratch + index * g[SLOT]
        total = ptr_ACC(slot + areas[4])
        for shared in range(index, g[SHARED], g[SLOTS]):
            at_k, at_v = shared * keys * width_e, shared * keys * width_v
            pack_rows(slot + areas[7], k, at_k, keys, width_e, rows)
            pack_rows(slot + areas[8], v, at_v, keys, width_v, rows)
            pack_columns(slot + areas[9], k, at_k, keys, width_e, rows)
            clear(slot + areas[10], padded * pitch_e)
            clear(slot + areas[11], padded * pitch_v)
            for tile in range(g[GROUP] * strips):
                head = shared * g[GROUP] + tile // strips
                query = (tile % strips) * strip
                count = min(strip, g[QUERIES] - query)
                first = head * g[QUERIES] + query
                at, at_g = slot + areas[0], slot + areas[1]
                turn_in(at, strip, q, first * width_e, count, width_e, pitch_e, ACC(scale))
                turn_in(at_g, strip, g_out, first * width_v, count, width_v, pitch_v, ACC(1))
                read_statistics(slot + areas[6], strip, g_out, out, lse, first, count, width_v)
                clear(slot + areas[4], (width_e + rows - 1) // rows * rows * strip)
                seen = min(keys, query + count) if g[CAUSAL] != 0 else keys
                for key in range(0, seen, g[BLOCK]):
                    here = min(g[BLOCK], seen - key)
                    back_block(g, areas, slot, head, query, count, key, here, strip, step)
                for i in range(count):
                    for c in range(width_e):
                        store_T(into, (first + i) * width_e + c, total[c * strip + i] * ACC(scale))
            store_rows(gk, at_k, slot + areas[10], pitch_e, keys, width_e)
            store_rows(gv, at_v, slot + areas[11], pitch_v, keys, width_v)
