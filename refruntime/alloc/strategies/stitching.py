"""Stitching, after GMLake: free pieces are joined by mapping them side by side under new addresses.

State
-----
The small pool; the large pool, whose segments are made of 2 MiB chunks; the stitched ranges; and
for each stitched block in use, the spans of chunks that it holds, at their homes.

Invariants
----------
* A chunk is mapped at its home for as long as its segment lives, and in any number of stitched
  ranges besides; it is in use by one block at most. "Free" is a property of home addresses.
* Requests up to 1 MiB come from segments of 2 MiB, as in PyTorch. Larger ones are rounded to whole
  chunks and served by the first of: the smallest free span that fits; the smallest stitched range
  that fits, is at most `reuse_limit` times larger and has all its chunks free (it lends its first
  ones); from `fragment_limit` on, a new stitched range over the largest free spans; a new segment,
  of 20 MiB for less than 10 MiB. With `top_up`, a request from `fragment_limit` on reserves a
  segment for what the free spans lack only, and is stitched.
* When the upstream is exhausted, wholly free segments go back, and ranges over their chunks die.

Source: GMLake (Guo et al., ASPLOS 2024, arXiv 2401.08156) and its code (`GMLake/src/
CUDACachingAllocator.cpp` of intelligent-machine-learning/glake), whose defaults these are:
`fragLimit`, `reuseLimit`, `reAlloc` (off; the paper's state S4), `autoGC`; `defragLevel` is 0.
"""

from __future__ import annotations

from typing import Final

from refruntime.alloc.spans import Span
from refruntime.alloc.strategies.pooled import Block, Pooled
from refruntime.alloc.strategies.segments import Segments
from refruntime.alloc.strategies.stitched_ranges import Stitched, StitchedRanges
from refruntime.alloc.upstream import Upstream, UpstreamExhausted

CHUNK: Final = 2 << 20
SMALL: Final = 1 << 20
SMALL_SEGMENT: Final = 2 << 20
MIN_LARGE: Final = 10 << 20
LARGE_SEGMENT: Final = 20 << 20


class Stitching(Pooled):
    """GMLake's allocator, over an upstream with virtual memory.

    Parameters
    ----------
    upstream : Upstream
        Where chunks come from.
    fragment_limit : int
        The smallest request, in bytes, that is stitched.
    reuse_limit : float
        How many times larger than a request a stitched range may be to serve it.
    top_up : bool
        Whether a new segment is only as large as what the free spans lack.
    addresses_limit : int
        The bytes of stitched addresses above which the ranges not in use are dropped.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        fragment_limit: int = 512 << 20,
        reuse_limit: float = 10.0,
        top_up: bool = False,
        addresses_limit: int = 1000 << 30,
        device: str = "GPU",
    ) -> None:
        super().__init__(upstream, device=device)
        self.fragment_limit, self.reuse_limit = fragment_limit, reuse_limit
        self.top_up, self.addresses_limit = top_up, addresses_limit
        self.ranges = StitchedRanges(upstream, CHUNK)
        self._small = Segments(self.reserve, self.release)
        self._large = Segments(self._map_segment, self._unmap_segment)
        self._held: dict[int, tuple[Stitched, list[Span]]] = {}

    def rounded(self, nbytes: int) -> int:
        """Return a multiple of 512 bytes up to 1 MiB, above it one of 2 MiB."""
        unit = self.ALIGNMENT if nbytes <= SMALL else CHUNK
        return -(-nbytes // unit) * unit

    def take(self, size: int, stream: int) -> Span | None:
        """Go through the places that the module's docstring lists."""
        if size <= SMALL:
            return self._small.cut_or_grow(size, stream, SMALL_SEGMENT)
        return (
            self._large.cut(size, stream)
            or self._reuse(size, stream)
            or self._stitch(size, stream)
            or self._extend(size, stream)
        )

    def give(self, block: Block) -> None:
        """Free the block's chunks at their homes; keep its stitched range for reuse."""
        if block.address in self._held:
            stitched, spans = self._held.pop(block.address)
            for span in spans:
                self._large.spans(block.stream).add(*span)
            self.ranges.give(stitched)
        else:
            pool = self._small if block.size <= SMALL else self._large
            pool.spans(block.stream).add(block.address, block.size)

    def trim(self, size: int) -> bool:
        """Give wholly free segments back, and drop the ranges that map their chunks."""
        gone = self._large.release_idle()
        self.ranges.drop(gone)
        return bool(gone + self._small.release_idle())

    def _reuse(self, size: int, stream: int) -> Span | None:
        """Take the smallest stitched range that fits, all of whose chunks are free."""
        free = self._large.spans(stream)
        for stitched in self.ranges.idle(stream, size, size * self.reuse_limit):
            if all(free.free_at(*home) for home in stitched.homes):
                self.ranges.use(stitched)
                return self._hold(stitched, size)
        return None

    def _stitch(self, size: int, stream: int) -> Span | None:
        """Map the largest free spans, as many as it takes, side by side under new addresses."""
        homes, missing = [], size
        if size >= self.fragment_limit:
            for span in self._large.spans(stream).descending():
                homes.append(Span(span.address, min(span.size, missing)))
                missing -= homes[-1].size
                if not missing:
                    break
        stitched = None if missing else self.ranges.new(size, stream, homes)
        if stitched is None:
            return None
        found = self._hold(stitched, size)
        if self.ranges.nbytes > self.addresses_limit:
            self.ranges.drop_idle()
        return found

    def _hold(self, stitched: Stitched, size: int) -> Span:
        """Put the first chunks of a stitched range in use."""
        spans: list[Span] = []
        missing = size
        for home in stitched.homes:
            if missing:
                part = min(home.size, missing)
                spans.append(self._large.spans(stitched.stream).carve(home.address, part))
                missing -= part
        self._held[stitched.address] = stitched, spans
        return Span(stitched.address, size)

    def _extend(self, size: int, stream: int) -> Span | None:
        """Take the block from a new segment, or from one that tops up the free spans."""
        missing = size
        if self.top_up and size >= self.fragment_limit:
            missing -= sum(span.size for span in self._large.spans(stream))
        nbytes = LARGE_SEGMENT if missing < MIN_LARGE else missing
        if not self._large.grow(nbytes, stream):
            return None
        return self._large.cut(size, stream) or self._stitch(size, stream)

    def _map_segment(self, nbytes: int, stream: int) -> int | None:
        """Map new chunks at new addresses: their homes."""
        try:
            address = self.upstream.reserve_addresses(nbytes)
        except UpstreamExhausted:
            return None
        try:
            self.upstream.map(address, nbytes, CHUNK)
        except UpstreamExhausted:
            self.upstream.release_addresses(address, nbytes)
            return None
        self.reserved_bytes += nbytes
        return address

    def _unmap_segment(self, span: Span) -> None:
        self.upstream.unmap(span.address, span.size, CHUNK, 0)
        self.upstream.release_addresses(span.address, span.size)
        self.reserved_bytes -= span.size
