from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc import free_set
from refruntime.alloc import tables as t
from refruntime.alloc.tables import Tables

Key = tuple[int, int, int, int]
KEYS = st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 3), st.integers(0, 1 << 40))


def _filled(keys: list[Key], pool: int = t.LARGE) -> tuple[Tables, dict[Key, int]]:
    tables = Tables()
    while len(tables.rows()) < len(keys) + 8:
        tables.grow()
    rows = {}
    for number, key in enumerate(keys):
        k = (t.FIRST_FREE_ROW + number) * t.ROW
        rows[key] = k
        for field, value in zip((t.STREAM, t.SIZE, t.AGE, t.ADDRESS), key, strict=True):
            tables.blocks[k + field] = value
        tables.blocks[k + t.POOL] = pool
        tables.blocks[k + t.STATE] = t.FREE
        free_set.insert_free(tables.blocks, k)
    return tables, rows


def _in_order(tables: Tables, pool: int = t.LARGE) -> list[int]:
    found, k = [], free_set.successor(tables.blocks, pool + t.FREE_ROOT, 0)
    while k:
        found.append(k)
        k = free_set.successor(tables.blocks, pool + t.FREE_ROOT, k)
    return found


@given(st.lists(KEYS, unique=True, max_size=40), st.randoms())
def test_members_come_in_key_order_whatever_came_and_went(
    keys: list[Key], rng: random.Random
) -> None:
    tables, rows = _filled(keys)
    gone = set(rng.sample(keys, len(keys) // 2))
    for key in gone:
        free_set.remove_free(tables.blocks, rows[key])
    assert _in_order(tables) == [rows[key] for key in sorted(set(keys) - gone)]


@given(st.lists(KEYS, unique=True, max_size=40), st.integers(0, 3), st.integers(1, 10))
def test_best_fit_is_the_first_of_the_stream_that_is_large_enough(
    keys: list[Key], stream: int, size: int
) -> None:
    tables, rows = _filled(keys)
    link = free_set.best_fit(tables.blocks, t.LARGE, stream, size)
    fitting = sorted(key for key in keys if key[0] == stream and key[1] >= size)
    assert (tables.blocks[link] if link else 0) == (rows[fitting[0]] if fitting else 0)


def test_pools_are_apart() -> None:
    tables, _ = _filled([(0, 5, 0, 512)], pool=t.SMALL)
    assert free_set.best_fit(tables.blocks, t.LARGE, 0, 1) == 0
    assert _in_order(tables, t.LARGE) == []


def test_depth_is_logarithmic_for_keys_that_come_in_order() -> None:
    tables, _ = _filled([(0, size, 0, 512 * size) for size in range(1, 3001)])
    b = tables.blocks

    def depth(k: int) -> int:
        return 1 + max(depth(b[k + t.LEFT]), depth(b[k + t.RIGHT])) if k else 0

    assert depth(b[t.LARGE + t.FREE_ROOT]) <= 40


def test_the_shape_does_not_depend_on_the_order_of_coming() -> None:
    keys = [(0, size, 0, 512 * size) for size in range(1, 60)]
    tables, rows = _filled(keys)
    before = tables.rows().copy()
    for key in (*keys[::2], *keys[1::2]):
        free_set.remove_free(tables.blocks, rows[key])
    assert tables.blocks[t.LARGE + t.FREE_ROOT] == 0
    for key in reversed(keys):
        free_set.insert_free(tables.blocks, rows[key])
    assert (tables.rows() == before).all()


@given(st.lists(KEYS, unique=True, max_size=40), st.integers(0, 3), st.integers(1, 10))
def test_last_below_is_the_largest_of_the_stream_that_is_too_small(
    keys: list[Key], stream: int, size: int
) -> None:
    tables, rows = _filled(keys)
    found = free_set.last_below(tables.blocks, t.LARGE, stream, size)
    below = sorted(key for key in keys if key[0] == stream and key[1] < size)
    assert found == (rows[below[-1]] if below else 0)


@given(st.lists(KEYS, unique=True, min_size=1, max_size=40))
def test_predecessor_undoes_successor(keys: list[Key]) -> None:
    tables, _ = _filled(keys)
    root = t.LARGE + t.FREE_ROOT
    order = _in_order(tables)
    assert [free_set.predecessor(tables.blocks, root, k) for k in order] == [0, *order[:-1]]


@given(st.lists(KEYS, unique_by=lambda key: (key[0], key[3]), max_size=40), st.integers(0, 3))
def test_unmapped_blocks_are_ordered_by_stream_and_address(keys: list[Key], stream: int) -> None:
    tables, rows = _filled(keys)
    for key in keys:
        free_set.remove_free(tables.blocks, rows[key])
        tables.blocks[rows[key] + t.STATE] = t.UNMAPPED
        free_set.insert_unmapped(tables.blocks, rows[key])
    own = sorted((key for key in keys if key[0] == stream), key=lambda key: key[3])
    first = free_set.first_unmapped(tables.blocks, t.LARGE, stream)
    assert first == (rows[own[0]] if own else 0)
    found = []
    while first and tables.blocks[first + t.STREAM] == stream:
        found.append(first)
        first = free_set.successor(tables.blocks, t.LARGE + t.UNMAPPED_ROOT, first)
    assert found == [rows[key] for key in own]
