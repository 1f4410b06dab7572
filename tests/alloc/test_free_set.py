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
        k = (1 + t.POOLS + number) * t.ROW
        rows[key] = k
        for field, value in zip((t.STREAM, t.SIZE, t.AGE, t.ADDRESS), key, strict=True):
            tables.blocks[k + field] = value
        tables.blocks[k + t.POOL] = pool
        free_set.insert_free(tables.blocks, k)
    return tables, rows


def _in_order(tables: Tables, pool: int = t.LARGE) -> list[int]:
    found, k = [], free_set.successor(tables.blocks, pool, 0)
    while k:
        found.append(k)
        k = free_set.successor(tables.blocks, pool, k)
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

    assert depth(b[t.root_of(t.LARGE)]) <= 40


def test_the_shape_does_not_depend_on_the_order_of_coming() -> None:
    keys = [(0, size, 0, 512 * size) for size in range(1, 60)]
    tables, rows = _filled(keys)
    before = tables.rows().copy()
    for key in (*keys[::2], *keys[1::2]):
        free_set.remove_free(tables.blocks, rows[key])
    assert tables.blocks[t.root_of(t.LARGE)] == 0
    for key in reversed(keys):
        free_set.insert_free(tables.blocks, rows[key])
    assert (tables.rows() == before).all()


def test_next_whole_skips_blocks_that_share_their_segment() -> None:
    tables, rows = _filled([(0, size, 0, 512 * size) for size in range(1, 6)])
    for size in (1, 2, 4):
        tables.blocks[rows[(0, size, 0, 512 * size)] + t.NEXT] = 99
    for size in (3, 5):
        tables.blocks[rows[(0, size, 0, 512 * size)] + t.NEXT] = 0
    third, fifth = rows[(0, 3, 0, 1536)], rows[(0, 5, 0, 2560)]
    assert free_set.next_whole(tables.blocks, t.LARGE, 0) == third
    assert free_set.next_whole(tables.blocks, t.LARGE, third) == fifth
    assert free_set.next_whole(tables.blocks, t.LARGE, fifth) == 0
