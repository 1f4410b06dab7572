"""Which blocks can go where: the blocks of one pool and stream, packed into each other's gaps.

State
-----
A `Group` holds the parts, used blocks and gaps of one pool and stream, fixed once made.

Invariants
----------
* A block moves whole, within its group, into memory that was free before the first move. So no
  target overlaps a source, the moves can be made in any order, and each leaves a sound heap.
* A part that is to be emptied, or kept empty, receives nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from refruntime.alloc.heap import Block, Heap, Segment

Span = tuple[int, int]

# What a gap must have left to be of use to another block: the smallest block.
_LEAST = 512


@dataclass(frozen=True, slots=True)
class Move:
    """A block that goes from one address to another: `size` bytes on a stream."""

    source: int
    target: int
    size: int
    stream: int


@dataclass(frozen=True, slots=True)
class Part:
    """Memory that can be given back by itself, and the used blocks that reach into it."""

    start: int
    end: int
    used: tuple[Block, ...]

    @property
    def size(self) -> int:
        """The bytes that emptying it gives back."""
        return self.end - self.start

    @property
    def cost(self) -> int:
        """The bytes to copy to empty it."""
        return sum(block.needs for block in self.used)

    @property
    def is_movable(self) -> bool:
        """Whether it holds something, and all that can be moved."""
        return bool(self.used) and not any(block.stays for block in self.used)


class Group:
    """The segments of one pool and stream.

    Attributes
    ----------
    parts : list of Part
        What can be given back, by address.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.stream = segments[0].stream
        self.used = [b for s in segments for b in s.blocks if not b.is_free]
        self._gaps = [
            (b.address, b.end) for s in segments if s.takes for b in s.blocks if b.is_free
        ]
        spans = [span for s in segments if s.returns for span in s.parts]
        self.parts = [Part(*span, tuple(_reaching(self.used, span))) for span in spans]
        self._starts = [part.start for part in self.parts]

    def pack(self, sources: Iterable[Block], avoid: Iterable[Span]) -> list[Move] | None:
        """Find places for blocks outside of what is to be avoided; None if they do not all fit.

        The largest first, each into the smallest gap that holds it, at its low end.
        """
        blocks = sorted(sources, key=lambda block: (-block.needs, block.address))
        gaps = sorted((end - start, start) for start, end in subtract(self._gaps, avoid))
        if sum(block.needs for block in blocks) > sum(size for size, _ in gaps):
            return None
        moves = []
        for block in blocks:
            place = bisect_left(gaps, (block.needs, 0))
            if place == len(gaps):
                return None
            size, start = gaps.pop(place)
            moves.append(Move(block.address, start, block.needs, self.stream))
            if size - block.needs >= _LEAST:
                insort(gaps, (size - block.needs, start + block.needs))
        return moves

    def emptying(self, parts: Iterable[Part], closed: Iterable[Part]) -> list[Move] | None:
        """Find the moves that empty parts and fill none of the closed ones; None without any."""
        chosen = list(parts)
        sources = {block.address: block for part in chosen for block in part.used}
        return self.pack(sources.values(), [(p.start, p.end) for p in (*chosen, *closed)])

    def returned(self, moves: Iterable[Move]) -> int:
        """Return the bytes that emptying the cache gives back after moves."""
        held = {i for span in self._occupied(moves) for i in self._touched(span)}
        return sum(part.size for i, part in enumerate(self.parts) if i not in held)

    def gaps_after(self, moves: Iterable[Move], release: bool) -> list[tuple[Span, Segment]]:
        """Return the free memory after moves, joined, and the segment of each gap."""
        occupied = sorted(self._occupied(moves))
        held = {i for span in occupied for i in self._touched(span)}
        gone = [(p.start, p.end) for i, p in enumerate(self.parts) if release and i not in held]
        found = []
        for segment in self.segments:
            whole = [(segment.address, segment.address + segment.size)]
            spans = subtract(whole, sorted(within(occupied, whole[0]) + within(gone, whole[0])))
            found += [(span, segment) for span in spans]
        return found

    def _occupied(self, moves: Iterable[Move]) -> list[Span]:
        moves = list(moves)
        left = {move.source for move in moves}
        spans = [(block.address, block.end) for block in self.used if block.address not in left]
        return spans + [(move.target, move.target + move.size) for move in moves]

    def _touched(self, span: Span) -> range:
        """Return the numbers of the parts that a span reaches into."""
        first = max(bisect_right(self._starts, span[0]) - 1, 0)
        last = bisect_left(self._starts, span[1])
        while first < last and self.parts[first].end <= span[0]:
            first += 1
        return range(first, last)


def groups_of(heap: Heap) -> list[Group]:
    """Sort segments into groups."""
    by_key: dict[Span, list[Segment]] = {}
    for segment in heap:
        by_key.setdefault((segment.pool, segment.stream), []).append(segment)
    return [Group(segments) for segments in by_key.values()]


def _reaching(blocks: Sequence[Block], span: Span) -> Sequence[Block]:
    """Return those of blocks, which are in order, that reach into a span."""
    first = bisect_right(blocks, span[0], key=lambda block: block.end)
    return blocks[first : bisect_left(blocks, span[1], key=lambda block: block.address)]


def within(spans: Sequence[Span], outer: Span) -> list[Span]:
    """Return those of spans, which are in order, that begin inside another."""
    first, last = bisect_left(spans, (outer[0], 0)), bisect_left(spans, (outer[1], 0))
    return list(spans[first:last])


def subtract(spans: Iterable[Span], holes: Iterable[Span]) -> list[Span]:
    """Return what is left of disjoint spans without disjoint holes."""
    cuts = sorted(holes)
    starts = [start for start, _ in cuts]
    left = []
    for start, end in spans:
        place = max(bisect_right(starts, start) - 1, 0)
        while place < len(cuts) and cuts[place][0] < end:
            if cuts[place][0] > start:
                left.append((start, cuts[place][0]))
            start = max(start, min(cuts[place][1], end))
            place += 1
        if start < end:
            left.append((start, end))
    return left
