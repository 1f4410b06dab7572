"""The policy: in which order a request tries to be served, and what a free does.

State
-----
None of its own: `h` is the header, `b` the blocks, `o` the outside. These functions are the same
source interpreted (in the runtime, where the outside is an upstream) and compiled (in replay, where
it is a virtual device).

Invariants
----------
* The order is that of PyTorch's CUDACachingAllocator (2.14.1): events, cache, callbacks, garbage
  collection, upstream, pools that help out, oversize blocks, the whole cache, failure.
* A request that fails leaves all as it was, but for the cache released for it, and the counts.
* Nothing here raises: results below zero are codes. What the outside raises goes through.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function
from refruntime.alloc.blocks import count_out, free_block, hand_out
from refruntime.alloc.codes import DONE, OUT_OF_MEMORY, REJECTED, UNKNOWN
from refruntime.alloc.counters import OOM, note, reserved_in_all
from refruntime.alloc.events import (
    defer,
    free_safe_in_capture,
    mark_uses,
    process_events,
    record_events,
)
from refruntime.alloc.expandable import expand, room_to_grow
from refruntime.alloc.free_set import best_fit, remove_free, successor, unlink
from refruntime.alloc.hash_order import HEAD, entry_at, next_entry
from refruntime.alloc.outside import ask
from refruntime.alloc.questions import FREE_CALLBACKS, FREE_MEMORY
from refruntime.alloc.release import collect_garbage, release_cached, release_oversize
from refruntime.alloc.rows import find, leave_index
from refruntime.alloc.segments import reserve_segment
from refruntime.alloc.sizes import pool_for, round_size, segment_size, should_split
from refruntime.alloc.tables import (
    CALLBACKS,
    CAPTURING,
    DEFERRED,
    EVENTS_LEFT,
    EXPANDABLE,
    EXPANDABLE_SEGMENT,
    FAILED_FREE,
    FAILED_SIZE,
    FREE_ROOT,
    GC_THRESHOLD,
    HELPING_POOLS,
    LIMIT,
    MAX_NON_SPLIT_ROUNDING,
    MAX_SPLIT,
    MEND_REJECTION_RELEASES_CACHE,
    MEND_SEARCH_AFTER_SYNC,
    MENDS,
    NUM_ALLOC_RETRIES,
    NUM_OOM_REJECTIONS,
    NUM_OOMS,
    OWNER,
    POOL,
    REJECT_ABOVE,
    REUSE_IN_CAPTURE,
    SEARCHES,
    SIZE,
    STATE,
    STREAM,
    UPSTREAM,
    USES,
)

# --- a request --------------------------------------------------------------------------------


@device_function
def allocate(h, b, o, nbytes, stream, category, owner):
    """Serve a request of `nbytes` > 0 bytes, from private pool `owner` if not 0: block or code."""
    if h[CAPTURING] == 0:
        process_events(h, b, o)
    elif h[REUSE_IN_CAPTURE] != 0:
        free_safe_in_capture(h, b, o, stream)
    return serve(h, b, o, nbytes, stream, category, owner)


@device_function
def serve(h, b, o, nbytes, stream, category, owner):
    """Serve a request, after the events: its block, or a code."""
    size = round_size(h, nbytes)
    pool = pool_for(b, owner, size)
    expandable = uses_expandable(h, b, pool)
    k = find_cached(h, b, pool, stream, size, expandable)
    if k == 0 and h[CALLBACKS] != 0 and ask(o, FREE_CALLBACKS, 0, 0, 0, 0) != 0:
        k = find_cached(h, b, pool, stream, size, expandable)
    if k == 0:
        if h[GC_THRESHOLD] > 0:
            collect_garbage(h, b, o)
        k = obtain(h, b, o, pool, stream, size, expandable)
        if k <= 0:
            return fail(h, b, o, k, pool, stream, size, category)
        expandable = expandable and b[k + POOL] == pool  # what another pool lends never grows
    cut = should_split(h, b, k, size, expandable)
    return hand_out(h, b, k, size, nbytes, category, cut)


@device_function
def uses_expandable(h, b, pool):
    """Return whether memory for a pool comes as pages of an expandable segment."""
    owner = b[pool + OWNER]
    return h[EXPANDABLE] != 0 and (owner == 0 or b[owner + UPSTREAM] == 0)


@device_function
def find_cached(h, b, pool, stream, size, expandable):
    """Take the free block that fits best out of its set and return it, or 0."""
    if h[GC_THRESHOLD] > 0:
        b[pool + SEARCHES] += 1
    link = best_fit(b, pool, stream, size)
    if link == 0:
        return 0
    best = b[link]
    k = best
    if b[k + EXPANDABLE_SEGMENT] != 0:
        k = least_growable(b, pool, k) if expandable else first_fixed(b, pool, k)
    if k == 0 or is_too_large(h, b, k, size):
        return 0
    if k == best:
        unlink(b, link)
    else:
        remove_free(b, k)
    return k


@device_function
def least_growable(b, pool, k):
    """Go on from block `k` of an expandable segment while the next one could grow to less.

    The room behind a block counts as its own, so that the end of a segment is used last.
    """
    following = successor(b, pool + FREE_ROOT, k)
    while (
        b[k + EXPANDABLE_SEGMENT] != 0
        and following != 0
        and b[following + STREAM] == b[k + STREAM]
        and room_to_grow(b, following) < room_to_grow(b, k)
    ):
        k = following
        following = successor(b, pool + FREE_ROOT, k)
    return k


@device_function
def first_fixed(b, pool, k):
    """Return the first block from `k` on, on its stream, outside of expandable segments, or 0."""
    stream = b[k + STREAM]
    while k != 0 and b[k + EXPANDABLE_SEGMENT] != 0 and b[k + STREAM] == stream:
        k = successor(b, pool + FREE_ROOT, k)
    return k if k != 0 and b[k + STREAM] == stream else 0


@device_function
def is_too_large(h, b, k, size):
    """Return whether block `k` must not serve a request, because large blocks are not split."""
    if size < h[MAX_SPLIT]:
        return b[k + SIZE] >= h[MAX_SPLIT]
    return b[k + SIZE] >= size + h[MAX_NON_SPLIT_ROUNDING]


@device_function
def obtain(h, b, o, pool, stream, size, expandable):
    """Get a block from the upstream, releasing cached memory if that takes it: it, or a code."""
    k = obtain_once(h, b, o, pool, stream, size, expandable)
    if k == 0 and b[pool + OWNER] == 0:
        k = borrow(h, b, stream, size)
    if k == 0 and release_oversize(h, b, o, pool, stream, size):
        k = obtain_once(h, b, o, pool, stream, size, expandable)
    if h[CAPTURING] != 0:
        return k
    if k == REJECTED and h[MENDS] & MEND_REJECTION_RELEASES_CACHE != 0:
        k = 0
    if k == 0:
        release_cached(h, b, o)
        if h[MENDS] & MEND_SEARCH_AFTER_SYNC != 0:
            k = find_cached(h, b, pool, stream, size, expandable)
        if k == 0:
            h[NUM_ALLOC_RETRIES] += 1
            k = obtain_once(h, b, o, pool, stream, size, expandable)
    return k


@device_function
def obtain_once(h, b, o, pool, stream, size, expandable):
    """Get a block from the upstream, as it is: the block, 0 if there is no memory, or REJECTED."""
    segment = segment_size(h, size)
    if h[LIMIT] >= 0 and reserved_in_all(h) + segment > h[LIMIT]:
        return 0
    if h[REJECT_ABOVE] >= 0 and reserved_in_all(h) + segment > h[REJECT_ABOVE]:
        return REJECTED
    if expandable:
        return expand(h, b, o, pool, stream, size)
    return reserve_segment(h, b, o, pool, stream, segment)


@device_function
def borrow(h, b, stream, size):
    """Take a free block of a private pool that helps out when memory is short, or return 0.

    Never one of an expandable segment.
    """
    i = next_entry(h, HELPING_POOLS, 0)
    while i >= 0:
        owner = h[entry_at(HELPING_POOLS, i) + HEAD]
        k = find_cached(h, b, pool_for(b, owner, size), stream, size, False)
        if k != 0:
            return k
        i = next_entry(h, HELPING_POOLS, i + 1)
    return 0


@device_function
def fail(h, b, o, code, pool, stream, size, category):
    """Count and trace a request that nothing could serve; return its code."""
    h[FAILED_SIZE] = segment_size(h, size)
    if code == REJECTED:
        h[NUM_OOM_REJECTIONS] += 1
        return REJECTED
    h[FAILED_FREE] = ask(o, FREE_MEMORY, 0, 0, 0, 0)
    h[NUM_OOMS] += 1
    note(h, OOM, h[FAILED_FREE], size, stream, b[pool + OWNER], category)
    return OUT_OF_MEMORY


# --- a free -----------------------------------------------------------------------------------


@device_function
def release(h, b, o, k):
    """Free block `k`, once the streams that used it are done with it."""
    count_out(h, b, k)
    if b[k + USES] == 0:
        free_block(h, b, k)
        return
    b[k + STATE] = DEFERRED
    b[k + EVENTS_LEFT] = 0
    if h[CAPTURING] != 0:
        defer(h, b, k, h[REUSE_IN_CAPTURE] != 0 and mark_uses(h, b, o, k))
    else:
        record_events(h, b, o, k)


@device_function
def release_at(h, b, o, address):
    """Free the block at an address (address 0 is no block): DONE or UNKNOWN."""
    if address == 0:
        return DONE
    k = find(h, b, address)
    if k == 0:
        return UNKNOWN
    leave_index(h, b, k)
    release(h, b, o, k)
    return DONE
