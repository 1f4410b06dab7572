"""Private pools: memory kept apart for CUDA graphs and for `MemPool`.

State
-----
A private pool is a row with a small and a large pool of free blocks, a use count and a count of the
segments that it holds. All private pools are in a list (FIRST_PRIVATE, NEXT). Those that nobody
needs any more are also in the map FREEABLE_POOLS; those that are USE_ON_OOM and needed are in the
map HELPING_POOLS. The order of the maps is that in which PyTorch's allocator goes through them.

Invariants
----------
* Memory of a private pool serves no request from outside of it, unless it is USE_ON_OOM.
* A private pool whose use count is not zero gives no memory back.
* A private pool is not forgotten while it has memory. MALLOC_COUNT alone does not tell: of an
  expandable segment, what one request mapped may be unmapped in pieces, and the other way round.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function
from refruntime.alloc.hash_order import (
    HEAD,
    entry_at,
    entry_number,
    erase,
    lookup_pair,
    next_entry,
    put,
)
from refruntime.alloc.rows import give_row, take_row
from refruntime.alloc.tables import (
    CURRENT,
    FIRST_PRIVATE,
    FIRST_RESERVED,
    FLAGS,
    FREE_ROOT,
    FREEABLE_POOLS,
    HELPING_POOLS,
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
    POOLS_DROPPED,
    PREVIOUS,
    PRIORITY,
    PRIVATE_PEAK_ALL,
    RESERVED_ROW,
    SEARCHES,
    SMALL_POOL,
    UNMAPPED_ROOT,
    UPSTREAM,
    USE_COUNT,
    USE_ON_OOM,
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
    if b[owner + USE_COUNT] == 1:
        leave_map(h, b, FREEABLE_POOLS, owner)
        if b[owner + FLAGS] & USE_ON_OOM != 0:
            enter_map(h, b, HELPING_POOLS, owner)


@device_function
def release_pool(h, b, owner):
    """Count one graph or MemPool less; return whether the pool may now give its memory back."""
    b[owner + USE_COUNT] -= 1
    if b[owner + USE_COUNT] == 0:
        leave_map(h, b, HELPING_POOLS, owner)
        enter_map(h, b, FREEABLE_POOLS, owner)
    return b[owner + USE_COUNT] == 0


@device_function
def enter_map(h, b, m, owner):
    """Enter a private pool into one of the maps, unless it is full of others."""
    if not put(h, m, pool_key(b, owner), owner, 0):
        drop_empty_pools(h, b)
        put(h, m, pool_key(b, owner), owner, 0)


@device_function
def leave_map(h, b, m, owner):
    """Take a private pool out of one of the maps, if it is there."""
    entry = lookup_pair(h, m, pool_key(b, owner), owner)
    if entry != 0:
        erase(h, m, entry_number(m, entry))


@device_function
def is_freeable(h, b, owner):
    """Return whether a private pool is in the map of those that nobody needs."""
    return lookup_pair(h, FREEABLE_POOLS, pool_key(b, owner), owner) != 0


@device_function
def drop_empty_pools(h, b):
    """Forget the pools that nobody needs and that have no memory, whatever their counts say."""
    i = next_entry(h, FREEABLE_POOLS, 0)
    while i >= 0:
        owner = h[entry_at(FREEABLE_POOLS, i) + HEAD]
        if is_empty(b, owner):
            erase(h, FREEABLE_POOLS, i)
            drop_private_pool(h, b, owner)
            i = next_entry(h, FREEABLE_POOLS, i)
        else:
            i = next_entry(h, FREEABLE_POOLS, i + 1)


@device_function
def is_empty(b, owner):
    """Return whether a private pool has no memory."""
    row = b[owner + RESERVED_ROW]
    return b[row + CURRENT] + b[row + CURRENT + 1] == 0


@device_function
def is_over(b, owner):
    """Return whether a private pool can be forgotten: it is empty, and its counts agree.

    PyTorch keeps an empty pool whose count is still above zero; so do we, while there is room, as
    it has a place in the order of the pools.
    """
    return is_empty(b, owner) and b[owner + MALLOC_COUNT] <= 0


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
    h[POOLS_DROPPED] += 1
