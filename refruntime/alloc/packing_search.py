"""The compiled part of packing: greedy placement, and a search that fits buffers under a height.

State
-----
All in arrays that the caller owns: times are numbers of *sections* (the stretches between two
moments at which anything begins or ends), sizes and offsets are bytes.

Invariants
----------
* Two buffers that live in a common section never share a byte.
* The search builds a packing from the bottom up: each buffer is put as low as those before it
  allow, and no lower than the one before. Every packing can be pressed down into that form, so
  where the search ends without one, there is none.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

from refruntime._native import device_function, native, ptr_i64

FOUND: Final = 1
IMPOSSIBLE: Final = 0
GAVE_UP: Final = -1

_FAR: Final = 1 << 60
_FILLED: Final = -2


@native("int64(int64, int64, int64, int64, int64, int64, int64)")
def place_in_order(count, lower, upper, size, order, offset, scratch):
    """Put each buffer, in an order, into the lowest gap that holds it; return the height.

    `scratch` holds `count` words: the buffers placed so far, by offset.
    """
    lo, up, sz, od = ptr_i64(lower), ptr_i64(upper), ptr_i64(size), ptr_i64(order)
    off, placed = ptr_i64(offset), ptr_i64(scratch)
    height = 0
    for n in range(count):
        k = od[n]
        at = 0
        for i in range(n):
            j = placed[i]
            if lo[j] < up[k] and lo[k] < up[j]:
                if off[j] >= at + sz[k]:
                    break
                at = max(at, off[j] + sz[j])
        off[k] = at
        i = n
        while i > 0 and off[placed[i - 1]] > at:
            placed[i] = placed[i - 1]
            i -= 1
        placed[i] = k
        height = max(height, at + sz[k])
    return height


@native("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def place_online(count, lower, upper, size, order, offset, scratch, best_fit):
    """Put buffers as they come to life, in the first or the smallest gap; return the height.

    `order` must be that of their beginnings. `scratch` holds the living, by offset.
    """
    lo, up, sz, od = ptr_i64(lower), ptr_i64(upper), ptr_i64(size), ptr_i64(order)
    off, living = ptr_i64(offset), ptr_i64(scratch)
    height, alive = 0, 0
    for n in range(count):
        k = od[n]
        kept = 0
        at, gap, end = -1, _FAR, 0
        for i in range(alive):
            j = living[i]
            if up[j] <= lo[k]:
                continue
            room = off[j] - end
            if room >= sz[k] and room < gap and (best_fit != 0 or at < 0):
                at, gap = end, room
            end = max(end, off[j] + sz[j])
            living[kept] = j
            kept += 1
        off[k] = end if at < 0 else at
        i = kept
        while i > 0 and off[living[i - 1]] > off[k]:
            living[i] = living[i - 1]
            i -= 1
        living[i] = k
        alive = kept + 1
        height = max(height, off[k] + sz[k])
    return height


# --- the search -----------------------------------------------------------------------------------
# A row a depth: the lowest place that each buffer can still have (-1 once it is placed), how high
# each section is filled, how much is still to come there, the rank of each buffer, and these words:
PLACE: Final = 0  # of the buffer placed last, and its rank
RANK: Final = 1
TRIED_PLACE: Final = 2  # of the buffer tried last at this depth
TRIED_RANK: Final = 3
FROM: Final = 4  # the sections that are being filled: a part of time that nothing to come spans
TO: Final = 5
PARENT: Final = 6  # the depth whose choice is wrong if this part cannot be filled
LATER: Final = 7  # the next part to fill, a row of `parts`, or -1
PARTS: Final = 8  # how many rows of `parts` are in use
BARE: Final = 9  # whether the buffer tried last touches nothing that is to come
TAIL_WORDS: Final = 10

# A part that waits to be filled: its sections, the depth to blame, the next part, where to go on.
PART_WORDS: Final = 6


@native("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def search(
    count, sections, lower, upper, size, rank, by_crowd, offset, height, most_steps, scratch, parts
):
    """Look for a packing within `height`; returns FOUND, IMPOSSIBLE or GAVE_UP.

    With `by_crowd`, buffers are ranked by what is to come at the fullest moment of their lives,
    anew for each part, and by `rank` only where that is equal. `scratch` holds
    ``(count + 1) * (2 * count + 2 * sections + TAIL_WORDS)`` words, `parts`
    ``PART_WORDS * (count + sections)``.
    """
    lo, up, sz, rk = ptr_i64(lower), ptr_i64(upper), ptr_i64(size), ptr_i64(rank)
    off, w, p = ptr_i64(offset), ptr_i64(scratch), ptr_i64(parts)
    body = 2 * (count + sections)
    row = body + TAIL_WORDS
    begin_search(w, lo, up, sz, count, sections)
    rank_anew(w, 0, lo, up, rk, count, sections, 0, sections, by_crowd)
    depth, steps = 0, 0
    while True:
        base = depth * row
        tail = base + body
        k = next_candidate(w, base, tail, lo, up, sz, count, sections)
        if k == _FILLED:
            if w[tail + LATER] < 0:
                return FOUND
            go_on(w, tail, p)
            continue
        if k < 0:
            if w[tail + PARENT] < 0:
                return IMPOSSIBLE
            depth = w[tail + PARENT]
            continue
        steps += 1
        if steps > most_steps:
            return GAVE_UP
        off[k] = w[base + k]
        if descend(w, base, base + row, lo, up, sz, count, sections, k, height):
            first, end = w[tail + FROM], w[tail + TO]
            if split(w, tail, tail + row, depth, lo, up, p, count, sections, k):
                rank_anew(w, base + row, lo, up, rk, count, sections, first, end, by_crowd)
            depth += 1


@device_function
def begin_search(w, lo, up, sz, count, sections):
    """Set up depth zero: nothing is placed."""
    for k in range(count):
        w[k] = 0
    for s in range(2 * sections):
        w[count + s] = 0
    for k in range(count):
        for s in range(lo[k], up[k]):
            w[count + sections + s] += sz[k]
    tail = 2 * (count + sections)
    w[tail + PLACE] = w[tail + TRIED_PLACE] = w[tail + FROM] = w[tail + PARTS] = 0
    w[tail + RANK] = w[tail + TRIED_RANK] = -_FAR
    w[tail + PARENT] = w[tail + LATER] = -1
    w[tail + TO] = sections
    w[tail + BARE] = 0


@device_function
def rank_anew(w, base, lo, up, rk, count, sections, first, end, by_crowd):
    """Rank the buffers to come between two sections; the lowest rank goes first."""
    rest, rank = base + count + sections, base + count + 2 * sections
    for k in range(count):
        if w[base + k] < 0 or lo[k] < first or up[k] > end:
            continue
        crowd = 0
        if by_crowd != 0:
            for s in range(lo[k], up[k]):
                crowd = max(crowd, w[rest + s])
        w[rank + k] = rk[k] - crowd * count


@device_function
def next_candidate(w, base, tail, lo, up, sz, count, sections):
    """Return the next buffer to try in this part, by place and rank; -1 if none, or _FILLED."""
    first, end = w[tail + FROM], w[tail + TO]
    bound, left = _FAR, 0
    for k in range(count):
        if w[base + k] >= 0 and lo[k] >= first and up[k] <= end:
            # Above this, a buffer would leave a gap that another one fits in.
            bound = min(bound, w[base + k] + sz[k])
            left += 1
    if left == 0:
        return _FILLED
    if w[tail + BARE] != 0:
        return -1
    last_place, last_rank = w[tail + TRIED_PLACE], w[tail + TRIED_RANK]
    best, best_place, best_rank = -1, bound, _FAR
    for k in range(count):
        place, rank = w[base + k], w[base + count + 2 * sections + k]
        if place < last_place or place >= bound or (place == last_place and rank <= last_rank):
            continue
        if lo[k] < first or up[k] > end:
            continue
        if place < best_place or (place == best_place and rank < best_rank):
            best, best_place, best_rank = k, place, rank
    if best >= 0:
        w[tail + TRIED_PLACE], w[tail + TRIED_RANK] = best_place, best_rank
        w[tail + BARE] = is_bare(w, base, lo, up, count, best)
    return best


@device_function
def is_bare(w, base, lo, up, count, k):
    """Return whether no buffer to come lives together with buffer `k`."""
    for j in range(count):
        if j != k and w[base + j] >= 0 and lo[j] < up[k] and lo[k] < up[j]:
            return 0
    return 1


@device_function
def descend(w, base, deeper, lo, up, sz, count, sections, k, height):
    """Place buffer `k`, and fill the next depth's row; return whether all can still fit."""
    tail, new_tail = base + 2 * (count + sections), deeper + 2 * (count + sections)
    floor, rest = deeper + count, deeper + count + sections
    first, end = w[tail + FROM], w[tail + TO]
    place, top = w[base + k], w[base + k] + sz[k]
    for i in range(2 * (count + sections)):
        w[deeper + i] = w[base + i]
    w[deeper + k] = -1
    for s in range(lo[k], up[k]):
        w[floor + s] = top
        w[rest + s] -= sz[k]
    for s in range(first, end):
        if w[rest + s] > 0 and max(w[floor + s], place) + w[rest + s] > height:
            return False
    left, right = lo[k], up[k]
    for j in range(count):
        if 0 <= w[deeper + j] < top and lo[j] < up[k] and lo[k] < up[j]:
            w[deeper + j] = top
            left, right = min(left, lo[j]), max(right, up[j])
    w[new_tail + PLACE] = w[new_tail + TRIED_PLACE] = place
    w[new_tail + RANK] = w[new_tail + TRIED_RANK] = w[base + count + 2 * sections + k]
    w[new_tail + BARE] = 0
    return can_fit(w, deeper, lo, up, count, sections, left, right, place, height)


@device_function
def can_fit(w, base, lo, up, count, sections, left, right, place, height):
    """Raise floors to the lowest place anything can have there, and check what is to come."""
    floor, rest = base + count, base + count + sections
    for s in range(left, right):
        if w[rest + s] > 0:
            w[floor + s] = -1 - w[floor + s]  # to be raised
    for j in range(count):
        # What waits for something to lie on will not be lower than that.
        least = max(w[base + j], place)
        if w[base + j] < 0 or lo[j] >= right or up[j] <= left:
            continue
        for s in range(max(lo[j], left), min(up[j], right)):
            if w[floor + s] < 0:
                low = -1 - w[floor + s]
                w[floor + s] = max(least, low)
                if least <= low:
                    w[floor + s] = low
            elif w[floor + s] > least:
                w[floor + s] = least
    for s in range(left, right):
        if w[rest + s] > 0 and w[floor + s] + w[rest + s] > height:
            return False
    return True


@device_function
def split(w, tail, new_tail, depth, lo, up, p, count, sections, k):
    """Part the time that is being filled where nothing to come spans it; return whether it is so.

    The parts are ranked anew, so that what was tried before says nothing of equal places in them.
    """
    deeper = new_tail - 2 * (count + sections)
    first, end = w[tail + FROM], w[tail + TO]
    used, later, start = w[tail + PARTS], w[tail + LATER], first
    for moment in range(lo[k] + 1, up[k]):
        crossed = False
        for j in range(count):
            if w[deeper + j] >= 0 and lo[j] < moment < up[j]:
                crossed = True
                break
        if not crossed:
            q = used * PART_WORDS
            p[q], p[q + 1], p[q + 2], p[q + 3] = start, moment, depth, later
            p[q + 4], p[q + 5] = w[new_tail + PLACE], -_FAR
            later, used, start = used, used + 1, moment
    w[new_tail + FROM], w[new_tail + TO] = start, end
    w[new_tail + PARENT], w[new_tail + LATER], w[new_tail + PARTS] = depth, later, used
    if start == first:
        return False
    w[new_tail + RANK] = w[new_tail + TRIED_RANK] = -_FAR
    return True


@device_function
def go_on(w, tail, p):
    """Turn to the next part that waits to be filled."""
    q = w[tail + LATER] * PART_WORDS
    w[tail + FROM], w[tail + TO] = p[q], p[q + 1]
    w[tail + PARENT], w[tail + LATER] = p[q + 2], p[q + 3]
    w[tail + PLACE] = w[tail + TRIED_PLACE] = p[q + 4]
    w[tail + RANK] = w[tail + TRIED_RANK] = p[q + 5]
    w[tail + BARE] = 0
