"""What was going on at a moment: the figures that the page states in words.

State
-----
None.

Invariants
----------
* Allocated bytes are those of blocks that the program has not given back; a block that waits for
  other streams is no longer allocated and not yet free, as in PyTorch's statistics.
* Nothing here is estimated: sums are over the recorded blocks and segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refruntime.viz.lab import inputs
from refruntime.viz.lab.inputs import ReportInput
from refruntime.viz.lab.lifetimes import Blocks, moment_of
from refruntime.viz.lab.segments import Pieces, Units

Column = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Bytes at each moment."""

    allocated: Column
    reserved: Column

    @property
    def peak_allocated(self) -> int:
        """The moment with the most allocated bytes."""
        return int(np.argmax(self.allocated))

    @property
    def peak_reserved(self) -> int:
        """The moment with the most reserved bytes; of several, the one with most in use."""
        highest = self.reserved == self.reserved.max()
        return int(np.argmax(np.where(highest, self.allocated, -1)))


@dataclass(frozen=True, slots=True)
class Hole:
    """Free memory at a moment: its bytes, how many free spans, and the largest of them."""

    total: int
    count: int
    largest: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that could not be served; `device_free` is -1 where it was not recorded."""

    moment: int
    asked: int
    device_free: int
    holes: Hole


def totals_of(moments: int, blocks: Blocks, pieces: Pieces) -> Totals:
    """Return allocated and reserved bytes at each moment."""
    return Totals(
        _running(moments, blocks.begin, blocks.requested, blocks.held),
        _running(moments, pieces.begin, pieces.end, pieces.size),
    )


def _running(moments: int, begin: Column, end: Column, size: Column) -> Column:
    steps = np.zeros(moments + 1, np.int64)
    np.add.at(steps, begin, size)
    np.subtract.at(steps, end, size)
    return np.cumsum(steps)[:moments]


def alive(table: Blocks | Pieces, moment: int) -> Column:
    """Return the rows that are there at a moment."""
    return np.flatnonzero((table.begin <= moment) & (moment < table.end))


def holes_at(moment: int, blocks: Blocks, units: Column, segments: tuple[Pieces, Units]) -> Hole:
    """Return the free memory inside segments at a moment.

    Parameters
    ----------
    moment : int
        When.
    blocks : Blocks
        All blocks, `units` the unit that each lies in.
    segments : Pieces and Units
        All segments; touching pieces of one unit are one span.
    """
    pieces, table = segments
    open_, close = alive(pieces, moment), alive(blocks, moment)
    close = close[units[close] >= 0]
    # On the map, units do not overlap: walk it once, counting pieces up and blocks down.
    shift = table.place - table.address
    starts = pieces.address[open_] + shift[pieces.unit[open_]]
    taken = blocks.address[close] + shift[units[close]]
    edges = np.concatenate([starts, starts + pieces.size[open_], taken, taken + blocks.held[close]])
    depth = np.concatenate([np.full(len(open_), 1), np.full(len(open_), -1),
                            np.full(len(close), -1), np.full(len(close), 1)])  # fmt: skip
    barrier = _first_bytes(pieces, open_, shift)
    return _measure(edges, depth, barrier)


def _first_bytes(pieces: Pieces, rows: Column, shift: Column) -> Column:
    """Return where on the map each unit begins: free spans end there."""
    unit = pieces.unit[rows]
    _, first = np.unique(unit, return_index=True)
    lowest = np.full(len(shift), np.iinfo(np.int64).max)
    np.minimum.at(lowest, unit, pieces.address[rows])
    chosen = unit[first]
    return lowest[chosen] + shift[chosen]


def _measure(edges: Column, depth: Column, barrier: Column) -> Hole:
    """Return the spans between edges where the running depth is one, cut at barriers."""
    places, steps = np.unique(edges, return_inverse=True)
    change = np.zeros(len(places), np.int64)
    np.add.at(change, steps, depth)
    free = np.cumsum(change)[:-1] > 0
    lengths = np.diff(places)[free]
    if not len(lengths):
        return Hole(0, 0, 0)
    begins = places[:-1][free]
    fresh = np.ones(len(begins), bool)
    fresh[1:] = begins[1:] != begins[:-1] + lengths[:-1]
    fresh |= np.isin(begins, barrier)
    spans = np.add.reduceat(lengths, np.flatnonzero(fresh))
    return Hole(int(spans.sum()), len(spans), int(spans.max()))


def failures_of(
    source: ReportInput, blocks: Blocks, units: Column, segments: tuple[Pieces, Units]
) -> list[Failure]:
    """Return the requests that failed, each with the free memory that did not help."""
    rows = np.flatnonzero(source.events.action == inputs.OOM)
    return [
        Failure(
            moment, int(source.events.size[row]), int(source.events.address[row]),
            holes_at(moment, blocks, units, segments),
        )
        for row, moment in zip(rows, moment_of(source, rows).tolist())
    ]  # fmt: skip
