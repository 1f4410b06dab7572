"""Who answers the interpreted core: an upstream, and the callbacks that can free memory.

State
-----
The upstreams by number (0 is the allocator's own, the others belong to private pools), callbacks,
and a span that was reserved while the lock was released, if the request that wanted it had to begin
anew.

Invariants
----------
* Lack of memory is an answer; any other exception of an upstream goes through the core, which has
  changed nothing since it asked.
* With the lock released, tables may grow meanwhile; the request then begins anew and is given the
  span that was reserved for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from refruntime.alloc import questions
from refruntime.alloc.guard import Guard
from refruntime.alloc.tables import Tables
from refruntime.alloc.upstream import Upstream, UpstreamExhausted

Callback = Callable[[], bool]


class BeginAnew(Exception):  # noqa: N818  it tells a state, not a mistake
    """The tables moved while the lock was released."""


class UpstreamOutside:
    """Answers the core's questions; see `questions`."""

    def __init__(self, upstream: Upstream, tables: Tables, guard: Guard) -> None:
        self.upstreams: list[Upstream] = [upstream]
        self.callbacks: list[Callback] = []
        self.unlocked = False  # whether the lock is released around RESERVE
        self.drain: Callable[[], object] = lambda: None
        self._tables = tables
        self._guard = guard
        self._spare: tuple[int, int, int] | None = None
        self._answers: Final = {
            questions.RESERVE: self._reserve,
            questions.RELEASE: self._release,
            questions.RESERVE_ADDRESSES: self._reserve_addresses,
            questions.RELEASE_ADDRESSES: self._release_addresses,
            questions.MAP: self._map,
            questions.UNMAP: self._unmap,
            questions.RECORD_EVENT: lambda stream, *_: upstream.record_event(stream),
            questions.QUERY_EVENT: lambda event, *_: int(upstream.query_event(event)),
            questions.WAIT_EVENT: lambda event, *_: _done(upstream.wait_event(event)),
            questions.RELEASE_EVENT: lambda event, *_: _done(upstream.release_event(event)),
            questions.SYNCHRONIZE: lambda stream, *_: _done(upstream.synchronize(stream)),
            questions.FREE_CALLBACKS: self._call_back,
            questions.FREE_MEMORY: lambda *_: upstream.memory_info()[0],
        }

    def answer(self, question: int, a: int, b: int, c: int, d: int) -> int:
        """Do what `questions` says, and return its answer."""
        return self._answers[question](a, b, c, d)

    def _reserve(self, nbytes: int, stream: int, number: int, _: int) -> int:
        if self._spare is not None and self._spare[1:] == (nbytes, number):
            address = self._spare[0]
            self._spare = None
            return address
        try:
            if self.unlocked:
                return self._reserve_unlocked(nbytes, stream, number)
            return self.upstreams[number].reserve(nbytes, stream)
        except UpstreamExhausted:
            return 0

    def _reserve_unlocked(self, nbytes: int, stream: int, number: int) -> int:
        blocks = self._tables.blocks
        self._guard.leave()
        try:
            address = self.upstreams[number].reserve(nbytes, stream)
        finally:
            self._guard.enter()
        if self._tables.blocks is not blocks:
            self._spare = address, nbytes, number
            raise BeginAnew
        return address

    def return_spare(self) -> None:
        """Give back a span that the request which began anew did not need."""
        if self._spare is not None:
            address, nbytes, number = self._spare
            self._spare = None
            self.upstreams[number].release(address, nbytes)

    def _release(self, address: int, nbytes: int, number: int, _: int) -> int:
        return _done(self.upstreams[number].release(address, nbytes))

    def _reserve_addresses(self, nbytes: int, *_: int) -> int:
        return self.upstreams[0].reserve_addresses(nbytes)

    def _release_addresses(self, address: int, nbytes: int, *_: int) -> int:
        return _done(self.upstreams[0].release_addresses(address, nbytes))

    def _map(self, address: int, nbytes: int, page: int, _: int) -> int:
        try:
            self.upstreams[0].map(address, nbytes, page)
        except UpstreamExhausted:
            return 0
        return 1

    def _unmap(self, address: int, nbytes: int, page: int, stream: int) -> int:
        return _done(self.upstreams[0].unmap(address, nbytes, page, stream))

    def _call_back(self, *_: int) -> int:
        freed = [callback() for callback in list(self.callbacks)]
        # What the callbacks freed was queued; it counts for the search that follows.
        self.drain()
        return int(any(freed))


def _done(nothing: None) -> int:
    """Answer a question that has no answer."""
    return 0
