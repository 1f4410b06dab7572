"""Giving cached memory back: garbage collection, making room for a request, emptying the cache.

Invariants
----------
* Only whole free segments, and whole free pages of expandable ones, go back.
* The order is that of the free sets: by stream, then smallest first.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function
from refruntime.alloc.counters import reserved_in_all
from refruntime.alloc.events import wait_for_events
from refruntime.alloc.expandable import drop_if_empty, unmap_block
from refruntime.alloc.free_set import best_fit, is_split, last_below, predecessor, successor
from refruntime.alloc.hash_order import HEAD, entry_at, erase, next_entry
from refruntime.alloc.pools import drop_private_pool, is_freeable, is_over, leave_map
from refruntime.alloc.segments import release_segment
from refruntime.alloc.tables import (
    CAPTURING,
    EXPANDABLE_SEGMENT,
    FIRST_PRIVATE,
    FREE_ROOT,
    FREEABLE_POOLS,
    GC_THRESHOLD,
    INSERTED,
    LARGE,
    LARGE_POOL,
    MAX_SPLIT,
    NEXT,
    SEARCHES,
    SIZE,
    SMALL,
    SMALL_POOL,
    STREAM,
    UNLIMITED,
    USE_COUNT,
    USES,
)

# --- garbage collection -----------------------------------------------------------------------


@device_function
def collect_garbage(h, b, o):
    """Release whole free segments of the large pool, those of more than average age first.

    Passes are repeated, with the average of what is left, until the reserved bytes are below the
    threshold; a pass does not stop there, so that collections stay rare.
    """
    excess = reserved_in_all(h) - h[GC_THRESHOLD]
    if excess <= 0:
        return
    count, total_age = whole_blocks(b)
    reclaimed = 0
    progress = True
    while reclaimed < excess and progress and count > 0:
        freed, nbytes, age = collect_old(h, b, o, total_age, count)
        progress = freed > 0
        count -= freed
        total_age -= age
        reclaimed += nbytes


@device_function
def whole_blocks(b):
    """Return how many free blocks of the large pool fill their segment, and the sum of ages."""
    count = 0
    total_age = 0
    k = successor(b, LARGE + FREE_ROOT, 0)
    while k != 0:
        if not is_split(b, k):
            count += 1
            total_age += age_of(b, k)
        k = successor(b, LARGE + FREE_ROOT, k)
    return count, total_age


@device_function
def age_of(b, k):
    """Return how many searches its pool has seen since block `k` came into it."""
    return b[LARGE + SEARCHES] - b[k + INSERTED]


@device_function
def collect_old(h, b, o, total_age, count):
    """Release the whole blocks of at least average age; return how many, their bytes and ages."""
    freed = 0
    nbytes = 0
    ages = 0
    k = successor(b, LARGE + FREE_ROOT, 0)
    while k != 0:
        following = successor(b, LARGE + FREE_ROOT, k)
        old = age_of(b, k) * count >= total_age
        if old and is_whole(b, k):
            freed += 1
            nbytes += b[k + SIZE]
            ages += age_of(b, k)
            release_segment(h, b, o, k)
        k = following
    return freed, nbytes, ages


# --- making room for a request, where large blocks are not split --------------------------------


@device_function
def release_oversize(h, b, o, pool, stream, size):
    """Release blocks of at least the split limit until a request fits; return whether it will.

    The smallest one that suffices, or else from the largest down. Blocks that share their segment
    are passed over. PyTorch releases them as if they were segments, which the driver refuses, or
    which takes the memory of live neighbours away; they come from settings changed at run time.
    """
    if h[MAX_SPLIT] == UNLIMITED:
        return False
    size = max(size, h[MAX_SPLIT])
    link = best_fit(b, pool, stream, size)
    if link != 0 and is_whole(b, b[link]):
        release_segment(h, b, o, b[link])
        return True
    k = last_below(b, pool, stream, size)
    released = 0
    while k != 0 and released < size and is_oversize(h, b, k, stream):
        before = predecessor(b, pool + FREE_ROOT, k)
        if is_whole(b, k):
            released += b[k + SIZE]
            release_segment(h, b, o, k)
        k = before
    return released >= size


@device_function
def is_whole(b, k):
    """Return whether block `k` fills a segment that can be released."""
    return b[k + EXPANDABLE_SEGMENT] == 0 and not is_split(b, k)


@device_function
def is_oversize(h, b, k, stream):
    """Return whether block `k` belongs to a stream and is too large to be split."""
    return b[k + STREAM] == stream and b[k + SIZE] >= h[MAX_SPLIT]


# --- emptying the cache -------------------------------------------------------------------------


@device_function
def release_cached(h, b, o):
    """Wait for all events, then release all that is free: large first, freeable pools last.

    Inside a capture there is no waiting, and only the freeable pools are released.
    """
    if h[CAPTURING] == 0:
        wait_for_events(h, b, o, 0)
        release_free(h, b, o, LARGE)
        release_free(h, b, o, SMALL)
    i = next_entry(h, FREEABLE_POOLS, 0)
    while i >= 0:
        owner = h[entry_at(FREEABLE_POOLS, i) + HEAD]
        release_private(h, b, o, owner)
        if is_over(b, owner):
            erase(h, FREEABLE_POOLS, i)
            drop_private_pool(h, b, owner)
            i = next_entry(h, FREEABLE_POOLS, i)
        else:
            i = next_entry(h, FREEABLE_POOLS, i + 1)
    release_unlisted(h, b, o)


@device_function
def release_unlisted(h, b, o):
    """Release what is free in the freeable pools that had no room in the map."""
    owner = h[FIRST_PRIVATE]
    while owner != 0:
        following = b[owner + NEXT]
        if b[owner + USE_COUNT] == 0 and not is_freeable(h, b, owner):
            release_private(h, b, o, owner)
            if is_over(b, owner):
                drop_private_pool(h, b, owner)
        owner = following


@device_function
def release_pool_cache(h, b, o, owner):
    """Release what is free in one private pool, if nobody needs the pool any more."""
    if b[owner + USE_COUNT] != 0:
        return
    wait_for_events(h, b, o, owner)
    release_private(h, b, o, owner)
    if is_over(b, owner):
        leave_map(h, b, FREEABLE_POOLS, owner)
        drop_private_pool(h, b, owner)


@device_function
def release_private(h, b, o, owner):
    """Release what is free in a private pool."""
    release_free(h, b, o, b[owner + SMALL_POOL])
    release_free(h, b, o, b[owner + LARGE_POOL])


@device_function
def release_free(h, b, o, pool):
    """Release the whole free segments of a pool, then unmap its free pages."""
    to_unmap = 0
    last = 0
    k = successor(b, pool + FREE_ROOT, 0)
    while k != 0:
        following = successor(b, pool + FREE_ROOT, k)
        if b[k + EXPANDABLE_SEGMENT] != 0:
            # A free block's USES is nobody's: it chains what is to be unmapped.
            b[k + USES] = 0
            if last == 0:
                to_unmap = k
            else:
                b[last + USES] = k
            last = k
        elif not is_split(b, k):
            release_segment(h, b, o, k)
        k = following
    while to_unmap != 0:
        following = b[to_unmap + USES]
        unmap_block(h, b, o, to_unmap)
        drop_if_empty(h, b, o, to_unmap)
        to_unmap = following
