from __future__ import annotations

import threading
from collections.abc import Callable

from refruntime.alloc import CachingAllocator, VirtualUpstream
from tests.alloc.conftest import NEVER
from tests.alloc.recount import Live, check

MIB = 1 << 20
POOL = (0, 1)
UNLOCKED = "release_lock_on_cudamalloc:True"


class Watched(VirtualUpstream):
    """Runs something, on another thread, before its next reservation."""

    meanwhile: Callable[[], None] | None = None

    def reserve(self, nbytes: int, stream: int) -> int:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            thread = threading.Thread(target=meanwhile)
            thread.start()
            thread.join(60)
            assert not thread.is_alive(), "the other thread was locked out"
        return super().reserve(nbytes, stream)


def new(conf: str = UNLOCKED) -> tuple[CachingAllocator, Watched]:
    upstream = Watched(1 << 40)
    return CachingAllocator(upstream, settings=conf, compile_after=NEVER), upstream


def test_other_threads_are_served_while_the_device_is_asked() -> None:
    allocator, upstream = new()
    cached = allocator.malloc(100)
    allocator.free(cached)
    seen: list[int] = []
    upstream.meanwhile = lambda: seen.append(allocator.malloc(200))
    large = allocator.malloc(30 * MIB)
    assert seen == [cached]
    check(allocator, {large: Live(30 * MIB, 0, 0), cached: Live(200, 0, 0)})


def test_request_begins_anew_with_its_span_if_the_tables_grew_meanwhile() -> None:
    allocator, upstream = new()
    others: list[int] = []
    upstream.meanwhile = lambda: others.extend(allocator.malloc(512) for _ in range(2000))
    large = allocator.malloc(30 * MIB)
    assert upstream.used == allocator.reserved_bytes
    check(allocator, {large: Live(30 * MIB, 0, 0), **dict.fromkeys(others, Live(512, 0, 0))})


def test_span_goes_back_if_the_request_found_another_meanwhile() -> None:
    allocator, upstream = new()

    def free_a_fitting_one() -> None:
        address = allocator.malloc(30 * MIB)
        small.extend(allocator.malloc(512) for _ in range(2000))
        allocator.free(address)

    small: list[int] = []
    upstream.meanwhile = free_a_fitting_one
    large = allocator.malloc(30 * MIB)
    assert upstream.used == allocator.reserved_bytes == 30 * MIB + 2 * MIB
    check(allocator, {large: Live(30 * MIB, 0, 0), **dict.fromkeys(small, Live(512, 0, 0))})


def test_request_goes_elsewhere_if_its_pool_went_meanwhile() -> None:
    allocator, upstream = new()
    allocator.pools.begin(POOL)

    def drop_pool() -> None:
        allocator.pools.end(POOL)
        allocator.pools.release(POOL)
        allocator.empty_cache(POOL)

    upstream.meanwhile = drop_pool
    block = allocator.malloc(30 * MIB)
    check(allocator, {block: Live(30 * MIB, 0, 0)})
    assert allocator.snapshot()["segments"][0]["segment_pool_id"] == (0, 0)


def test_trace_of_a_request_keeps_its_own_time_while_others_run() -> None:
    allocator, upstream = new()
    allocator.record(stacks=True)
    upstream.meanwhile = lambda: allocator.free(allocator.malloc(100))
    allocator.malloc(30 * MIB)
    allocs = [event for event in allocator.trace.events if event.action == "alloc"]
    assert [event.size for event in allocs] == [100, 30 * MIB]
    assert allocs[1].time_us <= allocs[0].time_us
    assert allocs[1].frames[0][2].startswith("test_trace_of")


def test_what_a_callback_frees_serves_the_request_that_called_it() -> None:
    allocator, _ = new("")
    held = allocator.malloc(30 * MIB)
    calls: list[int] = []

    def call_back() -> bool:
        calls.append(1)
        if len(calls) == 1:
            allocator.free(held)
        return len(calls) == 1

    allocator.add_free_memory_callback(call_back)
    assert allocator.malloc(30 * MIB) == held
    assert allocator.malloc(30 * MIB) != held
    assert len(calls) == 2


def test_callbacks_are_called_once_even_if_the_tables_grow_under_them() -> None:
    allocator, _ = new("")
    held = allocator.malloc(30 * MIB)
    others: list[int] = []

    def call_back() -> bool:
        others.extend(allocator.malloc(512) for _ in range(500))
        allocator.free(held)
        return True

    allocator.add_free_memory_callback(call_back)
    assert allocator.malloc(30 * MIB) == held
    assert len(others) == 500
    check(allocator, {held: Live(30 * MIB, 0, 0), **dict.fromkeys(others, Live(512, 0, 0))})
