"""Placement: giving out a block at an address of the caller's choice, and moving one there.

The policy never asks for a certain place; compaction does. All rules are those of `blocks`, so the
tables, the statistics and the trace are what they would be if the policy had chosen the place.

State
-----
None of its own: `h` is the header, `b` the blocks (see `tables`). Interpreted only.

Invariants
----------
* A block is placed inside one free block; what is left of that on either side stays free.
* A move ends with the bytes at one place or at the other, whatever is raised in its middle.
* A move changes neither category, nor the bytes asked for, nor the stack that asked for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime.alloc import sizes
from refruntime.alloc.blocks import hand_out, new_neighbour
from refruntime.alloc.counters import increase
from refruntime.alloc.entries import give
from refruntime.alloc.free_set import insert_free, is_split, remove_free
from refruntime.alloc.rows import enter_index, find
from refruntime.alloc.tables import (
    ADDRESS,
    CATEGORY,
    CONTEXT,
    EXPANDABLE_SEGMENT,
    FREE,
    INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES,
    IS_LARGE,
    POOL,
    PREVIOUS,
    REQUESTED,
    ROW,
    SIZE,
    STATE,
    STREAM,
    USES,
    Tables,
)
from refruntime.errors import ArgumentValueError


def move(tables: Tables, source: int, target: int, carry: Callable[[], object]) -> None:
    """Move the block in use at `source` into free memory at `target`.

    The caller is inside the guard, and has made sure of room for one call.

    Parameters
    ----------
    tables : Tables
        Of the allocator.
    source, target : int
        Addresses, `target` in a free block of the same pool and stream.
    carry : callable
        Copies the bytes and tells their owner. If it raises, the block stays where it was.

    Raises
    ------
    ArgumentValueError
        If there is no such block, if other streams use it, or if the place is not free.
    """
    header, blocks = tables.header, tables.blocks
    k = find(header, blocks, source)
    if k == 0 or blocks[k + USES] != 0:
        raise ArgumentValueError(
            "move", expected="the address of a block in use on one stream", got=f"{source:#x}"
        )
    size = needed_size(header, blocks, k)
    room = free_block_around(tables, target, size)
    if room == 0 or any(blocks[room + word] != blocks[k + word] for word in (POOL, STREAM)):
        raise ArgumentValueError(
            "move",
            expected=f"{size} free bytes of the block's own pool and stream",
            got=f"{target:#x}",
        )
    asked = header[CONTEXT]
    header[CONTEXT] = int(tables.contexts()[k // ROW, 0])
    place(header, blocks, room, target, size, blocks[k + REQUESTED], blocks[k + CATEGORY])
    header[CONTEXT] = asked
    try:
        carry()
    except BaseException:
        give(header, blocks, target)
        raise
    give(header, blocks, source)


def needed_size(header: Any, blocks: Any, k: int) -> int:
    """Return the bytes that the block in use `k` must have at another place."""
    # The settings that rounded it may have changed; it never needs more than it has.
    return int(min(sizes.round_size(header, blocks[k + REQUESTED]), blocks[k + SIZE]))


def free_block_around(tables: Tables, address: int, size: int) -> int:
    """Return the free block that ``[address, address + size)`` lies in, or 0."""
    rows = tables.rows()
    begins = (rows[:, STATE] == FREE) & (rows[:, ADDRESS] <= address)
    (found,) = (begins & (rows[:, ADDRESS] + rows[:, SIZE] >= address + size)).nonzero()
    return int(found[0]) * ROW if len(found) else 0


def place(h: Any, b: Any, k: int, address: int, size: int, nbytes: int, category: int) -> int:
    """Give out ``[address, address + size)`` of free block `k`; return the block in use there."""
    was_split, whole = is_split(b, k), b[k + SIZE]
    front = address - b[k + ADDRESS]
    remove_free(b, k)
    if front > 0:
        insert_free(b, new_neighbour(h, b, k, b[k + ADDRESS], front, PREVIOUS))
        b[k + ADDRESS] = address
        b[k + SIZE] -= front
    k = hand_out(h, b, k, size, nbytes, category, b[k + SIZE] > size)
    if front > 0 and b[k + EXPANDABLE_SEGMENT] == 0:
        _count_front(h, b[b[k + POOL] + IS_LARGE], was_split, whole)
    enter_index(h, b, k)
    return int(k)


def _count_front(h: Any, large: int, was_split: bool, whole: int) -> None:
    """Count the free block below a placed one.

    `hand_out` found block `k` with a neighbour, and took it for one that was counted as split.
    """
    increase(h, INACTIVE_SPLIT + large, 1 if was_split else 2)
    if not was_split:
        increase(h, INACTIVE_SPLIT_BYTES + large, whole)
