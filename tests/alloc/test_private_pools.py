from __future__ import annotations

import pytest

from refruntime.alloc import CachingAllocator, VirtualUpstream
from refruntime.alloc import tables as t
from refruntime.alloc.private_pools import PoolId
from refruntime.errors import ArgumentValueError, OutOfMemoryError
from tests.alloc.conftest import NEVER
from tests.alloc.recount import Live, check

MIB = 1 << 20
POOL = (0, 1)


def new(mebibytes: int = 1000, conf: str = "") -> CachingAllocator:
    upstream = VirtualUpstream(mebibytes * MIB, manual_events=True)
    return CachingAllocator(upstream, settings=conf, compile_after=NEVER)


def fill(allocator: CachingAllocator, pool: PoolId, *mebibytes: int) -> list[int]:
    """Allocate inside a pool."""
    allocator.pools.begin(pool)
    blocks = [allocator.malloc(size * MIB) for size in mebibytes]
    allocator.pools.end(pool)
    allocator.pools.release(pool)
    return blocks


def drop(allocator: CachingAllocator, pool: PoolId) -> None:
    allocator.pools.release(pool)
    allocator.empty_cache(pool)


def is_there(allocator: CachingAllocator, pool: PoolId) -> bool:
    try:
        return allocator.pools.use_count(pool) >= 0
    except ArgumentValueError:
        return False


def test_pool_unmapped_in_more_pieces_than_it_was_mapped_is_not_forgotten_early() -> None:
    allocator = new(conf="expandable_segments:True")
    allocator.pools.create(POOL)
    allocator.free(fill(allocator, POOL, 60)[0])
    parts = fill(allocator, POOL, 20, 20, 20)
    for part in (parts[0], parts[2]):
        allocator.free(part)
    drop(allocator, POOL)
    assert is_there(allocator, POOL)
    check(allocator, {parts[1]: Live(20 * MIB, 0, 0)})
    allocator.free(parts[1])
    allocator.empty_cache()
    assert not is_there(allocator, POOL)
    check(allocator, {})


def test_blocks_of_a_pool_that_helps_out_serve_others_only_when_memory_is_short() -> None:
    allocator = new(100)
    allocator.pools.create(POOL, use_on_oom=True)
    block = fill(allocator, POOL, 60)[0]
    allocator.free(block)
    assert allocator.malloc(30 * MIB) != block
    assert allocator.malloc(50 * MIB) == block
    assert allocator.retries == 0
    check(allocator, {block: Live(50 * MIB, 0, 0), **_live(allocator, 30)})


def _live(allocator: CachingAllocator, mebibytes: int) -> dict[int, Live]:
    rows = allocator.tables.rows()
    found = rows[(rows[:, t.STATE] == t.ALLOCATED) & (rows[:, t.REQUESTED] == mebibytes * MIB)]
    return {int(row[t.ADDRESS]): Live(mebibytes * MIB, 0, 0) for row in found}


def test_pool_that_nobody_needs_helps_out_no_more() -> None:
    allocator = new(100)
    allocator.pools.create(POOL, use_on_oom=True)
    kept, freed = fill(allocator, POOL, 20, 60)
    allocator.free(freed)
    allocator.pools.release(POOL)
    # The block is released with the cache, and its memory reserved anew.
    assert allocator.malloc(60 * MIB) != freed
    assert allocator.retries == 1
    allocator.free(kept)


def test_expandable_blocks_help_nobody_out() -> None:
    allocator = new(100, "expandable_segments:True")
    allocator.pools.create(POOL, use_on_oom=True)
    allocator.free(fill(allocator, POOL, 80)[0])
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(40 * MIB)
    check(allocator, {})


def test_pools_whose_names_hash_alike_are_told_apart() -> None:
    allocator = new()
    for pool in ((0, 5), (5, 0)):
        allocator.pools.create(pool)
        allocator.free(fill(allocator, pool, 20)[0])
    drop(allocator, (5, 0))
    assert is_there(allocator, (0, 5)) and not is_there(allocator, (5, 0))
    drop(allocator, (0, 5))
    assert allocator.reserved_bytes == 0


def test_more_freeable_pools_than_the_map_holds_all_give_their_memory_back() -> None:
    allocator = new(2000)
    pools = [(0, number) for number in range(1, 301)]
    blocks = []
    for pool in pools:
        allocator.pools.create(pool)
        blocks += fill(allocator, pool, 1)
    for pool in pools:
        drop(allocator, pool)
    for block in blocks:
        allocator.free(block)
    assert allocator.reserved_bytes == 600 * MIB
    allocator.empty_cache()
    assert not any(is_there(allocator, pool) for pool in pools)
    check(allocator, {})


def test_split_blocks_are_not_released_as_if_they_were_segments() -> None:
    allocator = new(110)
    allocator.free(allocator.malloc(100 * MIB))
    kept = allocator.malloc(40 * MIB)
    allocator.set_settings("max_split_size_mb:20")
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(30 * MIB)
    assert allocator.reserved_bytes == 100 * MIB
    allocator.set_settings("")  # the counts of oversize blocks follow the limit of the moment
    allocator.free(kept)
    allocator.empty_cache()
    check(allocator, {})


def test_pool_cannot_be_released_below_its_users() -> None:
    allocator = new()
    allocator.pools.begin(POOL)
    with pytest.raises(ArgumentValueError, match="not begun"):
        allocator.pools.release(POOL)
    allocator.pools.end(POOL)
    allocator.pools.release(POOL)
    with pytest.raises(ArgumentValueError, match="has a user"):
        allocator.pools.release(POOL)


def test_without_an_order_of_graphs_every_call_during_a_capture_counts_as_inside() -> None:
    allocator = new(100)
    allocator.free(allocator.malloc(80 * MIB))
    allocator.pools.begin(POOL, lambda stream: stream == 1, captures=True)
    used = allocator.malloc(MIB, 1)
    allocator.record_stream(used, 2)
    allocator.free(used)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(30 * MIB, 1)
    assert (allocator.retries, allocator.reserved_bytes) == (0, 82 * MIB)
    allocator.empty_cache()
    assert allocator.stats()["num_sync_all_streams"] == 0
    allocator.pools.end(POOL)
    allocator.empty_cache()
    check(allocator, {})
    assert allocator.reserved_bytes == 2 * MIB


def test_checkpoint_is_brought_back_with_what_was_in_use_and_free() -> None:
    allocator = new()
    allocator.pools.create(POOL)
    first, second, third = fill(allocator, POOL, 5, 5, 5)
    allocator.free(second)
    state = allocator.pools.checkpoint(POOL)
    assert state.live == [first, third]
    allocator.free(first)
    later = fill(allocator, POOL, 8, 30)
    assert allocator.pools.restore(state, [third, *later]) == [first, third]
    check(allocator, {first: Live(5 * MIB, 0, 0), third: Live(5 * MIB, 0, 0)})
    assert fill(allocator, POOL, 5) == [second]


def test_checkpoint_leaves_what_was_mapped_since_free() -> None:
    allocator = new(conf="expandable_segments:True")
    allocator.pools.create(POOL)
    parts = fill(allocator, POOL, 20, 20, 20)
    allocator.pools.release(POOL)
    allocator.free(parts[1])
    allocator.empty_cache()  # unmaps the middle
    allocator.pools.create(POOL)
    state = allocator.pools.checkpoint(POOL)
    assert fill(allocator, POOL, 20) == [parts[1]]
    assert allocator.pools.restore(state, parts) == [parts[0], parts[2]]
    check(allocator, {part: Live(20 * MIB, 0, 0) for part in (parts[0], parts[2])})
    assert allocator.reserved_bytes == 60 * MIB


def test_checkpoint_is_refused_before_anything_changes() -> None:
    allocator = new()
    allocator.pools.create(POOL)
    (block,) = fill(allocator, POOL, 5)
    state = allocator.pools.checkpoint(POOL)
    before = allocator.stats()
    with pytest.raises(ArgumentValueError, match="among the stale ones"):
        allocator.pools.restore(state, [])
    allocator.record_stream(block, 3)
    with pytest.raises(ArgumentValueError, match="no other stream uses"):
        allocator.pools.restore(state, [block])
    allocator.free(block)
    with pytest.raises(ArgumentValueError, match="no other stream uses"):
        allocator.pools.restore(state, [])
    allocator.upstream.synchronize()
    allocator.pools.release(POOL)
    with pytest.raises(ArgumentValueError, match="has a user"):
        allocator.pools.restore(state, [])
    assert allocator.stats()["reserved_bytes.all.current"] == before["reserved_bytes.all.current"]
    allocator.empty_cache()
    with pytest.raises(ArgumentValueError, match="a pool in use"):
        allocator.pools.restore(state, [])
    allocator.pools.create(POOL)
    with pytest.raises(ArgumentValueError, match="the memory that the pool had"):
        allocator.pools.restore(state, [])
    check(allocator, {})
