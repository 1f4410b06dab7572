"""Relocation: planning a compaction on a live allocator, and carrying it out.

State
-----
None: each function works on the allocator that it is given.

Invariants
----------
* A plan is made from one state of the tables: other calls are kept out meanwhile.
* Each move is a call of its own. What is raised between two moves, or in one, ends the compaction
  with a sound heap: the blocks moved so far are at their new places, all others at their old ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime.alloc import events, placement
from refruntime.alloc.caching import CachingAllocator
from refruntime.alloc.compaction import Compaction, Request, plan_release, plan_request
from refruntime.alloc.counters import reserved_in_all
from refruntime.alloc.expandable import lowest_room
from refruntime.alloc.heap import Reason, read_heap
from refruntime.alloc.moves import Move
from refruntime.alloc.policy import uses_expandable
from refruntime.alloc.sizes import MAX_REQUEST, page_size, pool_for, round_size, segment_size
from refruntime.alloc.tables import (
    CAPTURING,
    IS_LARGE,
    LIMIT,
    MAX_NON_SPLIT_ROUNDING,
    MAX_SPLIT,
    NEXT,
    REJECT_ABOVE,
    SIZE,
    STATE,
    UNMAPPED,
    Tables,
)
from refruntime.errors import ArgumentValueError, SafePointError


def plan(
    allocator: CachingAllocator, reason: Reason, request: int | None = None, stream: int = 0
) -> Compaction:
    """Plan a compaction, and change nothing.

    Parameters
    ----------
    allocator : CachingAllocator
        Whose memory.
    reason : callable
        Says why the block in use at an address stays, or "" if its owner can follow it.
    request : int, optional
        Bytes for which to make room, outside of private pools; by default as much as possible is
        given back.
    stream : int
        The stream of the request.

    Raises
    ------
    ArgumentValueError
        If the request is for no bytes, or for more than an address space holds.
    """
    if request is not None and not 0 < request <= MAX_REQUEST:
        raise ArgumentValueError(
            "compact", expected=f"a request of 1 to {MAX_REQUEST} bytes", got=request
        )
    free = allocator.upstream.memory_info()[0]
    with allocator.exclusive() as (tables, _):
        heap = read_heap(tables, reason)
        wanted = None if request is None else _request(tables, request, stream, free)
    return plan_release(heap) if wanted is None else plan_request(heap, wanted)


def _request(tables: Tables, nbytes: int, stream: int, free: int) -> Request:
    """Return what a request needs under the settings in force."""
    h, b = tables.header, tables.blocks
    size = round_size(h, nbytes)
    pool = pool_for(b, 0, size)
    expandable = uses_expandable(h, b, pool)
    segment = least = most = segment_size(h, size)
    if expandable:
        page = page_size(h, b[pool + IS_LARGE])
        least, most = _to_map(h, b, pool, stream, size, page), max(segment, _whole(size, page))
    limits = [h[word] - reserved_in_all(h) for word in (LIMIT, REJECT_ABOVE) if h[word] >= 0]
    return Request(
        size=size,
        pool=pool,
        stream=stream,
        is_served=free >= least and all(limit >= segment for limit in limits),
        fresh=most,
        available=min(free, *limits) if limits else free,
        expandable=bool(expandable),
        max_split=h[MAX_SPLIT],
        slack=h[MAX_NON_SPLIT_ROUNDING],
    )


def _to_map(h: Any, b: Any, pool: int, stream: int, size: int, page: int) -> int:
    """Return the bytes that `expandable.expand` maps for a request, as things are."""
    k, missing, mapped = lowest_room(h, b, pool, stream, size), size, 0
    while k != 0 and missing > 0:
        if b[k + STATE] == UNMAPPED:
            mapped += _whole(min(b[k + SIZE], missing), page)
        missing -= b[k + SIZE]
        k = b[k + NEXT]
    return mapped + _whole(max(missing, 0), page)


def _whole(nbytes: int, page: int) -> int:
    return -(-nbytes // page) * page


def settle(allocator: CachingAllocator) -> None:
    """Wait for the streams that may still use what was freed, so that it is free.

    Raises
    ------
    SafePointError
        If this thread captures a graph.
    """
    with allocator.exclusive() as (tables, outside):
        if tables.header[CAPTURING]:
            raise SafePointError(
                "compact",
                what="the capture of a graph is under way",
                remedy="compact before or after it",
            )
        events.wait_for_events(tables.header, tables.blocks, outside, 0)


def carry_out(
    allocator: CachingAllocator, planned: Compaction, carry: Callable[[Move], object]
) -> Compaction:
    """Make the moves of a plan, then empty the cache if it says so.

    A block is at both places while it is copied: peaks may rise by one block.

    Parameters
    ----------
    allocator : CachingAllocator
        That for which it was made.
    planned : Compaction
        The plan.
    carry : callable
        Copies the bytes of one move and tells their owner; if it raises, that block stays.

    Raises
    ------
    ArgumentValueError
        If something was allocated or freed since, so that a move is no longer possible.
    """
    for move in planned.moves:
        _carry_one(allocator, move, carry)
    if planned.releases:
        allocator.empty_cache()
    return planned.as_done()


def _carry_one(allocator: CachingAllocator, move: Move, carry: Callable[[Move], object]) -> None:
    with allocator.exclusive() as (tables, _):
        placement.move(tables, move.source, move.target, lambda: carry(move))
