from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from refruntime.alloc.stream_ordered import ALIGNMENT, CHUNK, StreamOrderedPool
from refruntime.alloc.upstream import UpstreamExhausted, VirtualUpstream
from refruntime.alloc.virtual_streams import Mark, Timeline
from refruntime.errors import ArgumentValueError

MIB = 1 << 20
KEEP = 1 << 60


@pytest.fixture
def timeline() -> Timeline:
    return Timeline(manual=True)


@pytest.fixture
def make(timeline: Timeline) -> Callable[..., StreamOrderedPool]:
    """Makes pools over a device of so many chunks, which keep what they reserve."""

    def build(chunks: int = 1 << 10, threshold: int = KEEP, **policy: bool) -> StreamOrderedPool:
        pool = StreamOrderedPool(VirtualUpstream(chunks * CHUNK), timeline)
        pool.policy.release_threshold = threshold
        for name, value in policy.items():
            setattr(pool.policy, name, value)
        return pool

    return build


Make = Callable[..., StreamOrderedPool]


def test_memory_is_reserved_in_whole_chunks(make: Make) -> None:
    pool = make()
    pool.malloc(1, 0)
    assert (pool.reserved.current, pool.used.current) == (CHUNK, 1)
    pool.malloc(CHUNK + 1, 0)
    assert pool.reserved.current == 3 * CHUNK


def test_blocks_lie_side_by_side_at_multiples_of_the_alignment(make: Make) -> None:
    pool = make()
    first, second = pool.malloc(1, 0), pool.malloc(ALIGNMENT + 1, 0)
    assert second == first + ALIGNMENT
    assert pool.malloc(1, 0) == second + 2 * ALIGNMENT


def test_the_smallest_hole_that_fits_is_taken(make: Make) -> None:
    pool = make()
    sizes = [3 * MIB, MIB, 2 * MIB, MIB, 4 * MIB, MIB]
    blocks = [pool.malloc(size, 0) for size in sizes]
    for hole in (0, 2, 4):
        pool.free(blocks[hole], 0)
    assert pool.malloc(2 * MIB - 5, 0) == blocks[2]
    assert pool.malloc(3 * MIB, 0) == blocks[0]


def test_neighbours_are_joined(make: Make) -> None:
    pool = make(chunks=1)
    blocks = [pool.malloc(CHUNK // 4, 0) for _ in range(4)]
    for block in (blocks[1], blocks[3], blocks[2], blocks[0]):
        pool.free(block, 0)
    assert pool.malloc(CHUNK, 0) == blocks[0]


def test_own_and_settled_neighbours_serve_one_request(make: Make, timeline: Timeline) -> None:
    pool = make(chunks=1)
    blocks = [pool.malloc(CHUNK // 4, 0) for _ in range(4)]
    pool.free(blocks[0], 0)
    pool.free(blocks[2], 0)
    timeline.complete()
    pool.trim_to(CHUNK)
    pool.free(blocks[1], 0)
    assert pool.malloc(CHUNK * 3 // 4, 0) == blocks[0]


# --- who may use what was freed


def test_a_stream_uses_what_it_freed_at_once(make: Make) -> None:
    pool = make(chunks=1)
    block = pool.malloc(CHUNK, 1)
    pool.free(block, 1)
    assert pool.malloc(CHUNK, 1) == block
    assert pool.internal_waits == 0


def test_other_streams_get_fresh_memory_while_there_is_any(make: Make) -> None:
    pool = make(chunks=2)
    block = pool.malloc(CHUNK, 1)
    pool.free(block, 1)
    assert pool.malloc(CHUNK, 2) != block
    assert pool.internal_waits == 0


@pytest.mark.parametrize("allowed", [True, False])
def test_event_dependencies_are_followed_if_allowed(
    make: Make, timeline: Timeline, allowed: bool
) -> None:
    pool = make(follow_event_dependencies=allowed)
    block = pool.malloc(CHUNK, 1)
    pool.free(block, 1)
    timeline.wait(2, timeline.record(1))
    assert (pool.malloc(CHUNK, 2) == block) is allowed


def test_a_wait_for_an_event_before_the_free_is_no_dependency(
    make: Make, timeline: Timeline
) -> None:
    pool = make()
    block = pool.malloc(CHUNK, 1)
    timeline.wait(2, timeline.record(1))
    pool.free(block, 1)
    assert pool.malloc(CHUNK, 2) != block


def test_dependencies_are_followed_span_by_span(make: Make, timeline: Timeline) -> None:
    pool = make()
    first, _, second = (pool.malloc(CHUNK // 4, 1) for _ in range(3))
    pool.malloc(CHUNK // 4, 1)
    pool.free(first, 1)
    timeline.wait(2, timeline.record(1))
    pool.free(second, 1)
    assert pool.malloc(CHUNK // 4, 2) == first
    assert pool.malloc(CHUNK // 4, 2) != second


@pytest.mark.parametrize("allowed", [True, False])
def test_frees_in_the_past_are_used_if_allowed(
    make: Make, timeline: Timeline, allowed: bool
) -> None:
    pool = make(allow_opportunistic=allowed)
    block = pool.malloc(CHUNK, 1)
    pool.free(block, 1)
    timeline.complete(1)
    assert (pool.malloc(CHUNK, 2) == block) is allowed


def test_what_was_waited_for_is_used_under_any_policy(make: Make) -> None:
    pool = make(
        allow_opportunistic=False, follow_event_dependencies=False,
        allow_internal_dependencies=False,
    )  # fmt: skip
    block = pool.malloc(CHUNK, 1)
    pool.free(block, 1)
    pool.synchronize(1)
    assert pool.malloc(CHUNK, 2) == block


def test_growing_makes_no_use_of_frees_in_the_past_if_that_is_not_allowed(
    make: Make, timeline: Timeline
) -> None:
    pool = make(allow_opportunistic=False)
    block = pool.malloc(CHUNK, 1)
    pool.free(block, 1)
    timeline.complete(1)
    pool.malloc(2 * CHUNK, 2)
    assert pool.reserved.current == 3 * CHUNK
    assert pool.malloc(CHUNK, 2) != block


def test_a_wait_for_a_stream_tells_what_that_stream_knows(make: Make, timeline: Timeline) -> None:
    pool = make(allow_opportunistic=False, follow_event_dependencies=False)
    block = pool.malloc(CHUNK, 1)
    pool.free(block, 1)
    timeline.complete(1)
    pool.synchronize(2)
    assert pool.malloc(CHUNK, 3) != block
    timeline.wait(2, timeline.record(1))
    pool.synchronize(2)
    assert pool.malloc(CHUNK, 3) == block


def test_a_wait_is_put_in_only_when_memory_is_out(make: Make, timeline: Timeline) -> None:
    pool = make(chunks=1)
    block = pool.malloc(CHUNK, 1)
    pool.free(block, 1)
    freed = Mark(1, 2)
    assert not timeline.ordered(2, freed)
    assert pool.malloc(CHUNK, 2) == block
    assert timeline.ordered(2, freed)
    assert pool.internal_waits == 1


def test_without_internal_dependencies_memory_is_out(make: Make) -> None:
    pool = make(chunks=1, allow_internal_dependencies=False)
    pool.free(pool.malloc(CHUNK, 1), 1)
    with pytest.raises(UpstreamExhausted):
        pool.malloc(CHUNK, 2)
    assert (pool.reserved.current, pool.used.current) == (CHUNK, 0)


def test_the_rest_of_a_hole_keeps_its_condition(make: Make, timeline: Timeline) -> None:
    pool = make(chunks=1)
    block = pool.malloc(CHUNK, 1)
    pool.free(block, 1)
    assert pool.malloc(CHUNK // 2, 1) == block
    pool.policy.allow_internal_dependencies = False
    with pytest.raises(UpstreamExhausted):
        pool.malloc(CHUNK // 2, 2)
    timeline.complete()
    assert pool.malloc(CHUNK // 2, 2) == block + CHUNK // 2


# --- physical memory


def test_the_threshold_of_a_new_pool_is_0(timeline: Timeline) -> None:
    pool = StreamOrderedPool(VirtualUpstream(1 << 40), timeline)
    pool.free(pool.malloc(5 * CHUNK, 0), 0)
    assert pool.reserved.current == 5 * CHUNK
    pool.synchronize()
    assert (pool.reserved.current, pool.reserved.high) == (0, 5 * CHUNK)


def test_a_wait_releases_what_lies_above_the_threshold(make: Make) -> None:
    pool = make(threshold=2 * CHUNK + 1)
    pool.free(pool.malloc(5 * CHUNK, 0), 0)
    pool.synchronize(0)
    assert pool.reserved.current == 3 * CHUNK


def test_trim_keeps_what_it_is_told_and_what_is_in_use(make: Make, timeline: Timeline) -> None:
    pool = make()
    blocks = [pool.malloc(CHUNK, 0) for _ in range(4)]
    for block in blocks[1:]:
        pool.free(block, 0)
    pool.trim_to(0)
    assert pool.reserved.current == 4 * CHUNK
    timeline.complete()
    pool.trim_to(3 * CHUNK)
    assert pool.reserved.current == 3 * CHUNK
    pool.trim_to(0)
    assert pool.reserved.current == CHUNK
    pool.trim_to(0)
    assert pool.reserved.current == CHUNK


def test_free_chunks_are_remapped_before_more_is_taken(make: Make, timeline: Timeline) -> None:
    pool = make(chunks=3)
    blocks = [pool.malloc(CHUNK, 0) for _ in range(3)]
    pool.free(blocks[0], 0)
    pool.free(blocks[2], 0)
    timeline.complete()
    large = pool.malloc(2 * CHUNK, 0)
    assert large not in blocks
    assert pool.reserved.current == 3 * CHUNK


def test_a_chunk_with_a_block_in_it_is_not_remapped(make: Make, timeline: Timeline) -> None:
    pool = make(chunks=2)
    blocks = [pool.malloc(CHUNK // 2, 0) for _ in range(4)]
    pool.free(blocks[0], 0)
    pool.free(blocks[2], 0)
    timeline.complete()
    with pytest.raises(UpstreamExhausted):
        pool.malloc(CHUNK, 0)


def test_addresses_go_back_with_their_last_chunk(make: Make) -> None:
    pool = make(threshold=0)
    blocks = [pool.malloc(2 * CHUNK, 0), pool.malloc(CHUNK, 0)]
    for block in blocks:
        pool.free(block, 0)
    pool.synchronize()
    assert not pool._ranges and not pool._chunks and not pool._barriers


def test_peaks_start_anew(make: Make) -> None:
    pool = make(threshold=0)
    pool.free(pool.malloc(MIB, 0), 0)
    pool.used.reset_high()
    assert (pool.used.current, pool.used.high, pool.reserved.high) == (0, 0, CHUNK)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_no_bytes_are_refused(make: Make, nbytes: int) -> None:
    with pytest.raises(ArgumentValueError, match="at least 1 byte"):
        make().malloc(nbytes, 0)


def test_an_address_that_is_not_in_use_is_refused(make: Make) -> None:
    pool = make()
    block = pool.malloc(8, 0)
    with pytest.raises(ArgumentValueError, match="address of a block in use"):
        pool.free(block + 1, 0)
    pool.free(block, 0)
    with pytest.raises(ArgumentValueError, match="address of a block in use"):
        pool.free(block, 0)


def test_an_upstream_without_virtual_memory_is_refused(timeline: Timeline) -> None:
    class Plain(VirtualUpstream):
        supports_virtual_memory = False

    with pytest.raises(ArgumentValueError, match="virtual memory, got Plain"):
        StreamOrderedPool(Plain(CHUNK), timeline)


# --- random use, with failures


class Faulty(VirtualUpstream):
    """Fails at the n-th of the coming calls: with lack of memory where that can be, else broken."""

    countdown = 0

    def _maybe_fail(self, error: type[Exception]) -> None:
        if self.countdown:
            self.countdown -= 1
            if not self.countdown:
                raise error("injected")

    def reserve_addresses(self, nbytes: int) -> int:
        self._maybe_fail(UpstreamExhausted)
        return super().reserve_addresses(nbytes)

    def map(self, address: int, nbytes: int, page: int) -> None:
        self._maybe_fail(UpstreamExhausted)
        super().map(address, nbytes, page)


class PoolMachine(RuleBasedStateMachine):
    """Random use of a pool on four streams of a device of six chunks."""

    @initialize(
        follow=st.booleans(), opportunistic=st.booleans(), internal=st.booleans(),
        threshold=st.sampled_from([0, 2 * CHUNK, KEEP]),
    )  # fmt: skip
    def start(self, follow: bool, opportunistic: bool, internal: bool, threshold: int) -> None:
        self.timeline = Timeline(manual=True)
        self.upstream = Faulty(6 * CHUNK)
        self.pool = StreamOrderedPool(self.upstream, self.timeline)
        policy = self.pool.policy
        policy.follow_event_dependencies = follow
        policy.allow_opportunistic = opportunistic
        policy.allow_internal_dependencies = internal
        policy.release_threshold = threshold
        self.live: dict[int, tuple[int, int]] = {}
        self.freed: list[tuple[int, int, Mark]] = []

    @rule(
        size=st.one_of(st.integers(1, 3 * CHUNK), st.sampled_from([CHUNK // 2, CHUNK, 2 * CHUNK])),
        stream=st.integers(0, 3),
        fault=st.sampled_from([0, 0, 0, 0, 1, 2, 3]),
    )
    def malloc(self, size: int, stream: int, fault: int) -> None:
        self.upstream.countdown = fault
        try:
            address = self.pool.malloc(size, stream)
        except UpstreamExhausted:
            return
        finally:
            self.upstream.countdown = 0
        for start, end, mark in self.freed:
            if start < address + size and address < end:
                assert self.timeline.ordered(stream, mark) or self.timeline.reached(mark)
        self.live[address] = (size, stream)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stream=st.integers(0, 3))
    def free(self, data: st.DataObject, stream: int) -> None:
        address = data.draw(st.sampled_from(sorted(self.live)))
        size, owner = self.live.pop(address)
        if stream != owner:
            self.timeline.wait(stream, self.timeline.record(owner))
        self.pool.free(address, stream)
        mark = self.timeline.submit(stream)
        self.freed.append((address, address + size, Mark(stream, mark.position - 1)))

    @rule(one=st.integers(0, 3), other=st.integers(0, 3))
    def join(self, one: int, other: int) -> None:
        self.timeline.wait(one, self.timeline.record(other))

    @rule(stream=st.integers(0, 3), pieces=st.sampled_from([None, 1, 3]))
    def complete(self, stream: int, pieces: int | None) -> None:
        self.timeline.complete(stream, pieces)

    @rule(stream=st.sampled_from([None, 0, 1, 2, 3]))
    def synchronize(self, stream: int | None) -> None:
        self.pool.synchronize(stream)

    @rule(keep=st.sampled_from([0, CHUNK, 3 * CHUNK]))
    def trim(self, keep: int) -> None:
        before = self.pool.reserved.current
        self.pool.trim_to(keep)
        assert self.pool.reserved.current >= min(keep, before)

    @invariant()
    def every_mapped_byte_is_in_one_block_or_span(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        lists: list[Any] = [pool._settled, *(spans.spans for spans in pool._pending.values())]
        spans = [tuple(span) for each in lists for span in each]
        spans += [(start, block.size) for start, block in pool._blocks.items()]
        for (start, size), (following, _) in pairwise(sorted(spans)):
            assert start + size <= following
        covered = sum(size for _, size in spans)
        assert covered == pool.reserved.current == len(pool._chunks) * CHUNK == self.upstream.used
        assert set(pool._chunks) >= {
            chunk
            for start, size in spans
            for chunk in range(self.chunk_of(start), start + size, CHUNK)
        }

    def chunk_of(self, address: int) -> int:
        return max(chunk for chunk in self.pool._chunks if chunk <= address)

    @invariant()
    def figures_equal_a_recount(self) -> None:
        if hasattr(self, "pool"):
            assert self.pool.used.current == sum(size for size, _ in self.live.values())
            assert set(self.pool._blocks) == set(self.live)
            assert self.pool.used.high >= self.pool.used.current

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for address, (_, stream) in self.live.items():
            self.pool.free(address, stream)
        self.pool.policy.release_threshold = 0
        self.pool.synchronize()
        assert self.upstream.used == 0
        self.pool.malloc(6 * CHUNK, 0)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = hypothesis_settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
