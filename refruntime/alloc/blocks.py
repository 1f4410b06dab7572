"""Blocks: cutting them, giving them out, taking them back and joining them.

State
-----
All of it is in the tables: `h` is the header, `b` the blocks (see `tables`). Blocks lie in
segments; a segment is a span of the upstream, and a block without a previous neighbour starts one.

Invariants
----------
* The blocks of a segment tile it, and two neighbours are never both free or both unmapped.
* Free blocks are in the free set of their pool, unmapped ones in its other set.
* Expandable segments do not count as split: their free pages can always be given back.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function, ptr_i64
from refruntime.alloc.codes import DONE, INVALID, UNKNOWN
from refruntime.alloc.counters import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    TAG,
    change,
    decrease,
    increase,
    note,
)
from refruntime.alloc.free_set import (
    insert_free,
    is_split,
    remove_free,
    remove_unmapped,
)
from refruntime.alloc.rows import find, give_row, take_row
from refruntime.alloc.tables import (
    ACTIVE,
    ACTIVE_BYTES,
    ADDRESS,
    AGE,
    ALLOCATED,
    ALLOCATED_BYTES,
    ALLOCATION,
    CATEGORY,
    CATEGORY_BYTES,
    CATEGORY_COUNT,
    CONTEXT,
    CONTEXTS,
    EXPANDABLE_SEGMENT,
    FREE,
    INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES,
    IS_LARGE,
    KEEPS_CONTEXTS,
    MAX_SPLIT,
    NEXT,
    OVERSIZE_ALLOCATIONS,
    OWNER,
    POOL,
    PREVIOUS,
    REQUESTED,
    REQUESTED_BYTES,
    ROW,
    SIZE,
    STATE,
    STREAM,
    UNMAPPED,
    USES,
)


@device_function
def hand_out(h, b, k, size, nbytes, category, cut):
    """Give block `k`, which is in no set, or if `cut` its low end, to a request; return the block.

    `size` is the rounded size and `nbytes` what was asked for.
    """
    was_split = is_split(b, k) and b[k + EXPANDABLE_SEGMENT] == 0
    large = b[b[k + POOL] + IS_LARGE]
    if cut:
        k = cut_low_end(h, b, k, size, was_split)
    elif was_split:
        decrease(h, INACTIVE_SPLIT + large, 1)
        decrease(h, INACTIVE_SPLIT_BYTES + large, b[k + SIZE])
    b[k + STATE] = ALLOCATED
    b[k + REQUESTED] = nbytes
    b[k + CATEGORY] = category
    b[k + USES] = 0
    if h[KEEPS_CONTEXTS] != 0:
        ptr_i64(h[CONTEXTS])[2 * (k // ROW)] = h[CONTEXT]
    count_in(h, b, k, large)
    note_block(h, b, k, ALLOC)
    return k


@device_function
def count_in(h, b, k, large):
    """Count block `k` as in use."""
    size = b[k + SIZE]
    increase(h, ALLOCATION + large, 1)
    increase(h, ALLOCATED_BYTES + large, size)
    increase(h, ACTIVE + large, 1)
    increase(h, ACTIVE_BYTES + large, size)
    increase(h, REQUESTED_BYTES + large, b[k + REQUESTED])
    h[CATEGORY_BYTES + b[k + CATEGORY]] += b[k + REQUESTED]
    if size >= h[MAX_SPLIT]:
        increase(h, OVERSIZE_ALLOCATIONS, 1)


@device_function
def cut_low_end(h, b, k, size, was_split):
    """Cut `size` bytes off the low end of block `k`, return them; the rest of `k` becomes free."""
    low = new_neighbour(h, b, k, b[k + ADDRESS], size, PREVIOUS)
    b[k + ADDRESS] += size
    b[k + SIZE] -= size
    b[k + STATE] = FREE
    insert_free(b, k)
    large = b[b[k + POOL] + IS_LARGE]
    if was_split:
        decrease(h, INACTIVE_SPLIT_BYTES + large, size)
    elif b[k + EXPANDABLE_SEGMENT] == 0:
        increase(h, INACTIVE_SPLIT + large, 1)
        increase(h, INACTIVE_SPLIT_BYTES + large, b[k + SIZE])
    return low


@device_function
def new_neighbour(h, b, k, address, size, side):
    """Return a new block that stands beside `k`, on the side PREVIOUS or NEXT; `k` is unchanged."""
    other = take_row(h, b, FREE)
    b[other + STREAM] = b[k + STREAM]
    b[other + SIZE] = size
    b[other + AGE] = b[k + AGE]
    b[other + ADDRESS] = address
    b[other + POOL] = b[k + POOL]
    b[other + EXPANDABLE_SEGMENT] = b[k + EXPANDABLE_SEGMENT]
    b[other + REQUESTED] = 0
    b[other + USES] = 0
    opposite = PREVIOUS + NEXT - side
    beyond = b[k + side]
    b[other + opposite] = k
    b[other + side] = beyond
    b[k + side] = other
    if beyond != 0:
        b[beyond + opposite] = other
    return other


@device_function
def count_out(h, b, k):
    """Count block `k` as no longer wanted by its user, who may still have work under way on it."""
    large = b[b[k + POOL] + IS_LARGE]
    decrease(h, ALLOCATION + large, 1)
    decrease(h, ALLOCATED_BYTES + large, b[k + SIZE])
    h[CATEGORY_BYTES + b[k + CATEGORY]] -= b[k + REQUESTED]
    if b[k + SIZE] >= h[MAX_SPLIT]:
        decrease(h, OVERSIZE_ALLOCATIONS, 1)
    note_block(h, b, k, FREE_REQUESTED)


@device_function
def note_block(h, b, k, action):
    """Write something that happened to block `k` into the trace."""
    owner = b[b[k + POOL] + OWNER]
    note(h, action, b[k + ADDRESS], b[k + REQUESTED], b[k + STREAM], owner, b[k + CATEGORY])


@device_function
def free_block(h, b, k):
    """Make block `k`, which nothing uses any more, part of the free memory of its segment."""
    note_block(h, b, k, FREE_COMPLETED)
    large = b[b[k + POOL] + IS_LARGE]
    decrease(h, ACTIVE + large, 1)
    decrease(h, ACTIVE_BYTES + large, b[k + SIZE])
    decrease(h, REQUESTED_BYTES + large, b[k + REQUESTED])
    b[k + STATE] = FREE
    before = join(h, b, k, PREVIOUS)
    after = join(h, b, k, NEXT)
    insert_free(b, k)
    if b[k + EXPANDABLE_SEGMENT] == 0:
        split = is_split(b, k)
        change(h, INACTIVE_SPLIT + large, split - (before > 0) - (after > 0))
        nbytes = b[k + SIZE] if split else 0
        change(h, INACTIVE_SPLIT_BYTES + large, nbytes - before - after)


@device_function
def retag(h, b, address, category):
    """Move the block at an address to another category: DONE, UNKNOWN or INVALID."""
    if category < 0 or category >= CATEGORY_COUNT:
        return INVALID
    if address == 0:
        return DONE
    k = find(h, b, address)
    if k == 0:
        return UNKNOWN
    h[CATEGORY_BYTES + b[k + CATEGORY]] -= b[k + REQUESTED]
    h[CATEGORY_BYTES + category] += b[k + REQUESTED]
    b[k + CATEGORY] = category
    note_block(h, b, k, TAG)
    return DONE


@device_function
def join(h, b, k, side):
    """Make the neighbour on one side part of block `k` if it is in the same state; return its size.

    Block `k` is free or unmapped, and in no set.
    """
    other = b[k + side]
    if other == 0 or b[other + STATE] != b[k + STATE]:
        return 0
    if b[other + STATE] == UNMAPPED:
        remove_unmapped(b, other)
    else:
        remove_free(b, other)
    gained = b[other + SIZE]
    b[k + ADDRESS] = min(b[k + ADDRESS], b[other + ADDRESS])
    b[k + SIZE] += gained
    beyond = b[other + side]
    b[k + side] = beyond
    if beyond != 0:
        b[beyond + PREVIOUS + NEXT - side] = k
    give_row(h, b, other)
    return gained
