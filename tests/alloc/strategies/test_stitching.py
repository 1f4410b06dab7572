"""Facts of GMLake (ASPLOS 2024): its tutorial's knobs, its `CUDACachingAllocator.cpp`."""

from __future__ import annotations

from refruntime.alloc.strategies import Stitching
from tests.alloc.strategies.ledger import KIB, MIB, Ledger, memory_of


def _pool(capacity: int = 1 << 30, **knobs: int) -> Stitching:
    return Stitching(Ledger(capacity), **{"fragment_limit": 16 * MIB, **knobs})


def _with_holes(pool: Stitching, *sizes: int) -> list[int]:
    """Make free segments of these sizes, which keep apart since each has its own addresses."""
    blocks = [pool.malloc(size) for size in sizes]
    for block in blocks:
        pool.free(block)
    return blocks


def test_defaults_are_those_of_the_code() -> None:
    pool = Stitching(Ledger(1 << 30))
    assert (pool.fragment_limit, pool.reuse_limit, pool.top_up) == (512 * MIB, 10, False)
    assert pool.addresses_limit == 1000 << 30


def test_up_to_1_mib_sizes_are_multiples_of_512_above_it_of_2_mib() -> None:
    pool = _pool()
    for nbytes, size in ((1, 512), (MIB, MIB), (MIB + 1, 2 * MIB), (2 * MIB + 1, 4 * MIB)):
        before = pool.allocated_bytes
        pool.malloc(nbytes)
        assert pool.allocated_bytes - before == size


def test_segments_are_those_of_pytorch() -> None:
    pool = _pool()
    for nbytes, segment in ((512 * KIB, 2 * MIB), (3 * MIB, 20 * MIB), (11 * MIB, 12 * MIB)):
        pool = _pool()
        pool.malloc(nbytes)
        assert pool.reserved_bytes == segment


def test_two_free_segments_serve_a_request_larger_than_each() -> None:
    pool = _pool()
    small, large = _with_holes(pool, 10 * MIB, 12 * MIB)
    block = pool.malloc(20 * MIB)
    assert pool.reserved_bytes == 22 * MIB
    # The largest span comes first; of the last one only what is missing is used.
    assert memory_of(pool, block, 0) == [(large, 12 * MIB), (small, 8 * MIB)]
    assert pool.malloc(2 * MIB) == small + 8 * MIB
    assert pool.reserved_bytes == 22 * MIB


def test_requests_below_the_limit_are_not_stitched() -> None:
    pool = _pool(fragment_limit=32 * MIB)
    _with_holes(pool, 10 * MIB, 12 * MIB)
    pool.malloc(20 * MIB)
    assert pool.reserved_bytes == 42 * MIB
    assert pool.ranges.chunks_mapped == 0


def test_a_stitched_range_is_used_again() -> None:
    pool = _pool()
    _with_holes(pool, 10 * MIB, 12 * MIB)
    first = pool.malloc(22 * MIB)
    pool.free(first)
    assert pool.malloc(22 * MIB) == first
    assert pool.ranges.chunks_mapped == 11


def test_a_stitched_range_lends_its_first_chunks_to_a_smaller_request() -> None:
    pool = _pool()
    _, large = _with_holes(pool, 10 * MIB, 12 * MIB)
    first = pool.malloc(22 * MIB)
    pool.free(first)
    assert pool.malloc(16 * MIB) == first
    assert memory_of(pool, first, 0)[0] == (large, 12 * MIB)
    assert pool.allocated_bytes == 16 * MIB
    assert pool.ranges.chunks_mapped == 11


def test_a_range_beyond_the_reuse_limit_is_not_used() -> None:
    pool = _pool(reuse_limit=1)
    _with_holes(pool, 10 * MIB, 12 * MIB)
    first = pool.malloc(22 * MIB)
    pool.free(first)
    assert pool.malloc(16 * MIB) != first
    assert pool.ranges.chunks_mapped == 11 + 8


def test_a_range_with_a_chunk_in_use_is_not_used() -> None:
    pool = _pool()
    _with_holes(pool, 10 * MIB, 12 * MIB)
    first = pool.malloc(22 * MIB)
    pool.free(first)
    pool.malloc(2 * MIB)
    assert pool.malloc(20 * MIB) != first
    assert pool.reserved_bytes == 22 * MIB


def test_a_free_span_that_fits_is_preferred_to_a_stitched_range() -> None:
    pool = _pool()
    _with_holes(pool, 10 * MIB, 12 * MIB)
    stitched = pool.malloc(22 * MIB)
    whole = pool.malloc(24 * MIB)
    pool.free(stitched)
    pool.free(whole)
    assert pool.malloc(22 * MIB) == whole


def test_streams_do_not_share_chunks() -> None:
    pool = _pool()
    first, second = pool.malloc(10 * MIB, stream=1), pool.malloc(12 * MIB, stream=2)
    pool.free(first)
    pool.free(second)
    pool.malloc(22 * MIB, stream=1)
    assert pool.reserved_bytes == 44 * MIB


def test_top_up_reserves_only_what_is_missing() -> None:
    plain, topped = _pool(), _pool(top_up=True)
    for pool in (plain, topped):
        _with_holes(pool, 10 * MIB, 12 * MIB)
        pool.malloc(40 * MIB)
    assert plain.reserved_bytes == 62 * MIB
    assert topped.reserved_bytes == 40 * MIB


def test_stitching_serves_where_the_upstream_is_exhausted() -> None:
    pool = _pool(40 * MIB)
    kept, _ = pool.malloc(20 * MIB), _with_holes(pool, 10 * MIB, 10 * MIB)
    pool.malloc(20 * MIB)
    assert (pool.retries, pool.ooms, pool.reserved_bytes) == (0, 0, 40 * MIB)
    pool.free(kept)


def test_released_segments_take_their_ranges_with_them() -> None:
    pool = _pool(32 * MIB, fragment_limit=12 * MIB)
    _with_holes(pool, 10 * MIB, 12 * MIB)
    pool.free(pool.malloc(22 * MIB))
    whole = pool.malloc(32 * MIB)
    assert (pool.retries, pool.reserved_bytes, pool.ranges.nbytes) == (1, 32 * MIB, 0)
    pool.free(whole)
    assert pool.malloc(22 * MIB) == whole


def test_a_range_in_use_dies_when_it_is_given_back() -> None:
    upstream = Ledger(40 * MIB)
    pool = Stitching(upstream, fragment_limit=12 * MIB)
    homes = _with_holes(pool, 10 * MIB, 10 * MIB, 10 * MIB)
    stitched = pool.malloc(30 * MIB)
    pool.free(stitched)
    assert pool.malloc(16 * MIB) == stitched, "it lends two of its three segments"
    # The third segment goes back for this, and with it the range, once it is not in use.
    other = pool.malloc(18 * MIB)
    assert (pool.retries, pool.ranges.nbytes) == (1, 0)
    assert stitched in upstream.ranges
    pool.free(stitched)
    assert upstream.ranges == {*homes[1:], other}
    again = pool.malloc(20 * MIB)
    assert again != stitched
    assert {span.address for span in memory_of(pool, again, 0)} == set(homes[1:])


def test_idle_ranges_are_dropped_when_addresses_grow_too_many() -> None:
    pool = _pool(addresses_limit=40 * MIB)
    _with_holes(pool, 10 * MIB, 12 * MIB)
    pool.free(pool.malloc(22 * MIB))
    assert pool.ranges.nbytes == 22 * MIB
    blocks = _with_holes(pool, 24 * MIB)
    pool.malloc(40 * MIB)
    assert pool.ranges.nbytes == 40 * MIB
    assert len(blocks) == 1
