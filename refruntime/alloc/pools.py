"""Private pools: memory kept apart for CUDA graphs and for `MemPool`.

State
-----
A private pool is a row with a small and a large pool of free blocks, a use count and a count of the
segments that it holds. All private pools are in a list (FIRST_PRIVATE, NEXT); those that nobody
needs any more are also in the map FREEABLE_POOLS, and go when their last segment has gone.

Invariants
----------
* Memory of a private pool serves no request from outside of it, unless it is USE_ON_OOM.
* A private pool whose use count is not zero gives no memory back.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function
from refruntime.alloc.hash_order import entry_number, erase, lookup, put
from refruntime.alloc.rows import give_row, take_row
from refruntime.alloc.tables import (
    FIRST_PRIVATE,
    FIRST_RESERVED,
    FLAGS,
    FREE_ROOT,
    FREEABLE_POOLS,
    ID_FIRST,
    ID_SECOND,
    IS_LARGE,
    LARGE_POOL,
    MALLOC_COUNT,
    NAME_FIRST,
    NAME_SECOND,
    NEXT,
    OTHER,
    OWNER,
    PREVIOUS,
    PRIORITY,
    PRIVATE_PEAK_ALL,
    RESERVED_ROW,
    SEARCHES,
    SMALL_POOL,
    UNMAPPED_ROOT,
    UPSTREAM,
    USE_COUNT,
)


@device_function
def new_private_pool(h, b, first, second, flags, upstream):
    """Make a private pool with this name, needed by nobody yet."""
    owner = take_row(h, b, OTHER)
    b[owner + ID_FIRST] = first
    b[owner + ID_SECOND] = second
    b[owner + USE_COUNT] = 0
    b[owner + MALLOC_COUNT] = 0
    b[owner + FLAGS] = flags
    b[owner + UPSTREAM] = upstream
    b[owner + SMALL_POOL] = new_pool(h, b, owner, 0)
    b[owner + LARGE_POOL] = new_pool(h, b, owner, 1)
    b[owner + RESERVED_ROW] = new_statistic(h, b, first, second)
    b[owner + PREVIOUS] = 0
    b[owner + NEXT] = h[FIRST_PRIVATE]
    if h[FIRST_PRIVATE] != 0:
        b[h[FIRST_PRIVATE] + PREVIOUS] = owner
    h[FIRST_PRIVATE] = owner
    return owner


@device_function
def new_pool(h, b, owner, large):
    """Make an empty pool of free blocks."""
    pool = take_row(h, b, OTHER)
    b[pool + IS_LARGE] = large
    b[pool + OWNER] = owner
    b[pool + SEARCHES] = 0
    b[pool + FREE_ROOT] = 0
    b[pool + UNMAPPED_ROOT] = 0
    return pool


@device_function
def new_statistic(h, b, first, second):
    """Make a row for the reserved bytes of a private pool with this name."""
    row = take_row(h, b, OTHER)
    for word in range(PRIORITY):
        b[row + word] = 0
    b[row + PRIVATE_PEAK_ALL] = 0
    b[row + NAME_FIRST] = first
    b[row + NAME_SECOND] = second
    b[row + NEXT] = h[FIRST_RESERVED]
    h[FIRST_RESERVED] = row
    return row


@device_function
def pool_key(b, owner):
    """Return what PyTorch hashes of a private pool's name."""
    return b[owner + ID_FIRST] if b[owner + ID_FIRST] != 0 else b[owner + ID_SECOND]


@device_function
def find_private_pool(h, b, first, second):
    """Return the private pool with a name, or 0."""
    owner = h[FIRST_PRIVATE]
    while owner != 0 and (b[owner + ID_FIRST] != first or b[owner + ID_SECOND] != second):
        owner = b[owner + NEXT]
    return owner


@device_function
def need_pool(h, b, owner):
    """Count one more graph or MemPool that needs a private pool."""
    b[owner + USE_COUNT] += 1
    entry = lookup(h, FREEABLE_POOLS, pool_key(b, owner))
    if entry != 0:
        erase(h, FREEABLE_POOLS, entry_number(FREEABLE_POOLS, entry))


@device_function
def release_pool(h, b, owner):
    """Count one graph or MemPool less; return whether the pool may now give its memory back."""
    b[owner + USE_COUNT] -= 1
    if b[owner + USE_COUNT] == 0:
        put(h, FREEABLE_POOLS, pool_key(b, owner), owner, 0)
    return b[owner + USE_COUNT] == 0


@device_function
def drop_private_pool(h, b, owner):
    """Forget a private pool that is needed by nobody and holds no memory, but not its statistic."""
    before, after = b[owner + PREVIOUS], b[owner + NEXT]
    if before != 0:
        b[before + NEXT] = after
    else:
        h[FIRST_PRIVATE] = after
    if after != 0:
        b[after + PREVIOUS] = before
    give_row(h, b, b[owner + SMALL_POOL])
    give_row(h, b, b[owner + LARGE_POOL])
    give_row(h, b, owner)
