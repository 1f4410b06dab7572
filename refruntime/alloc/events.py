"""Streams and events: blocks that other streams used come back when events after those uses pass.

State
-----
A block in use has a list of the streams that used it (rows behind USES). When it is freed, it is
DEFERRED until an event is recorded on each of them, which is at once unless the free comes from
inside a capture (events of a capture can't be asked for); then it is PENDING until all its events
have passed. The events wait in one queue a stream (a map in the header, see `hash_order`).

Invariants
----------
* EVENTS_LEFT of a pending block is the number of its events that have not passed, at least one.
* The gate is closed while a block is pending or deferred, so that compiled calls take the long way.
* An event is asked for only when it is the first of its stream's queue.
* Of a deferred block, the outside holds marks exactly if its row in the list says MARKED.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

from refruntime._native import device_function
from refruntime.alloc.blocks import free_block
from refruntime.alloc.hash_order import (
    COUNT,
    HEAD,
    TAIL,
    entry_at,
    erase,
    lookup,
    next_entry,
    put,
    reset,
)
from refruntime.alloc.outside import ask
from refruntime.alloc.questions import (
    FORGET_MARKS,
    IS_AFTER_MARKS,
    MARK_ENDS,
    QUERY_EVENT,
    RECORD_EVENT,
    RELEASE_EVENT,
    SYNCHRONIZE,
    WAIT_EVENT,
)
from refruntime.alloc.rows import give_row, take_row
from refruntime.alloc.tables import (
    CAPTURING,
    EVENT,
    EVENT_BLOCK,
    EVENT_QUEUES,
    EVENTS,
    EVENTS_LEFT,
    FIRST_DEFERRED,
    GATE,
    LAST_DEFERRED,
    MARKED,
    NEXT,
    NUM_SYNC_ALL_STREAMS,
    OTHER,
    OWNER,
    PENDING,
    POOL,
    STATE,
    STREAM,
    STREAM_USES,
    USE_CAPTURED,
    USE_STREAM,
    USES,
)

_POOLED_STREAMS: Final = 32
_CUDA_DEVICE: Final = 1 << 56


@device_function
def stream_key(stream):
    """Return what PyTorch hashes of a stream, for stream numbers up to 32; else the stream itself.

    The device type in the top byte, and below it the number that PyTorch gives to stream `stream`
    of its pool: its place, and 3 for "of the pool, of normal priority".
    """
    if stream == 0:
        return _CUDA_DEVICE
    if stream > _POOLED_STREAMS:
        return stream
    return _CUDA_DEVICE | ((stream - 1) << 5) | 3


@device_function
def record_use(h, b, k, stream):
    """Remember that a stream uses block `k`; its own stream needs no remembering."""
    if stream == b[k + STREAM]:
        return
    captured = h[CAPTURING] != 0
    link = k + USES
    while b[link] != 0:
        if b[b[link] + USE_STREAM] == stream:
            b[b[link] + USE_CAPTURED] |= captured
            return
        link = b[link] + NEXT
    use = take_row(h, b, OTHER)
    b[use + USE_STREAM] = stream
    b[use + USE_CAPTURED] = captured
    b[use + NEXT] = 0
    b[link] = use


@device_function
def defer(h, b, k, marked):
    """Put freed block `k` off until its events can be recorded."""
    row = take_row(h, b, OTHER)
    b[row + EVENT_BLOCK] = k
    b[row + MARKED] = marked
    b[row + NEXT] = 0
    if h[FIRST_DEFERRED] == 0:
        h[FIRST_DEFERRED] = row
    else:
        b[h[LAST_DEFERRED] + NEXT] = row
    h[LAST_DEFERRED] = row
    h[GATE] |= EVENTS


@device_function
def mark_uses(h, b, o, k):
    """Have the outside mark the nodes that end the work on freed block `k`; return whether it did.

    It does not if a stream that used the block is not captured, or if no work has been captured.
    """
    nodes = ask(o, MARK_ENDS, k, b[k + STREAM], 0, 0)
    inside = nodes >= 0
    use = b[k + USES]
    while use != 0 and inside:
        count = ask(o, MARK_ENDS, k, b[use + USE_STREAM], 0, 0)
        inside = count >= 0
        nodes += count
        use = b[use + NEXT]
    if inside and nodes > 0:
        return True
    ask(o, FORGET_MARKS, k, 0, 0, 0)
    return False


@device_function
def free_safe_in_capture(h, b, o, stream):
    """Free the deferred blocks of a stream whose next work comes after all work on them."""
    before = 0
    row = h[FIRST_DEFERRED]
    while row != 0:
        following = b[row + NEXT]
        k = b[row + EVENT_BLOCK]
        ours = b[row + MARKED] != 0 and b[k + STREAM] == stream
        if ours and ask(o, IS_AFTER_MARKS, k, stream, 0, 0) != 0:
            leave_deferred(h, b, o, before, row)
            while b[k + USES] != 0:
                drop_use(h, b, k, b[k + USES])
            b[k + STATE] = PENDING
            free_block(h, b, k)
        else:
            before = row
        row = following
    update_gate(h)


@device_function
def settle_deferred(h, b, o, owner):
    """Record the events of deferred blocks, for uses from before the capture.

    Of the blocks of one private pool, or of all if `owner` is 0.
    """
    before = 0
    row = h[FIRST_DEFERRED]
    while row != 0:
        following = b[row + NEXT]
        k = b[row + EVENT_BLOCK]
        if owner == 0 or b[b[k + POOL] + OWNER] == owner:
            forget_captured_uses(h, b, k)
            record_events(h, b, o, k)
            leave_deferred(h, b, o, before, row)
        else:
            before = row
        row = following
    update_gate(h)


@device_function
def leave_deferred(h, b, o, before, row):
    """Take a row, which comes after `before` or is the first, off the list of deferred blocks."""
    if b[row + MARKED] != 0:
        ask(o, FORGET_MARKS, b[row + EVENT_BLOCK], 0, 0, 0)
    if before == 0:
        h[FIRST_DEFERRED] = b[row + NEXT]
    else:
        b[before + NEXT] = b[row + NEXT]
    if h[LAST_DEFERRED] == row:
        h[LAST_DEFERRED] = before
    give_row(h, b, row)


@device_function
def forget_captured_uses(h, b, k):
    """Drop the uses of block `k` recorded during a capture: the graph's own order covers them."""
    use = b[k + USES]
    while use != 0:
        following = b[use + NEXT]
        if b[use + USE_CAPTURED] != 0:
            drop_use(h, b, k, use)
        use = following


@device_function
def drop_use(h, b, k, use):
    """Take a row out of the list of streams that used block `k`."""
    link = k + USES
    while b[link] != use:
        link = b[link] + NEXT
    b[link] = b[use + NEXT]
    give_row(h, b, use)


@device_function
def record_events(h, b, o, k):
    """Record an event on each stream that used freed block `k`; without any, it is free at once.

    A use is dropped when its event is recorded, so that the call can be repeated if the outside
    fails in the middle.
    """
    reset(h, STREAM_USES)
    use = b[k + USES]
    while use != 0:
        put(h, STREAM_USES, stream_key(b[use + USE_STREAM]), use, 0)
        use = b[use + NEXT]
    i = next_entry(h, STREAM_USES, 0)
    while i >= 0:
        use = h[entry_at(STREAM_USES, i) + HEAD]
        record_event(h, b, o, k, b[use + USE_STREAM])
        drop_use(h, b, k, use)
        i = next_entry(h, STREAM_USES, i + 1)
    while b[k + USES] != 0:  # more streams than the map holds
        record_event(h, b, o, k, b[b[k + USES] + USE_STREAM])
        drop_use(h, b, k, b[k + USES])
    b[k + STATE] = PENDING
    if b[k + EVENTS_LEFT] == 0:
        free_block(h, b, k)
    update_gate(h)


@device_function
def record_event(h, b, o, k, stream):
    """Record an event on a stream, and let block `k` wait for it."""
    event = ask(o, RECORD_EVENT, stream, 0, 0, 0)
    row = take_row(h, b, OTHER)
    b[row + EVENT] = event
    b[row + EVENT_BLOCK] = k
    b[row + NEXT] = 0
    b[k + EVENTS_LEFT] += 1
    queue = lookup(h, EVENT_QUEUES, stream_key(stream))
    if queue != 0:
        b[h[queue + TAIL] + NEXT] = row
        h[queue + TAIL] = row
    elif not put(h, EVENT_QUEUES, stream_key(stream), row, row):
        # More streams at once than the map holds: wait for this one here and now.
        b[k + EVENTS_LEFT] -= 1
        give_row(h, b, row)
        ask(o, SYNCHRONIZE, stream, 0, 0, 0)
        ask(o, RELEASE_EVENT, event, 0, 0, 0)


@device_function
def process_events(h, b, o):
    """Free the blocks whose events have all passed, looking at each stream's oldest events."""
    if h[EVENT_QUEUES + COUNT] == 0 and h[FIRST_DEFERRED] == 0:
        return
    settle_deferred(h, b, o, 0)
    i = next_entry(h, EVENT_QUEUES, 0)
    while i >= 0:
        queue = entry_at(EVENT_QUEUES, i)
        while h[queue + HEAD] != 0 and ask(o, QUERY_EVENT, b[h[queue + HEAD] + EVENT], 0, 0, 0):
            take_event(h, b, o, queue, 0, h[queue + HEAD])
        if h[queue + HEAD] == 0:
            erase(h, EVENT_QUEUES, i)
            i = next_entry(h, EVENT_QUEUES, i)
        else:
            i = next_entry(h, EVENT_QUEUES, i + 1)
    update_gate(h)


@device_function
def wait_for_events(h, b, o, owner):
    """Wait for the events of a private pool's blocks, or for all if `owner` is 0; free them."""
    h[NUM_SYNC_ALL_STREAMS] += 1
    settle_deferred(h, b, o, 0)
    i = next_entry(h, EVENT_QUEUES, 0)
    while i >= 0:
        wait_for_queue(h, b, o, entry_at(EVENT_QUEUES, i), owner)
        if h[entry_at(EVENT_QUEUES, i) + HEAD] == 0:
            erase(h, EVENT_QUEUES, i)
            i = next_entry(h, EVENT_QUEUES, i)
        else:
            i = next_entry(h, EVENT_QUEUES, i + 1)
    update_gate(h)


@device_function
def wait_for_queue(h, b, o, queue, owner):
    """Wait for the events of a queue that belong to a private pool, or for all if `owner` is 0."""
    before = 0
    row = h[queue + HEAD]
    while row != 0:
        following = b[row + NEXT]
        if owner == 0 or b[b[b[row + EVENT_BLOCK] + POOL] + OWNER] == owner:
            ask(o, WAIT_EVENT, b[row + EVENT], 0, 0, 0)
            take_event(h, b, o, queue, before, row)
        else:
            before = row
        row = following


@device_function
def take_event(h, b, o, queue, before, row):
    """Take an event that has passed off its queue; free its block if it was the last one."""
    ask(o, RELEASE_EVENT, b[row + EVENT], 0, 0, 0)
    if before == 0:
        h[queue + HEAD] = b[row + NEXT]
    else:
        b[before + NEXT] = b[row + NEXT]
    if h[queue + TAIL] == row:
        h[queue + TAIL] = before
    k = b[row + EVENT_BLOCK]
    give_row(h, b, row)
    b[k + EVENTS_LEFT] -= 1
    if b[k + EVENTS_LEFT] == 0 and b[k + STATE] == PENDING:
        free_block(h, b, k)


@device_function
def update_gate(h):
    """Close the gate for compiled calls while a block is pending or deferred."""
    if h[EVENT_QUEUES + COUNT] == 0 and h[FIRST_DEFERRED] == 0:
        h[GATE] &= ~EVENTS
    else:
        h[GATE] |= EVENTS
