"""Offline packing: valid always, optimal where that is known, within capacity on hard instances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc.packing import lower_bound, pack, verify
from refruntime.errors import ArgumentValueError

CAPACITY = 1 << 20
INSTANCES = Path(__file__).parents[1] / "lab" / "data" / "minimalloc"

buffers = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 15), st.integers(0, 12)), max_size=24
)


def columns(rows):
    lower, width, size = (np.array(column, np.int64) for column in zip(*rows)) if rows else (
        np.zeros(0, np.int64) for _ in range(3)
    )  # fmt: skip
    return lower, lower + width, size


def instance(name):
    rows = np.loadtxt(INSTANCES / f"{name}.csv", delimiter=",", skiprows=1, dtype=np.int64)
    return rows[:, 1], rows[:, 2], rows[:, 3]


@given(rows=buffers)
def test_packings_are_valid_and_not_below_the_bound(rows):
    lower, upper, size = columns(rows)
    packing = pack(lower, upper, size, steps=2000)
    assert verify(packing, lower, upper, size)
    assert packing.lower_bound <= packing.height


@given(rows=buffers)
def test_the_bound_is_the_most_bytes_alive_at_once(rows):
    lower, upper, size = columns(rows)
    alive = [int(size[(lower <= t) & (t < upper)].sum()) for t in range(50)]
    assert lower_bound(lower, upper, size) == max(alive)


@given(
    rows=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 4)), max_size=6)
)
def test_the_search_finds_the_optimum_of_small_problems(rows):
    lower, upper, size = columns(rows)
    packing = pack(lower, upper, size)
    assert packing.height == _best(lower.tolist(), upper.tolist(), size.tolist())


def _best(lower, upper, size):
    """Return the height of the best packing: some order of lowest places gives it."""
    from itertools import permutations

    best = 0 if not size else 1 << 30
    for order in permutations(range(len(size))):
        placed, height = [], 0
        for k in order:
            at = 0
            for start, end, j in sorted(placed):
                if (
                    lower[j] < upper[k]
                    and lower[k] < upper[j]
                    and start < at + size[k]
                    and at < end
                ):
                    at = end
            placed.append((at, at + size[k], k))
            height = max(height, at + size[k])
        best = min(best, height)
    return best


def test_an_overlap_or_a_place_outside_is_seen():
    lower, upper, size = columns([(0, 2, 4), (1, 2, 4)])
    packing = pack(lower, upper, size)
    assert verify(packing, lower, upper, size)
    packing.offset[:] = 0
    assert not verify(packing, lower, upper, size)
    packing.offset[:] = [0, 6]
    assert not verify(packing, lower, upper, size)


@pytest.mark.parametrize("name", list("ABCDEFGHIJK"))
def test_hard_instances_fit_into_their_capacity(name):
    lower, upper, size = instance(name)
    packing = pack(lower, upper, size, capacity=CAPACITY)
    assert packing.height <= CAPACITY
    assert verify(packing, lower, upper, size)


def test_impossible_lifetimes_are_refused():
    with pytest.raises(ArgumentValueError, match="lower < upper"):
        pack(np.array([1]), np.array([1]), np.array([1]))
