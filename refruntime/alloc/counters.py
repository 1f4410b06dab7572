"""Counting: how the statistics of the header change, and the entries of the trace.

State
-----
All of it is in the header `h` and the rows `b` (see `tables`).

Invariants
----------
* A statistic's current value never passes its peak, and its total is the sum of all increases.
* Nothing is written into the trace while TRACE is zero.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

from refruntime._native import device_function, ptr_i64
from refruntime.alloc.tables import (
    ACTION,
    BLOCKS,
    CONTEXT,
    CURRENT,
    ENTRY_ADDRESS,
    ENTRY_CATEGORY,
    ENTRY_CONTEXT,
    ENTRY_POOL,
    ENTRY_SIZE,
    ENTRY_STREAM,
    ENTRY_TIME,
    ENTRY_WORDS,
    FIRST_RESERVED,
    ID_FIRST,
    ID_SECOND,
    NEXT,
    NOW,
    PEAK,
    PEAK_ALL,
    PRIVATE_PEAK_ALL,
    RESERVED_BYTES,
    STAT_COUNT,
    STAT_WORDS,
    STATS,
    TOTAL,
    TRACE,
    TRACE_CAPACITY,
    TRACE_COUNT,
)

# Actions of the trace.
ALLOC: Final = 0
FREE_REQUESTED: Final = 1
FREE_COMPLETED: Final = 2
SEGMENT_ALLOC: Final = 3
SEGMENT_FREE: Final = 4
SEGMENT_MAP: Final = 5
SEGMENT_UNMAP: Final = 6
OOM: Final = 7
TAG: Final = 8
SNAPSHOT: Final = 9
ANNOTATE: Final = 10


@device_function
def increase(h, place, amount):
    """Add to the current value at `place` (a statistic, + 1 for large), its total and the peaks."""
    current = h[place] + amount
    h[place] = current
    h[place + TOTAL] += amount
    h[place + PEAK] = max(h[place + PEAK], current)
    # Statistics start at even words: the other pool's value is the other one of the pair.
    peak_all = (place & -2) + PEAK_ALL
    h[peak_all] = max(h[peak_all], current + h[place ^ 1])


@device_function
def decrease(h, place, amount):
    """Subtract from the current value at `place`."""
    h[place] -= amount


@device_function
def change(h, place, amount):
    """Add or subtract, by the sign."""
    if amount > 0:
        increase(h, place, amount)
    else:
        decrease(h, place, -amount)


@device_function
def change_private(b, row, large, amount):
    """Change the reserved bytes of a private pool, which a row holds."""
    place = row + CURRENT + large
    b[place] += amount
    if amount > 0:
        b[place + TOTAL] += amount
        b[place + PEAK] = max(b[place + PEAK], b[place])
        total = b[row + CURRENT] + b[row + CURRENT + 1]
        b[row + PRIVATE_PEAK_ALL] = max(b[row + PRIVATE_PEAK_ALL], total)


@device_function
def reserved_in_all(h):
    """Return the bytes that the upstream has given."""
    return h[RESERVED_BYTES] + h[RESERVED_BYTES + 1]


@device_function
def note(h, action, address, size, stream, owner, category):
    """Write an entry into the trace, if there is one; `owner` is a private pool, or 0."""
    if h[TRACE] == 0:
        return
    b = ptr_i64(h[BLOCKS])
    pool = 0 if owner == 0 else (b[owner + ID_FIRST] << 32) | b[owner + ID_SECOND]
    t = ptr_i64(h[TRACE])
    at = (h[TRACE_COUNT] % h[TRACE_CAPACITY]) * ENTRY_WORDS
    t[at + ACTION] = action
    t[at + ENTRY_ADDRESS] = address
    t[at + ENTRY_SIZE] = size
    t[at + ENTRY_STREAM] = stream
    t[at + ENTRY_TIME] = h[NOW]
    t[at + ENTRY_CONTEXT] = h[CONTEXT]
    t[at + ENTRY_POOL] = pool
    t[at + ENTRY_CATEGORY] = category
    h[TRACE_COUNT] += 1


@device_function
def reset_all_peaks(h, b):
    """Make every peak the current value."""
    for stat in range(STATS, STATS + STAT_COUNT * STAT_WORDS, STAT_WORDS):
        small, large = h[stat + CURRENT], h[stat + CURRENT + 1]
        h[stat + PEAK] = small
        h[stat + PEAK + 1] = large
        h[stat + PEAK_ALL] = small + large
    row = h[FIRST_RESERVED]
    while row != 0:
        b[row + PEAK] = b[row + CURRENT]
        b[row + PEAK + 1] = b[row + CURRENT + 1]
        b[row + PRIVATE_PEAK_ALL] = b[row + CURRENT] + b[row + CURRENT + 1]
        row = b[row + NEXT]
