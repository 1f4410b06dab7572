"""Facts of XLA's `BFCAllocator` (`xla/tsl/framework/bfc_allocator.cc`), with growth."""

from __future__ import annotations

import pytest

from refruntime.alloc.strategies import BestFitCoalescing
from refruntime.errors import OutOfMemoryError
from tests.alloc.strategies.ledger import MIB, Ledger


def test_regions_start_at_2_mib_and_double() -> None:
    upstream = Ledger(1 << 40)
    pool = BestFitCoalescing(upstream)
    pool.malloc(1)
    pool.malloc(2 * MIB)
    pool.malloc(8 * MIB)
    assert list(upstream.spans.values()) == [2 * MIB, 4 * MIB, 8 * MIB]


def test_a_region_doubled_for_its_request_is_not_doubled_again() -> None:
    upstream = Ledger(1 << 40)
    pool = BestFitCoalescing(upstream)
    pool.malloc(5 * MIB)
    pool.malloc(8 * MIB)
    pool.malloc(9 * MIB)
    assert list(upstream.spans.values()) == [8 * MIB, 8 * MIB, 16 * MIB]


def test_chunks_below_twice_the_request_are_given_whole() -> None:
    pool = BestFitCoalescing(Ledger(1 << 40))
    pool.malloc(MIB + 256)
    assert pool.allocated_bytes == 2 * MIB
    pool.malloc(2 * MIB)
    assert pool.allocated_bytes == 4 * MIB


def test_chunks_of_twice_the_request_are_cut() -> None:
    pool = BestFitCoalescing(Ledger(1 << 40))
    first = pool.malloc(MIB)
    assert pool.malloc(MIB) == first + MIB
    assert pool.allocated_bytes == pool.reserved_bytes == 2 * MIB


def test_128_mib_are_too_much_to_waste() -> None:
    pool = BestFitCoalescing(Ledger(1 << 40), region_bytes=512 * MIB)
    pool.malloc(384 * MIB)
    assert pool.allocated_bytes == 384 * MIB
    pool = BestFitCoalescing(Ledger(1 << 40), region_bytes=512 * MIB)
    pool.malloc(384 * MIB + 1)
    assert pool.allocated_bytes == 512 * MIB


def test_smallest_chunk_first_and_of_equal_ones_the_lowest() -> None:
    pool = BestFitCoalescing(Ledger(1 << 40), region_bytes=64 * MIB)
    blocks = [pool.malloc(size * MIB) for size in (4, 1, 2, 1, 2, 1)]
    for block in blocks[::2]:
        pool.free(block)
    assert pool.malloc(2 * MIB) == blocks[2]


def test_a_region_that_cannot_be_had_shrinks_by_tenths() -> None:
    upstream = Ledger(16 * MIB)
    upstream.foreign = 10 * MIB
    pool = BestFitCoalescing(upstream, region_bytes=8 * MIB)
    pool.malloc(256)
    # 6 MiB are left; of 8 MiB and its tenths off, each rounded up to 256, the third fits.
    assert pool.reserved_bytes == 6115584


def test_wholly_free_regions_are_given_back_if_that_makes_room() -> None:
    upstream = Ledger(16 * MIB)
    pool = BestFitCoalescing(upstream)
    kept = pool.malloc(MIB)
    small = pool.malloc(4 * MIB)
    pool.free(small)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(15 * MIB)
    assert (pool.retries, len(upstream.spans)) == (0, 2)
    pool.malloc(14 * MIB)
    assert (pool.retries, len(upstream.spans)) == (1, 2)
    pool.free(kept)
