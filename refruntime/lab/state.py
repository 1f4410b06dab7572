"""The allocator in the middle of a replay: its segments, and the blocks in them.

State
-----
None: `state_at` replays up to a step and reads the tables.

Invariants
----------
* The blocks of a segment tile it, in the order of their addresses.
* A block in use knows which allocation of the list it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from refruntime.alloc import replay_loop as loop
from refruntime.alloc import snapshot
from refruntime.alloc import tables as t
from refruntime.alloc.replayer import Replayer
from refruntime.lab import events as ev
from refruntime.lab.events import EventList
from refruntime.lab.replay import encoded

FREE: Final = "inactive"
PENDING: Final = "active_pending_free"
NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Block:
    """A span of a segment.

    Attributes
    ----------
    address, size, requested : int
        Where, its bytes, and the bytes asked for (0 where it is free).
    state : str
        As in a snapshot.
    id : int
        The allocation of the list, or `NOBODY`.
    """

    address: int
    size: int
    requested: int
    state: str
    id: int

    @property
    def is_free(self) -> bool:
        """Whether a request could get it."""
        return self.state == FREE


@dataclass(frozen=True, slots=True)
class Segment:
    """What the upstream gave in one piece, or a mapped range of an expandable segment."""

    address: int
    size: int
    stream: int
    is_small: bool
    is_private: bool
    is_expandable: bool
    blocks: tuple[Block, ...]

    @property
    def free_bytes(self) -> int:
        """The bytes of its free blocks."""
        return sum(block.size for block in self.blocks if block.is_free)

    @property
    def is_free(self) -> bool:
        """Whether nothing in it is in use."""
        return all(block.is_free for block in self.blocks)


def state_at(events: EventList, step: int) -> list[Segment]:
    """Return the segments before an operation of a list, by address.

    Parameters
    ----------
    events : EventList
        The list, with the settings and the device that it is replayed under.
    step : int
        The operation.
    """
    replayer = Replayer(
        encoded(events), results=True, log=False, trace=False, manual_events=events.manual_events
    )
    replayer.state[loop.COUNT] = step
    replayer.run()
    owners = _owners(events, replayer, step)
    tables = replayer.tables
    return [_segment(tables, blocks, owners) for blocks in snapshot.segments_of(tables)]


def _owners(events: EventList, replayer: Replayer, step: int) -> dict[int, int]:
    """Return the latest allocation at each address."""
    asked = np.flatnonzero(events.op[:step] == ev.ALLOC)
    addresses = replayer.results[asked, 0]
    return dict(zip(addresses.tolist(), events.id[asked].tolist()))


def _segment(tables: t.Tables, rows: list[snapshot.Block], owners: dict[int, int]) -> Segment:
    shape = snapshot.shape_of(tables, rows)
    return Segment(
        address=shape["address"],
        size=shape["total_size"],
        stream=shape["stream"],
        is_small=shape["segment_type"] == "small",
        is_private=shape["segment_pool_id"] != (0, 0),
        is_expandable=shape["is_expandable"],
        blocks=tuple(_block(row, owners) for _, row in rows),
    )


def _block(row: list[int], owners: dict[int, int]) -> Block:
    state = snapshot.STATES[row[t.STATE]]
    used = state != FREE
    return Block(
        address=row[t.ADDRESS],
        size=row[t.SIZE],
        requested=row[t.REQUESTED] if used else 0,
        state=state,
        id=owners.get(row[t.ADDRESS], NOBODY) if used else NOBODY,
    )
