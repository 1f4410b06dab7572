"""Facts of TLSF: Masmano et al., ECRTS 2004; mattconte/tlsf 3.1 (32 steps, last in, first out)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc.strategies import Tlsf
from refruntime.alloc.strategies.tlsf import SMALL, class_for, class_of
from tests.alloc.strategies.ledger import KIB, MIB, Ledger

UNITS = st.integers(1, 1 << 30).map(lambda units: units * 512)


@given(UNITS, UNITS)
def test_classes_rise_with_sizes(left: int, right: int) -> None:
    if left <= right:
        assert class_of(left) <= class_of(right)


@given(UNITS, UNITS)
def test_every_block_from_the_search_class_on_fits(size: int, block: int) -> None:
    if class_of(block) >= class_for(size):
        assert block >= size
    assert class_of(size) <= class_for(size) <= class_of(size) + 1


@given(st.integers(15, 40))
def test_a_power_of_two_is_parted_into_32_equal_steps(level: int) -> None:
    step = 1 << (level - 5)
    first = class_of(1 << level)
    assert [class_of((1 << level) + n * step) - first for n in range(33)] == list(range(33))
    assert class_of((1 << level) + step - 1) == first


def test_sizes_below_32_units_have_exact_classes() -> None:
    assert [class_of(n * 512) for n in range(1, 33)] == list(range(1, 33))
    assert all(class_for(n * 512) == n for n in range(1, 33))
    assert SMALL == 32 * 512


def test_a_block_of_the_requests_own_class_may_be_passed_over() -> None:
    pool = Tlsf(Ledger(1 << 30))
    hole = pool.malloc(MIB + 16 * KIB)
    pool.malloc(512)
    pool.free(hole)
    # It would fit, but its class also holds blocks that would not.
    assert pool.malloc(MIB + 8 * KIB) != hole
    assert pool.malloc(MIB) == hole


def test_the_block_freed_last_is_taken_first() -> None:
    pool = Tlsf(Ledger(1 << 30))
    blocks = [pool.malloc(MIB) for _ in range(6)]
    pool.free(blocks[0])
    pool.free(blocks[4])
    pool.free(blocks[2])
    assert [pool.malloc(MIB) for _ in range(3)] == [blocks[2], blocks[4], blocks[0]]


def test_neighbours_join_at_once() -> None:
    pool = Tlsf(Ledger(1 << 30))
    blocks = [pool.malloc(MIB) for _ in range(4)]
    for block in (blocks[0], blocks[2], blocks[1]):
        pool.free(block)
    assert pool.malloc(3 * MIB) == blocks[0]


def test_the_heap_grows_from_its_last_block_if_that_is_free() -> None:
    upstream = Ledger(1 << 30)
    pool = Tlsf(upstream)
    pool.malloc(2 * MIB)
    last = pool.malloc(2 * MIB)
    pool.free(last)
    assert pool.malloc(6 * MIB) == last
    assert pool.reserved_bytes == upstream.used == 8 * MIB


def test_what_is_left_of_the_last_block_stays_free() -> None:
    upstream = Ledger(1 << 30)
    pool = Tlsf(upstream)
    last = pool.malloc(MIB + 16 * KIB)
    pool.free(last)
    # The class of the last block is passed over, but the end of the heap is not.
    assert pool.malloc(MIB + 8 * KIB) == last
    assert pool.malloc(8 * KIB) == last + MIB + 8 * KIB
    assert upstream.used == 2 * MIB
