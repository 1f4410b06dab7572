"""The flat tables in which the allocator's state lives, and their growth.

State
-----
Three int64 arrays. The *header* holds counters, the request in flight and the addresses of the
others. The *blocks* table holds one row a block, free or in use; a block is named by the offset of
its row (a multiple of `ROW`), and zero names none. The *index* maps addresses to blocks in use: a
hash table whose chains run through the rows.

Invariants
----------
* The first row is never used; the next `POOLS` rows are the roots of the free sets (field LEFT).
* The eight fields that a search in a free set reads fill one cache line.
* The index has one bucket a row, so its chains stay short.
* PRIORITY is set when a row is made and never changes: it shapes the free sets (see `core`).
* The header never moves; the other arrays move only in `grow`, between two calls of the core.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from refruntime._native import device_function
from refruntime.alloc import categories

Words = np.ndarray[Any, np.dtype[np.int64]]

# --- header -----------------------------------------------------------------------------------
GATE: Final = 0  # zero: compiled calls may run; else a sum of BUSY and RECORDING
BLOCKS: Final = 1  # address of the blocks table
INDEX: Final = 2  # address of the index
INDEX_SHIFT: Final = 3  # how far a hash is shifted to make a bucket number
SPARE_ROWS: Final = 4  # how many rows are unused
SPARE_HEAD: Final = 5  # the first unused row; NEXT leads on
SEGMENT_COUNT: Final = 6  # segments ever made; the number of the next
PHASE: Final = 7  # where the request in flight stands
REQUEST_BYTES: Final = 8  # the request in flight: as asked,
REQUEST_SIZE: Final = 9  # rounded,
REQUEST_STREAM: Final = 10
REQUEST_CATEGORY: Final = 11
OUTSIDE_ADDRESS: Final = 12  # what the outside is asked to do: the span
OUTSIDE_SIZE: Final = 13
OUTSIDE_STREAM: Final = 14
RELEASING: Final = 15  # the block whose segment the outside is releasing, or zero
NUM_ALLOC_RETRIES: Final = 16
NUM_OOMS: Final = 17
NUM_SYNC_ALL_STREAMS: Final = 18
NUM_DEVICE_ALLOC: Final = 19
NUM_DEVICE_FREE: Final = 20
CATEGORY_COUNT: Final = 8
CATEGORY_BYTES: Final = 24  # requested bytes in use, one word a category
STATS: Final = CATEGORY_BYTES + CATEGORY_COUNT  # eight words a statistic, see below

BUSY: Final = 1
RECORDING: Final = 2

# Words of one statistic. "all" needs no current or total of its own, but a peak of its own.
CURRENT: Final = 0  # + pool
TOTAL: Final = 2  # + pool: sum of all increases
PEAK: Final = 4  # + pool
PEAK_ALL: Final = 6
STAT_WORDS: Final = 8

ALLOCATION: Final = STATS
SEGMENT: Final = STATS + 8
ACTIVE: Final = STATS + 16
INACTIVE_SPLIT: Final = STATS + 24
ALLOCATED_BYTES: Final = STATS + 32
RESERVED_BYTES: Final = STATS + 40
ACTIVE_BYTES: Final = STATS + 48
INACTIVE_SPLIT_BYTES: Final = STATS + 56
REQUESTED_BYTES: Final = STATS + 64
HEADER_WORDS: Final = STATS + 72

STATISTICS: Final[dict[str, int]] = {
    "allocation": ALLOCATION,
    "segment": SEGMENT,
    "active": ACTIVE,
    "inactive_split": INACTIVE_SPLIT,
    "allocated_bytes": ALLOCATED_BYTES,
    "reserved_bytes": RESERVED_BYTES,
    "active_bytes": ACTIVE_BYTES,
    "inactive_split_bytes": INACTIVE_SPLIT_BYTES,
    "requested_bytes": REQUESTED_BYTES,
}

# --- a row of the blocks table ----------------------------------------------------------------
STREAM: Final = 0
SIZE: Final = 1
AGE: Final = 2  # number of the block's segment: older segments have lower ones
ADDRESS: Final = 3
LEFT: Final = 4
RIGHT: Final = 5
PRIORITY: Final = 6
POOL: Final = 7
STATE: Final = 8
REQUESTED: Final = 9  # bytes asked for by the last user
PREVIOUS: Final = 10  # neighbours in the segment, by address; the two fields stand side by side
NEXT: Final = 11
CATEGORY: Final = 12
CHAIN: Final = 13  # next block in the same bucket of the index
ROW: Final = 16

SMALL: Final = 0
LARGE: Final = 1
POOLS: Final = 2

UNUSED: Final = 0
FREE: Final = 1
ALLOCATED: Final = 2
LEAVING: Final = 3  # taken out of its free set while the outside releases the segment

assert CATEGORY_COUNT == categories.COUNT

# Multiplicative hashing of addresses in units of 512 bytes; both twins of the core compute modulo
# 2**63, which Python integers and wrapping machine words agree on.
HASH_FACTOR: Final = 0x4F1BBCDCBFA53E0B
HASH_MASK: Final = (1 << 63) - 1

# The two functions stand here, and not in `core`, so that machine code which has this module's
# constants baked in is stamped with this file.


@device_function
def root_of(pool):  # type: ignore[no-untyped-def]
    """Return the place of the word that names the root of a pool's free set."""
    return (1 + pool) * ROW + LEFT


@device_function
def bucket(h, address):  # type: ignore[no-untyped-def]
    """Return the bucket of an address in the index."""
    return (((address >> 9) * HASH_FACTOR) & HASH_MASK) >> h[INDEX_SHIFT]


_FIRST_ROWS: Final = 256
_CACHE_LINE: Final = 64


class Tables:
    """The arrays of one allocator, and views of them for interpreted and compiled code.

    Attributes
    ----------
    header, blocks, index : memoryview
        What the interpreted core works on: indexing gives Python integers.
    address : int
        Where the header is, for the compiled core.
    """

    def __init__(self) -> None:
        self._header = _aligned_zeros(HEADER_WORDS)
        self._blocks = _aligned_zeros(0)
        self._index = _aligned_zeros(0)
        self.header = self._header.data
        self.address = int(self._header.ctypes.data)
        self._resize(_FIRST_ROWS)

    def grow(self) -> None:
        """Make room for four times as many blocks."""
        self._resize(4 * (len(self._blocks) // ROW))

    def rows(self) -> Words:
        """Return the blocks table with one row a block (a view)."""
        return self._blocks.reshape(-1, ROW)

    def _resize(self, rows: int) -> None:
        old = len(self._blocks)
        blocks = _aligned_zeros(rows * ROW)
        blocks[:old] = self._blocks
        self._blocks = blocks
        self._index = _aligned_zeros(rows)
        self.blocks, self.index = self._blocks.data, self._index.data
        self.header[BLOCKS] = int(self._blocks.ctypes.data)
        self.header[INDEX] = int(self._index.ctypes.data)
        self.header[INDEX_SHIFT] = 63 - (rows.bit_length() - 1)
        self._add_spare_rows(max(old // ROW, 1 + POOLS), rows)
        self._rebuild_index()

    def _add_spare_rows(self, start: int, stop: int) -> None:
        table = self.rows()
        numbers = np.arange(start, stop, dtype=np.int64)
        table[start:stop, PRIORITY] = _scrambled(numbers)
        table[start:stop, NEXT] = (numbers + 1) * ROW
        table[stop - 1, NEXT] = self.header[SPARE_HEAD]
        self.header[SPARE_HEAD] = start * ROW
        self.header[SPARE_ROWS] += stop - start

    def _rebuild_index(self) -> None:
        table = self.rows()
        live = np.flatnonzero(table[:, STATE] == ALLOCATED)
        buckets = buckets_of(table[live, ADDRESS], self.header[INDEX_SHIFT])
        order = np.argsort(buckets, kind="stable")
        live, buckets = live[order], buckets[order]
        same = np.append(buckets[1:] == buckets[:-1], False) if len(live) else np.zeros(0, bool)
        table[live, CHAIN] = np.where(same, np.roll(live, -1) * ROW, 0)
        first = np.flatnonzero(np.append(True, ~same[:-1])) if len(live) else np.zeros(0, np.int64)
        self._index[buckets[first]] = live[first] * ROW


def buckets_of(addresses: Words, shift: int) -> Words:
    """Return the bucket of each address, as `bucket` does for one."""
    mixed: Words = ((addresses >> 9) * np.int64(HASH_FACTOR) & np.int64(HASH_MASK)) >> shift
    return mixed


def _aligned_zeros(words: int) -> Words:
    """Return zeros that start at a cache line, so that no row's search fields straddle two."""
    padding = _CACHE_LINE // 8
    raw = np.zeros(words + padding, np.int64)
    start = -(raw.ctypes.data // 8) % padding
    return raw[start : start + words]


def _scrambled(numbers: Words) -> Words:
    """Return a fixed, well mixed number for each, which makes the free sets balanced trees."""
    with np.errstate(over="ignore"):
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (mixed >> np.uint64(2)).astype(np.int64)
