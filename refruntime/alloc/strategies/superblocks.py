"""Superblocks: what an arena of RMM is made of.

State
-----
A superblock has a range and its free blocks; an arena has superblocks in order of address.

Invariants
----------
* Superblocks of one arena do not overlap.
* Blocks are joined within their superblock only.
"""

from __future__ import annotations

from bisect import bisect_right, insort

from refruntime.alloc.spans import FreeSpans


class Superblock:
    """A range of the arena with its free blocks; ordered by address."""

    __slots__ = ("address", "free", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.free = FreeSpans()
        self.free.add(address, size)

    def __lt__(self, other: Superblock) -> bool:
        return self.address < other.address

    @property
    def empty(self) -> bool:
        """Whether no block of it is in use."""
        return self.free.largest == self.size

    def split(self, size: int) -> Superblock:
        """Keep the first `size` bytes of an empty superblock; return the rest as another."""
        rest = Superblock(self.address + size, self.size - size)
        self.size = size
        self.free.carve(rest.address, rest.size)
        return rest

    def absorb(self, after: Superblock) -> None:
        """Take in the empty superblock that follows this empty one."""
        self.size += after.size
        self.free.add(after.address, after.size)


class Arena:
    """Superblocks in order of address."""

    def __init__(self) -> None:
        self.superblocks: list[Superblock] = []

    def fitting(self, size: int) -> Superblock | None:
        """Return the lowest superblock with a free block of `size` bytes."""
        return next((sb for sb in self.superblocks if sb.free.largest >= size), None)

    def around(self, address: int) -> Superblock | None:
        """Return the superblock that holds an address."""
        place = bisect_right(self.superblocks, address, key=lambda sb: sb.address) - 1
        if place < 0:
            return None
        superblock = self.superblocks[place]
        return superblock if address < superblock.address + superblock.size else None

    def add(self, superblock: Superblock) -> None:
        """Put a superblock into its place."""
        insort(self.superblocks, superblock)

    def join(self, superblock: Superblock) -> None:
        """Join an empty superblock with its empty neighbours."""
        row = self.superblocks
        place = row.index(superblock)
        for before, after in ((place, place + 1), (place - 1, place)):
            if before >= 0 and after < len(row) and _touch(row[before], row[after]):
                row[before].absorb(row.pop(after))


def _touch(left: Superblock, right: Superblock) -> bool:
    return left.empty and right.empty and left.address + left.size == right.address
