"""The compiled entry points of the core: each takes the header's address and runs one rule.

State
-----
None. The kernels are compiled, or loaded from the disk cache, when an allocator has been called
often enough to gain from it.

Invariants
----------
* An entry keeps the interpreter lock, so it is atomic among Python threads.
* An entry does what needs nothing from the outside, or else changes nothing and says GATED: its
  caller then takes the long way.
* A ``recorded_`` entry that does not know the caller's stack returns minus its hash.
* A ``fast_`` entry runs only while the gate is open; a ``recorded_`` one also while history is
  recorded, and a ``held_`` one for callers that hold the allocator's lock.
"""
# The bodies are compiled by Numba, which infers their types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function, native, ptr_i64
from refruntime.alloc.blocks import count_out, free_block, hand_out, retag
from refruntime.alloc.codes import DONE, GATED, INVALID, UNKNOWN
from refruntime.alloc.native_stack import UNKNOWN_STACK, known_stack, stack_hash
from refruntime.alloc.policy import find_cached, uses_expandable
from refruntime.alloc.rows import enter_index, find, leave_index
from refruntime.alloc.sizes import MAX_REQUEST, pool_for, round_size, should_split
from refruntime.alloc.tables import (
    ADDRESS,
    BLOCKS,
    BUSY,
    CATEGORY_COUNT,
    CONTEXT,
    GATE,
    NOW,
    RECORDING,
    SPARE_ROWS,
    STACK_SLOTS,
    STACKS,
    TRACE,
    TRACE_BOUNDED,
    TRACE_CAPACITY,
    TRACE_COUNT,
    USES,
)


@device_function
def take(h, b, nbytes, stream, category):
    """Serve a request from the default pools' cache: its address, GATED if it has none, INVALID."""
    if nbytes <= 0 or nbytes > MAX_REQUEST or category < 0 or category >= CATEGORY_COUNT:
        return INVALID
    if h[SPARE_ROWS] == 0:
        return GATED
    size = round_size(h, nbytes)
    pool = pool_for(b, 0, size)
    expandable = uses_expandable(h, b, pool)
    k = find_cached(h, b, pool, stream, size, expandable)
    if k == 0:
        return GATED
    cut = should_split(h, b, k, size, expandable)
    k = hand_out(h, b, k, size, nbytes, category, cut)
    enter_index(h, b, k)
    return b[k + ADDRESS]


@device_function
def give(h, b, address):
    """Free the block at an address, unless other streams used it: DONE, UNKNOWN or GATED."""
    if address == 0:
        return DONE
    k = find(h, b, address)
    if k == 0:
        return UNKNOWN
    if b[k + USES] != 0:
        return GATED
    leave_index(h, b, k)
    count_out(h, b, k)
    free_block(h, b, k)
    return DONE


@device_function
def has_trace_room(h):
    """Return whether the trace has room for one cached request or free."""
    return h[TRACE_BOUNDED] != 0 or h[TRACE_CAPACITY] - h[TRACE_COUNT] > 2


@device_function
def find_context(h):
    """Make the caller's Python stack the context; return 0, or the hash of one that is new."""
    hashed = stack_hash()
    context = known_stack(h[STACKS], h[STACK_SLOTS], hashed)
    if context == UNKNOWN_STACK:
        return hashed
    h[CONTEXT] = context
    return 0


@native("int64(int64, int64, int64, int64)", gil=True)
def fast_take(header, nbytes, stream, category):
    """Serve a request from the cache."""
    h = ptr_i64(header)
    if h[GATE] != 0:
        return GATED
    return take(h, ptr_i64(h[BLOCKS]), nbytes, stream, category)


@native("int64(int64, int64)", gil=True)
def fast_give(header, address):
    """Free a block."""
    h = ptr_i64(header)
    if h[GATE] & (BUSY | RECORDING) != 0:
        return GATED
    return give(h, ptr_i64(h[BLOCKS]), address)


@native("int64(int64, int64, int64)", gil=True)
def fast_retag(header, address, category):
    """Move a block to another category."""
    h = ptr_i64(header)
    if h[GATE] & (BUSY | RECORDING) != 0:
        return GATED
    return retag(h, ptr_i64(h[BLOCKS]), address, category)


@native("int64(int64, int64, int64, int64, int64, int64)", gil=True)
def recorded_take(header, nbytes, stream, category, now, context):
    """Serve a request from the cache, and write it into the trace."""
    h = ptr_i64(header)
    if h[GATE] != RECORDING or h[TRACE] == 0 or not has_trace_room(h):
        return GATED
    h[NOW] = now
    h[CONTEXT] = context
    hashed = find_context(h) if h[STACKS] != 0 else 0
    if hashed != 0:
        return -hashed
    return take(h, ptr_i64(h[BLOCKS]), nbytes, stream, category)


@native("int64(int64, int64, int64, int64)", gil=True)
def recorded_give(header, address, now, context):
    """Free a block, and write that into the trace."""
    h = ptr_i64(header)
    if h[GATE] & BUSY != 0 or h[TRACE] == 0 or not has_trace_room(h):
        return GATED
    h[NOW] = now
    h[CONTEXT] = context
    hashed = find_context(h) if h[STACKS] != 0 else 0
    if hashed != 0:
        return -hashed
    return give(h, ptr_i64(h[BLOCKS]), address)


@native("int64(int64, int64, int64, int64)", gil=True)
def held_take(header, nbytes, stream, category):
    """Serve a request from the cache; the caller holds the lock."""
    h = ptr_i64(header)
    return take(h, ptr_i64(h[BLOCKS]), nbytes, stream, category)


@native("int64(int64, int64)", gil=True)
def held_give(header, address):
    """Free a block; the caller holds the lock."""
    h = ptr_i64(header)
    return give(h, ptr_i64(h[BLOCKS]), address)
