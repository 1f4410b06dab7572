"""The heap as records: what is in use, what is free, and why a block must stay where it is.

State
-----
None: a heap is read from the tables while nothing changes them, or from a snapshot, and is a value
from then on.

Invariants
----------
* Segments are sorted by address, and their blocks tile them; an expandable segment is one record
  for each range that has memory.
* `stays` is empty for a free block and for one that can be moved.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from refruntime.alloc.placement import needed_size
from refruntime.alloc.sizes import DEFAULT_LARGE_SEGMENT, MIN_BLOCK, SMALL_SEGMENT, round_up
from refruntime.alloc.snapshot import Block as Row
from refruntime.alloc.snapshot import segments_of
from refruntime.alloc.tables import (
    ADDRESS,
    ALLOCATED,
    EXPANDABLE_SEGMENT,
    FREE,
    MAX_SPLIT,
    OWNER,
    PAGE,
    POOL,
    SIZE,
    STATE,
    STREAM,
    USE_COUNT,
    USES,
    Tables,
)

# Why a block stays.
EXPORTED: Final = "its address was given out"
EXTERNAL_VIEW: Final = "an array of another library shows it"
OTHER_STREAM: Final = "another stream uses it"
OVERSIZE: Final = "it is too large to be split"
PENDING: Final = "a stream may still use what was freed"
PRIVATE: Final = "it is in a private pool"
UNKNOWN: Final = "no tensor owns it"

# Says of the block in use at an address why it stays, or "" if it can be moved.
Reason = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes in use or free.

    Attributes
    ----------
    address, size : int
        Where it lies.
    needs : int
        The bytes that it must have at another place; 0 for a free block.
    stays : str
        Why it cannot be moved.
    """

    address: int
    size: int
    needs: int = 0
    stays: str = ""

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.address + self.size

    @property
    def is_free(self) -> bool:
        """Whether nobody uses it."""
        return self.needs == 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of the upstream, or a range with memory of an expandable segment.

    Attributes
    ----------
    pool : int
        The pool of free blocks to which it belongs; blocks move within a pool and stream only.
    page : int
        The bytes that can be given back by themselves, from `address` on; 0: only the whole.
    returns : bool
        Whether what is free goes back when the cache is emptied.
    takes : bool
        Whether its free blocks may be cut for others.
    """

    address: int
    size: int
    stream: int
    pool: int
    blocks: tuple[Block, ...]
    page: int = 0
    returns: bool = True
    takes: bool = True

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The ranges that can be given back by themselves, as addresses."""
        step = self.page or self.size
        end = self.address + self.size
        return [(start, start + step) for start in range(self.address, end, step)]


Heap = tuple[Segment, ...]


def read_heap(tables: Tables, reason: Reason) -> Heap:
    """Return the heap of an allocator; its caller keeps other calls out."""
    return tuple(_segment(tables, rows, reason) for rows in segments_of(tables))


def heap_of_snapshot(
    segments: Iterable[Mapping[str, Any]], movable: Container[int] | None = None
) -> Heap:
    """Return the heap that a snapshot shows.

    Parameters
    ----------
    segments : iterable of dict
        The segments of a snapshot, in PyTorch's schema.
    movable : container of int, optional
        The addresses of the blocks that could be moved; by default all that are in use, outside of
        private pools.
    """
    numbers: dict[Any, int] = {}
    found = []
    for segment in segments:
        private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        large = segment["segment_type"] == "large"
        key = large, tuple(segment.get("segment_pool_id", (0, 0)))
        blocks = tuple(_seen(block, private, movable) for block in placed(segment))
        page = DEFAULT_LARGE_SEGMENT if large else SMALL_SEGMENT
        found.append(
            Segment(
                address=segment["address"],
                size=segment["total_size"],
                stream=segment["stream"],
                pool=numbers.setdefault(key, len(numbers)),
                blocks=blocks,
                page=page if segment.get("is_expandable") else 0,
                returns=not private,
                takes=not private,
            )
        )
    return tuple(sorted(found, key=lambda segment: segment.address))


def placed(segment: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the blocks of a segment of a snapshot with addresses, which old versions leave out."""
    address = segment["address"]
    for block in segment["blocks"]:
        yield {"address": address, **block}
        address += block["size"]


def _seen(block: Mapping[str, Any], private: bool, movable: Container[int] | None) -> Block:
    address, size = block["address"], block["size"]
    if block["state"] == "inactive":
        return Block(address, size)
    if block["state"] != "active_allocated":
        return Block(address, size, size, PENDING)
    needs = min(size, round_up(max(block.get("requested_size", size), 1), MIN_BLOCK))
    if private:
        return Block(address, size, needs, PRIVATE)
    stays = movable is not None and address not in movable
    return Block(address, size, needs, UNKNOWN if stays else "")


def _segment(tables: Tables, rows: list[Row], reason: Reason) -> Segment:
    h, b = tables.header, tables.blocks
    blocks = tuple(_block(h, b, k, row, reason) for k, row in rows)
    k = rows[0][0]
    size = sum(block.size for block in blocks)
    owner, expandable = b[b[k + POOL] + OWNER], b[k + EXPANDABLE_SEGMENT]
    return Segment(
        address=blocks[0].address,
        size=size,
        stream=b[k + STREAM],
        pool=b[k + POOL],
        blocks=blocks,
        page=b[expandable + PAGE] if expandable else 0,
        returns=owner == 0 or b[owner + USE_COUNT] == 0,
        takes=owner == 0 and (expandable != 0 or size < h[MAX_SPLIT]),
    )


def _block(h: Any, b: Any, k: int, row: list[int], reason: Reason) -> Block:
    address, size = row[ADDRESS], row[SIZE]
    if row[STATE] == FREE:
        return Block(address, size)
    if row[STATE] != ALLOCATED:
        return Block(address, size, size, PENDING)
    return Block(address, size, needed_size(h, b, k), _why(h, b, row) or reason(address))


def _why(h: Any, b: Any, row: list[int]) -> str:
    """Return why a block in use stays, whoever owns it."""
    # The addresses in a private pool may stand in a captured graph, or be registered elsewhere.
    if b[row[POOL] + OWNER] != 0:
        return PRIVATE
    if row[USES] != 0:
        return OTHER_STREAM
    if row[EXPANDABLE_SEGMENT] == 0 and row[SIZE] >= h[MAX_SPLIT]:
        return OVERSIZE
    return ""
