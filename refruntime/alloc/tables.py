"""The flat tables in which the allocator's state lives, and their growth.

State
-----
Int64 arrays. The *header* holds counters, settings, the queues of events and the addresses of the
others. The *blocks* table holds one row a thing, named by the offset of its row (a multiple of
`ROW`; zero names none): mostly blocks, free or in use, and a few rows of other kinds, whose fields
are listed below. The *index* maps addresses to blocks in use: a hash table whose chains run through
the rows. The *trace* is a ring of events, and *contexts* says which stack asked for each block.

Invariants
----------
* The first row is never used; `SMALL` and `LARGE` are the rows of the two default pools.
* The eight fields that a search in a free set reads fill one cache line.
* The index has one bucket a row, so its chains stay short.
* PRIORITY is set when a row is made and never changes: it shapes the free sets (see `free_set`).
* The header never moves; the other arrays move only in `grow`, between two calls of the core, which
  is given as many spare rows as it can need (`rows_needed`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from refruntime._native import device_function
from refruntime.alloc import categories
from refruntime.alloc.hash_order import LIMIT_BUCKETS, words_of_map

Words = np.ndarray[Any, np.dtype[np.int64]]

# --- header: the tables and the call in progress ----------------------------------------------
GATE: Final = 0  # zero: compiled calls may run; else a sum of the bits below
BLOCKS: Final = 1  # address of the blocks table
INDEX: Final = 2  # address of the index
INDEX_SHIFT: Final = 3  # how far a hash is shifted to make a bucket number
CONTEXTS: Final = 4  # address of the contexts, two words a row: of the block, of its segment
SPARE_ROWS: Final = 5  # how many rows are unused
SPARE_HEAD: Final = 6  # the first unused row; NEXT leads on
ROWS: Final = 7  # rows of the table
SEGMENT_COUNT: Final = 8  # segments ever made; the age of the next
EXPANDABLE_COUNT: Final = 9  # expandable segments alive
FIRST_PRIVATE: Final = 10  # the first private pool; NEXT leads on
CAPTURING: Final = 11  # whether the call in progress comes from inside the capture of a graph
FIRST_DEFERRED: Final = 12  # blocks freed during a capture whose events are still to be recorded
LAST_DEFERRED: Final = 13
FAILED_SIZE: Final = 14  # of the last request that failed: what was tried of the upstream,
FAILED_FREE: Final = 15  # and what the upstream had left
FIRST_RESERVED: Final = 16  # the first row of the reserved bytes of a private pool
CALLBACKS: Final = 17  # whether anybody can free memory when a search fails
POOLS_DROPPED: Final = 18  # private pools ever forgotten

# Bits of GATE
BUSY: Final = 1  # somebody is inside the guard
EVENTS: Final = 2  # blocks wait for events
ROUTED: Final = 4  # some requests go to private pools
AGEING: Final = 8  # garbage collection counts searches
RECORDING: Final = 16  # history is recorded

# --- header: the settings in force (see `settings`) -------------------------------------------
MAX_SPLIT: Final = 24  # bytes; UNLIMITED if unset
MAX_NON_SPLIT_ROUNDING: Final = 25
LARGE_SEGMENT: Final = 26
EXPANDABLE: Final = 27  # 0 or 1
LIMIT: Final = 28  # bytes that may be reserved, or -1
GC_THRESHOLD: Final = 29  # reserved bytes from which garbage is collected; 0: never
REJECT_ABOVE: Final = 30  # reserved bytes above which requests are refused unasked, or -1
REUSE_IN_CAPTURE: Final = 31  # 0 or 1: blocks freed in a capture may serve it again
MENDS: Final = 32  # a sum of the MEND_ bits
ADDRESS_BYTES: Final = 33  # addresses to reserve for an expandable segment
DIVISIONS: Final = 34  # 16 words: steps a power of two, for each interval from 1 MiB on
DIVISION_COUNT: Final = 16

UNLIMITED: Final = (1 << 63) - 1

MEND_SEARCH_AFTER_SYNC: Final = 1
MEND_REJECTION_RELEASES_CACHE: Final = 2
MEND_GC_WITHOUT_FRACTION: Final = 4
MEND_EXPANDABLE_MAX_SPLIT: Final = 8

# --- header: the trace ------------------------------------------------------------------------
TRACE: Final = 50  # address of the ring, or 0: nothing is recorded
TRACE_CAPACITY: Final = 51  # in entries
TRACE_COUNT: Final = 52  # entries ever written
TRACE_BOUNDED: Final = 53  # whether the oldest entries may be overwritten
NOW: Final = 54  # what the entries of this call get as their time
CONTEXT: Final = 55  # and as the stack that asked for them
STACKS: Final = 57  # address of the table of known stacks, or 0 (see `native_stack`)
STACK_SLOTS: Final = 58
KEEPS_CONTEXTS: Final = 56  # whether the contexts of blocks are kept up to date

# Words of an entry
ACTION: Final = 0
ENTRY_ADDRESS: Final = 1
ENTRY_SIZE: Final = 2
ENTRY_STREAM: Final = 3
ENTRY_TIME: Final = 4
ENTRY_CONTEXT: Final = 5
ENTRY_POOL: Final = 6  # the two numbers of the private pool's name, 32 bits each; or 0
ENTRY_CATEGORY: Final = 7
ENTRY_WORDS: Final = 8

# --- header: counters -------------------------------------------------------------------------
NUM_ALLOC_RETRIES: Final = 60
NUM_OOMS: Final = 61
NUM_SYNC_ALL_STREAMS: Final = 62
NUM_DEVICE_ALLOC: Final = 63
NUM_DEVICE_FREE: Final = 64
NUM_OOM_REJECTIONS: Final = 65
CATEGORY_COUNT: Final = 8
CATEGORY_BYTES: Final = 68  # requested bytes in use, one word a category
STATS: Final = CATEGORY_BYTES + CATEGORY_COUNT  # eight words a statistic, see below

# Words of one statistic. "all" needs no current or total of its own, but a peak of its own.
CURRENT: Final = 0  # + 0 for small, 1 for large
TOTAL: Final = 2  # + 0 or 1: sum of all increases
PEAK: Final = 4  # + 0 or 1
PEAK_ALL: Final = 6
STAT_WORDS: Final = 8
STAT_COUNT: Final = 11

ALLOCATION: Final = STATS
SEGMENT_STAT: Final = STATS + 8
ACTIVE: Final = STATS + 16
INACTIVE_SPLIT: Final = STATS + 24
ALLOCATED_BYTES: Final = STATS + 32
RESERVED_BYTES: Final = STATS + 40
ACTIVE_BYTES: Final = STATS + 48
INACTIVE_SPLIT_BYTES: Final = STATS + 56
REQUESTED_BYTES: Final = STATS + 64
OVERSIZE_ALLOCATIONS: Final = STATS + 72  # these two do not tell the pools apart
OVERSIZE_SEGMENTS: Final = STATS + 80

STATISTICS: Final[dict[str, int]] = {
    "allocation": ALLOCATION,
    "segment": SEGMENT_STAT,
    "active": ACTIVE,
    "inactive_split": INACTIVE_SPLIT,
    "allocated_bytes": ALLOCATED_BYTES,
    "reserved_bytes": RESERVED_BYTES,
    "active_bytes": ACTIVE_BYTES,
    "inactive_split_bytes": INACTIVE_SPLIT_BYTES,
    "requested_bytes": REQUESTED_BYTES,
}
OVERSIZE: Final[dict[str, int]] = {
    "oversize_allocations": OVERSIZE_ALLOCATIONS,
    "oversize_segments": OVERSIZE_SEGMENTS,
}

# --- header: ordered maps with few keys (see `hash_order`) ------------------------------------
EVENT_QUEUES: Final = STATS + STAT_COUNT * STAT_WORDS  # by stream: the events that blocks wait for
FREEABLE_POOLS: Final = EVENT_QUEUES + words_of_map(1024)  # private pools that nobody needs
HELPING_POOLS: Final = FREEABLE_POOLS + words_of_map(256)  # those that are USE_ON_OOM
STREAM_USES: Final = HELPING_POOLS + words_of_map(256)  # scratch: the streams of one block
HEADER_WORDS: Final = STREAM_USES + words_of_map(256)
MAPS: Final = (
    (EVENT_QUEUES, 1024), (FREEABLE_POOLS, 256), (HELPING_POOLS, 256), (STREAM_USES, 256),
)  # fmt: skip

# --- a row of the blocks table: a block -------------------------------------------------------
STREAM: Final = 0
SIZE: Final = 1
AGE: Final = 2  # number of the block's segment: older segments have lower ones
ADDRESS: Final = 3
LEFT: Final = 4
RIGHT: Final = 5
PRIORITY: Final = 6
LINK: Final = 7  # free or unmapped: the word that names this row in its set
CATEGORY: Final = 7  # in use, deferred or pending
STATE: Final = 8
REQUESTED: Final = 9  # bytes asked for by the last user
PREVIOUS: Final = 10  # neighbours in the segment, by address; the two fields stand side by side
NEXT: Final = 11
POOL: Final = 12
CHAIN: Final = 13  # in use: next block in the same bucket of the index
INSERTED: Final = 13  # free: the pool's count of searches when it came into the free set
EVENTS_LEFT: Final = 13  # deferred or pending: events that have not passed
USES: Final = 14  # in use or deferred: first row of the streams that used it
EXPANDABLE_SEGMENT: Final = 15  # the row of the expandable segment it lies in, or 0
ROW: Final = 16

# --- a row: a pool of free blocks -------------------------------------------------------------
FREE_ROOT: Final = LEFT
UNMAPPED_ROOT: Final = RIGHT
IS_LARGE: Final = 0  # 0 or 1: which word of a statistic
OWNER: Final = 1  # the private pool it belongs to, or 0
SEARCHES: Final = 2  # searches so far, counted while garbage is collected

# --- a row: a private pool (NEXT leads to the next one) ----------------------------------------
ID_FIRST: Final = 0  # the two numbers of its name
ID_SECOND: Final = 1
USE_COUNT: Final = 2  # graphs and MemPools that need it
MALLOC_COUNT: Final = 3  # segments it has from the upstream
SMALL_POOL: Final = 4
LARGE_POOL: Final = 5
RESERVED_ROW: Final = 7  # row that holds its statistic of reserved bytes
FLAGS: Final = 12  # a sum of the bits below
UPSTREAM: Final = 13  # number of its own upstream, or 0
NO_SPLIT: Final = 1
USE_ON_OOM: Final = 2

# --- a row: the reserved bytes of a private pool, which outlive the pool: CURRENT, TOTAL and PEAK
# as in the header, NEXT leads to the next such row, and
PRIVATE_PEAK_ALL: Final = 7  # (word 6 is PRIORITY)
NAME_FIRST: Final = 12  # the name of the pool
NAME_SECOND: Final = 13

# --- a row: an expandable segment (ADDRESS, SIZE and STREAM as for a block) ---------------------
PAGE: Final = 2  # bytes of a page

# --- a row: a stream that used a block, an event that a block waits for, a deferred block -------
USE_STREAM: Final = 0
USE_CAPTURED: Final = 1  # whether it was recorded during a capture
EVENT: Final = 0
EVENT_BLOCK: Final = 1  # also of a deferred block
MARKED: Final = 0  # whether the outside knows which work of the capture is the block's last

SMALL: Final = ROW
LARGE: Final = 2 * ROW
FIRST_FREE_ROW: Final = 3

# States of a row
UNUSED: Final = 0
FREE: Final = 1
ALLOCATED: Final = 2
UNMAPPED: Final = 3  # addresses without memory, in an expandable segment
PENDING: Final = 4  # freed, but streams may still use it: waits for events
DEFERRED: Final = 5  # freed during a capture: waits for its end
OTHER: Final = 6  # no block

assert CATEGORY_COUNT == categories.COUNT

# Multiplicative hashing of addresses in units of 512 bytes; both twins of the core compute modulo
# 2**63, which Python integers and wrapping machine words agree on.
HASH_FACTOR: Final = 0x4F1BBCDCBFA53E0B
HASH_MASK: Final = (1 << 63) - 1
_CALL_ROWS: Final = 64


@device_function
def bucket(h, address):  # type: ignore[no-untyped-def]
    """Return the bucket of an address in the index."""
    return (((address >> 9) * HASH_FACTOR) & HASH_MASK) >> h[INDEX_SHIFT]


@device_function
def rows_needed(h):  # type: ignore[no-untyped-def]
    """Return how many spare rows, and half as many entries of the trace, a call can need at most.

    A call that releases or maps pages cuts each free block in at most three.
    """
    live = h[ROWS] - h[SPARE_ROWS]
    return _CALL_ROWS + (2 * live if h[EXPANDABLE_COUNT] + h[EXPANDABLE] > 0 else 0)


@device_function
def entries_needed(h):  # type: ignore[no-untyped-def]
    """Return how many entries a call can write into the trace at most."""
    return _CALL_ROWS + 2 * (h[ROWS] - h[SPARE_ROWS])


@device_function
def is_roomy(h):  # type: ignore[no-untyped-def]
    """Return whether the tables have room for any one call."""
    if h[SPARE_ROWS] < rows_needed(h):
        return False
    if h[TRACE] == 0 or h[TRACE_BOUNDED]:
        return True
    return h[TRACE_CAPACITY] - h[TRACE_COUNT] >= entries_needed(h)


_FIRST_ROWS: Final = 256
_FIRST_ENTRIES: Final = 1024
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
        self._contexts = _aligned_zeros(0)
        self._trace = np.zeros((0, ENTRY_WORDS), np.int64)
        self._bounded = False
        self.header = self._header.data
        self.address = int(self._header.ctypes.data)
        self._resize(_FIRST_ROWS)
        self._make_default_pools()
        self.header[MAX_SPLIT] = UNLIMITED
        self.header[LIMIT] = -1
        for place, buckets in MAPS:
            self.header[place + LIMIT_BUCKETS] = buckets

    def _make_default_pools(self) -> None:
        for large, pool in enumerate((SMALL, LARGE)):
            self.blocks[pool + STATE] = OTHER
            self.blocks[pool + IS_LARGE] = large

    def make_room(self) -> None:
        """Grow until any one call has room."""
        while self.header[SPARE_ROWS] < rows_needed(self.header):
            self.grow()
        while self.header[TRACE] and not is_roomy(self.header):
            self._resize_trace(2 * len(self._trace))

    # --- the trace ----------------------------------------------------------------------------

    def start_trace(self, capacity: int | None = None) -> None:
        """Record from now on, and keep only the last `capacity` entries if it is given."""
        self._bounded = capacity is not None
        self._trace = np.zeros((capacity or _FIRST_ENTRIES, ENTRY_WORDS), np.int64)
        self._contexts[:] = 0
        self.header[TRACE_COUNT] = 0
        self.header[KEEPS_CONTEXTS] = 1
        self.header[GATE] |= RECORDING
        self._point_at_trace()

    def stop_trace(self) -> None:
        """Record no more; what was recorded stays readable."""
        self.header[TRACE] = 0
        self.header[CONTEXT] = 0
        self.header[GATE] &= ~RECORDING

    def trace_entries(self) -> Words:
        """Return the entries in order, oldest first (a copy)."""
        count, capacity = self.header[TRACE_COUNT], len(self._trace)
        if count <= capacity:
            return self._trace[:count].copy()
        return np.roll(self._trace, -(count % capacity), axis=0)

    def _resize_trace(self, capacity: int) -> None:
        entries = self.trace_entries()
        self._trace = np.zeros((capacity, ENTRY_WORDS), np.int64)
        self._trace[: len(entries)] = entries
        self._point_at_trace()

    def _point_at_trace(self) -> None:
        self.header[TRACE] = int(self._trace.ctypes.data)
        self.header[TRACE_CAPACITY] = len(self._trace)
        self.header[TRACE_BOUNDED] = self._bounded

    def grow(self) -> None:
        """Make room for four times as many blocks."""
        self._resize(4 * (len(self._blocks) // ROW))

    def rows(self) -> Words:
        """Return the blocks table with one row a block (a view)."""
        return self._blocks.reshape(-1, ROW)

    def contexts(self) -> Words:
        """Return the contexts of each row: of its block and of its segment (a view)."""
        return self._contexts.reshape(-1, 2)

    def _resize(self, rows: int) -> None:
        old = len(self._blocks)
        self._blocks = _extended(self._blocks, rows * ROW)
        self._contexts = _extended(self._contexts, rows * 2)
        self._index = _aligned_zeros(rows)
        self.blocks, self.index = self._blocks.data, self._index.data
        header = self.header
        header[BLOCKS] = int(self._blocks.ctypes.data)
        header[INDEX] = int(self._index.ctypes.data)
        header[CONTEXTS] = int(self._contexts.ctypes.data)
        header[INDEX_SHIFT] = 63 - (rows.bit_length() - 1)
        header[ROWS] = rows
        self._add_spare_rows(max(old // ROW, FIRST_FREE_ROW), rows)
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


def _extended(words: Words, length: int) -> Words:
    longer = _aligned_zeros(length)
    longer[: len(words)] = words
    return longer


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
