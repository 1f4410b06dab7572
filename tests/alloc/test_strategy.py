from __future__ import annotations

import dataclasses

import pytest

from refruntime.alloc import (
    CachingAllocator,
    Request,
    VirtualUpstream,
    register_strategy,
    run_strategy,
)
from refruntime.alloc.plain import PlainAllocator
from refruntime.alloc.strategy import STRATEGIES, Point, requests_of
from refruntime.alloc.trace import TraceEvent
from refruntime.errors import ArgumentValueError, OutOfMemoryError

MIB = 1 << 20

PROGRAM = [
    Request("alloc", 0, 3 * MIB),
    Request("alloc", 1, 100),
    Request("free", 0),
    Request("alloc", 2, 4 * MIB),
    Request("free", 2),
    Request("free", 1),
]


def test_caching_strategy_keeps_what_plain_gives_back() -> None:
    caching, plain = run_strategy(PROGRAM, "caching"), run_strategy(PROGRAM, "plain")
    assert caching.peak_allocated_bytes == plain.peak_allocated_bytes == 4 * MIB + 512
    assert caching.peak_reserved_bytes == 22 * MIB
    assert plain.peak_reserved_bytes == 4 * MIB + 512
    assert (caching.upstream_calls, plain.upstream_calls) == (2, 6)
    assert (caching.ooms, caching.retries, plain.ooms) == (0, 0, 0)


def test_timeline_has_a_point_for_each_request() -> None:
    assert run_strategy(PROGRAM[:3], "caching").timeline == (
        Point(0, 3 * MIB, 20 * MIB),
        Point(1, 3 * MIB + 512, 22 * MIB),
        Point(2, 512, 22 * MIB),
    )


def test_failed_requests_go_missing_and_are_counted() -> None:
    requests = [Request("alloc", 0, 30 * MIB), Request("alloc", 1, 30 * MIB), Request("free", 1)]
    result = run_strategy(requests, "caching", capacity=40 * MIB)
    assert (result.ooms, result.retries) == (1, 1)
    assert result.timeline[-1] == Point(2, 30 * MIB, 30 * MIB)


def test_replay_of_a_recorded_trace_meets_the_recorded_peaks() -> None:
    allocator = CachingAllocator(VirtualUpstream(200 * MIB))
    early = [allocator.malloc(i * 100_000 + 1, i % 2) for i in range(20)]
    allocator.record()
    for address in early[::2]:
        allocator.free(address)
    for i in range(30):
        late = allocator.malloc(i * 300_000 + 1)
        if i % 3:
            allocator.free(late)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(300 * MIB)
    stats = allocator.stats()
    result = run_strategy(allocator.trace, "caching", capacity=200 * MIB)
    assert result.peak_allocated_bytes == stats["allocated_bytes.all.peak"]
    assert result.peak_reserved_bytes == stats["reserved_bytes.all.peak"]
    assert (result.ooms, result.retries) == (allocator.ooms, allocator.retries) == (1, 1)
    assert result.timeline[-1].allocated == allocator.allocated_bytes


def test_requests_of_a_trace_name_blocks_not_addresses() -> None:
    allocator = CachingAllocator(VirtualUpstream(1 << 40))
    allocator.record()
    for _ in range(2):
        allocator.free(allocator.malloc(77, 3))
    assert requests_of(allocator.trace) == [
        Request("alloc", 0, 77, 3),
        Request("free", 0),
        Request("alloc", 2, 77, 3),
        Request("free", 2),
    ]
    assert requests_of(allocator.trace.events[2:]) == [
        Request("alloc", 0, 77, 3),
        Request("free", 0),
    ]


def test_frees_of_unknown_blocks_are_left_out() -> None:
    alloc, free = (TraceEvent(action, 512, 77, 0, 0, 0) for action in ("alloc", "free_requested"))
    assert requests_of([free, alloc, free, free]) == [Request("alloc", 0, 77), Request("free", 0)]


def test_strategies_are_looked_up_by_name() -> None:
    with pytest.raises(ArgumentValueError, match=r"one of .*caching, .*plain.*got 'nonesuch'"):
        run_strategy(PROGRAM, "nonesuch")
    with pytest.raises(ArgumentValueError, match="expected a new name"):
        register_strategy("plain", PlainAllocator)
    register_strategy("also plain", PlainAllocator)
    try:
        again = run_strategy(PROGRAM, "also plain")
    finally:
        del STRATEGIES["also plain"]
    assert dataclasses.replace(again, strategy="plain") == run_strategy(PROGRAM, "plain")


def test_figures_without_the_timeline_are_ready_for_json() -> None:
    assert run_strategy(PROGRAM, "plain").as_dict() == {
        "strategy": "plain",
        "peak_allocated_bytes": 4 * MIB + 512,
        "peak_reserved_bytes": 4 * MIB + 512,
        "upstream_calls": 6,
        "ooms": 0,
        "retries": 0,
    }


def test_no_requests_cost_nothing() -> None:
    result = run_strategy([], "caching")
    assert (result.peak_reserved_bytes, result.upstream_calls, result.timeline) == (0, 0, ())
