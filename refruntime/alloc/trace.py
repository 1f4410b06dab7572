"""The event trace of an allocator: what happened, when, to which bytes, and who asked.

State
-----
A `Trace` holds the events since recording began, the blocks and segments that were there before,
and the alloc event of each live block.

Invariants
----------
* Nothing is written, and no clock is read, while recording is off.
* Sizes are the bytes asked for (alloc, free, tag) or real ones (segment events, oom).
* Replaying `initial` and then `events` gives the allocator's state at any event between.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from refruntime.alloc import categories

ALLOC: Final = "alloc"
FREE_REQUESTED: Final = "free_requested"
FREE_COMPLETED: Final = "free_completed"
SEGMENT_ALLOC: Final = "segment_alloc"
SEGMENT_FREE: Final = "segment_free"
OOM: Final = "oom"
TAG: Final = "tag"

# One frame: file, line, function.
Frame = tuple[str, int, str]
Frames = tuple[Frame, ...]
NO_FRAMES: Final[Frames] = ()

_OWN_FOLDER: Final = str(Path(__file__).parent)


class TraceEvent(NamedTuple):
    """One event.

    `addr` of an ``oom`` is the number of bytes that the upstream had left, and `size` the rounded
    size that could not be served.
    """

    action: str
    addr: int
    size: int
    stream: int
    category: int
    time_us: int
    frames: Frames = NO_FRAMES


class Sample(NamedTuple):
    """The memory after an event: bytes asked for by category number, and bytes reserved."""

    time_us: int
    by_category: tuple[int, ...]
    reserved: int


class Trace:
    """The recorder of one allocator.

    Attributes
    ----------
    enabled, stacks : bool
        Whether events, and the Python frames of each alloc, are recorded.
    initial : list of TraceEvent
        The segments and live blocks at the start, as events.
    events : deque of TraceEvent
        What happened since; with `max_entries` only the last ones are kept.
    live : dict
        The alloc event of each live block by address, with the category it has now.
    """

    def __init__(self) -> None:
        self.enabled = False
        self.stacks = False
        self.initial: list[TraceEvent] = []
        self.events: deque[TraceEvent] = deque()
        self.live: dict[int, TraceEvent] = {}

    def start(
        self, initial: Iterable[TraceEvent], stacks: bool, max_entries: int | None = None
    ) -> None:
        """Drop what was recorded, and begin anew from the state in `initial`."""
        self.initial = list(initial)
        self.events = deque(maxlen=max_entries)
        self.live = {event.addr: event for event in self.initial if event.action == ALLOC}
        self.enabled, self.stacks = True, stacks

    def stop(self) -> None:
        """Stop recording; what was recorded stays readable."""
        self.enabled = False

    def add(self, action: str, addr: int, size: int, stream: int, category: int) -> None:
        """Record an event now that is about segments or a failure."""
        self.events.append(TraceEvent(action, addr, size, stream, category, now_us()))

    def add_alloc(self, addr: int, size: int, stream: int, category: int) -> None:
        """Record that a block came into use."""
        frames = user_frames() if self.stacks else NO_FRAMES
        event = TraceEvent(ALLOC, addr, size, stream, category, now_us(), frames)
        self.live[addr] = event
        self.events.append(event)

    def add_free(self, addr: int) -> None:
        """Record that a block was given back; unknown addresses are the allocator's to refuse."""
        event = self.live.pop(addr, None)
        if event is not None:
            self.add(FREE_REQUESTED, addr, event.size, event.stream, event.category)
            self.add(FREE_COMPLETED, addr, event.size, event.stream, event.category)

    def add_tag(self, addr: int, category: int) -> None:
        """Record that a block got another category."""
        event = self.live.get(addr)
        if event is not None:
            self.live[addr] = event._replace(category=category)
            self.add(TAG, addr, event.size, event.stream, category)


def now_us() -> int:
    """Return the wall clock in microseconds since the epoch."""
    return time.time_ns() // 1000


def user_frames(limit: int = 64) -> Frames:
    """Return the calling frames, innermost first, without those of the allocator itself."""
    frame = sys._getframe(1)
    found: list[Frame] = []
    while frame is not None and len(found) < limit:
        code = frame.f_code
        if found or not code.co_filename.startswith(_OWN_FOLDER):
            found.append((code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


def timeline(events: Iterable[TraceEvent]) -> Iterator[Sample]:
    """Yield the memory after each event that changes it.

    Parameters
    ----------
    events : iterable of TraceEvent
        Usually ``[*trace.initial, *trace.events]``.
    """
    totals = [0] * categories.COUNT
    live: dict[int, tuple[int, int]] = {}
    reserved = 0
    for event in events:
        if event.action in (SEGMENT_ALLOC, SEGMENT_FREE):
            reserved += event.size if event.action == SEGMENT_ALLOC else -event.size
        elif not _apply(event, live, totals):
            continue
        yield Sample(event.time_us, tuple(totals), reserved)


def _apply(event: TraceEvent, live: dict[int, tuple[int, int]], totals: list[int]) -> bool:
    """Apply an alloc, a tag or a completed free; return whether it was one."""
    if event.action not in (ALLOC, TAG, FREE_COMPLETED):
        return False
    before = live.pop(event.addr, None)
    if before is not None:
        totals[before[1]] -= before[0]
    if event.action != FREE_COMPLETED:
        live[event.addr] = (event.size, event.category)
        totals[event.category] += event.size
    return True


def frames_as_dicts(frames: Frames) -> list[dict[str, Any]]:
    """Return frames in the form that snapshots hold."""
    return [{"filename": file, "line": line, "name": name} for file, line, name in frames]
