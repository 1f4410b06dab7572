"""Packing of what repeats: one offset for each block that is free in all its times of use.

(`refruntime.alloc.packing` packs blocks that are used once.)

State
-----
`_Board` holds the offsets given so far, and the uses in order of time, to find who is in the way.

Invariants
----------
* Two blocks that are in use at the same time do not overlap.
* A block without a use stays `UNPLANNED`.

Method: "residents" are stacked at the bottom, in order. The others go, the largest first and of
equal ones the earliest first, to the lowest gap that is free in all their uses: the greedy-by-size
heuristic of TensorFlow Lite (Pisarchyk and Lee, "Efficient memory management for deep neural net
inference", 2020).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

UNPLANNED: Final = -1
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Lengths of use, in steps, at which another shelf begins.
_SHELVES: Final = (1 << 8, 1 << 12, 1 << 16)


class Uses(NamedTuple):
    """When blocks are in use: from `starts` to `ends`, the block of this number in `owners`."""

    starts: Ints
    ends: Ints
    owners: Ints

    @classmethod
    def once(cls, starts: Ints, ends: Ints) -> Uses:
        """Return one use of each block."""
        return cls(starts, ends, np.arange(len(starts)))

    def without(self, blocks: Ints) -> Uses:
        """Return the uses of all other blocks."""
        kept = ~np.isin(self.owners, blocks)
        return Uses(self.starts[kept], self.ends[kept], self.owners[kept])

    def repeated(self, blocks: Ints, later: int) -> Uses:
        """Return these uses, and those of some blocks once more, so many steps later."""
        copies = np.isin(self.owners, blocks)
        return Uses(
            np.append(self.starts, self.starts[copies] + later),
            np.append(self.ends, self.ends[copies] + later),
            np.append(self.owners, self.owners[copies]),
        )

    def peak(self, sizes: Ints) -> int:
        """Return the most bytes that are in use at once: what no packing can go below."""
        order = np.argsort(np.append(self.ends, self.starts), kind="stable")
        changes = np.append(-sizes[self.owners], sizes[self.owners])[order]
        return int(np.cumsum(changes).max(initial=0))


def pack_best(sizes: Ints, resident: Bools, uses: Uses) -> tuple[Ints, int]:
    """Return the better packing of two: with residents at the bottom, or placed like the rest."""
    stacked = pack(sizes, resident, uses)
    if stacked[1] <= uses.peak(sizes):
        return stacked
    return min(stacked, pack(sizes, np.zeros_like(resident), uses), key=lambda packed: packed[1])


def pack(sizes: Ints, resident: Bools, uses: Uses) -> tuple[Ints, int]:
    """Return an offset for every block that has a use, and the bytes that all of them span.

    Parameters
    ----------
    sizes : int64 array
        The bytes of each block.
    resident : bool array
        The blocks to stack at the bottom.
    uses : Uses
        When each block is in use; blocks without a use stay `UNPLANNED`.
    """
    board = _Board(sizes, uses)
    used = np.isin(np.arange(len(sizes)), uses.owners)
    total = 0
    for block in np.flatnonzero(resident & used):
        board.put(int(block), total)
        total += int(sizes[block])
    floor = total
    others = np.flatnonzero(~resident & used)
    for block in others[np.argsort(-sizes[others], kind="stable")]:
        offset = board.lowest_gap(int(block), floor)
        board.put(int(block), offset)
        total = max(total, offset + int(sizes[block]))
    return board.offsets, total


class _Board:
    """The blocks that have a place, found by the time of their uses.

    Uses are kept on shelves, those of like length together. On a shelf of short ones, all that
    overlap a given time stand close to each other.
    """

    def __init__(self, sizes: Ints, uses: Uses) -> None:
        self.sizes = sizes
        self.offsets = np.full(len(sizes), UNPLANNED, np.int64)
        self._starts = uses.starts
        lengths = uses.ends - uses.starts
        shelf_of = np.searchsorted(_SHELVES, lengths, side="right")
        self._shelves = [_Shelf(uses, shelf_of == n) for n in range(len(_SHELVES) + 1)]
        self._rows: list[list[int]] = [[] for _ in sizes]
        for row, owner in enumerate(uses.owners.tolist()):
            self._rows[owner].append(row)

    def put(self, block: int, offset: int) -> None:
        """Give a block its place."""
        self.offsets[block] = offset

    def lowest_gap(self, block: int, floor: int) -> int:
        """Return the lowest offset from `floor` on that is free in all uses of a block."""
        rivals = self._rivals(block)
        low = self.offsets[rivals]
        order = np.argsort(low)
        low = low[order]
        high = np.maximum.accumulate(low + self.sizes[rivals[order]])
        ends = np.concatenate(([floor], np.maximum(high, floor)))
        fits = np.flatnonzero(low - ends[:-1] >= self.sizes[block])
        return int(ends[fits[0]] if len(fits) else ends[-1])

    def _rivals(self, block: int) -> Ints:
        """Return the placed blocks that are in use at some time of a block's uses."""
        found = []
        for row in self._rows[block]:
            for shelf in self._shelves:
                window = slice(shelf.first[row], shelf.last[row])
                owners = shelf.owners[window]
                placed = (self.offsets[owners] >= 0) & (shelf.ends[window] > self._starts[row])
                found.append(owners[placed])
        return np.concatenate(found)


class _Shelf:
    """Some uses in order of their starts; for every use, where to look for those that overlap."""

    def __init__(self, uses: Uses, chosen: Bools) -> None:
        order = np.flatnonzero(chosen)[np.argsort(uses.starts[chosen], kind="stable")]
        self.ends, self.owners = uses.ends[order], uses.owners[order]
        # All uses before the first place have ended by then, all from the last on begin later.
        reach = np.maximum.accumulate(self.ends)
        self.first = np.searchsorted(reach, uses.starts, side="right").tolist()
        self.last = np.searchsorted(uses.starts[order], uses.ends).tolist()
