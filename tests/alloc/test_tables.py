from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc import tables as t
from refruntime.alloc.tables import Tables, bucket, buckets_of


def test_rows_start_at_cache_lines_and_header_never_moves() -> None:
    tables = Tables()
    address = tables.address
    for _ in range(3):
        assert tables.rows().ctypes.data % 64 == 0
        tables.grow()
    assert tables.address == address
    assert tables.header[t.BLOCKS] == tables.rows().ctypes.data


def test_growing_quadruples_the_spare_rows_and_keeps_the_chain_whole() -> None:
    tables = Tables()
    before = len(tables.rows())
    tables.grow()
    assert len(tables.rows()) == 4 * before
    seen, k = set(), tables.header[t.SPARE_HEAD]
    while k:
        assert k not in seen
        seen.add(k)
        k = tables.blocks[k + t.NEXT]
    assert seen == {row * t.ROW for row in range(t.FIRST_FREE_ROW, 4 * before)}
    assert tables.header[t.SPARE_ROWS] == len(seen)


def test_priorities_are_positive_and_distinct() -> None:
    tables = Tables()
    tables.grow()
    priorities = tables.rows()[t.FIRST_FREE_ROW :, t.PRIORITY]
    assert (priorities > 0).all()
    assert len(set(priorities.tolist())) == len(priorities)


@given(st.lists(st.integers(0, 1 << 53).map(lambda n: n << 9), min_size=1, max_size=20))
def test_buckets_of_many_addresses_equal_those_of_each(addresses: list[int]) -> None:
    tables = Tables()
    shift = tables.header[t.INDEX_SHIFT]
    many = buckets_of(np.array(addresses, np.int64), shift)
    assert many.tolist() == [bucket(tables.header, address) for address in addresses]
    assert all(0 <= place < len(tables.index) for place in many)


@pytest.mark.parametrize("stride", [512, 4096, 2 << 20])
def test_regular_addresses_spread_over_the_buckets(stride: int) -> None:
    tables = Tables()
    places = [bucket(tables.header, (1 << 46) + i * stride) for i in range(len(tables.index))]
    assert max(np.bincount(places)) <= 8


def test_statistics_start_at_even_words_of_their_own() -> None:
    starts = sorted({**t.STATISTICS, **t.OVERSIZE}.values())
    assert all(start % 2 == 0 for start in starts)
    assert all(after - before == t.STAT_WORDS for before, after in itertools.pairwise(starts))
    assert starts[0] == t.STATS and len(starts) == t.STAT_COUNT
    assert starts[-1] + t.STAT_WORDS == t.EVENT_QUEUES
