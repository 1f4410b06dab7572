"""Segments through time, and a place for each on a map that does not move while time is scrubbed.

State
-----
None.

Invariants
----------
* A *piece* is what one upstream call gave: a segment, or a range mapped into an expandable one.
* A *unit* is what the allocator cuts blocks from: a segment, or all touching mapped ranges.
* Units that are there at one moment have places that do not overlap; a unit takes the place of an
  earlier one of its size when that has gone, so the map grows no larger than it must.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from refruntime.viz.lab import inputs
from refruntime.viz.lab.inputs import ReportInput
from refruntime.viz.lab.lifetimes import Blocks, moment_of, moments_of

Column = NDArray[Any]

POOLS: Final = ("small pool", "large pool", "private pools")
SMALL, LARGE, PRIVATE = range(3)
# A segment of PyTorch's small pool, and a page of an expandable one, is 2 MiB.
SMALL_SEGMENT: Final = 2 << 20

_OPENS: Final = (inputs.SEGMENT_ALLOC, inputs.SEGMENT_MAP)
_CLOSES: Final = (inputs.SEGMENT_FREE, inputs.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """One row a piece, sorted by `begin`; `unit` counts through the units."""

    begin: Column
    end: Column
    address: Column
    size: Column
    unit: Column


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """One row a unit: its address range, its place on the map, its pool (see `POOLS`)."""

    address: Column
    span: Column
    place: Column
    pool: Column
    stream: Column
    expandable: Column

    @property
    def map_bytes(self) -> int:
        """The length of the map."""
        return int((self.place + self.span).max(initial=0))


@dataclass(slots=True)
class _Piece:
    """A piece while the events are read: one row of the table to be."""

    begin: int
    end: int
    address: int
    size: int
    stream: int
    mapped: bool
    private: bool

    @property
    def stop(self) -> int:
        return self.address + self.size


def segments_of(source: ReportInput) -> tuple[Pieces, Units]:
    """Return what was reserved when, and where it stands on the map."""
    pieces = sorted(_read(source), key=lambda piece: (piece.begin, piece.address))
    groups = _units(pieces)
    spans = [(min(p.address for p in group), max(p.stop for p in group)) for group in groups]
    unit = {id(piece): number for number, group in enumerate(groups) for piece in group}
    return (
        Pieces(
            _int([piece.begin for piece in pieces]), _int([piece.end for piece in pieces]),
            _int([piece.address for piece in pieces]), _int([piece.size for piece in pieces]),
            _int([unit[id(piece)] for piece in pieces]),
        ),
        Units(
            _int([low for low, _ in spans]), _int([high - low for low, high in spans]),
            _int(_places(groups, spans)), _int([_pool(group) for group in groups]),
            _int([group[0].stream for group in groups]),
            _int([group[0].mapped for group in groups]),
        ),
    )  # fmt: skip


def units_of_blocks(blocks: Blocks, pieces: Pieces) -> Column:
    """Return the unit that each block lies in; -1 where no segment is known at its address."""
    order = np.argsort(blocks.address, kind="stable")
    address = blocks.address[order]
    unit = np.full(len(blocks), -1)
    low = np.searchsorted(address, pieces.address)
    high = np.searchsorted(address, pieces.address + pieces.size)
    for row in np.flatnonzero(low < high):
        inside = order[low[row] : high[row]]
        begin = blocks.begin[inside]
        there = (pieces.begin[row] <= begin) & (begin < pieces.end[row])
        unit[inside[there]] = pieces.unit[row]
    return unit


def _int(values: list[int]) -> Column:
    return np.array(values, np.int64)


def _read(source: ReportInput) -> list[_Piece]:
    """Return the pieces, in the order of their ends."""
    events = source.events
    rows = np.flatnonzero(np.isin(events.action, (*_OPENS, *_CLOSES)) & (events.size > 0))
    columns = (events.action, events.address, events.size, events.stream)
    table = zip(*(column[rows].tolist() for column in columns), strict=True)
    private = np.zeros(len(rows), bool) if events.pool is None else events.pool[rows] != 0
    moments = moment_of(source, rows).tolist()
    forever = moments_of(source)
    live = _Live()
    done: list[_Piece] = []
    for (action, address, size, stream), own, moment in zip(table, private.tolist(), moments):
        mapped = action in (inputs.SEGMENT_MAP, inputs.SEGMENT_UNMAP)
        piece = _Piece(moment, forever, address, size, stream, mapped, own)
        ended = live.cut(piece, moment)
        done += ended
        if action in _OPENS:
            live.add(piece)
        elif not ended:
            done.append(_Piece(0, moment, address, size, stream, mapped, own))
    return [piece for piece in (*done, *live.pieces.values()) if piece.begin < piece.end]


class _Live:
    """The pieces that are there while the events are read, by address."""

    def __init__(self) -> None:
        self.pieces: dict[int, _Piece] = {}
        self._starts: list[int] = []

    def add(self, piece: _Piece) -> None:
        self.pieces[piece.address] = piece
        bisect.insort(self._starts, piece.address)

    def cut(self, gone: _Piece, moment: int) -> list[_Piece]:
        """End what lies in the range of `gone`; what reaches beyond it stays."""
        ended = []
        for piece in self._touching(gone):
            self._remove(piece)
            low, high = max(piece.address, gone.address), min(piece.stop, gone.stop)
            ended.append(_part(piece, low, high, moment))
            for start, stop in ((piece.address, low), (high, piece.stop)):
                if start < stop:
                    self.add(_part(piece, start, stop, piece.end))
        return ended

    def _touching(self, other: _Piece) -> list[_Piece]:
        first = max(bisect.bisect_right(self._starts, other.address) - 1, 0)
        last = bisect.bisect_left(self._starts, other.stop)
        near = [self.pieces[start] for start in self._starts[first:last]]
        return [piece for piece in near if other.address < piece.stop]

    def _remove(self, piece: _Piece) -> None:
        del self.pieces[piece.address]
        del self._starts[bisect.bisect_left(self._starts, piece.address)]


def _part(piece: _Piece, start: int, stop: int, end: int) -> _Piece:
    return _Piece(
        piece.begin, end, start, stop - start, piece.stream, piece.mapped, piece.private
    )  # fmt: skip


def _units(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Group pieces into units: mapped ranges by touching addresses, segments one by one."""
    units = [[piece] for piece in pieces if not piece.mapped]
    stop = -1
    for piece in sorted((p for p in pieces if p.mapped), key=lambda p: p.address):
        if piece.address > stop:
            units.append([])
        units[-1].append(piece)
        stop = max(stop, piece.stop)
    return units


def _pool(unit: list[_Piece]) -> int:
    if any(piece.private for piece in unit):
        return PRIVATE
    return SMALL if max(piece.size for piece in unit) <= SMALL_SEGMENT else LARGE


def _places(groups: list[list[_Piece]], spans: list[tuple[int, int]]) -> list[int]:
    """Return a place for each unit: that of a unit of its size that has gone, or a new one.

    Large units come first where several begin at one moment, which keeps the map calm.
    """
    lives = [(min(p.begin for p in g), max(p.end for p in g)) for g in groups]
    sizes = [high - low for low, high in spans]
    places = [0] * len(groups)
    vacant: dict[int, list[int]] = {}
    leaving = sorted(range(len(groups)), key=lambda unit: lives[unit][1])
    used = gone = 0
    for unit in sorted(range(len(groups)), key=lambda u: (lives[u][0], _pool(groups[u]) == SMALL)):
        while gone < len(leaving) and lives[leaving[gone]][1] <= lives[unit][0]:
            vacant.setdefault(sizes[leaving[gone]], []).append(places[leaving[gone]])
            gone += 1
        spare = vacant.get(sizes[unit])
        if spare:
            places[unit] = spare.pop()
            continue
        places[unit] = used
        used += sizes[unit]
    return places
