"""Expandable segments: addresses reserved once for a pool and stream, memory mapped behind them.

State
-----
An expandable segment is a row (ADDRESS, SIZE, STREAM, PAGE) and a chain of blocks that tile its
addresses; the blocks in state UNMAPPED have no memory behind them.

Invariants
----------
* Memory is mapped and unmapped in whole pages, so unmapped blocks start and end at pages.
* What is asked of the outside is asked before anything changes.
* A segment without memory gives its addresses back.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function, ptr_i64
from refruntime.alloc.blocks import join, new_neighbour
from refruntime.alloc.counters import SEGMENT_MAP, SEGMENT_UNMAP, note
from refruntime.alloc.free_set import (
    first_unmapped,
    insert_free,
    insert_unmapped,
    is_split,
    remove_free,
    remove_unmapped,
    successor,
)
from refruntime.alloc.outside import ask
from refruntime.alloc.questions import MAP, RELEASE_ADDRESSES, RESERVE_ADDRESSES, UNMAP
from refruntime.alloc.rows import give_row, take_row
from refruntime.alloc.segments import count_reserved, new_block
from refruntime.alloc.sizes import page_size
from refruntime.alloc.tables import (
    ADDRESS,
    ADDRESS_BYTES,
    CONTEXT,
    CONTEXTS,
    EXPANDABLE_COUNT,
    EXPANDABLE_SEGMENT,
    FREE,
    IS_LARGE,
    MALLOC_COUNT,
    MAX_SPLIT,
    MEND_EXPANDABLE_MAX_SPLIT,
    MENDS,
    NEXT,
    OTHER,
    OWNER,
    PAGE,
    POOL,
    PREVIOUS,
    ROW,
    SIZE,
    STATE,
    STREAM,
    UNMAPPED,
    UNMAPPED_ROOT,
)


@device_function
def expand(h, b, o, pool, stream, size):
    """Map memory until `size` bytes are free in one piece; return that block, in no set, or 0."""
    k = lowest_room(h, b, pool, stream, size)
    if k == 0:
        k = new_expandable_segment(h, b, o, pool, stream)
    if k != 0 and b[k + STATE] == UNMAPPED:
        k = map_block(h, b, o, k, min(b[k + SIZE], size))
    while k != 0 and b[k + SIZE] < size:
        missing = size - b[k + SIZE]
        after = b[k + NEXT]
        if after == 0:
            return 0  # more than the addresses of a segment
        k = map_block(h, b, o, after, min(b[after + SIZE], missing))
    if k != 0:
        remove_free(b, k)
        if b[pool + OWNER] != 0:
            b[b[pool + OWNER] + MALLOC_COUNT] += 1
    return k


@device_function
def lowest_room(h, b, pool, stream, size):
    """Return the first block of the lowest run of free and unmapped ones that is long enough, or 0.

    A run is looked for at each unmapped block, from the free block before it on.
    """
    k = first_unmapped(b, pool, stream)
    while k != 0:
        before = b[k + PREVIOUS]
        start = before if is_room(b, before) else k
        if not stays_whole(h, b, before, size) and room_from(b, start, size) >= size:
            return start
        k = successor(b, pool + UNMAPPED_ROOT, k)
        if k != 0 and b[k + STREAM] != stream:
            return 0
    return 0


@device_function
def is_room(b, k):
    """Return whether block `k` is free or unmapped."""
    return k != 0 and (b[k + STATE] == FREE or b[k + STATE] == UNMAPPED)


@device_function
def stays_whole(h, b, k, size):
    """Return whether a request must not grow into free block `k`, which is too large to be split.

    In PyTorch it may; mended, it gets memory elsewhere.
    """
    if h[MENDS] & MEND_EXPANDABLE_MAX_SPLIT == 0 or k == 0 or b[k + STATE] != FREE:
        return False
    return size < h[MAX_SPLIT] and b[k + SIZE] >= h[MAX_SPLIT]


@device_function
def room_from(b, k, size):
    """Return the bytes of the run of free and unmapped blocks from `k` on, as far as needed."""
    nbytes = 0
    while nbytes < size and is_room(b, k):
        nbytes += b[k + SIZE]
        k = b[k + NEXT]
    return nbytes


@device_function
def new_expandable_segment(h, b, o, pool, stream):
    """Reserve addresses; return the one unmapped block that fills them, or 0 if there are none."""
    page = page_size(h, b[pool + IS_LARGE])
    size = (h[ADDRESS_BYTES] + page - 1) // page * page
    address = ask(o, RESERVE_ADDRESSES, size, 0, 0, 0)
    if address == 0:
        return 0
    segment = take_row(h, b, OTHER)
    b[segment + STREAM] = stream
    b[segment + SIZE] = size
    b[segment + PAGE] = page
    b[segment + ADDRESS] = address
    k = new_block(h, b, pool, stream, address, size, UNMAPPED)
    b[k + EXPANDABLE_SEGMENT] = segment
    h[EXPANDABLE_COUNT] += 1
    insert_unmapped(b, k)
    return k


@device_function
def map_block(h, b, o, k, size):
    """Map the first `size` bytes, rounded up to pages, of unmapped block `k`; return it, or 0.

    It then is a free block, joined with its free neighbours.
    """
    page = b[b[k + EXPANDABLE_SEGMENT] + PAGE]
    size = (size + page - 1) // page * page
    start = b[k + ADDRESS]
    if ask(o, MAP, start, size, page, 0) == 0:
        return 0
    remove_unmapped(b, k)
    if size < b[k + SIZE]:
        rest = new_neighbour(h, b, k, start + size, b[k + SIZE] - size, NEXT)
        b[rest + STATE] = UNMAPPED
        insert_unmapped(b, rest)
        b[k + SIZE] = size
    b[k + STATE] = FREE
    join(h, b, k, PREVIOUS)
    join(h, b, k, NEXT)
    insert_free(b, k)
    count_reserved(h, b, b[k + POOL], size)
    note(h, SEGMENT_MAP, start, size, b[k + STREAM], b[b[k + POOL] + OWNER], 0)
    contexts = ptr_i64(h[CONTEXTS])
    if b[k + PREVIOUS] == 0 and contexts[2 * (k // ROW) + 1] == 0:
        contexts[2 * (k // ROW) + 1] = h[CONTEXT]
    return k


@device_function
def unmap_block(h, b, o, k):
    """Unmap the whole pages inside free block `k`; what is left of it at its ends stays free."""
    segment = b[k + EXPANDABLE_SEGMENT]
    page = b[segment + PAGE]
    base = b[segment + ADDRESS]
    start = base + (b[k + ADDRESS] - base + page - 1) // page * page
    stop = base + (b[k + ADDRESS] + b[k + SIZE] - base) // page * page
    if start >= stop:
        return
    ask(o, UNMAP, start, stop - start, page, b[k + STREAM])
    remove_free(b, k)
    keep_end(h, b, k, b[k + ADDRESS], start, PREVIOUS)
    keep_end(h, b, k, stop, b[k + ADDRESS] + b[k + SIZE], NEXT)
    b[k + ADDRESS] = start
    b[k + SIZE] = stop - start
    b[k + STATE] = UNMAPPED
    join(h, b, k, PREVIOUS)
    join(h, b, k, NEXT)
    insert_unmapped(b, k)
    pool = b[k + POOL]
    count_reserved(h, b, pool, start - stop)
    if b[pool + OWNER] != 0:
        b[b[pool + OWNER] + MALLOC_COUNT] -= 1
    note(h, SEGMENT_UNMAP, start, stop - start, b[k + STREAM], b[pool + OWNER], 0)


@device_function
def keep_end(h, b, k, start, stop, side):
    """Make the bytes from `start` to `stop`, if any, a free block of their own beside `k`."""
    if start < stop:
        insert_free(b, new_neighbour(h, b, k, start, stop - start, side))


@device_function
def drop_if_empty(h, b, o, k):
    """Give the addresses back if unmapped block `k` is all of its segment."""
    if is_split(b, k) or b[k + STATE] != UNMAPPED:
        return
    segment = b[k + EXPANDABLE_SEGMENT]
    ask(o, RELEASE_ADDRESSES, b[segment + ADDRESS], b[segment + SIZE], 0, 0)
    remove_unmapped(b, k)
    give_row(h, b, k)
    give_row(h, b, segment)
    h[EXPANDABLE_COUNT] -= 1


@device_function
def room_to_grow(b, k):
    """Return the size that block `k` could have if what follows it were mapped."""
    after = b[k + NEXT]
    if after != 0 and b[after + STATE] == UNMAPPED:
        return b[k + SIZE] + b[after + SIZE]
    return b[k + SIZE]
