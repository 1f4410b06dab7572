"""The two ends never fill each other's holes (XLA's spatial partitioning)."""

from __future__ import annotations

from refruntime.alloc.strategies import TwoEnded
from refruntime.alloc.strategy import Request
from tests.alloc.strategies.ledger import MIB, Ledger


def _taught() -> TwoEnded:
    """A pool that has seen blocks of 1 MiB die young."""
    pool = TwoEnded(Ledger(64 * MIB), horizon=10)
    pool.free(pool.malloc(MIB))
    return pool


def test_unknown_sizes_lie_at_the_bottom_and_short_lived_ones_at_the_top() -> None:
    pool = _taught()
    low, high = pool.malloc(3 * MIB), pool.malloc(MIB)
    assert high - low == 63 * MIB
    assert pool.malloc(MIB) == high - MIB
    assert pool.malloc(3 * MIB) == low + 3 * MIB


def test_a_size_that_lived_long_moves_to_the_bottom() -> None:
    pool = _taught()
    high = pool.malloc(MIB)
    for _ in range(10):
        pool.malloc(2 * MIB)
    pool.free(high)
    assert pool.malloc(MIB) < high - 20 * MIB


def test_holes_of_one_end_do_not_serve_the_other() -> None:
    pool = _taught()
    low = [pool.malloc(3 * MIB) for _ in range(3)]
    pool.free(low[1])
    # 3 MiB were just seen to die young, so they go to the top; 2 MiB are unknown.
    assert pool.malloc(3 * MIB) > low[2]
    assert pool.malloc(2 * MIB) == low[1]


def test_a_hole_at_the_gap_becomes_part_of_it() -> None:
    pool = _taught()
    top = pool.malloc(MIB)
    pool.free(top)
    kept = pool.malloc(30 * MIB)
    large = pool.malloc(34 * MIB)
    assert large == kept + 30 * MIB, "the whole range is one gap again"


def test_an_end_that_is_full_borrows_from_the_other() -> None:
    pool = _taught()
    high = [pool.malloc(MIB) for _ in range(64)]
    pool.free(high[10])
    assert pool.malloc(512) == high[10] + MIB - 512


def test_a_prepared_run_names_the_end_of_every_malloc() -> None:
    pool = TwoEnded(Ledger(64 * MIB), horizon=3)
    sizes = [MIB, MIB, MIB]
    pool.prepare(
        [
            Request("alloc", 0, sizes[0]),
            Request("alloc", 1, sizes[1]),
            Request("free", 1),
            Request("alloc", 2, sizes[2]),
        ]
    )
    first, second, third = (pool.malloc(size) for size in sizes)
    assert second - first == 63 * MIB
    assert third == first + MIB
    assert pool.malloc(MIB) == third + MIB, "beyond the run, an unknown size is long-lived"
