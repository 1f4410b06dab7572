"""Blocks at chosen addresses: cutting a free block anywhere keeps every invariant."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refruntime.alloc import CachingAllocator, VirtualUpstream, placement
from refruntime.alloc import tables as t
from refruntime.alloc.rows import find
from refruntime.errors import ArgumentValueError
from tests.alloc.conftest import NEVER
from tests.alloc.recount import Live, check

MIB = 1 << 20
CONFIGURATIONS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:30",
    "roundup_power2_divisions:4",
)


def _allocator(text: str = "") -> CachingAllocator:
    return CachingAllocator(VirtualUpstream(1 << 40), compile_after=NEVER, settings=text)


def _move(allocator: CachingAllocator, source: int, target: int, carry=lambda: None) -> None:
    with allocator.exclusive() as (tables, _):
        placement.move(tables, source, target, carry)


@pytest.mark.parametrize("offset", [0, 512, 300 << 10, 2 * MIB])
def test_a_block_lands_where_it_is_told_to(offset):
    allocator = _allocator()
    block, source = allocator.malloc(900 << 10), allocator.malloc(3000, 0, 3)
    ((start, size),) = _free_blocks(allocator)
    target = min(start + offset, start + size - 3072)
    _move(allocator, source, target)
    check(allocator, {target: Live(3000, 0, 3), block: Live(900 << 10, 0, 0)})


def _free_blocks(allocator: CachingAllocator) -> list[tuple[int, int]]:
    rows = allocator.tables.rows()
    return sorted((int(row[t.ADDRESS]), int(row[t.SIZE])) for row in rows if row[t.STATE] == t.FREE)


@pytest.mark.parametrize("offset", [0, 5 * MIB, 12 * MIB])
def test_a_whole_free_segment_is_cut_in_up_to_three(offset):
    allocator = _allocator()
    source = allocator.malloc(8 * MIB)
    empty = allocator.malloc(20 * MIB)
    allocator.free(empty)
    _move(allocator, source, empty + offset)
    check(allocator, {empty + offset: Live(8 * MIB, 0, 0)})
    split = allocator.stats()["inactive_split.large_pool.current"]
    assert split == (2 if offset == 5 * MIB else 1)
    assert allocator.stats()["inactive_split.large_pool.peak"] <= 3
    allocator.free(empty + offset)
    check(allocator, {})
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def test_a_failed_copy_leaves_the_block_where_it_was():
    allocator = _allocator()
    source, empty = allocator.malloc(8 * MIB), allocator.malloc(20 * MIB)
    allocator.free(empty)
    before = _free_blocks(allocator)

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _move(allocator, source, empty, fail)
    assert _free_blocks(allocator) == before
    check(allocator, {source: Live(8 * MIB, 0, 0)})


def test_places_that_are_not_free_are_refused_and_nothing_changes():
    allocator = _allocator()
    small, large = allocator.malloc(1000), allocator.malloc(8 * MIB)
    on_stream = allocator.malloc(8 * MIB, 7)
    shared = allocator.malloc(8 * MIB)
    allocator.record_stream(shared, 7)
    live = {
        small: Live(1000, 0, 0), large: Live(8 * MIB, 0, 0), on_stream: Live(8 * MIB, 7, 0),
    }  # fmt: skip
    before = allocator.snapshot()["segments"]
    for source, target in [
        (small, large),  # in use
        (large, small + 512),  # another pool
        (large, on_stream + 8 * MIB),  # another stream
        (large, large + 16 * MIB + 512),  # past the end of the free block
        (large + 512, large + 8 * MIB),  # no block
        (shared, on_stream + 8 * MIB),  # used on two streams
        (small, 12345),  # nobody's address
    ]:
        with pytest.raises(ArgumentValueError, match="move"):
            _move(allocator, source, target)
    assert allocator.snapshot()["segments"] == before
    allocator.free(shared)
    allocator.empty_cache()
    check(allocator, live)


def test_the_history_shows_the_move_and_keeps_the_stack_that_asked():
    allocator = _allocator()
    allocator.record(stacks=True)
    source, empty = allocator.malloc(8 * MIB), allocator.malloc(20 * MIB)
    allocator.free(empty)
    asked = _frames_at(allocator, source)
    assert asked[0]["name"] == "test_the_history_shows_the_move_and_keeps_the_stack_that_asked"
    _move(allocator, source, empty)
    assert _frames_at(allocator, empty) == asked
    last = [(event.action, event.addr) for event in allocator.trace.events[-3:]]
    assert last == [("alloc", empty), ("free_requested", source), ("free_completed", source)]


def _frames_at(allocator: CachingAllocator, address: int) -> list[dict[str, object]]:
    blocks = [b for s in allocator.snapshot()["segments"] for b in s["blocks"]]
    return next(block["frames"] for block in blocks if block["address"] == address)


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=st.sampled_from(CONFIGURATIONS),
    sizes=st.lists(st.integers(1, 12 * MIB) | st.integers(1, 4096), min_size=2, max_size=24),
    data=st.data(),
)
def test_moves_anywhere_keep_every_invariant(text, sizes, data):
    allocator = _allocator(text)
    live = {allocator.malloc(size): Live(size, 0, 0) for size in sizes}
    for address in data.draw(st.lists(st.sampled_from(sorted(live)), unique=True)):
        del live[address]
        allocator.free(address)
    for _ in range(4):
        if not live:
            return
        source = data.draw(st.sampled_from(sorted(live)))
        k = find(allocator.tables.header, allocator.tables.blocks, source)
        pool = allocator.tables.blocks[k + t.POOL]
        size = placement.needed_size(allocator.tables.header, allocator.tables.blocks, k)
        rows = allocator.tables.rows()
        fits = (rows[:, t.STATE] == t.FREE) & (rows[:, t.POOL] == pool)
        holes = rows[fits & (rows[:, t.SIZE] >= size)].tolist()
        if not holes:
            return
        hole = data.draw(st.sampled_from(holes))
        steps = data.draw(st.integers(0, (hole[t.SIZE] - size) // 512))
        target = hole[t.ADDRESS] + 512 * steps
        _move(allocator, source, target)
        live[target] = live.pop(source)
        check(allocator, live)
    for address in live:
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
