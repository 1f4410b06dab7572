"""A model of the CUDA driver's stream-ordered memory pool: what is behind cudaMallocAsync.

What is known, and from where
-----------------------------
From NVIDIA's programming guide (Stream-Ordered Memory Allocator) and the API reference:

* The order in which memory is looked for: freed in the same stream, or in a stream that the CPU has
  waited for; `follow_event_dependencies`: freed in a stream that the asking one waits for;
  `allow_opportunistic`: freed in a stream that has got past the free; then more memory from the
  system; and if there is none, `allow_internal_dependencies`: freed in any stream, with a wait put
  into the asking one. All three policies are on by default.
* What lies above `release_threshold` (0 by default) is released when a stream or the device is
  waited for; `trim_to` releases at once, and keeps at least what it is told.
* Unused memory is remapped to other addresses before more is taken from the system (NVIDIA's
  technical blog), which cannot undo all fragmentation (rmm#1245, pytorch#110194).

Observed by others: the pool's reserved bytes are multiples of 32 MiB, and its used bytes are the
sum of what was asked for (in rmm#1245 2,518 chunks of 32 MiB, and 53,514,136,688 bytes).

A guess, because the driver's inside is not public: blocks are multiples of 256 bytes, the smallest
hole that fits is taken, new memory does not adjoin old, only whole free chunks are remapped, and
released memory goes from the highest address down.

State
-----
The ranges of addresses and which of their chunks are mapped; the blocks in use; the free spans that
every stream may use (`settled`), and those of each stream, with the marks behind which they are
free (`pending`).

Invariants
----------
* Every mapped byte is in one block or in one free span.
* A stream is only given bytes whose last free lies behind it: in order, by a wait, or in the past.
* A failed `malloc` gives no memory away but what an interrupted remapping has returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from refruntime.alloc.spans import FreeSpans, Span
from refruntime.alloc.upstream import Upstream, UpstreamExhausted
from refruntime.alloc.virtual_streams import Mark, Timeline
from refruntime.errors import ArgumentValueError

CHUNK: Final = 32 << 20
ALIGNMENT: Final = 256


@dataclass(slots=True)
class Usage:
    """A figure of a pool in bytes, and its highest value since the last reset."""

    current: int = 0
    high: int = 0

    def change(self, amount: int) -> None:
        """Add to the figure."""
        self.current += amount
        self.high = max(self.high, self.current)

    def reset_high(self) -> None:
        """Make the present figure the highest."""
        self.high = self.current


@dataclass(slots=True)
class PoolPolicy:
    """The attributes of a pool, with the driver's defaults."""

    release_threshold: int = 0
    follow_event_dependencies: bool = True
    allow_opportunistic: bool = True
    allow_internal_dependencies: bool = True


class Block(NamedTuple):
    """What a block in use takes, and what was asked for, in bytes."""

    size: int
    asked: int


class Hole(NamedTuple):
    """A free span off the lists, and the mark behind which it is free; None if it is settled."""

    span: Span
    mark: Mark | None


class StreamSpans:
    """The spans that were freed in one stream, each with the position behind its last free."""

    def __init__(self, stream: int, barriers: set[int]) -> None:
        self.stream = stream
        self.spans = FreeSpans(barriers)
        self._positions: dict[int, int] = {}

    def add(self, address: int, size: int, position: int) -> None:
        """Add a span; joined with its neighbours, it is free behind the last of their frees."""
        whole = self.spans.add(address, size)
        joined = [whole.address] if whole.address < address else []
        if whole.address + whole.size > address + size:
            joined.append(address + size)
        self._positions[whole.address] = max(
            [position, *(self._positions.pop(start) for start in joined)]
        )

    def take(self, address: int) -> Hole:
        """Remove the span that starts here."""
        return Hole(self.spans.remove(address), Mark(self.stream, self._positions.pop(address)))

    def mark(self, address: int) -> Mark:
        """Return the mark behind which the span that starts here is free."""
        return Mark(self.stream, self._positions[address])


class StreamOrderedPool:
    """One pool of one device.

    Parameters
    ----------
    upstream : Upstream
        Where physical memory comes from, in pages of 32 MiB; it must have virtual memory.
    timeline : Timeline
        The streams that use the memory.

    Attributes
    ----------
    policy : PoolPolicy
        May be changed at any time.
    reserved, used : Usage
        Bytes taken from the upstream, and bytes asked for and not freed.
    internal_waits : int
        How often a stream was made to wait for another's free.
    """

    def __init__(self, upstream: Upstream, timeline: Timeline) -> None:
        if not upstream.supports_virtual_memory:
            raise ArgumentValueError(
                "StreamOrderedPool",
                expected="an upstream with virtual memory", got=type(upstream).__name__,
            )  # fmt: skip
        self.policy = PoolPolicy()
        self.reserved = Usage()
        self.used = Usage()
        self.internal_waits = 0
        self._upstream = upstream
        self._timeline = timeline
        self._ranges: dict[int, int] = {}  # start -> bytes
        self._chunks: dict[int, int] = {}  # start of a mapped chunk -> start of its range
        self._barriers: set[int] = set()
        self._settled = FreeSpans(self._barriers)
        self._pending: dict[int, StreamSpans] = {}
        self._blocks: dict[int, Block] = {}

    # --- requests

    def malloc(self, nbytes: int, stream: int) -> int:
        """Return the address of `nbytes` bytes for later work of `stream`.

        Raises
        ------
        UpstreamExhausted
            If there is neither a hole nor memory.
        """
        if nbytes <= 0:
            raise ArgumentValueError("malloc", expected="at least 1 byte", got=str(nbytes))
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        (address, length), mark = self._find_free(size, stream) or self._grow_or_wait(size, stream)
        if length > size:
            self._put_back(Hole(Span(address + size, length - size), mark))
        self._blocks[address] = Block(size, nbytes)
        self.used.change(nbytes)
        self._timeline.submit(stream)
        return address

    def free(self, address: int, stream: int) -> None:
        """Free a block behind the work that `stream` has now."""
        if address not in self._blocks:
            raise ArgumentValueError(
                "free", expected="the address of a block in use", got=f"{address:#x}"
            )
        size, nbytes = self._blocks.pop(address)
        self.used.change(-nbytes)
        self._put_back(Hole(Span(address, size), self._timeline.submit(stream)))

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for a stream, or for all; then release what lies above the threshold."""
        self._timeline.complete(stream)
        self._settle(stream)
        if self.reserved.current > self.policy.release_threshold:
            self._release_chunks(self.policy.release_threshold)

    def trim_to(self, keep: int) -> None:
        """Release whole free chunks as long as at least `keep` bytes stay reserved."""
        self._settle()
        self._release_chunks(keep)

    # --- free spans

    def _find_free(self, size: int, stream: int) -> Hole | None:
        """Return a hole that this stream may use without waiting."""
        found = self._take_own(size, stream) or self._take_settled(size)
        if found is None:
            found = self._take_joined(size, stream)
        if found is None and self.policy.follow_event_dependencies:
            found = self._take_pending(size, behind=stream)
        if found is None and self.policy.allow_opportunistic:
            self._settle()
            found = self._take_settled(size)
        return found

    def _take_own(self, size: int, stream: int) -> Hole | None:
        own = self._pending.get(stream)
        start = own.spans.best_fit(size) if own is not None else None
        return None if own is None or start is None else own.take(start)

    def _take_settled(self, size: int) -> Hole | None:
        start = self._settled.best_fit(size)
        return None if start is None else Hole(self._settled.remove(start), None)

    def _take_joined(self, size: int, stream: int) -> Hole | None:
        """Return a span of the stream's own with the settled ones on both sides of it."""
        own = self._pending.get(stream)
        for start, length in own.spans if own is not None else ():
            sides = self._settled_beside(start, start + length)
            if own is not None and length + sum(side.size for side in sides) >= size:
                span, mark = own.take(start)
                for side in sides:
                    self._settled.remove(side.address)
                    span = Span(min(span.address, side.address), span.size + side.size)
                return Hole(span, mark)
        return None

    def _settled_beside(self, start: int, end: int) -> list[Span]:
        """Return the settled spans that touch a range from either side."""
        left = self._settled.around(start - 1) if start not in self._barriers else None
        right = self._settled.around(end) if end not in self._barriers else None
        return [side for side in (left, right) if side is not None]

    def _take_pending(self, size: int, behind: int | None) -> Hole | None:
        """Return the smallest span of any stream that fits, and that `behind` is ordered behind."""
        fitting = [
            (span.size, span.address, stream)
            for stream, spans in self._pending.items()
            if spans.spans.largest >= size
            for span in spans.spans
            if span.size >= size
            and (behind is None or self._timeline.ordered(behind, spans.mark(span.address)))
        ]
        if not fitting:
            return None
        _, address, stream = min(fitting)
        return self._pending[stream].take(address)

    def _put_back(self, hole: Hole) -> None:
        if hole.mark is None:
            self._settled.add(*hole.span)
            return
        stream, position = hole.mark
        if stream not in self._pending:
            self._pending[stream] = StreamSpans(stream, self._barriers)
        self._pending[stream].add(*hole.span, position)

    def _settle(self, stream: int | None = None) -> None:
        """Let all streams use what was freed in work that is done, or that `stream` knows to be."""
        for spans in self._pending.values():
            for start, _ in list(spans.spans):
                mark = spans.mark(start)
                known = stream is None or self._timeline.ordered(stream, mark)
                if known and self._timeline.reached(mark):
                    self._settled.add(*spans.take(start).span)

    # --- physical memory

    def _grow_or_wait(self, size: int, stream: int) -> Hole:
        try:
            return Hole(self._grow(-(-size // CHUNK) * CHUNK), None)
        except UpstreamExhausted:
            found = None
            if self.policy.allow_internal_dependencies:
                found = self._take_pending(size, behind=None)
            if found is None or found.mark is None:
                raise
        self.internal_waits += 1
        self._timeline.wait_mark(stream, found.mark)
        return found

    def _grow(self, nbytes: int) -> Span:
        """Return new addresses with memory: of free chunks as far as they go, else fresh."""
        spare = self._free_chunks()[: nbytes // CHUNK]
        fresh = nbytes - len(spare) * CHUNK
        start = self._upstream.reserve_addresses(nbytes)
        self._ranges[start] = nbytes
        self._barriers.add(start)
        try:
            self._map(start, start, fresh)
            for chunk in spare:
                self._release_chunk(chunk)
            self._map(start, start + fresh, nbytes - fresh)
        except Exception:
            for chunk in [chunk for chunk, range_ in self._chunks.items() if range_ == start]:
                self._unmap(chunk)
            self._forget_if_empty(start)
            raise
        return Span(start, nbytes)

    def _map(self, start: int, address: int, nbytes: int) -> None:
        if nbytes:
            self._upstream.map(address, nbytes, CHUNK)
            self._chunks.update((chunk, start) for chunk in range(address, address + nbytes, CHUNK))
            self.reserved.change(nbytes)

    def _unmap(self, chunk: int) -> None:
        """Take the memory from behind a chunk that is on no list."""
        self._upstream.unmap(chunk, CHUNK, CHUNK, 0)
        self.reserved.change(-CHUNK)
        self._forget_if_empty(self._chunks.pop(chunk))

    def _release_chunk(self, chunk: int) -> None:
        """Return a settled chunk to the upstream."""
        self._unmap(chunk)
        self._settled.carve(chunk, CHUNK)

    def _forget_if_empty(self, start: int) -> None:
        """Return a range of addresses when its last chunk has gone."""
        if start in self._ranges and start not in self._chunks.values():
            self._upstream.release_addresses(start, self._ranges.pop(start))
            self._barriers.discard(start)

    def _free_chunks(self) -> list[int]:
        """Return the chunks that are free for every stream, from the highest address down."""
        return sorted(
            (chunk for chunk in self._chunks if self._settled.free_at(chunk, CHUNK)), reverse=True
        )

    def _release_chunks(self, keep: int) -> None:
        for chunk in self._free_chunks():
            if self.reserved.current - CHUNK < keep:
                return
            self._release_chunk(chunk)
