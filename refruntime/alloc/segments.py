"""Segments: spans of the upstream that come and go whole.

State
-----
A segment is its blocks; there is no row for it. Its age, a count of the segments made before it,
stands in each of its blocks.

Invariants
----------
* A segment is released when one free block fills it, never before.
* What is asked of the outside is asked before anything changes.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function, ptr_i64
from refruntime.alloc.counters import (
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    change_private,
    decrease,
    increase,
    note,
)
from refruntime.alloc.free_set import remove_free
from refruntime.alloc.outside import ask
from refruntime.alloc.questions import RELEASE, RESERVE
from refruntime.alloc.rows import give_row, take_row
from refruntime.alloc.tables import (
    ADDRESS,
    AGE,
    CATEGORY,
    CONTEXT,
    CONTEXTS,
    EXPANDABLE_SEGMENT,
    FREE,
    IS_LARGE,
    MALLOC_COUNT,
    MAX_SPLIT,
    NEXT,
    NUM_DEVICE_ALLOC,
    NUM_DEVICE_FREE,
    OVERSIZE_SEGMENTS,
    OWNER,
    POOL,
    PREVIOUS,
    REQUESTED,
    RESERVED_BYTES,
    RESERVED_ROW,
    ROW,
    SEGMENT_COUNT,
    SEGMENT_STAT,
    SIZE,
    STREAM,
    UPSTREAM,
    USES,
)


@device_function
def reserve_segment(h, b, o, pool, stream, size):
    """Ask the outside for a segment; return its one block, which is in no set, or 0."""
    owner = b[pool + OWNER]
    upstream = b[owner + UPSTREAM] if owner != 0 else 0
    address = ask(o, RESERVE, size, stream, upstream, 0)
    if address == 0:
        return 0
    return add_segment(h, b, pool, stream, address, size)


@device_function
def add_segment(h, b, pool, stream, address, size):
    """Enter a span of the upstream; return its one block, which is in no set yet."""
    k = new_block(h, b, pool, stream, address, size, FREE)
    increase(h, SEGMENT_STAT + b[pool + IS_LARGE], 1)
    if size >= h[MAX_SPLIT]:
        increase(h, OVERSIZE_SEGMENTS, 1)
    count_reserved(h, b, pool, size)
    if b[pool + OWNER] != 0:
        b[b[pool + OWNER] + MALLOC_COUNT] += 1
    ptr_i64(h[CONTEXTS])[2 * (k // ROW) + 1] = h[CONTEXT]
    note(h, SEGMENT_ALLOC, address, size, stream, b[pool + OWNER], 0)
    return k


@device_function
def new_block(h, b, pool, stream, address, size, state):
    """Return the one block of a new segment, in no set, with the age of the next segment."""
    k = take_row(h, b, state)
    b[k + STREAM] = stream
    b[k + SIZE] = size
    b[k + AGE] = h[SEGMENT_COUNT]
    b[k + ADDRESS] = address
    b[k + POOL] = pool
    b[k + EXPANDABLE_SEGMENT] = 0
    b[k + REQUESTED] = 0
    b[k + CATEGORY] = 0
    b[k + USES] = 0
    b[k + PREVIOUS] = 0
    b[k + NEXT] = 0
    h[SEGMENT_COUNT] += 1
    return k


@device_function
def release_segment(h, b, o, k):
    """Give the segment that free block `k` fills back to the outside."""
    pool = b[k + POOL]
    owner = b[pool + OWNER]
    upstream = b[owner + UPSTREAM] if owner != 0 else 0
    ask(o, RELEASE, b[k + ADDRESS], b[k + SIZE], upstream, 0)
    remove_free(b, k)
    decrease(h, SEGMENT_STAT + b[pool + IS_LARGE], 1)
    if b[k + SIZE] >= h[MAX_SPLIT]:
        decrease(h, OVERSIZE_SEGMENTS, 1)
    count_reserved(h, b, pool, -b[k + SIZE])
    if owner != 0:
        b[owner + MALLOC_COUNT] -= 1
    note(h, SEGMENT_FREE, b[k + ADDRESS], b[k + SIZE], b[k + STREAM], owner, 0)
    give_row(h, b, k)


@device_function
def count_reserved(h, b, pool, nbytes):
    """Count bytes that came from the upstream, or went back to it if `nbytes` is negative."""
    large = b[pool + IS_LARGE]
    if nbytes > 0:
        increase(h, RESERVED_BYTES + large, nbytes)
        h[NUM_DEVICE_ALLOC] += 1
    else:
        decrease(h, RESERVED_BYTES + large, -nbytes)
        h[NUM_DEVICE_FREE] += 1
    if b[pool + OWNER] != 0:
        change_private(b, b[b[pool + OWNER] + RESERVED_ROW], large, nbytes)
