"""Graphs that are being captured: which streams, and which work comes after which.

State
-----
`VirtualGraphs` holds the captures under way and the nodes of all graphs captured so far. `Marks`
holds, a block that was freed inside a capture, the nodes that end the work on it.

Invariants
----------
* Nodes are positive numbers, never given twice.
* Work on a stream comes after the nodes in `ends` of that stream, and after all before them.
* Marks are kept from `add` to `forget`, which never fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from refruntime.errors import ArgumentValueError

NO_STREAM = -1  # what `Marks.add` answers for a stream that is not captured


class GraphOrder(Protocol):
    """Who knows the captures of a device."""

    def capturing(self) -> bool:
        """Whether the calling thread's current stream is being captured."""

    def capture_of(self, stream: int) -> int:
        """Return the number of the capture that a stream is part of, or 0."""

    def ends(self, stream: int) -> Collection[int]:
        """Return the nodes that the next work of a captured stream will come after."""

    def before(self, node: int) -> Collection[int]:
        """Return the nodes that a node comes directly after."""


class Marks:
    """The last work on blocks that were freed inside captures.

    Parameters
    ----------
    order : GraphOrder
        The captures.
    """

    def __init__(self, order: GraphOrder) -> None:
        self._order = order
        self._marked: dict[int, set[int]] = {}
        self._walked: dict[tuple[int, int], set[int]] = {}

    def add(self, block: int, stream: int) -> int:
        """Mark what ends the work of a stream, for a block: how many nodes, or `NO_STREAM`."""
        if not self._order.capture_of(stream):
            return NO_STREAM
        ends = self._order.ends(stream)
        self._marked.setdefault(block, set()).update(ends)
        return len(ends)

    def come_before(self, block: int, stream: int) -> bool:
        """Whether all marks of a block come before the next work of a stream."""
        return self._marked[block] <= self._all_before(stream)

    def forget(self, block: int) -> None:
        """Drop the marks of a block."""
        self._marked.pop(block, None)

    def forget_walks(self) -> None:
        """Drop what is known of captures, as none is under way."""
        self._walked.clear()

    def _all_before(self, stream: int) -> set[int]:
        """Return the nodes before the next work of a stream; each is looked at once a capture."""
        ends = self._order.ends(stream)
        if not ends:
            return set()
        found = self._walked.setdefault((self._order.capture_of(stream), stream), set())
        left = [node for node in ends if node not in found]
        found.update(left)
        while left:
            new = [node for node in self._order.before(left.pop()) if node not in found]
            found.update(new)
            left += new
        return found


@dataclass(slots=True)
class _Captured:
    """A stream that is being captured."""

    capture: int
    ends: list[int] = field(default_factory=list)

    def come_after(self, nodes: Collection[int]) -> None:
        self.ends += [node for node in nodes if node not in self.ends]


class VirtualGraphs:
    """Captures where there is no device: streams, forks, joins and nodes, as the user tells them.

    Parameters
    ----------
    current : callable
        Returns the calling thread's current stream.
    """

    def __init__(self, current: Callable[[], int]) -> None:
        self._current = current
        self._streams: dict[int, _Captured] = {}
        self._before: dict[int, tuple[int, ...]] = {}
        self._captures = itertools.count(1)
        self._nodes = itertools.count(1)

    def begin(self, stream: int) -> int:
        """Begin a capture on a stream; return its number."""
        if stream in self._streams:
            raise ArgumentValueError(
                "begin of a capture", expected="a stream that is not captured", got=stream
            )
        self._streams[stream] = _Captured(next(self._captures))
        return self._streams[stream].capture

    def end(self, stream: int) -> None:
        """End the capture that a stream is part of, for all of its streams."""
        if stream not in self._streams:
            raise ArgumentValueError(
                "end of a capture", expected="a stream that is captured", got=stream
            )
        ended = self.capture_of(stream)
        self._streams = {k: each for k, each in self._streams.items() if each.capture != ended}

    def add_node(self, stream: int) -> None:
        """Give a stream one piece of work; it is captured if the stream is."""
        if stream in self._streams:
            node = next(self._nodes)
            self._before[node] = tuple(self._streams[stream].ends)
            self._streams[stream].ends = [node]

    def wait(self, stream: int, on: int) -> None:
        """Let a stream wait for another one; if that is captured, it joins the capture."""
        other = self._streams.get(on)
        if other is None:
            return
        ours = self._streams.setdefault(stream, _Captured(other.capture))
        if ours.capture == other.capture:
            ours.come_after(other.ends)

    def capturing(self) -> bool:
        """Whether the calling thread's current stream is being captured."""
        return self._current() in self._streams

    def capture_of(self, stream: int) -> int:
        """Return the number of the capture that a stream is part of, or 0."""
        return self._streams[stream].capture if stream in self._streams else 0

    def ends(self, stream: int) -> Collection[int]:
        """Return the nodes that the next work of a captured stream will come after."""
        return self._streams[stream].ends if stream in self._streams else ()

    def before(self, node: int) -> Collection[int]:
        """Return the nodes that a node comes directly after."""
        return self._before[node]
