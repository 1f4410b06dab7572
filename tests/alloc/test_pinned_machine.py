from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from refruntime.alloc.pinned import PinnedAllocator, rounded_size
from refruntime.alloc.pinned_upstream import VirtualPinnedUpstream
from refruntime.alloc.settings import AllocatorSettings
from refruntime.alloc.upstream import UpstreamExhausted
from refruntime.alloc.virtual_streams import Timeline
from refruntime.errors import OutOfMemoryError

KIB = 1 << 10
CAPACITY = 400 * KIB


class Faulty(VirtualPinnedUpstream):
    """Fails at the n-th of the coming calls: with lack of memory where that can be, else broken."""

    def __init__(self, capacity: int = 1 << 40) -> None:
        super().__init__(capacity, Timeline(manual=True))
        self.countdown = 0

    def _maybe_fail(self, name: str) -> None:
        if self.countdown:
            self.countdown -= 1
            if not self.countdown:
                lacking = name in ("reserve_host", "reserve_pages", "register")
                raise UpstreamExhausted if lacking else RuntimeError(f"injected into {name}")


def _faulty(name: str) -> Callable[..., Any]:
    def call(self: Faulty, *arguments: Any) -> Any:
        self._maybe_fail(name)
        return getattr(VirtualPinnedUpstream, name)(self, *arguments)

    return call


for _name in ("reserve_host", "release_host", "reserve_pages", "release_pages", "touch_pages",
              "register", "unregister", "record_event", "query_event"):  # fmt: skip
    setattr(Faulty, _name, _faulty(_name))


def test_block_whose_event_cannot_be_recorded_stays_in_use() -> None:
    upstream = Faulty()
    allocator = PinnedAllocator(upstream)
    address = allocator.malloc(8)
    allocator.record_event(address, 1)
    upstream.countdown = 1
    with pytest.raises(RuntimeError, match="injected into record_event"):
        allocator.free(address)
    allocator.free(address)
    assert allocator.stats()["active_requests.current"] == 1
    upstream.timeline.complete()
    assert allocator.malloc(8) == address


def test_catch_all_makes_an_error_in_a_free_a_warning() -> None:
    upstream = Faulty()
    settings = replace(AllocatorSettings(), pinned_free_catch_all=True, pinned_max_cached_size=4)
    allocator = PinnedAllocator(upstream, settings)
    address = allocator.malloc(8)
    upstream.countdown = 1
    with pytest.warns(UserWarning, match="injected into release_host"):
        allocator.free(address)
    allocator.empty_cache()
    assert upstream.used == 0


def test_error_in_a_queued_free_does_not_disturb_the_call_that_runs_it() -> None:
    upstream = Faulty()
    allocator = PinnedAllocator(upstream)
    address = allocator.malloc(8)
    allocator.record_event(address, 1)
    upstream.countdown = 1
    seen: list[Any] = []
    before, threading.excepthook = threading.excepthook, seen.append
    try:
        with allocator._turnstile:
            allocator.free(address)
    finally:
        threading.excepthook = before
    assert "injected into record_event" in str(seen[0].exc_value)
    allocator.free(address)


def test_background_thread_that_failed_is_replaced() -> None:
    upstream = Faulty()
    settings = replace(AllocatorSettings(), pinned_use_background_threads=True)
    allocator = PinnedAllocator(upstream, settings)
    address = allocator.malloc(64)
    first = allocator._sweeper
    assert first is not None
    seen: list[Any] = []
    before, threading.excepthook = threading.excepthook, seen.append
    try:
        upstream.countdown = 2  # the event is recorded, and then cannot be queried
        allocator.record_event(address, 1)
        allocator.free(address)
        first.join(10)
    finally:
        threading.excepthook = before
    assert "injected into query_event" in str(seen[0].exc_value)
    upstream.timeline.complete()
    allocator.malloc(128)
    assert allocator._sweeper is not first
    allocator.empty_cache()
    assert upstream.used == 128


class PinnedMachine(RuleBasedStateMachine):
    """Random use of an allocator whose upstream may fail at any call."""

    @initialize(
        register=st.booleans(), reserve=st.sampled_from([0, 0, 64 * KIB]), mended=st.booleans(),
        cached=st.sampled_from([1 << 40, 20 * KIB]), rounded=st.sampled_from([1 << 40, 600]),
    )  # fmt: skip
    def start(self, register: bool, reserve: int, mended: bool, cached: int, rounded: int) -> None:
        self.upstream = Faulty(CAPACITY)
        self.upstream.countdown = 0
        self.allocator = PinnedAllocator(
            self.upstream,
            replace(
                AllocatorSettings(), pinned_use_cuda_host_register=register,
                pinned_reserve_segment_size=reserve, pinned_max_cached_size=cached,
                pinned_max_round_threshold=rounded,
            ),
            mended=mended,
        )  # fmt: skip
        self.live: dict[int, int] = {}
        self.used_on: dict[int, set[int]] = {}
        # Marks that lie behind all past use of a block, by its address.
        self.pending: dict[int, list[Any]] = {}

    def _failing(self, at: int, call: Callable[[], Any]) -> Any:
        """Runs a call with a fault at its `at`-th call of the upstream, and then once more."""
        self.upstream.countdown = at
        try:
            return call()
        except RuntimeError:
            self.check()
        finally:
            self.upstream.countdown = 0
        return call()

    @rule(size=st.integers(1, 40_000), at=st.sampled_from([0, 0, 0, 1, 2, 3]))
    def malloc(self, size: int, at: int) -> None:
        try:
            address = self._failing(at, lambda: self.allocator.malloc(size))
        except OutOfMemoryError:
            settings = self.allocator.settings
            needed = rounded_size(size, settings)
            if not self.allocator._segment_decided:
                needed = settings.pinned_reserve_segment_size
            assert self.upstream.used + needed > CAPACITY
            return
        assert address not in self.live
        assert self.allocator.size_of(address) >= size
        for mark in self.pending.pop(address, []):
            assert self.upstream.timeline.reached(mark)
        self.live[address] = size
        self.used_on[address] = set()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stream=st.integers(0, 3))
    def use(self, data: st.DataObject, stream: int) -> None:
        address = data.draw(st.sampled_from(sorted(self.live)))
        self.upstream.timeline.submit(stream)
        assert self.allocator.record_event(address, stream)
        self.used_on[address].add(stream)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), at=st.sampled_from([0, 0, 0, 1, 2]))
    def free(self, data: st.DataObject, at: int) -> None:
        address = data.draw(st.sampled_from(sorted(self.live)))
        timeline = self.upstream.timeline
        self.pending[address] = [timeline.submit(stream) for stream in self.used_on[address]]
        self.upstream.countdown = at
        try:
            self.allocator.free(address)
        except RuntimeError:
            self.upstream.countdown = 0
            if address in self.allocator._in_use:
                self.allocator.free(address)
        self.upstream.countdown = 0
        del self.live[address]

    @rule(stream=st.sampled_from([None, 0, 1, 2, 3]), pieces=st.sampled_from([None, 1, 2]))
    def complete(self, stream: int | None, pieces: int | None) -> None:
        self.upstream.timeline.complete(stream, pieces)

    @rule(at=st.sampled_from([0, 0, 1, 2, 3, 4]))
    def empty_cache(self, at: int) -> None:
        self._failing(at, self.allocator.empty_cache)
        for bucket in self.allocator._default.free.values():
            assert not bucket or self.allocator.mended

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "allocator"):
            return
        blocks = sorted(self.allocator._blocks.values(), key=lambda block: block.address)
        for one, other in pairwise(blocks):
            assert one.address + one.size <= other.address
        free = [block for bucket in self.allocator._default.free.values() for block in bucket]
        waiting = [block for block in blocks if block.waiting]
        assert len(free) + len(waiting) + len(self.allocator._in_use) == len(blocks)
        assert not any(block.waiting for block in free)
        self._check_statistics(blocks, free)

    def _check_statistics(self, blocks: list[Any], free: list[Any]) -> None:
        stats = self.allocator.stats()
        size = sum(block.size for block in blocks)
        active = size - sum(block.size for block in free)
        assert stats["allocated_bytes.current"] == size
        assert stats["allocations.current"] == len(blocks)
        assert stats["active_bytes.current"] == active <= stats["active_bytes.peak"]
        assert stats["active_requests.current"] == len(blocks) - len(free)
        segment = self.allocator._segment
        own = sum(block.size for block in blocks if block.origin.name != "RESERVED")
        assert self.upstream.used == own + (segment.size if segment else 0)
        for name in ("active_bytes", "active_requests", "allocated_bytes", "allocations"):
            figures = [stats[f"{name}.{key}"] for key in ("current", "allocated", "freed")]
            assert figures[0] == figures[1] - figures[2]


TestPinnedMachine = PinnedMachine.TestCase
TestPinnedMachine.settings = hypothesis_settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
