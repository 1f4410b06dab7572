"""Facts of CuPy 15: `cupy/cuda/memory.pyx`, `SingleDeviceMemoryPool`."""

from __future__ import annotations

import pytest

from refruntime.alloc.strategies import CupyPool
from refruntime.alloc.upstream import FirstFitAddresses
from refruntime.errors import OutOfMemoryError
from tests.alloc.strategies.ledger import KIB, MIB, Ledger

UNIT = 512


def test_asks_for_the_rounded_request_and_nothing_more() -> None:
    upstream = Ledger(64 * MIB)
    pool = CupyPool(upstream)
    for nbytes, rounded in ((1, UNIT), (UNIT, UNIT), (UNIT + 1, 2 * UNIT), (MIB + 1, MIB + UNIT)):
        before = upstream.used
        pool.malloc(nbytes)
        assert upstream.used - before == rounded


def test_every_remainder_is_cut_off_and_serves_again() -> None:
    upstream = Ledger(64 * MIB)
    pool = CupyPool(upstream)
    whole = pool.malloc(4 * UNIT)
    pool.free(whole)
    assert [pool.malloc(n * UNIT) for n in (1, 2, 1)] == [whole, whole + UNIT, whole + 3 * UNIT]
    assert upstream.calls == 1


def test_pieces_join_to_the_whole_chunk_again() -> None:
    upstream = Ledger(64 * MIB)
    pool = CupyPool(upstream)
    whole = pool.malloc(4 * UNIT)
    pool.free(whole)
    pieces = [pool.malloc(UNIT) for _ in range(4)]
    for piece in (pieces[1], pieces[3], pieces[0], pieces[2]):
        pool.free(piece)
    assert pool.malloc(4 * UNIT) == whole
    assert upstream.calls == 1


def test_best_fit_prefers_the_smallest_chunk() -> None:
    pool = CupyPool(Ledger(64 * MIB))
    large, small = pool.malloc(3 * MIB), pool.malloc(2 * MIB)
    pool.free(large)
    pool.free(small)
    assert pool.malloc(MIB) == small


def test_streams_do_not_share_chunks() -> None:
    upstream = Ledger(64 * MIB)
    pool = CupyPool(upstream)
    first = pool.malloc(MIB, stream=1)
    pool.free(first)
    assert pool.malloc(MIB, stream=2) != first
    assert pool.malloc(MIB, stream=1) == first


def test_exhaustion_releases_unsplit_chunks_of_all_streams_and_tries_again() -> None:
    upstream = Ledger(10 * MIB)
    pool = CupyPool(upstream)
    first, second, split = pool.malloc(3 * MIB, 1), pool.malloc(3 * MIB, 2), pool.malloc(4 * MIB)
    for address in (first, second, split):
        pool.free(address)
    kept = pool.malloc(KIB)
    assert kept == split
    pool.malloc(6 * MIB)
    assert pool.retries == 1
    assert set(upstream.spans.values()) == {4 * MIB, 6 * MIB}


def test_split_chunks_cannot_be_released() -> None:
    pool = CupyPool(Ledger(10 * MIB))
    whole = pool.malloc(8 * MIB)
    pool.free(whole)
    pool.malloc(UNIT)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(8 * MIB)
    assert (pool.retries, pool.ooms, pool.reserved_bytes) == (0, 1, 8 * MIB)


def test_a_chunk_over_the_addresses_of_released_ones_is_one_piece() -> None:
    pool = CupyPool(Ledger(4 * MIB, addresses=FirstFitAddresses()))
    low, high = pool.malloc(2 * MIB), pool.malloc(2 * MIB)
    pool.free(low)
    pool.free(high)
    whole = pool.malloc(4 * MIB)
    assert (whole, high) == (low, low + 2 * MIB)
    pool.free(whole)
    pieces = [pool.malloc(2 * MIB) for _ in range(2)]
    for piece in pieces:
        pool.free(piece)
    assert pool.malloc(4 * MIB) == whole
