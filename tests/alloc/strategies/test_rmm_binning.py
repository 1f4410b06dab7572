"""Facts of RMM 26.08: `binning_memory_resource_impl.cpp`, `fixed_size_memory_resource_impl.cpp`."""

from __future__ import annotations

from refruntime.alloc.strategies import RmmBinning
from tests.alloc.strategies.ledger import KIB, MIB, Ledger


def test_every_bin_starts_with_128_blocks() -> None:
    upstream = Ledger(2 << 30)
    pool = RmmBinning(upstream)
    # Bins of 256 KiB to 4 MiB; the pool below doubles, and here that comes out even.
    assert upstream.used == pool.reserved_bytes == 128 * (256 + 512 + 1024 + 2048 + 4096) * KIB
    assert pool.allocated_bytes == 0


def test_a_request_takes_a_whole_block_of_the_smallest_bin_that_holds_it() -> None:
    pool = RmmBinning(Ledger(2 << 30))
    for nbytes, block in ((1, 256 * KIB), (256 * KIB, 256 * KIB), (256 * KIB + 1, 512 * KIB)):
        before = pool.allocated_bytes
        pool.malloc(nbytes)
        assert pool.allocated_bytes - before == block


def test_larger_requests_go_to_the_pool() -> None:
    pool = RmmBinning(Ledger(1 << 40))
    pool.malloc(4 * MIB + 1)
    assert pool.allocated_bytes == 4 * MIB + 256


def test_the_block_that_was_free_longest_is_given_first() -> None:
    pool = RmmBinning(Ledger(2 << 30))
    blocks = [pool.malloc(1) for _ in range(128)]
    for block in (blocks[5], blocks[3], blocks[9]):
        pool.free(block)
    assert [pool.malloc(1) for _ in range(3)] == [blocks[5], blocks[3], blocks[9]]


def test_an_empty_bin_takes_128_more() -> None:
    upstream = Ledger(1 << 40)
    pool = RmmBinning(upstream, smallest=18, largest=18)
    assert upstream.used == 32 * MIB
    blocks = {pool.malloc(1) for _ in range(129)}
    assert len(blocks) == 129
    assert upstream.used == 64 * MIB
