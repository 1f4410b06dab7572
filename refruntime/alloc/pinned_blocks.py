"""The blocks of pinned memory, the lists they wait in, and the reserved segment.

State
-----
A `Block` is what the upstream gave at once, or a piece of the reserved segment. A `BlockPool` keeps
its free blocks by bucket, and the events that blocks wait for, oldest first.

Invariants
----------
* Block sizes in bucket b lie in ``(2**(b-1), 2**b]``.
* A block is in one state: in use, waiting (`waiting` events left), or free in one bucket.
* Blocks are never split and never merged.
* The reserved segment is handed out from low to high addresses, and nothing comes back to it.
"""

from __future__ import annotations

import enum
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from refruntime.alloc.pinned_upstream import PAGE

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


class Origin(enum.Enum):
    """How a block was got, which says how to give it back."""

    LOCKED = "page-locked by the driver when it was reserved"
    REGISTERED = "ordinary pages, registered"
    RESERVED = "part of the reserved segment"


@dataclass(slots=True, eq=False)
class Block:
    """`size` bytes at `address`; `streams` are those whose work has used it since it was given."""

    address: int
    size: int
    origin: Origin
    pool: BlockPool
    waiting: int = 0
    captured: bool = False
    streams: dict[int, None] = field(default_factory=dict)
    bucket: int = field(init=False)

    def __post_init__(self) -> None:
        self.bucket = bucket_of(self.size)

    def entry(self, in_use: bool) -> dict[str, Any]:
        """Return the block as an entry of a snapshot's ``host_segments``."""
        active = in_use or self.waiting > 0
        idle = "active_pending_free" if active else "inactive"
        state = "active_allocated" if in_use else idle
        size = self.size
        inner = {
            "address": self.address, "size": size, "requested_size": size, "state": state,
            "frames": [],
        }  # fmt: skip
        return {
            "device": -1, "address": self.address, "total_size": size,
            "allocated_size": size * in_use, "active_size": size * active, "requested_size": size,
            "stream": 0, "segment_type": "small", "segment_pool_id": self.pool.id,
            "is_expandable": False, "frames": [], "blocks": [inner],
        }  # fmt: skip


@dataclass(slots=True, eq=False)
class BlockPool:
    """Blocks that serve each other's requests; every graph has a pool of its own."""

    id: PoolId = DEFAULT_POOL
    owners: int = 1
    blocks: int = 0
    free: defaultdict[int, list[Block]] = field(default_factory=lambda: defaultdict(list))
    events: deque[tuple[Any, Block]] = field(default_factory=deque)

    def take(self, size: int) -> Block | None:
        """Remove and return the block of the size's bucket that was freed last and is large enough.

        All blocks of a bucket are equal if sizes are rounded; if they are not, the last one may be
        too small for the request, though both have the same power of two above them.
        """
        blocks = self.free[bucket_of(size)]
        for place in range(len(blocks) - 1, -1, -1):
            if blocks[place].size >= size:
                return blocks.pop(place)
        return None


@dataclass(slots=True)
class ReservedSegment:
    """A span got in advance, from which small requests are served without the upstream."""

    address: int
    size: int
    taken: int = 0

    def take(self, nbytes: int) -> int | None:
        """Return the address of the next whole pages, or None if too few are left."""
        rounded = -(-nbytes // PAGE) * PAGE
        if self.taken + rounded > self.size:
            return None
        self.taken += rounded
        return self.address + self.taken - rounded


def bucket_of(size: int) -> int:
    """Return the least b with ``size <= 2**b``."""
    return (size - 1).bit_length()
