"""Counts everything in an allocator's tables anew, and checks it against what the core keeps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from refruntime.alloc import CachingAllocator, categories
from refruntime.alloc import tables as t
from refruntime.alloc.hash_order import COUNT, LIMIT_BUCKETS
from refruntime.alloc.pools import is_freeable
from refruntime.alloc.rows import find
from refruntime.alloc.tables import Tables, Words


class Live(NamedTuple):
    """What the test believes of a block in use."""

    nbytes: int
    stream: int
    category: int


def check(allocator: CachingAllocator, live: Mapping[int, Live]) -> None:
    """Assert every invariant of the tables, given the blocks that should be in use."""
    segments = list(_segments(allocator.tables))
    blocks = [row for segment in segments for row in segment]
    for segment in segments:
        _check_tiling(segment)
    _check_disjoint(segments)
    used = [row for row in blocks if row[t.STATE] == t.ALLOCATED]
    assert {
        row[t.ADDRESS]: Live(row[t.REQUESTED], row[t.STREAM], row[t.CATEGORY]) for row in used
    } == dict(live)
    for pool in _pools(allocator.tables):
        _check_set(allocator, pool, t.FREE, blocks)
        _check_set(allocator, pool, t.UNMAPPED, blocks)
    _check_index(allocator, used)
    _check_rows(allocator)
    _check_stats(allocator, segments)
    _check_private_pools(allocator.tables, blocks)
    assert allocator.tables.header[t.GATE] & t.BUSY == 0
    assert allocator.upstream.used == allocator.reserved_bytes


def size_of(allocator: CachingAllocator, address: int) -> int:
    """Return the size of the block in use at an address."""
    tables = allocator.tables
    k = find(tables.header, tables.blocks, address)
    assert k != 0
    return tables.blocks[k + t.SIZE]


def _segments(tables: Tables) -> Iterator[list[list[int]]]:
    """Yield the blocks of each segment, unmapped ones included, by address."""
    rows = tables.rows()
    kinds = (t.FREE, t.ALLOCATED, t.UNMAPPED, t.PENDING, t.DEFERRED)
    heads = np.flatnonzero(np.isin(rows[:, t.STATE], kinds) & (rows[:, t.PREVIOUS] == 0))
    for head in heads[np.argsort(rows[heads, t.ADDRESS])]:
        blocks = [rows[head].tolist()]
        while blocks[-1][t.NEXT]:
            blocks.append(rows[blocks[-1][t.NEXT] // t.ROW].tolist())
        yield blocks


def _pools(tables: Tables) -> Iterator[int]:
    yield from (t.SMALL, t.LARGE)
    owner = tables.header[t.FIRST_PRIVATE]
    while owner:
        yield from (tables.blocks[owner + t.SMALL_POOL], tables.blocks[owner + t.LARGE_POOL])
        owner = tables.blocks[owner + t.NEXT]


def _check_tiling(segment: list[list[int]]) -> None:
    for before, after in itertools.pairwise(segment):
        assert before[t.ADDRESS] + before[t.SIZE] == after[t.ADDRESS]
        if before[t.STATE] in (t.FREE, t.UNMAPPED):
            assert before[t.STATE] != after[t.STATE], "unmerged neighbours"
        assert all(before[f] == after[f] for f in (t.STREAM, t.AGE, t.POOL, t.EXPANDABLE_SEGMENT))
    for row in segment:
        assert row[t.SIZE] > 0 and row[t.SIZE] % 512 == 0
        assert row[t.STATE] != t.UNMAPPED or row[t.EXPANDABLE_SEGMENT]
        assert row[t.STATE] in (t.FREE, t.UNMAPPED) or row[t.REQUESTED] <= row[t.SIZE]


def _check_disjoint(segments: list[list[list[int]]]) -> None:
    ends = 0
    for segment in segments:
        assert segment[0][t.ADDRESS] >= ends
        ends = segment[-1][t.ADDRESS] + segment[-1][t.SIZE]


def _check_set(allocator: CachingAllocator, pool: int, state: int, blocks: list[list[int]]) -> None:
    """Assert that a set of a pool is a treap in order, and holds what it should."""
    b = allocator.tables.blocks
    found: list[tuple[int, ...]] = []
    fields = (t.STREAM, t.SIZE, t.AGE, t.ADDRESS) if state == t.FREE else (t.STREAM, t.ADDRESS)

    def walk(k: int, bound: int) -> None:
        if k:
            assert b[k + t.PRIORITY] <= bound, "a child above its parent"
            assert b[b[k + t.LINK]] == k, "a block that does not know its place"
            walk(b[k + t.LEFT], b[k + t.PRIORITY])
            found.append(tuple(b[k + field] for field in fields))
            walk(b[k + t.RIGHT], b[k + t.PRIORITY])

    walk(b[pool + (t.FREE_ROOT if state == t.FREE else t.UNMAPPED_ROOT)], 1 << 63)
    members = [row for row in blocks if row[t.STATE] == state and row[t.POOL] == pool]
    assert found == sorted(tuple(row[field] for field in fields) for row in members)


def _check_index(allocator: CachingAllocator, used: list[list[int]]) -> None:
    tables = allocator.tables
    for row in used:
        k = find(tables.header, tables.blocks, row[t.ADDRESS])
        assert tables.blocks[k + t.SIZE] == row[t.SIZE]
    chained = 0
    for head in tables.index:
        while head:
            chained += 1
            head = tables.blocks[head + t.CHAIN]
    assert chained == len(used)


def _check_rows(allocator: CachingAllocator) -> None:
    """Assert that every row is a block, spare, or of a kind that is counted elsewhere."""
    tables = allocator.tables
    rows = tables.rows()
    spare, k = 0, tables.header[t.SPARE_HEAD]
    while k:
        spare += 1
        assert tables.blocks[k + t.STATE] == t.UNUSED
        k = tables.blocks[k + t.NEXT]
    assert spare == tables.header[t.SPARE_ROWS]
    # Row 0 is no row, and looks unused.
    assert spare == int((rows[1:, t.STATE] == t.UNUSED).sum())
    assert _others(allocator.tables, rows) == int((rows[:, t.STATE] == t.OTHER).sum())


def _others(tables: Tables, rows: Words) -> int:
    """Count the rows that are no blocks, each from where it hangs."""
    count = 2 + tables.header[t.EXPANDABLE_COUNT]
    count += _chain(tables, tables.header[t.FIRST_DEFERRED])
    count += _chain(tables, tables.header[t.FIRST_RESERVED])
    count += 3 * _chain(tables, tables.header[t.FIRST_PRIVATE])
    for k in np.flatnonzero(np.isin(rows[:, t.STATE], (t.ALLOCATED, t.DEFERRED))):
        count += _chain(tables, int(rows[k, t.USES]))
    pending = np.isin(rows[:, t.STATE], (t.PENDING, t.DEFERRED))
    events = int(rows[pending, t.EVENTS_LEFT].sum())
    assert (events > 0) >= (tables.header[t.EVENT_QUEUES + COUNT] > 0)
    return count + events


def _chain(tables: Tables, row: int) -> int:
    length = 0
    while row:
        row = tables.blocks[row + t.NEXT]
        length += 1
    return length


def _check_stats(allocator: CachingAllocator, segments: list[list[list[int]]]) -> None:
    stats = allocator.stats()
    blocks = allocator.tables.blocks
    for large, name in ((0, "small_pool"), (1, "large_pool"), (None, "all")):
        ours = [s for s in segments if large in (None, blocks[s[0][t.POOL] + t.IS_LARGE])]
        rows = [row for s in ours for row in s if row[t.STATE] != t.UNMAPPED]
        used = [row for row in rows if row[t.STATE] == t.ALLOCATED]
        active = [row for row in rows if row[t.STATE] != t.FREE]
        fixed = [s for s in ours if not s[0][t.EXPANDABLE_SEGMENT]]
        split = [r for s in fixed for r in s if len(s) > 1 and r[t.STATE] == t.FREE]
        expected = {
            "allocation": len(used),
            "active": len(active),
            "segment": len(fixed),
            "inactive_split": len(split),
            "allocated_bytes": sum(row[t.SIZE] for row in used),
            "active_bytes": sum(row[t.SIZE] for row in active),
            "reserved_bytes": sum(row[t.SIZE] for row in rows),
            "inactive_split_bytes": sum(row[t.SIZE] for row in split),
            "requested_bytes": sum(row[t.REQUESTED] for row in active),
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


def _check_private_pools(tables: Tables, blocks: list[list[int]]) -> None:
    """Assert that a private pool counts its bytes, and is freeable exactly if nobody needs it."""
    header, b = tables.header, tables.blocks
    full = header[t.FREEABLE_POOLS + COUNT] + 1 >= header[t.FREEABLE_POOLS + LIMIT_BUCKETS]
    owner = header[t.FIRST_PRIVATE]
    while owner:
        row = b[owner + t.RESERVED_ROW]
        for pool in (b[owner + t.SMALL_POOL], b[owner + t.LARGE_POOL]):
            ours = [block for block in blocks if block[t.POOL] == pool]
            reserved = sum(block[t.SIZE] for block in ours if block[t.STATE] != t.UNMAPPED)
            assert b[row + t.CURRENT + b[pool + t.IS_LARGE]] == reserved
        needless = b[owner + t.USE_COUNT] == 0
        assert is_freeable(header, b, owner) == needless or (full and needless)
        owner = b[owner + t.NEXT]
