"""RMM's arena: one great reservation, dealt out in superblocks to an arena for each stream.

State
-----
The superblocks of the global arena and of each stream's; each knows its free blocks.

Invariants
----------
* The upstream is asked once, for the whole arena. It never grows.
* A request above 1 MiB is served by the global arena, first fit by address, from a superblock of
  its own size where the lowest that fits is wholly free and at least 1 MiB larger.
* A smaller one is served by the stream's arena, first fit; when that is full, it acquires a
  superblock of 1 MiB (or whatever fits) from the global arena.
* Wholly free superblocks of the global arena that touch are joined; a stream gives its own back
  only when a request would fail: then all streams give up all of theirs.

Source: RMM 26.08 (`detail/arena.hpp`, `arena_memory_resource_impl.cpp`), sizes rounded to 256
bytes (its size classes are a build option). Its default arena is half of the free memory.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from refruntime.alloc.spans import Span
from refruntime.alloc.strategies.pooled import Block, Pooled
from refruntime.alloc.strategies.superblocks import Arena, Superblock
from refruntime.alloc.upstream import Upstream

MINIMUM: Final = 1 << 20


class RmmArena(Pooled):
    """`rmm.mr.ArenaMemoryResource`.

    Parameters
    ----------
    upstream : Upstream
        Where the arena is reserved.
    arena_bytes : int, optional
        The size of the arena; by default half of what the upstream has left.

    Attributes
    ----------
    high_water : int
        The bytes from the arena's start to the end of the highest block ever given: about the
        size of the smallest arena that would have served.
    """

    ALIGNMENT = 256

    def __init__(
        self, upstream: Upstream, *, arena_bytes: int | None = None, device: str = "GPU"
    ) -> None:
        super().__init__(upstream, device=device)
        self._global = Arena()
        self._streams: defaultdict[int, Arena] = defaultdict(Arena)
        self.high_water = 0
        left = upstream.capacity - upstream.used
        size = (left // 2 if arena_bytes is None else arena_bytes) // self.ALIGNMENT
        address = self.reserve(size * self.ALIGNMENT, 0) if size else None
        self._start = address or 0
        if address is not None:
            self._global.add(Superblock(address, size * self.ALIGNMENT))

    def take(self, size: int, stream: int) -> Span | None:
        """Take from the global arena what is large, from the stream's what is small."""
        if size > MINIMUM:
            superblock = self._find_global(size)
        else:
            superblock = self._streams[stream].fitting(size) or self._acquire(size, stream)
        if superblock is None:
            return None
        address = superblock.free.first_fit(size)
        assert address is not None, "a superblock that fits has a block that fits"
        self.high_water = max(self.high_water, address + size - self._start)
        return superblock.free.carve(address, size)

    def give(self, block: Block) -> None:
        """Return the block to its superblock, wherever that went meanwhile."""
        for arena in (self._global, *self._streams.values()):
            superblock = arena.around(block.address)
            if superblock is not None:
                superblock.free.add(block.address, block.size)
                if arena is self._global and superblock.empty:
                    self._global.join(superblock)
                return

    def trim(self, size: int) -> bool:
        """Move all superblocks of the streams to the global arena (`defragment`)."""
        released = [sb for arena in self._streams.values() for sb in arena.superblocks]
        self._streams.clear()
        for superblock in released:
            self._global.add(superblock)
            if superblock.empty:
                self._global.join(superblock)
        return bool(released)

    def _find_global(self, size: int) -> Superblock | None:
        """Return the lowest superblock of the global arena that fits, cut to size if empty."""
        superblock = self._global.fitting(size)
        wanted = max(MINIMUM, size)
        if superblock and superblock.empty and superblock.size >= wanted + MINIMUM:
            self._global.add(superblock.split(wanted))
        return superblock

    def _acquire(self, size: int, stream: int) -> Superblock | None:
        """Move a superblock of the global arena to the stream's."""
        superblock = self._find_global(size)
        if superblock is not None:
            self._global.superblocks.remove(superblock)
            self._streams[stream].add(superblock)
        return superblock
