"""Counts everything in an allocator's tables anew, and checks it against what the core keeps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refruntime.alloc import CachingAllocator, categories
from refruntime.alloc import tables as t
from refruntime.alloc.core import find
from refruntime.alloc.snapshot import segments_of


class Live(NamedTuple):
    """What the test believes of a block in use."""

    nbytes: int
    stream: int
    category: int


def check(allocator: CachingAllocator, live: Mapping[int, Live]) -> None:
    """Assert every invariant of the tables, given the blocks that should be in use."""
    segments = list(segments_of(allocator.tables))
    blocks = [row for segment in segments for row in segment]
    for segment in segments:
        _check_tiling(segment)
    _check_disjoint(segments)
    used = [row for row in blocks if row[t.STATE] == t.ALLOCATED]
    assert {
        row[t.ADDRESS]: Live(row[t.REQUESTED], row[t.STREAM], row[t.CATEGORY]) for row in used
    } == dict(live)
    for pool in (t.SMALL, t.LARGE):
        _check_free_set(allocator, pool, blocks)
    _check_index(allocator, used)
    _check_rows(allocator, len(blocks))
    _check_stats(allocator, segments)
    assert allocator.tables.header[t.GATE] & t.BUSY == 0
    assert allocator.upstream.used == allocator.reserved_bytes


def size_of(allocator: CachingAllocator, address: int) -> int:
    """Return the size of the block in use at an address."""
    tables = allocator.tables
    k = find(tables.header, tables.blocks, tables.index, address)
    assert k != 0
    return tables.blocks[k + t.SIZE]


def _check_tiling(segment: list[list[int]]) -> None:
    for before, after in itertools.pairwise(segment):
        assert before[t.ADDRESS] + before[t.SIZE] == after[t.ADDRESS]
        assert not (before[t.STATE] == t.FREE and after[t.STATE] == t.FREE), "unmerged neighbours"
        assert all(before[f] == after[f] for f in (t.STREAM, t.AGE, t.POOL))
    for row in segment:
        assert row[t.STATE] in (t.FREE, t.ALLOCATED)
        assert row[t.SIZE] > 0 and row[t.SIZE] % 512 == 0
        assert row[t.STATE] == t.FREE or row[t.REQUESTED] <= row[t.SIZE]


def _check_disjoint(segments: list[list[list[int]]]) -> None:
    ends = 0
    for segment in segments:
        assert segment[0][t.ADDRESS] >= ends
        ends = segment[-1][t.ADDRESS] + segment[-1][t.SIZE]


def _check_free_set(allocator: CachingAllocator, pool: int, blocks: list[list[int]]) -> None:
    b = allocator.tables.blocks
    found: list[tuple[int, ...]] = []

    def walk(k: int, bound: int) -> None:
        if k:
            assert b[k + t.PRIORITY] <= bound, "a child above its parent"
            walk(b[k + t.LEFT], b[k + t.PRIORITY])
            found.append(tuple(b[k + f] for f in (t.STREAM, t.SIZE, t.AGE, t.ADDRESS)))
            walk(b[k + t.RIGHT], b[k + t.PRIORITY])

    walk(b[t.root_of(pool)], 1 << 63)
    free = [row for row in blocks if row[t.STATE] == t.FREE and row[t.POOL] == pool]
    assert found == sorted(tuple(row[: t.ADDRESS + 1]) for row in free)


def _check_index(allocator: CachingAllocator, used: list[list[int]]) -> None:
    tables = allocator.tables
    for row in used:
        k = find(tables.header, tables.blocks, tables.index, row[t.ADDRESS])
        assert tables.blocks[k + t.SIZE] == row[t.SIZE]
    chained = 0
    for head in tables.index:
        while head:
            chained += 1
            head = tables.blocks[head + t.CHAIN]
    assert chained == len(used)


def _check_rows(allocator: CachingAllocator, blocks: int) -> None:
    tables = allocator.tables
    spare, k = 0, tables.header[t.SPARE_HEAD]
    while k:
        spare += 1
        assert tables.blocks[k + t.STATE] == t.UNUSED
        k = tables.blocks[k + t.NEXT]
    assert spare == tables.header[t.SPARE_ROWS]
    assert spare + blocks + 1 + t.POOLS == len(tables.rows())


def _check_stats(allocator: CachingAllocator, segments: list[list[list[int]]]) -> None:
    stats = allocator.stats()
    for pool, name in ((t.SMALL, "small_pool"), (t.LARGE, "large_pool"), (None, "all")):
        ours = [s for s in segments if pool in (None, s[0][t.POOL])]
        rows = [row for segment in ours for row in segment]
        used = [row for row in rows if row[t.STATE] == t.ALLOCATED]
        split = [r for s in ours for r in s if len(s) > 1 and r[t.STATE] == t.FREE]
        expected = {
            "allocation": len(used),
            "active": len(used),
            "segment": len(ours),
            "inactive_split": len(split),
            "allocated_bytes": sum(row[t.SIZE] for row in used),
            "active_bytes": sum(row[t.SIZE] for row in used),
            "reserved_bytes": sum(row[t.SIZE] for row in rows),
            "inactive_split_bytes": sum(row[t.SIZE] for row in split),
            "requested_bytes": sum(row[t.REQUESTED] for row in used),
        }
        assert {key: stats[f"{key}.{name}.current"] for key in expected} == expected
        for key in expected:
            current, peak, came, went = (
                stats[f"{key}.{name}.{field}"]
                for field in ("current", "peak", "allocated", "freed")
            )
            assert current == came - went and peak >= current
    by_category = np.zeros(categories.COUNT, np.int64)
    for segment in segments:
        for row in segment:
            if row[t.STATE] == t.ALLOCATED:
                by_category[row[t.CATEGORY]] += row[t.REQUESTED]
    assert list(allocator.category_bytes().values()) == by_category.tolist()
    assert sum(allocator.attribution().values()) == allocator.reserved_bytes
