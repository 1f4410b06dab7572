"""Facts of RMM 26.08: `detail/arena.hpp`, `arena_memory_resource_impl.cpp`."""

from __future__ import annotations

import pytest

from refruntime.alloc.strategies import RmmArena
from refruntime.errors import OutOfMemoryError
from tests.alloc.strategies.ledger import KIB, MIB, Ledger


def test_takes_half_of_the_free_memory_once() -> None:
    upstream = Ledger(64 * MIB)
    pool = RmmArena(upstream)
    assert pool.reserved_bytes == upstream.used == 32 * MIB
    for size in (1, MIB, 20 * MIB):
        pool.malloc(size)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(20 * MIB)
    assert upstream.calls == 1


def test_small_requests_of_a_stream_share_its_superblock() -> None:
    pool = RmmArena(Ledger(64 * MIB))
    first, second = pool.malloc(256, stream=1), pool.malloc(256, stream=2)
    assert second - first == MIB, "each stream has a superblock of 1 MiB"
    assert pool.malloc(256, stream=1) == first + 256


def test_a_request_above_one_mib_has_a_superblock_of_its_size() -> None:
    pool = RmmArena(Ledger(64 * MIB))
    small = pool.malloc(MIB, stream=1)
    large = pool.malloc(MIB + 1)
    assert large == small + MIB
    assert pool.malloc(5 * MIB) == large + MIB + 256


def test_first_fit_takes_the_lowest_not_the_smallest() -> None:
    pool = RmmArena(Ledger(256 * MIB))
    blocks = [pool.malloc(size * MIB) for size in (8, 2, 4, 2)]
    pool.free(blocks[0])
    pool.free(blocks[2])
    assert pool.malloc(4 * MIB) == blocks[0]


def test_a_wholly_free_superblock_is_cut_only_if_one_mib_is_left() -> None:
    pool = RmmArena(Ledger(64 * MIB), arena_bytes=4 * MIB)
    large = pool.malloc(3 * MIB + 256)
    # Less than 1 MiB is left: the stream acquires the one superblock with the large block in it,
    assert pool.malloc(600 * KIB, stream=1) == large + 3 * MIB + 256
    pool.free(large)
    # and the global arena has nothing until the stream gives it up.
    assert pool.malloc(3 * MIB) == large
    assert pool.retries == 1


def test_superblocks_of_streams_come_back_when_a_request_would_fail() -> None:
    pool = RmmArena(Ledger(64 * MIB), arena_bytes=4 * MIB)
    pool.free(pool.malloc(512 * KIB, stream=1))
    assert pool.malloc(4 * MIB) > 0
    assert (pool.retries, pool.ooms) == (1, 0)


def test_blocks_find_their_superblock_after_it_has_moved() -> None:
    pool = RmmArena(Ledger(64 * MIB), arena_bytes=4 * MIB)
    kept = pool.malloc(512 * KIB, stream=1)
    large = pool.malloc(3 * MIB)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(MIB)
    pool.free(kept)
    pool.free(large)
    assert pool.malloc(4 * MIB) > 0


def test_high_water_is_the_size_of_the_smallest_arena_that_serves() -> None:
    def run(arena_bytes: int) -> RmmArena:
        pool = RmmArena(Ledger(1 << 30), arena_bytes=arena_bytes)
        live = [pool.malloc(step * 300_000 + 1, step % 2) for step in range(20)]
        for address in live[::2]:
            pool.free(address)
        for step in range(10):
            pool.malloc(step * 500_000 + 1)
        return pool

    high_water = run(512 * MIB).high_water
    assert run(high_water + MIB).ooms == 0
    with pytest.raises(OutOfMemoryError):
        run(high_water - MIB)
