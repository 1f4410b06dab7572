"""The books of stitched addresses: ranges that map chunks which live elsewhere, side by side.

State
-----
Every range that exists, with the homes of its chunks; those not in use, for each stream by size.

Invariants
----------
* A range that is dropped while it is in use keeps its addresses until it is given back.
* A second mapping of a page is beyond what an upstream knows: the addresses of a range are real,
  its mappings are counted (`chunks_mapped`). So this serves replay, not tensors.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from refruntime.alloc.spans import Span
from refruntime.alloc.upstream import Upstream, UpstreamExhausted


class Stitched(NamedTuple):
    """A range of stitched addresses, and the homes of the chunks behind it, in order."""

    size: int
    address: int
    stream: int
    homes: tuple[Span, ...]


class StitchedRanges:
    """The stitched ranges of a pool whose chunks have `chunk` bytes."""

    def __init__(self, upstream: Upstream, chunk: int) -> None:
        self.nbytes = 0
        self.chunks_mapped = 0
        self._upstream, self._chunk = upstream, chunk
        self._alive: set[Stitched] = set()
        self._idle: defaultdict[int, list[Stitched]] = defaultdict(list)

    def new(self, size: int, stream: int, homes: Iterable[Span]) -> Stitched | None:
        """Return a range in use over these homes; None if there are no addresses for it."""
        try:
            address = self._upstream.reserve_addresses(size)
        except UpstreamExhausted:
            return None
        stitched = Stitched(size, address, stream, tuple(homes))
        self._alive.add(stitched)
        self.nbytes += size
        self.chunks_mapped += size // self._chunk
        return stitched

    def idle(self, stream: int, least: int, most: float) -> Iterator[Stitched]:
        """Yield the ranges of a stream that are not in use, of `least` to `most` bytes, rising."""
        row = self._idle[stream]
        for place in range(bisect_left(row, (least,)), len(row)):
            if row[place].size > most:
                return
            yield row[place]

    def use(self, stitched: Stitched) -> None:
        """Put an idle range in use."""
        self._idle[stitched.stream].remove(stitched)

    def give(self, stitched: Stitched) -> None:
        """Take a range back: it is idle, or gone if it was dropped meanwhile."""
        if stitched in self._alive:
            insort(self._idle[stitched.stream], stitched)
        else:
            self._upstream.release_addresses(stitched.address, stitched.size)

    def drop(self, gone: list[Span]) -> None:
        """Drop the ranges that map chunks of these segments."""
        for stitched in list(self._alive):
            if any(_within(home, span) for home in stitched.homes for span in gone):
                self._forget(stitched)

    def drop_idle(self) -> None:
        """Drop every range that is not in use."""
        for row in list(self._idle.values()):
            for stitched in list(row):
                self._forget(stitched)

    def _forget(self, stitched: Stitched) -> None:
        self._alive.remove(stitched)
        self.nbytes -= stitched.size
        row = self._idle[stitched.stream]
        if stitched in row:
            row.remove(stitched)
            self._upstream.release_addresses(stitched.address, stitched.size)


def _within(home: Span, span: Span) -> bool:
    return span.address <= home.address < span.address + span.size
