"""Who answers the interpreted core: an upstream, and the callbacks that can free memory.

State
-----
The upstreams by number (0 is the allocator's own, the others belong to private pools), callbacks,
the marks of blocks freed in captures, and what a request that had to begin anew has got already: a
span that was reserved while the lock was released, and the answer of the callbacks.

Invariants
----------
* Lack of memory is an answer; any other exception of an upstream goes through the core, which has
  changed nothing since it asked.
* With the lock released, and inside of callbacks, tables may grow and pools may go; the request
  then begins anew and is given what it got before.
* Other calls meanwhile leave the words of the header that belong to this one (CALL_WORDS) as they
  were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from refruntime.alloc import questions
from refruntime.alloc.graphs import NO_STREAM, GraphOrder, Marks
from refruntime.alloc.guard import Guard
from refruntime.alloc.tables import CAPTURING, CONTEXT, NOW, POOLS_DROPPED, Tables
from refruntime.alloc.upstream import Upstream, UpstreamExhausted

Callback = Callable[[], bool]
Answer = Callable[[int, int, int, int], int]

CALL_WORDS: Final = (CAPTURING, NOW, CONTEXT)


class BeginAnew(Exception):  # noqa: N818  it tells a state, not a mistake
    """The tables moved while the lock was released."""


class UpstreamOutside:
    """Answers the core's questions; see `questions`."""

    def __init__(
        self, upstream: Upstream, tables: Tables, guard: Guard, graphs: GraphOrder | None = None
    ) -> None:
        self.upstreams: list[Upstream] = [upstream]
        self.callbacks: list[Callback] = []
        self.unlocked = False  # whether the lock is released around RESERVE
        self.drain: Callable[[], object] = lambda: None
        self.marks = None if graphs is None else Marks(graphs)
        self._tables = tables
        self._guard = guard
        self._spare: tuple[int, int, int] | None = None
        self._freed: int | None = None
        self._answers: Final[dict[int, Answer]] = {
            questions.RESERVE: self._reserve,
            questions.RELEASE: self._release,
            questions.RESERVE_ADDRESSES: self._reserve_addresses,
            questions.RELEASE_ADDRESSES: self._release_addresses,
            questions.MAP: self._map,
            questions.UNMAP: self._unmap,
            questions.RECORD_EVENT: lambda stream, *_: upstream.record_event(stream),
            questions.QUERY_EVENT: lambda event, *_: int(upstream.query_event(event)),
            questions.WAIT_EVENT: _done(upstream.wait_event),
            questions.RELEASE_EVENT: _done(upstream.release_event),
            questions.SYNCHRONIZE: _done(upstream.synchronize),
            questions.FREE_CALLBACKS: self._call_back,
            questions.FREE_MEMORY: lambda *_: upstream.memory_info()[0],
            questions.MARK_ENDS: self._mark,
            questions.IS_AFTER_MARKS: self._is_after_marks,
            questions.FORGET_MARKS: self._forget_marks,
        }

    def answer(self, question: int, a: int, b: int, c: int, d: int) -> int:
        """Do what `questions` says, and return its answer."""
        return self._answers[question](a, b, c, d)

    def end_request(self) -> None:
        """Forget what a request that began anew had got; give back a span that it did not need."""
        self._freed = None
        if self._spare is not None:
            address, nbytes, number = self._spare
            self._spare = None
            self.upstreams[number].release(address, nbytes)

    def _reserve(self, nbytes: int, stream: int, number: int, _: int) -> int:
        if self._spare is not None and self._spare[1:] == (nbytes, number):
            address = self._spare[0]
            self._spare = None
            return address
        if self.unlocked:
            return self._reserve_unlocked(nbytes, stream, number)
        return _reserved(self.upstreams[number], nbytes, stream)

    def _reserve_unlocked(self, nbytes: int, stream: int, number: int) -> int:
        header, blocks = self._tables.header, self._tables.blocks
        dropped, words = header[POOLS_DROPPED], [header[word] for word in CALL_WORDS]
        self._guard.leave()
        try:
            address = _reserved(self.upstreams[number], nbytes, stream)
        finally:
            self._guard.enter()
        for word, value in zip(CALL_WORDS, words):
            header[word] = value
        if self._tables.blocks is not blocks or header[POOLS_DROPPED] != dropped:
            self._spare = (address, nbytes, number) if address else None
            raise BeginAnew
        return address

    def _release(self, address: int, nbytes: int, number: int, _: int) -> int:
        self.upstreams[number].release(address, nbytes)
        return 0

    def _reserve_addresses(self, nbytes: int, *_: int) -> int:
        try:
            return self.upstreams[0].reserve_addresses(nbytes)
        except UpstreamExhausted:
            return 0

    def _release_addresses(self, address: int, nbytes: int, *_: int) -> int:
        self.upstreams[0].release_addresses(address, nbytes)
        return 0

    def _map(self, address: int, nbytes: int, page: int, _: int) -> int:
        try:
            self.upstreams[0].map(address, nbytes, page)
        except UpstreamExhausted:
            return 0
        return 1

    def _unmap(self, address: int, nbytes: int, page: int, stream: int) -> int:
        self.upstreams[0].unmap(address, nbytes, page, stream)
        return 0

    def _call_back(self, *_: int) -> int:
        if self._freed is not None:
            # The request began anew after they had been called.
            return self._freed
        blocks = self._tables.blocks
        answers = [callback() for callback in list(self.callbacks)]
        # What the callbacks freed was queued; it counts for the search that follows.
        self.drain()
        if self._tables.blocks is not blocks:
            self._freed = int(any(answers))
            raise BeginAnew
        return int(any(answers))

    def _mark(self, block: int, stream: int, *_: int) -> int:
        return NO_STREAM if self.marks is None else self.marks.add(block, stream)

    def _is_after_marks(self, block: int, stream: int, *_: int) -> int:
        return int(self.marks is not None and self.marks.come_before(block, stream))

    def _forget_marks(self, block: int, *_: int) -> int:
        if self.marks is not None:
            self.marks.forget(block)
        return 0


def _reserved(upstream: Upstream, nbytes: int, stream: int) -> int:
    """Return a span, or 0 if there is no memory."""
    try:
        return upstream.reserve(nbytes, stream)
    except UpstreamExhausted:
        return 0


def _done(act: Callable[[int], None]) -> Answer:
    """Return what does something with its first argument, and answers nothing."""

    def answer(first: int, *_: int) -> int:
        act(first)
        return 0

    return answer
