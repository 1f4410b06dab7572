"""Facts of RMM 26.08: `pool_memory_resource_impl.cpp`, `stream_ordered_memory_resource.hpp`."""

from __future__ import annotations

import pytest

from refruntime.alloc.strategies import RmmPool
from refruntime.errors import OutOfMemoryError
from tests.alloc.strategies.ledger import KIB, MIB, Ledger


def test_sizes_are_multiples_of_256_bytes() -> None:
    pool = RmmPool(Ledger(64 * MIB))
    first, second = pool.malloc(1), pool.malloc(257)
    assert pool.allocated_bytes == 256 + 512
    assert (first % 256, second % 256) == (0, 0)


def test_pool_without_a_limit_doubles() -> None:
    upstream = Ledger(1 << 40)
    pool = RmmPool(upstream)
    pool.malloc(MIB)
    assert pool.reserved_bytes == MIB
    pool.malloc(KIB)
    assert pool.reserved_bytes == 2 * MIB
    pool.malloc(7 * MIB)
    assert pool.reserved_bytes == 9 * MIB


def test_pool_with_a_limit_grows_by_half_of_what_is_left() -> None:
    pool = RmmPool(Ledger(1 << 40), maximum_bytes=64 * MIB)
    pool.malloc(MIB)
    assert pool.reserved_bytes == 32 * MIB
    pool.malloc(32 * MIB)
    assert pool.reserved_bytes == 64 * MIB
    with pytest.raises(OutOfMemoryError):
        pool.malloc(32 * MIB)


def test_growth_that_fails_is_halved_down_to_the_request() -> None:
    upstream = Ledger(11 * MIB)
    pool = RmmPool(upstream, initial_bytes=8 * MIB)
    pool.malloc(8 * MIB)
    calls = upstream.calls
    pool.malloc(MIB)
    # 8 and 4 do not fit, 2 does.
    assert upstream.calls - calls == 3
    assert pool.reserved_bytes == 10 * MIB


def test_memory_is_never_given_back() -> None:
    upstream = Ledger(16 * MIB)
    pool = RmmPool(upstream)
    for size in (4 * MIB, 8 * MIB):
        pool.free(pool.malloc(size))
    with pytest.raises(OutOfMemoryError):
        pool.malloc(16 * MIB)
    assert upstream.used == pool.reserved_bytes == 12 * MIB
    assert (pool.retries, pool.ooms) == (0, 1)


def test_best_fit_always_cuts() -> None:
    pool = RmmPool(Ledger(64 * MIB), initial_bytes=4 * MIB)
    blocks = [pool.malloc(MIB) for _ in range(4)]
    pool.free(blocks[0])
    pool.free(blocks[1])
    pool.free(blocks[3])
    assert pool.malloc(256) == blocks[3]
    assert pool.malloc(256) == blocks[3] + 256


def test_another_streams_block_is_taken_and_the_rest_stays_with_that_stream() -> None:
    upstream = Ledger(64 * MIB)
    pool = RmmPool(upstream)
    whole = pool.malloc(2 * MIB, stream=1)
    pool.free(whole)
    assert pool.malloc(MIB, stream=2) == whole
    assert pool.stream_waits == 1
    assert pool.malloc(MIB, stream=1) == whole + MIB
    assert (pool.stream_waits, upstream.calls) == (1, 1)


def test_lists_of_streams_are_merged_before_the_pool_grows() -> None:
    upstream = Ledger(64 * MIB)
    pool = RmmPool(upstream, initial_bytes=2 * MIB)
    low, high = pool.malloc(MIB, stream=1), pool.malloc(MIB, stream=2)
    pool.free(low)
    pool.free(high)
    assert pool.malloc(2 * MIB, stream=3) == low
    assert upstream.calls == 1


def test_blocks_of_two_growths_are_not_joined() -> None:
    upstream = Ledger(64 * MIB)
    pool = RmmPool(upstream)
    first, second = pool.malloc(2 * MIB), pool.malloc(2 * MIB)
    assert second == first + 2 * MIB, "the virtual device places spans one after another"
    pool.free(first)
    pool.free(second)
    assert pool.malloc(4 * MIB) not in (first, second)
