"""Streams in backward: a node runs on the stream of its forward.

State
-----
`active` is what drives the streams of a device, or None where there are none (a CPU): recording and
the engine ask nothing more then.

Invariants
----------
* A node's backward runs on the stream that was current when it was recorded. A gradient that comes
  from another stream is waited for, by an event, before the node starts.
* When the call ends, the caller's stream waits for every stream on which a leaf was accumulated.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol


class Streams(Protocol):
    """What a device with streams provides."""

    def current(self) -> Any:
        """Return the stream on which this thread starts kernels, or None for the default one."""

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Start kernels on `stream` within a context."""

    def wait(self, waiting: Any, for_stream: Any) -> None:
        """Let what `waiting` gets from now on start after what `for_stream` got so far."""


active: Streams | None = None


class Meeting:
    """The streams of one backward call: which one a node runs on, and who waits for whom."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.caller = streams.current()
        self.used: dict[int, Any] = {}
        # The streams that the gradients which wait for a node come from.
        self.sources: dict[Any, dict[int, Any]] = {}

    def start(self, root: Any) -> None:
        """Note that the first gradient of `root` was made on the stream of the caller."""
        self.sources.setdefault(root, {})[id(self.caller)] = self.caller

    def came(self, successor: Any, producer: Any) -> None:
        """Note that a gradient for `successor` was made on the stream of `producer`."""
        stream = self.stream_of(producer)
        self.sources.setdefault(successor, {})[id(stream)] = stream

    def stream_of(self, node: Any) -> Any:
        """Return the stream of a node: a leaf's is the caller's."""
        return self.caller if node.forward_stream is None else node.forward_stream

    def on(self, node: Any) -> AbstractContextManager[Any]:
        """Wait for the gradients of a node, and start kernels on its stream within a context."""
        stream = self.stream_of(node)
        for source in self.sources.pop(node, {}).values():
            if source is not stream:
                self.streams.wait(stream, source)
        self.used[id(stream)] = stream
        return self.streams.use(stream)

    def end(self) -> None:
        """Let the caller's stream wait for all that was used."""
        for stream in self.used.values():
            if stream is not self.caller:
                self.streams.wait(self.caller, stream)
