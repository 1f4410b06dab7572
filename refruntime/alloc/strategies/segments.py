"""Segments of the upstream with what is free in them, a list for each stream.

State
-----
The size of each segment by its address, and the free spans of each stream.

Invariants
----------
* Free spans of two segments are never joined; a span that is a whole segment can be given back.
* What was cut for one stream returns to the list of that stream.
"""

from __future__ import annotations

from collections.abc import Callable

from refruntime.alloc.spans import FreeSpans, Span


class Segments:
    """The cache of a pool.

    Parameters
    ----------
    reserve : callable
        ``reserve(nbytes, stream)`` returns the address of a new segment, or None.
    release : callable
        ``release(span)`` gives a segment back.
    """

    def __init__(
        self, reserve: Callable[[int, int], int | None], release: Callable[[Span], None]
    ) -> None:
        self._reserve, self._release = reserve, release
        self._sizes: dict[int, int] = {}
        self._barriers: set[int] = set()
        self._spans: dict[int, FreeSpans] = {}

    def spans(self, stream: int) -> FreeSpans:
        """Return the free spans of a stream."""
        if stream not in self._spans:
            self._spans[stream] = FreeSpans(self._barriers)
        return self._spans[stream]

    def cut(self, size: int, stream: int) -> Span | None:
        """Cut a block from the smallest span of the stream that holds it."""
        spans = self.spans(stream)
        address = spans.best_fit(size)
        return None if address is None else spans.carve(address, size)

    def cut_or_grow(self, size: int, stream: int, nbytes: int) -> Span | None:
        """Cut a block, from a new segment of `nbytes` if none fits."""
        found = self.cut(size, stream)
        if found is None and self.grow(nbytes, stream):
            found = self.cut(size, stream)
        return found

    def grow(self, nbytes: int, stream: int) -> bool:
        """Add a new segment to the stream's free spans; return whether it could be had."""
        address = self._reserve(nbytes, stream)
        if address is None:
            return False
        self._sizes[address] = nbytes
        self._barriers.add(address)
        self.spans(stream).add(address, nbytes)
        return True

    def idle(self) -> list[tuple[int, Span]]:
        """Return the segments that are wholly free, each with its stream."""
        return [
            (stream, span)
            for stream, spans in self._spans.items()
            for span in spans
            if self._sizes.get(span.address) == span.size
        ]

    def release_idle(self) -> list[Span]:
        """Give wholly free segments back; return them."""
        idle = self.idle()
        for stream, span in idle:
            self._spans[stream].remove(span.address)
            self._barriers.remove(span.address)
            del self._sizes[span.address]
            self._release(span)
        return [span for _, span in idle]
