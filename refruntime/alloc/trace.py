"""The history of an allocator: what happened, when, to which bytes, and who asked.

State
-----
The entries are in the ring of the tables, written by the core. A `Trace` holds what the core knows
nothing of: the Python stacks, each once, by number; and the blocks and segments that were there
when recording began.

Invariants
----------
* Nothing is written, and no clock is read, while recording is off.
* Sizes are the bytes asked for (alloc, free, tag) or real ones (segment events, oom).
* Replaying `initial` and then `events` gives the allocator's state at any event between, unless
  the ring has dropped its oldest entries.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from refruntime.alloc import categories, counters
from refruntime.alloc.native_stack import KnownStacks, is_trusted
from refruntime.alloc.tables import (
    ACTION,
    ENTRY_ADDRESS,
    ENTRY_CATEGORY,
    ENTRY_CONTEXT,
    ENTRY_POOL,
    ENTRY_SIZE,
    ENTRY_STREAM,
    ENTRY_TIME,
    STACK_SLOTS,
    STACKS,
    TRACE_COUNT,
    Tables,
)

ALLOC: Final = "alloc"
FREE_REQUESTED: Final = "free_requested"
FREE_COMPLETED: Final = "free_completed"
SEGMENT_ALLOC: Final = "segment_alloc"
SEGMENT_FREE: Final = "segment_free"
SEGMENT_MAP: Final = "segment_map"
SEGMENT_UNMAP: Final = "segment_unmap"
OOM: Final = "oom"
TAG: Final = "tag"
SNAPSHOT: Final = "snapshot"
ANNOTATE: Final = "annotate"

ACTIONS: Final[dict[int, str]] = {
    counters.ALLOC: ALLOC,
    counters.FREE_REQUESTED: FREE_REQUESTED,
    counters.FREE_COMPLETED: FREE_COMPLETED,
    counters.SEGMENT_ALLOC: SEGMENT_ALLOC,
    counters.SEGMENT_FREE: SEGMENT_FREE,
    counters.SEGMENT_MAP: SEGMENT_MAP,
    counters.SEGMENT_UNMAP: SEGMENT_UNMAP,
    counters.OOM: OOM,
    counters.TAG: TAG,
    counters.SNAPSHOT: SNAPSHOT,
    counters.ANNOTATE: ANNOTATE,
}

# One frame: file, line, function.
Frame = tuple[str, int, str]
Frames = tuple[Frame, ...]
NO_FRAMES: Final[Frames] = ()
PoolId = tuple[int, int]

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
    pool: PoolId = (0, 0)


class Sample(NamedTuple):
    """The memory after an event: bytes asked for by category number, and bytes reserved."""

    time_us: int
    by_category: tuple[int, ...]
    reserved: int


class Stacks:
    """Python stacks by number, each kept once; number 0 is no stack.

    A stack is kept as the code and the place in it of each frame; lines are worked out when
    somebody reads it. A number that was not given here, as those below `first`, has no frames.
    """

    def __init__(self, first: int = 1) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._stacks: dict[int, list[tuple[CodeType, int]]] = {}
        self._frames: dict[int, Frames] = {}
        self.next_number = first

    def current(self, depth: int = 1) -> int:
        """Return the number of the stack `depth` calls up, without the allocator's own frames."""
        frame = sys._getframe(depth)
        while frame.f_code.co_filename.startswith(_OWN_FOLDER) and frame.f_back is not None:
            frame = frame.f_back
        # Hashing a code object reads all of it; its identity does as well, as it is kept alive.
        key: list[int] = []
        top: FrameType | None = frame
        while top is not None:
            key += id(top.f_code), top.f_lasti
            top = top.f_back
        places = tuple(key)
        number = self._numbers.get(places)
        return self._enter(places, frame) if number is None else number

    def _enter(self, places: tuple[int, ...], frame: FrameType) -> int:
        """Give a stack that is new a number."""
        found: list[tuple[CodeType, int]] = []
        top: FrameType | None = frame
        while top is not None:
            found.append((top.f_code, top.f_lasti))
            top = top.f_back
        number = self.next_number
        self.next_number += 1
        self._stacks[number] = found
        self._numbers[places] = number
        return number

    def frames(self, number: int) -> Frames:
        """Return the frames of a stack, innermost first."""
        found = self._frames.get(number)
        if found is None:
            found = self._frames[number] = tuple(
                (code.co_filename, _line_of(code, place), code.co_qualname)
                for code, place in self._stacks.get(number, ())
            )
        return found


def _line_of(code: CodeType, place: int) -> int:
    """Return the line of a place in a code object."""
    for start, stop, line in code.co_lines():
        if start <= place < stop and line is not None:
            return line
    return code.co_firstlineno


class Trace:
    """The recorder of one allocator.

    Attributes
    ----------
    enabled, stacks : bool
        Whether events, and the Python frames of those who asked, are recorded.
    initial : list of TraceEvent
        The segments and live blocks at the start, as events.
    """

    def __init__(self, tables: Tables) -> None:
        self.enabled = False
        self.stacks = False
        self.initial: list[TraceEvent] = []
        self._tables = tables
        self._known = Stacks()
        self._table = KnownStacks()
        # Re-entrant: a finalizer may allocate, and so enter a stack, while one is being entered.
        self._lock = threading.RLock()

    def start(
        self, initial: Iterable[TraceEvent], stacks: bool, max_entries: int | None = None
    ) -> None:
        """Drop what was recorded, and begin anew from the state in `initial`."""
        with self._lock:
            self.initial = list(initial)
            # Numbers go on, so that none of an earlier recording is taken for one of this.
            self._known = Stacks(self._known.next_number)
            self._table = KnownStacks()
            self._tables.start_trace(max_entries)
            self.enabled, self.stacks = True, stacks
            self._point(stacks and is_trusted())

    def _point(self, native: bool) -> None:
        header = self._tables.header
        header[STACKS] = self._table.address if native else 0
        header[STACK_SLOTS] = self._table.slots

    def enter_stack(self, hashed: int, depth: int = 1) -> None:
        """Give the stack `depth` calls up, which compiled code knows only by its hash, a number."""
        with self._lock:
            if self.enabled and self.stacks:
                self._table.enter(hashed, self._known.current(depth + 1))
                self._point(True)

    def stop(self) -> None:
        """Stop recording; what was recorded stays readable."""
        with self._lock:
            self._tables.header[STACKS] = 0
            self._tables.stop_trace()
            self.enabled = False

    def context(self, depth: int = 1) -> int:
        """Return the number of the stack `depth` calls up, or 0 if stacks are not recorded."""
        return self._known.current(depth + 2) if self.stacks else 0

    def frames(self, context: int) -> Frames:
        """Return the frames of a stack by number."""
        return self._known.frames(context)

    def __len__(self) -> int:
        return int(self._tables.header[TRACE_COUNT])

    @property
    def events(self) -> list[TraceEvent]:
        """What happened since the start; with `max_entries` only the last ones."""
        return [self._event(row) for row in self._tables.trace_entries().tolist()]

    def _event(self, row: list[int]) -> TraceEvent:
        return TraceEvent(
            ACTIONS[row[ACTION]],
            row[ENTRY_ADDRESS],
            row[ENTRY_SIZE],
            row[ENTRY_STREAM],
            row[ENTRY_CATEGORY],
            row[ENTRY_TIME],
            self._known.frames(row[ENTRY_CONTEXT]),
            (row[ENTRY_POOL] >> 32, row[ENTRY_POOL] & 0xFFFFFFFF),
        )


def now_us() -> int:
    """Return the wall clock in microseconds since the epoch."""
    return time.time_ns() // 1000


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
        if event.action in _RESERVED_SIGN:
            reserved += _RESERVED_SIGN[event.action] * event.size
        elif not _apply(event, live, totals):
            continue
        yield Sample(event.time_us, tuple(totals), reserved)


_RESERVED_SIGN: Final = {SEGMENT_ALLOC: 1, SEGMENT_MAP: 1, SEGMENT_FREE: -1, SEGMENT_UNMAP: -1}


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
