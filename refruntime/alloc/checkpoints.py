"""Checkpoints of a private pool: which of its blocks are in use, to be brought back later.

State
-----
None: a `PoolState` is a value, and the blocks are in the tables.

Invariants
----------
* Bringing a state back changes blocks, never segments: what the pool has had since stays, free.
* It is checked before anything changes, and is done or not done.

The steps, and with them the trace and the statistics, are those of PyTorch's allocator: all blocks
of the pool are freed; then, segment by segment, all blocks of the state are given out, and those
that were free are freed again.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from refruntime.alloc.blocks import count_out, free_block, hand_out
from refruntime.alloc.free_set import remove_free
from refruntime.alloc.rows import enter_index, leave_index
from refruntime.alloc.tables import (
    ADDRESS,
    AGE,
    ALLOCATED,
    CATEGORY,
    DEFERRED,
    FREE,
    IS_LARGE,
    NEXT,
    OWNER,
    PENDING,
    POOL,
    PREVIOUS,
    ROW,
    SIZE,
    SPARE_ROWS,
    STATE,
    STREAM,
    UNMAPPED,
    USES,
    Tables,
)
from refruntime.errors import ArgumentValueError

PoolId = tuple[int, int]
_BLOCKS: Final = (FREE, ALLOCATED, UNMAPPED, PENDING, DEFERRED)


@dataclass(frozen=True, slots=True)
class BlockState:
    """A block as it was: where, how many bytes, what for, and whether it was in use."""

    address: int
    size: int
    category: int
    in_use: bool

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class PoolState:
    """The blocks of a private pool at a moment, segment by segment, each in order of address."""

    pool: PoolId
    segments: tuple[tuple[BlockState, ...], ...]

    @property
    def live(self) -> list[int]:
        """The addresses of the blocks that were in use."""
        return [block.address for blocks in self.segments for block in blocks if block.in_use]


def state_of(tables: Tables, pool: PoolId, owner: int) -> PoolState:
    """Return the state of a private pool, `owner` in the tables."""
    b = tables.blocks
    return PoolState(
        pool,
        tuple(
            tuple(
                BlockState(
                    b[k + ADDRESS],
                    b[k + SIZE],
                    b[k + CATEGORY] if b[k + STATE] == ALLOCATED else 0,
                    b[k + STATE] == ALLOCATED,
                )
                for k in _chain(tables, head)
                if b[k + STATE] != UNMAPPED
            )
            for head in _heads(tables, owner)
        ),
    )


def bring_back(tables: Tables, owner: int, state: PoolState, stale: Collection[int]) -> None:
    """Make the blocks of a private pool what they were.

    Raises
    ------
    ArgumentValueError
        If a block in use is not in `stale`, a block waits for streams, or memory is missing.
    """
    _check_blocks(tables, owner, set(stale))
    _check_memory(tables, owner, state)
    blocks = sum(map(len, state.segments))
    while tables.header[SPARE_ROWS] < 2 * blocks:
        tables.grow()
    for head in _heads(tables, owner):
        _free_chain(tables, head)
    for segment in state.segments:
        _rebuild(tables, segment)


def _heads(tables: Tables, owner: int) -> list[int]:
    """Return the first block of each segment of a private pool, in PyTorch's order.

    First come those that are in use, then free ones in the order of their sets. (PyTorch's order
    of those in use follows from where its heap put them; ours is that of the addresses.)
    """
    rows = tables.rows()
    first = np.isin(rows[:, STATE], _BLOCKS) & (rows[:, PREVIOUS] == 0)
    found = [k * ROW for k in np.flatnonzero(first).tolist()]
    ours = [k for k in found if _owner_of(tables, k) == owner]
    return sorted(ours, key=lambda k: _place(tables, k))


def _place(tables: Tables, k: int) -> tuple[int, ...]:
    """Return where a block that starts its segment stands among others."""
    b = tables.blocks
    if b[k + STATE] == FREE:
        large = b[b[k + POOL] + IS_LARGE]
        return 1, large, b[k + STREAM], b[k + SIZE], b[k + AGE], b[k + ADDRESS]
    return 2 * int(b[k + STATE] == UNMAPPED), b[k + ADDRESS]


def _owner_of(tables: Tables, k: int) -> int:
    """Return the private pool that a block belongs to, or 0."""
    return tables.blocks[tables.blocks[k + POOL] + OWNER]


def _chain(tables: Tables, k: int) -> Iterator[int]:
    """Yield the blocks of a segment from `k` on; each may be freed before the next is taken."""
    while k:
        yield k
        k = tables.blocks[k + NEXT]


def _check_blocks(tables: Tables, owner: int, stale: set[int]) -> None:
    b = tables.blocks
    for head in _heads(tables, owner):
        for k in _chain(tables, head):
            in_use = b[k + STATE] == ALLOCATED
            if b[k + STATE] in (PENDING, DEFERRED) or (in_use and b[k + USES]):
                raise ArgumentValueError(
                    "restore", expected="blocks that no other stream uses",
                    got=f"one at {b[k + ADDRESS]:#x}", remedy="synchronize first",
                )  # fmt: skip
            if in_use and b[k + ADDRESS] not in stale:
                raise ArgumentValueError(
                    "restore", expected="all blocks in use of the pool among the stale ones",
                    got=f"one at {b[k + ADDRESS]:#x} that is not",
                )  # fmt: skip


def _check_memory(tables: Tables, owner: int, state: PoolState) -> None:
    runs = sorted(_runs(tables, owner))
    for blocks in state.segments:
        for block in blocks:
            at = bisect.bisect_right(runs, (block.address, 1 << 63)) - 1
            if at < 0 or runs[at][1] < block.end:
                raise ArgumentValueError(
                    "restore", expected="the memory that the pool had",
                    got=f"none at {block.address:#x}",
                )  # fmt: skip


def _runs(tables: Tables, owner: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a private pool that have memory: start and end."""
    b = tables.blocks
    for head in _heads(tables, owner):
        start = end = 0
        for k in _chain(tables, head):
            if b[k + STATE] == UNMAPPED:
                continue
            if b[k + ADDRESS] != end:
                if end:
                    yield start, end
                start = b[k + ADDRESS]
            end = b[k + ADDRESS] + b[k + SIZE]
        if end:
            yield start, end


def _free_chain(tables: Tables, head: int) -> None:
    """Free the blocks in use of a segment."""
    k = head
    while k:
        b = tables.blocks
        if b[k + STATE] == ALLOCATED:
            _free(tables, k)
        k = b[k + NEXT]


def _free(tables: Tables, k: int) -> None:
    tables.make_room()
    header, blocks = tables.header, tables.blocks
    leave_index(header, blocks, k)
    count_out(header, blocks, k)
    free_block(header, blocks, k)


def _rebuild(tables: Tables, segment: tuple[BlockState, ...]) -> None:
    """Give out all blocks of a segment, then free those that were not in use."""
    idle = []
    for block in segment:
        k = _free_block_at(tables, block.address)
        before = block.address - tables.blocks[k + ADDRESS]
        if before:  # mapped since
            idle.append(_give_out(tables, k, BlockState(block.address - before, before, 0, False)))
            k = _free_block_at(tables, block.address)
        given = _give_out(tables, k, block)
        if not block.in_use:
            idle.append(given)
    for k in idle:
        _free(tables, k)


def _free_block_at(tables: Tables, address: int) -> int:
    """Return the free block that an address lies in."""
    rows = tables.rows()
    inside = (rows[:, ADDRESS] <= address) & (rows[:, ADDRESS] + rows[:, SIZE] > address)
    return int(np.flatnonzero(inside & (rows[:, STATE] == FREE))[0]) * ROW


def _give_out(tables: Tables, k: int, block: BlockState) -> int:
    tables.make_room()
    header, blocks = tables.header, tables.blocks
    remove_free(blocks, k)
    cut = blocks[k + SIZE] > block.size
    given: int = hand_out(header, blocks, k, block.size, block.size, block.category, cut)
    enter_index(header, blocks, given)
    return given
