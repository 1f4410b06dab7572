"""Streams and events of a device that exists only on paper: who has done what, who waits for whom.

State
-----
For each stream: how many pieces of work were submitted and how many are done, what its later work
waits for, and how far into every other stream it is ordered behind (a vector clock), now and at
each of its pending places where that changed.

Invariants
----------
* ``done <= submitted`` in every stream, and both only rise.
* Work is done in order, and never before what its stream waited for.
* `ordered` is true only of marks that lie before the stream's next work in every execution.
* Streams do not wait for each other by themselves (they are what CUDA calls non-blocking).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple


class Mark(NamedTuple):
    """A place in a stream: behind its first `position` pieces of work."""

    stream: int
    position: int


class Event(NamedTuple):
    """A recorded mark, with how far into other streams it is ordered behind."""

    mark: Mark
    clock: Mapping[int, int]


class Timeline:
    """The streams of one virtual device.

    Parameters
    ----------
    manual : bool
        Whether work is done only when told (`complete`, `synchronize`); else at once.
    """

    def __init__(self, *, manual: bool = False) -> None:
        self.manual = manual
        self._submitted: defaultdict[int, int] = defaultdict(int)
        self._done: defaultdict[int, int] = defaultdict(int)
        self._clocks: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._waits: defaultdict[int, list[tuple[int, Mark]]] = defaultdict(list)
        self._past_clocks: defaultdict[int, list[tuple[int, dict[int, int]]]] = defaultdict(list)

    def submit(self, stream: int) -> Mark:
        """Submit a piece of work, and return the mark behind it."""
        self._submitted[stream] += 1
        mark = Mark(stream, self._submitted[stream])
        if not self.manual:
            self._finish(mark)
        return mark

    def record(self, stream: int) -> Event:
        """Record an event behind all that was submitted to a stream."""
        mark = self.submit(stream)
        return Event(mark, {**self._clocks[stream], stream: mark.position})

    def wait(self, stream: int, event: Event) -> None:
        """Make later work of a stream wait for an event."""
        if event.mark.stream != stream:
            self._waits[stream].append((self._submitted[stream], event.mark))
            # The wait itself is a piece of work: who waits for the stream waits for it too.
            self.submit(stream)
        clock = self._clocks[stream]
        for other, position in event.clock.items():
            clock[other] = max(clock.get(other, 0), position)
        self._past_clocks[stream].append((self._submitted[stream], dict(clock)))

    def wait_mark(self, stream: int, mark: Mark) -> None:
        """Make later work of a stream wait for a mark, as if an event had been recorded there."""
        clock: dict[int, int] = {}
        for position, past in self._past_clocks[mark.stream]:
            if position <= mark.position:
                clock = past
        self.wait(stream, Event(mark, {**clock, mark.stream: mark.position}))

    def reached(self, mark: Mark) -> bool:
        """Return whether all work before a mark is done."""
        return self._done[mark.stream] >= mark.position

    def ordered(self, stream: int, mark: Mark) -> bool:
        """Return whether later work of `stream` runs behind `mark` in any case."""
        return mark.stream == stream or self._clocks[stream].get(mark.stream, 0) >= mark.position

    def complete(self, stream: int | None = None, pieces: int | None = None) -> None:
        """Do the oldest pending `pieces` of a stream, all by default; of every stream for None."""
        if stream is None:
            for known in list(self._submitted):
                self.complete(known)
            return
        pending = self._submitted[stream] - self._done[stream]
        count = pending if pieces is None else min(pieces, pending)
        self._finish(Mark(stream, self._done[stream] + count))

    def _finish(self, mark: Mark) -> None:
        todo = [mark]
        while todo:
            stream, position = todo.pop()
            self._done[stream] = max(self._done[stream], position)
            waits = self._waits[stream]
            while waits and waits[0][0] < position:
                todo.append(waits.pop(0)[1])
            self._forget_past(stream)

    def _forget_past(self, stream: int) -> None:
        """Drop the clocks of places whose work is done, but the last: nobody waits there now."""
        past = self._past_clocks[stream]
        while len(past) > 1 and past[1][0] <= self._done[stream]:
            past.pop(0)
