"""Facts of the binary buddy system: Knuth, TAOCP volume 1, section 2.5."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc.strategies import Buddy
from tests.alloc.strategies.ledger import KIB, MIB, Ledger


@given(st.lists(st.integers(1, 4 * MIB), max_size=20))
def test_a_block_is_a_power_of_two_and_lies_at_a_multiple_of_itself(sizes: list[int]) -> None:
    pool = Buddy(Ledger(1 << 30))
    start = pool.malloc(1)
    for size in sizes:
        block = pool.blocks[pool.malloc(size)]
        assert max(size, 512) <= block.size < max(2 * size, 513)
        assert block.size & (block.size - 1) == 0
        assert (block.address - start) % block.size == 0


def test_halves_of_a_block_are_buddies_and_join_again() -> None:
    pool = Buddy(Ledger(1 << 30))
    low, high = pool.malloc(KIB), pool.malloc(KIB)
    assert high == low ^ KIB
    other = pool.malloc(2 * KIB)
    assert other == low + 2 * KIB
    pool.free(low)
    pool.free(high)
    assert pool.malloc(2 * KIB) == low


def test_neighbours_that_are_not_buddies_stay_apart() -> None:
    pool = Buddy(Ledger(1 << 30))
    blocks = [pool.malloc(KIB) for _ in range(4)]
    pool.free(blocks[1])
    pool.free(blocks[2])
    assert pool.malloc(2 * KIB) == blocks[0] + 4 * KIB


def test_up_to_half_of_a_block_is_waste() -> None:
    pool = Buddy(Ledger(1 << 30))
    pool.malloc(MIB + 1)
    assert pool.allocated_bytes == 2 * MIB


def test_everything_freed_is_one_block_again() -> None:
    upstream = Ledger(64 * MIB)
    pool = Buddy(upstream)
    live = [pool.malloc(size) for size in range(1, 3 * MIB, 300_000)]
    for block in live[1::2] + live[::2]:
        pool.free(block)
    assert pool.malloc(64 * MIB) > 0


def test_a_mapped_block_is_preferred_to_one_that_cannot_be_mapped() -> None:
    upstream = Ledger(8 * MIB)
    upstream.foreign = 2 * MIB
    pool = Buddy(upstream)
    four, two = pool.malloc(4 * MIB), pool.malloc(2 * MIB)
    assert two == four + 4 * MIB
    pool.free(four)
    # The one free block of 2 MiB lies beyond what can be mapped; the larger one is there.
    assert pool.malloc(2 * MIB) == four
