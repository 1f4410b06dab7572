"""From events to lifetimes: which block and which segment was there from when to when.

State
-----
None.

Invariants
----------
* A moment is a count of events since the recording began: moment 0 is the state before, moment k
  that after the k-th event. What lives from `begin` to `end` is there at ``begin <= m < end``;
  ``end == moments`` says that its end was not seen.
* Blocks are sorted by `begin`, then by the order of their events.
* A free of something that was never allocated says that it was there from the start; an alloc at
  an address still in use says that the free between them was lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refruntime.viz.lab import inputs
from refruntime.viz.lab.inputs import Events, ReportInput

Column = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """One row a block: from `begin` in use, from `requested` waiting for streams, gone at `end`."""

    begin: Column
    requested: Column
    end: Column
    address: Column
    size: Column
    held: Column
    stream: Column
    category: Column
    stack: Column

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(frozen=True, slots=True, eq=False)
class Tags:
    """One row a change of category, sorted by block, then by moment."""

    block: Column
    moment: Column
    category: Column


def moments_of(source: ReportInput) -> int:
    """Return how many moments a recording has: one more than its events after the start."""
    return len(source.events) - source.start + 1


def moment_of(source: ReportInput, rows: Column) -> Column:
    """Return the moment after each of some events; 0 for those of the initial state."""
    return np.maximum(np.asarray(rows, np.int64) + 1 - source.start, 0)


def blocks_of(source: ReportInput) -> tuple[Blocks, Tags]:
    """Return the blocks of a recording, and how their categories changed."""
    events = source.events
    births, deaths = _paired(events.address, _alloc_rows(events), _free_rows(events))
    begin = np.where(births >= 0, moment_of(source, births), 0)
    end = np.where(deaths >= 0, moment_of(source, deaths), moments_of(source))
    order = np.lexsort((births, begin))
    order = order[(begin < end)[order]]
    uses = _Uses(births[order], deaths[order], begin[order], end[order])
    # A block without an alloc is described by its free, but for the stack: that is of who freed it.
    facts = np.where(uses.births >= 0, uses.births, uses.deaths)
    blocks = Blocks(
        begin=uses.begin,
        requested=_requested(source, uses, events.address[facts]),
        end=uses.end,
        address=events.address[facts],
        size=events.size[facts],
        held=events.held_bytes()[facts],
        stream=events.stream[facts],
        category=events.category[facts],
        stack=np.where(uses.births >= 0, events.stack[facts], inputs.NO_STACK),
    )
    return blocks, _tags(source, uses, blocks.address)


@dataclass(frozen=True, slots=True, eq=False)
class _Uses:
    """The events that bound each block, -1 where there is none, and the moments after them."""

    births: Column
    deaths: Column
    begin: Column
    end: Column


def _alloc_rows(events: Events) -> Column:
    return np.flatnonzero(events.action == inputs.ALLOC)


def _free_rows(events: Events) -> Column:
    """Return the events that end blocks; a recording without completions has only requests."""
    completed = np.flatnonzero(events.action == inputs.FREE_COMPLETED)
    if len(completed):
        return completed
    return np.flatnonzero(events.action == inputs.FREE_REQUESTED)


def _paired(address: Column, opens: Column, closes: Column) -> tuple[Column, Column]:
    """Match each open with what ends it at the same address.

    Returns
    -------
    births, deaths : array of int
        Rows of events, one pair a block; -1 where there is none. An open that meets another open
        ends there; a close that meets no open pairs with -1, the first at its address only.
    """
    rows = np.concatenate([opens, closes])
    kinds = np.concatenate([np.ones(len(opens), bool), np.zeros(len(closes), bool)])
    order = np.lexsort((rows, address[rows]))
    rows, is_open = rows[order], kinds[order]
    same = np.zeros(len(rows), bool)
    same[1:] = address[rows[1:]] == address[rows[:-1]]
    next_row = np.full(len(rows), -1)
    next_row[:-1][same[1:]] = rows[1:][same[1:]]
    orphan = ~is_open & ~same
    births = np.concatenate([rows[is_open], np.full(int(orphan.sum()), -1)])
    deaths = np.concatenate([next_row[is_open], rows[orphan]])
    return births, deaths


def _owner(uses: _Uses, start: Column, rows: Column, address: Column) -> Column:
    """Return the block that each of some events is about: in use there then; -1 for none."""
    # Addresses become small ranks, so that rank and row sort as one number.
    places, ranks = np.unique(start, return_inverse=True)
    width = int(max(rows.max(initial=0), uses.births.max(initial=0))) + 2
    keys = ranks.astype(np.int64) * width + uses.births + 1
    order = np.argsort(keys, kind="stable")
    wanted = np.searchsorted(places, address).astype(np.int64)
    place = np.searchsorted(keys[order], wanted * width + rows + 1, "right") - 1
    found = np.full(len(rows), -1)
    near = np.flatnonzero(place >= 0)
    block = order[place[near]]
    death = uses.deaths[block]
    fits = (start[block] == address[near]) & ((death < 0) | (rows[near] < death))
    found[near[fits]] = block[fits]
    return found


def _requested(source: ReportInput, uses: _Uses, address: Column) -> Column:
    """Return when the program gave each block back, which is `end` where nothing else is said."""
    rows = np.flatnonzero(source.events.action == inputs.FREE_REQUESTED)
    owner = _owner(uses, address, rows, source.events.address[rows])
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    requested = uses.end.copy()
    np.minimum.at(requested, owner, np.maximum(moment_of(source, rows), uses.begin[owner]))
    return requested


def _tags(source: ReportInput, uses: _Uses, address: Column) -> Tags:
    rows = np.flatnonzero(source.events.action == inputs.TAG)
    owner = _owner(uses, address, rows, source.events.address[rows])
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    order = np.lexsort((rows, owner))
    rows = rows[order]
    return Tags(owner[order], moment_of(source, rows), source.events.category[rows])
