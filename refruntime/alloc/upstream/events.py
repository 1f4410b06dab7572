"""The marks that streams pass, where there is no device to ask.

State
-----
`VirtualEvents` holds, a stream, how many marks it was given and how many it has passed; the marks
that are out, by name; and the events that can be used again.

Invariants
----------
* A stream passes its marks in the order in which it was given them.
* Names are never given twice. Events are: the one given back last is used first, as in PyTorch.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from refruntime.errors import ArgumentValueError

_DONE: Final = 1


class ImmediateEvents:
    """The stream part of an upstream whose work is done when it is asked for: the host."""

    def record_event(self, stream: int) -> int:
        """Return the one event, which is always done."""
        return _DONE

    def query_event(self, event: int) -> bool:
        """Whether the work before it is done: it always is."""
        return True

    def wait_event(self, event: int) -> None:
        """Do nothing: there is nothing to wait for."""

    def release_event(self, event: int) -> None:
        """Do nothing: the one event is shared."""

    def synchronize(self, stream: int | None = None) -> None:
        """Do nothing: there is nothing to wait for."""


class Mark:
    """An event that is out: its number, its stream, and how many marks the stream had with it."""

    __slots__ = ("number", "sequence", "stream")

    def __init__(self, number: int, stream: int, sequence: int) -> None:
        self.number = number
        self.stream = stream
        self.sequence = sequence


class VirtualEvents:
    """Streams whose work is done at once, or when the user says so.

    Parameters
    ----------
    manual : bool
        Whether marks wait for `complete`.
    """

    def __init__(self, manual: bool = False) -> None:
        self.manual = manual
        self._given: Counter[int] = Counter()
        self._passed: Counter[int] = Counter()
        self._out: dict[int, Mark] = {}
        self._names = 0
        self._idle: list[int] = []
        self._made = 0

    def take(self) -> tuple[int, bool]:
        """Return the number of an event to use, and whether it is a new one."""
        if self._idle:
            return self._idle.pop(), False
        self._made += 1
        return self._made, True

    def record(self, number: int, stream: int) -> int:
        """Give a stream a mark; return its name."""
        self._given[stream] += 1
        if not self.manual:
            self._passed[stream] = self._given[stream]
        self._names += 1
        self._out[self._names] = Mark(number, stream, self._given[stream])
        return self._names

    def mark(self, name: int) -> Mark:
        """Return the mark of this name."""
        found = self._out.get(name)
        if found is None:
            raise ArgumentValueError(
                "event", expected="an event that was recorded and not given back", got=name
            )
        return found

    def done(self, mark: Mark) -> bool:
        """Whether the stream has passed the mark."""
        return self._passed[mark.stream] >= mark.sequence

    def wait(self, mark: Mark) -> None:
        """Let the stream go on until it has passed the mark."""
        self._passed[mark.stream] = max(self._passed[mark.stream], mark.sequence)

    def give_back(self, name: int) -> None:
        """Let the event of a mark be used again."""
        self._idle.append(self.mark(name).number)
        del self._out[name]

    def complete(self, stream: int | None = None, n: int | None = None) -> None:
        """Let a stream (or all) pass its oldest `n` marks (or all)."""
        for each in list(self._given) if stream is None else [stream]:
            left = self._given[each] - self._passed[each]
            self._passed[each] += left if n is None else min(n, left)
