"""Compaction plans: they respect pools, streams and pins, and deliver the figures they state."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refruntime.alloc import CachingAllocator, VirtualUpstream, heap, relocation
from refruntime.alloc.compaction import Compaction, Request, plan_release, plan_request
from refruntime.alloc.heap import Block, Segment
from refruntime.alloc.moves import Group, Move, subtract
from refruntime.errors import ArgumentValueError, OutOfMemoryError, SafePointError
from tests.alloc.conftest import NEVER
from tests.alloc.recount import Live, check

MIB = 1 << 20
KIB = 1 << 10
CONFIGURATIONS = (
    "", "expandable_segments:True", "max_split_size_mb:30", "roundup_power2_divisions:4",
    "max_split_size_mb:30,max_non_split_rounding_mb:25", "large_segment_size_mb:40",
    "expandable_segments:True,max_split_size_mb:30", "garbage_collection_threshold:0.5",
)  # fmt: skip


def _allocator(text: str = "", capacity: int = 1 << 40) -> CachingAllocator:
    return CachingAllocator(VirtualUpstream(capacity), compile_after=NEVER, settings=text)


def _segment(*sizes: int, address: int = 0, **others: int) -> Segment:
    """A segment of used (> 0) and free (< 0) blocks, in MiB; a used one of 1000 + n stays."""
    blocks = []
    place = address * MIB
    for size in sizes:
        nbytes = (abs(size) % 1000) * MIB
        stays = heap.EXPORTED if size >= 1000 else ""
        blocks.append(Block(place, nbytes, nbytes if size > 0 else 0, stays))
        place += nbytes
    options = {"stream": 0, "pool": 1, **others}
    return Segment(address * MIB, place - address * MIB, blocks=tuple(blocks), **options)


def _moves(plan: Compaction) -> dict[int, int]:
    return {move.source // MIB: move.target // MIB for move in plan.moves}


# --- the plan -----------------------------------------------------------------------------------


def test_the_cheaper_segment_is_emptied_into_the_other():
    plan = plan_release((_segment(4, -16), _segment(2, -18, address=100)))
    assert _moves(plan) == {100: 4}
    assert (plan.reserved_before, plan.reserved_after, plan.cached) == (40 * MIB, 20 * MIB, 0)
    assert (plan.gain, plan.bytes_to_copy) == (20 * MIB, 2 * MIB)
    assert (plan.largest_free_before, plan.largest_free_after) == (18 * MIB, 14 * MIB)
    assert plan.releases and not plan.done and plan.fits is None


def test_a_pinned_block_keeps_its_segment_which_takes_the_others():
    plan = plan_release((_segment(1004, -16), _segment(12, -8, address=100)))
    assert _moves(plan) == {100: 4}
    (stays,) = plan.stays
    assert (stays.address, stays.stays) == (0, heap.EXPORTED)
    assert heap.EXPORTED in str(plan)


@pytest.mark.parametrize("others", [{"stream": 5}, {"pool": 2}])
def test_blocks_keep_their_stream_and_their_pool(others):
    plan = plan_release((_segment(4, -16), _segment(2, -18, address=100, **others)))
    assert plan.moves == () and plan.gain == 0


def test_what_does_not_fit_elsewhere_stays():
    plan = plan_release((_segment(11, -9), _segment(11, -9, address=100)))
    assert plan.moves == () and plan.reserved_after == 40 * MIB


def test_no_empty_segment_is_filled_without_a_gain_and_one_is_where_it_pays():
    empty = _segment(-20, address=200)
    one = plan_release((_segment(8, -12), empty))
    assert one.moves == () and one.reserved_after == 20 * MIB
    # 8 + 8 fit in neither of the two segments of 12, but in the one of 20.
    two = plan_release((_segment(8, -4), _segment(8, -4, address=100), empty))
    assert two.reserved_after == 20 * MIB and len(two.moves) == 2


def test_pages_of_an_expandable_segment_are_emptied_one_by_one():
    plan = plan_release((_segment(1, -1, 1002, 1, -1, page=2 * MIB),))
    assert plan.reserved_before == 6 * MIB and plan.reserved_after == 4 * MIB
    assert _moves(plan) in ({0: 5}, {4: 1})


def test_a_block_across_two_pages_counts_for_both():
    plan = plan_release((_segment(1, -1, -1, 2, -1, 1001, -3, page=2 * MIB),))
    assert plan.reserved_after == 4 * MIB
    assert _moves(plan) == {0: 7, 3: 8} or plan.bytes_to_copy == 3 * MIB


def test_memory_that_does_not_come_back_is_not_emptied():
    kept = _segment(1002, -18, returns=False, takes=False)
    plan = plan_release((kept, _segment(2, -18, address=100)))
    assert plan.moves == () and plan.gain == 0


def _request(size: int, available: int = 0, **others: object) -> Request:
    fields = {
        "size": size * MIB, "pool": 1, "stream": 0, "is_served": available >= size,
        "fresh": size * MIB, "available": available * MIB, "expandable": False,
        "max_split": 1 << 60, "slack": 1 << 60,
    }  # fmt: skip
    return Request(**{**fields, **others})


def test_a_request_that_fits_needs_nothing():
    for request in (_request(8), _request(30, available=30)):
        plan = plan_request((_segment(4, -8, 8),), request)
        assert plan.fits and plan.moves == () and not plan.releases


def test_a_request_that_an_emptied_cache_serves_needs_no_move():
    heap_ = (_segment(4, -16), _segment(-20, address=100, stream=3))
    plan = plan_request(heap_, _request(30, available=10))
    assert plan.fits and plan.moves == () and plan.releases and plan.reserved_after == 20 * MIB


def test_room_is_cleared_in_a_segment_if_that_costs_the_least():
    heap_ = (_segment(-6, 1, -6, 9), _segment(1005, -3, 1012, address=100))
    plan = plan_request(heap_, _request(12))
    assert plan.fits and _moves(plan) == {6: 105} and not plan.releases
    assert plan.largest_free_after == 13 * MIB


def test_segments_of_any_stream_are_emptied_for_the_upstream_to_serve_a_request():
    heap_ = (
        _segment(5, -15, stream=4), _segment(6, -14, address=100, stream=4),
        _segment(1010, -5, 1005, address=200),
    )  # fmt: skip
    plan = plan_request(heap_, _request(20))
    assert plan.fits and _moves(plan) == {0: 106} and plan.releases
    assert plan.reserved_after == 40 * MIB


def test_a_request_that_cannot_fit_moves_nothing_and_says_so():
    plan = plan_request((_segment(1004, -16), _segment(2, -18, address=100)), _request(30))
    assert plan.fits is False and plan.moves == () and plan.reserved_after == plan.reserved_before
    assert "does not fit" in str(plan)


def test_only_as_many_segments_are_emptied_as_a_request_takes():
    heap_ = tuple(_segment(2, -18, address=100 * i) for i in range(6))
    plan = plan_request(heap_, _request(40))
    assert len(plan.moves) == 2 and plan.reserved_after == 80 * MIB


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.lists(st.integers(1, 6).flatmap(lambda n: st.sampled_from([n, -n, 1000 + n])),
                 min_size=1, max_size=4),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_no_single_segment_could_be_emptied_in_addition(shapes):
    segments = tuple(
        _segment(*_merged(shape), address=100 * i) for i, shape in enumerate(shapes)
    )  # fmt: skip
    plan = plan_release(segments)
    best = max(
        (_gain_of(segments, chosen) for n in range(2) for chosen in itertools.combinations(
            [s for s in segments if any(not b.is_free for b in s.blocks)], n)),
    )  # fmt: skip
    assert plan.gain >= best
    _check_moves(segments, plan.moves)


def _merged(shape: list[int]) -> list[int]:
    """Join free neighbours, as an allocator does."""
    joined: list[int] = []
    for size in shape:
        if joined and size < 0 and joined[-1] < 0:
            joined[-1] += size
        else:
            joined.append(size)
    return joined


def _gain_of(segments: tuple[Segment, ...], chosen: tuple[Segment, ...]) -> int:
    """What emptying these segments into all others that are not empty gains, if it can be done."""
    group = Group(segments)
    empty = [part for part in group.parts if not part.used]
    cached = sum(part.size for part in empty)
    parts = [part for part in group.parts if part.start in {s.address for s in chosen}]
    if not all(part.is_movable for part in parts):
        return cached
    moves = group.emptying(parts, empty)
    return cached + (sum(part.size for part in parts) if moves is not None else 0)


def _check_moves(segments: tuple[Segment, ...], moves: tuple[Move, ...]) -> None:
    """Each block moves once, into memory that was free, where no other goes."""
    blocks = {b.address: b for s in segments for b in s.blocks if not b.is_free}
    free = [(b.address, b.end) for s in segments for b in s.blocks if b.is_free]
    assert len({move.source for move in moves}) == len(moves)
    for move in moves:
        assert not blocks[move.source].stays and move.size == blocks[move.source].needs
        assert any(a <= move.target and move.target + move.size <= b for a, b in free)
    for one, other in itertools.combinations(moves, 2):
        assert one.target + one.size <= other.target or other.target + other.size <= one.target


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=5),
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=5),
)
def test_subtracting_spans_leaves_what_a_set_would(spans, holes):
    apart, cuts = _apart(spans), _apart(holes)
    left = {x for start, stop in subtract(apart, cuts) for x in range(start, stop)}
    whole, gone = ({x for a, b in spans for x in range(a, b)} for spans in (apart, cuts))
    assert left == whole - gone


def _apart(gaps_and_lengths: list[tuple[int, int]]) -> list[tuple[int, int]]:
    spans, end = [], 0
    for gap, length in gaps_and_lengths:
        spans.append((end + gap, end + gap + length))
        end = spans[-1][1]
    return spans


# --- on an allocator ----------------------------------------------------------------------------

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, MIB),
    st.integers(MIB, 12 * MIB),
    st.integers(1, 40 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB, 19 * MIB + 1, 20 * MIB]),
)
HEAPS = {
    "text": st.sampled_from(CONFIGURATIONS),
    "requests": st.lists(st.tuples(SIZES, st.sampled_from([0, 0, 0, 7])), min_size=1, max_size=40),
    "data": st.data(),
}
QUICK = settings(
    deadline=None, max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


class Program:
    """An allocator in the middle of a program, and who owns what."""

    def __init__(self, allocator: CachingAllocator, requests: list[tuple[int, int]]) -> None:
        self.allocator = allocator
        self.live: dict[int, Live] = {}
        self.pinned: set[int] = set()
        for size, stream in requests:
            try:
                self.live[allocator.malloc(size, stream)] = Live(size, stream, 0)
            except OutOfMemoryError:
                break

    def shrink(self, data: st.DataObject) -> None:
        """Free some blocks, pin some others."""
        gone = data.draw(st.sets(st.sampled_from(sorted(self.live))) if self.live else st.just([]))
        for address in gone:
            del self.live[address]
            self.allocator.free(address)
        if self.live:
            self.pinned = data.draw(st.sets(st.sampled_from(sorted(self.live)), max_size=3))

    def reason(self, address: int) -> str:
        return heap.EXPORTED if address in self.pinned else ""

    def carry(self, move: Move) -> None:
        assert move.source not in self.pinned
        self.live[move.target] = self.live.pop(move.source)
        assert self.live[move.target].stream == move.stream

    def compact(self, request: int | None = None, stream: int = 0) -> Compaction:
        planned = relocation.plan(self.allocator, self.reason, request, stream)
        return relocation.carry_out(self.allocator, planned, self.carry)


@QUICK
@given(**HEAPS)
def test_a_release_delivers_exactly_what_it_states(text, requests, data):
    program = Program(_allocator(text), requests)
    program.shrink(data)
    before = program.allocator.reserved_bytes
    done = program.compact()
    check(program.allocator, program.live)
    assert done.reserved_before == before
    assert done.reserved_after == program.allocator.reserved_bytes
    assert done.largest_free_after == _largest_free(program.allocator)
    assert done.gain >= done.cached and (done.gain > done.cached) == bool(done.moves)
    assert program.pinned <= set(program.live)


@QUICK
@given(**HEAPS, spare=st.sampled_from([0, 2, 20]), stream=st.sampled_from([0, 0, 7]))
def test_a_request_that_is_said_to_fit_succeeds_and_costs_what_it_states(
    text, requests, data, spare, stream
):
    program = Program(_allocator(text, capacity=300 * MIB), requests)
    program.shrink(data)
    allocator = program.allocator
    # As much as is free in all, but not in one piece: what only moves can serve.
    free = allocator.reserved_bytes - allocator.allocated_bytes
    nbytes = data.draw(st.integers(min(_largest_free(allocator) + 1, free), max(free, 1)) | SIZES)
    nbytes = max(nbytes, 1)
    allocator.upstream.capacity = allocator.reserved_bytes + spare * MIB
    done = program.compact(nbytes, stream)
    check(program.allocator, program.live)
    assert done.reserved_after == program.allocator.reserved_bytes
    if done.fits:
        program.live[program.allocator.malloc(nbytes, stream)] = Live(nbytes, stream, 0)
        check(program.allocator, program.live)
    else:
        assert not done.moves and not done.releases
        # What is left in a page of an expandable segment may just suffice: that is not foreseen.
        if "expandable" not in text:
            with pytest.raises(OutOfMemoryError):
                program.allocator.malloc(nbytes, stream)


@QUICK
@given(**HEAPS, fail_at=st.integers(0, 6))
def test_a_compaction_that_fails_in_its_middle_loses_nothing(text, requests, data, fail_at):
    program = Program(_allocator(text), requests)
    program.shrink(data)
    planned = relocation.plan(program.allocator, program.reason)
    count = itertools.count()

    def carry(move: Move) -> None:
        if next(count) == fail_at:
            raise KeyboardInterrupt
        program.carry(move)

    if fail_at < len(planned.moves):
        with pytest.raises(KeyboardInterrupt):
            relocation.carry_out(program.allocator, planned, carry)
    else:
        relocation.carry_out(program.allocator, planned, carry)
    check(program.allocator, program.live)
    assert program.compact().reserved_after == program.allocator.reserved_bytes
    check(program.allocator, program.live)


@QUICK
@given(
    text=st.sampled_from(["", "expandable_segments:True"]), requests=HEAPS["requests"],
    data=st.data(),
)  # fmt: skip
def test_a_snapshot_gives_the_plan_that_the_allocator_itself_gives(text, requests, data):
    program = Program(_allocator(text), requests)
    program.shrink(data)
    segments = program.allocator.snapshot()["segments"]
    seen = plan_release(heap.heap_of_snapshot(segments, set(program.live) - program.pinned))
    own = relocation.plan(program.allocator, program.reason)
    assert replace(seen, stays=()) == replace(own, stays=())
    assert {b.address for b in seen.stays} == {b.address for b in own.stays}


def test_old_snapshots_without_addresses_of_blocks_are_read():
    blocks = [{"size": 4 * MIB, "state": state} for state in ("active_allocated", "inactive")]
    segment = {
        "address": MIB, "total_size": 8 * MIB, "stream": 0, "segment_type": "large",
        "is_expandable": False, "blocks": blocks,
    }  # fmt: skip
    (read,) = heap.heap_of_snapshot([segment])
    assert [block.address for block in read.blocks] == [MIB, 5 * MIB]
    assert read.blocks[0].needs == 4 * MIB and read.blocks[1].is_free


def _largest_free(allocator: CachingAllocator) -> int:
    blocks = [b for s in allocator.snapshot()["segments"] for b in s["blocks"]]
    return max((b["size"] for b in blocks if b["state"] == "inactive"), default=0)


def _fragmented(allocator: CachingAllocator) -> Program:
    """Four segments of 20 MiB, each with 8 MiB in use at its start."""
    program = Program(allocator, [(8 * MIB, 0), (9 * MIB, 0)] * 4)
    for address in [a for a, live in program.live.items() if live.nbytes == 9 * MIB]:
        del program.live[address]
        allocator.free(address)
    return program


def test_a_request_that_failed_before_succeeds_afterwards():
    program = _fragmented(_allocator(capacity=80 * MIB))
    with pytest.raises(OutOfMemoryError):
        program.allocator.malloc(30 * MIB)
    done = program.compact(30 * MIB)
    assert done.fits and done.bytes_to_copy == 16 * MIB and done.gain == 40 * MIB
    assert program.allocator.malloc(30 * MIB)


def test_a_memory_fraction_counts_as_the_capacity():
    program = _fragmented(_allocator(capacity=160 * MIB))
    program.allocator.set_memory_fraction(0.5)
    assert program.compact(30 * MIB).gain == 40 * MIB
    assert program.allocator.malloc(30 * MIB)


def test_what_streams_still_use_is_waited_for_and_what_they_share_stays():
    upstream = VirtualUpstream(1 << 40, manual_events=True)
    allocator = CachingAllocator(upstream, compile_after=NEVER)
    program = _fragmented(allocator)
    freed, shared, *_ = program.live
    allocator.record_stream(freed, 5)
    allocator.record_stream(shared, 5)
    del program.live[freed]
    allocator.free(freed)
    stays = {b.address: b.stays for b in relocation.plan(allocator, program.reason).stays}
    assert stays == {freed: heap.PENDING, shared: heap.OTHER_STREAM}
    relocation.settle(allocator)
    assert program.compact().reserved_after == allocator.reserved_bytes == 40 * MIB
    check(allocator, program.live | {shared: Live(8 * MIB, 0, 0)})


def test_private_pools_keep_their_addresses_and_captures_forbid_compaction():
    allocator = _allocator()
    pool = (0, 12345)
    allocator.pools.begin(pool)
    inside = [allocator.malloc(8 * MIB) for _ in range(3)]
    allocator.pools.end(pool)
    allocator.free(inside[1])
    plan = relocation.plan(allocator, lambda _: "")
    assert {b.stays for b in plan.stays} == {heap.PRIVATE} and plan.moves == ()
    allocator.pools.begin((0, 12346), captures=True)
    with pytest.raises(SafePointError, match="capture"):
        relocation.settle(allocator)
    allocator.pools.end((0, 12346))


@pytest.mark.parametrize("nbytes", [0, -1, 1 << 60])
def test_requests_without_sense_are_refused(nbytes):
    with pytest.raises(ArgumentValueError, match="request"):
        relocation.plan(_allocator(), lambda _: "", nbytes)


def test_a_plan_that_time_has_passed_by_is_refused_and_harms_nothing():
    program = _fragmented(_allocator())
    planned = relocation.plan(program.allocator, program.reason)
    taken = {program.allocator.malloc(10 * MIB): Live(10 * MIB, 0, 0) for _ in range(4)}
    with pytest.raises(ArgumentValueError, match="move"):
        relocation.carry_out(program.allocator, planned, program.carry)
    check(program.allocator, program.live | taken)


def test_thousands_of_segments_are_planned_in_few_packings():
    segments = tuple(
        _segment(1 + i % 7, -12, 1000 + 1 if i % 5 == 0 else 1, -(6 - i % 7) or -1, address=30 * i)
        for i in range(600)
    )
    plan = plan_release(segments)
    assert plan.gain > plan.reserved_before // 3
    _check_moves(segments, plan.moves[:200])
