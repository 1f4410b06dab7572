"""What the lab report is drawn from: a recording as columns, and what the lab found out about it.

State
-----
None: frozen records that are checked when they are made.

Invariants
----------
* All columns of `Events` are equally long, and one row is one event, in the order recorded.
* Every integer fits a JavaScript number: its magnitude is below 2**51,
  so that differences, doubled for their sign, stay exact (times and streams are made small first).
* A stack is a tuple of frames, the allocating call first; stack -1 says that none was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from refruntime.alloc import trace
from refruntime.alloc.trace import Frames
from refruntime.errors import ArgumentValueError

Column = NDArray[Any]

# The code of an action is its place here; the order is also that of the page's script.
ACTIONS: Final[tuple[str, ...]] = (
    trace.ALLOC, trace.FREE_REQUESTED, trace.FREE_COMPLETED, trace.SEGMENT_ALLOC,
    trace.SEGMENT_FREE, trace.SEGMENT_MAP, trace.SEGMENT_UNMAP, trace.OOM, trace.TAG, "other",
)  # fmt: skip
(
    ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC,
    SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM, TAG, OTHER,
) = range(len(ACTIONS))  # fmt: skip

NO_STACK: Final = -1
NO_CATEGORY: Final = -1
LARGEST: Final = 1 << 51


def action_code(name: str) -> int:
    """Return the code of an action by its name; one that changes no memory is ``other``."""
    return ACTIONS.index(name) if name in ACTIONS else OTHER


def rounded(size: Column) -> Column:
    """Return the least that blocks of PyTorch's caching allocator take: multiples of 512 bytes."""
    return (np.maximum(np.asarray(size, np.int64), 1) + 511) // 512 * 512


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """The events of a recording, one row each.

    Parameters
    ----------
    action : array of int
        Codes, see `ACTIONS`.
    address : array of int
        Where; of an ``oom``, the bytes that the device had left (-1: not known).
    size : array of int
        Bytes asked for (alloc, free, tag, oom) or real ones (segment events).
    stream, time_us : array of int
        The stream of the request; microseconds from any origin.
    category : array of int
        Index into the input's `categories`; -1 is none.
    stack : array of int
        Index into the input's `stacks`; -1 is none.
    held : array of int, optional
        Bytes that an allocated block takes; without it, `size` rounded up to 512.
    pool : array of int, optional
        0 for the default pools, another number for each private one.
    """

    action: Column
    address: Column
    size: Column
    stream: Column
    time_us: Column
    category: Column
    stack: Column
    held: Column | None = None
    pool: Column | None = None

    def __post_init__(self) -> None:
        for name, column in self.columns().items():
            _check_column(name, column, len(self.action))
            if name not in ("stream", "time_us"):
                _check_magnitude(name, column)
        _check_codes("action", self.action, 0, len(ACTIONS))

    def __len__(self) -> int:
        return len(self.action)

    def columns(self) -> dict[str, Column]:
        """Return the columns that are present, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in found.items() if column is not None}

    def held_bytes(self) -> Column:
        """Return the bytes that each event's block takes in its segment."""
        if self.held is not None:
            return np.asarray(self.held, np.int64)
        return rounded(self.size)


@dataclass(frozen=True, slots=True, eq=False)
class StrategyRun:
    """The recording's requests as another strategy, or other settings, would have served them.

    Parameters
    ----------
    name : str
        What it is called, settings included.
    peak_allocated, peak_reserved, upstream_calls, ooms, retries : int
        What the replay counted, in bytes and in calls.
    allocated, reserved : array of int
        Bytes after each request, equally long; may be empty.
    """

    name: str
    peak_allocated: int
    peak_reserved: int
    upstream_calls: int
    ooms: int
    retries: int
    allocated: Column
    reserved: Column

    def __post_init__(self) -> None:
        for label, column in (("allocated", self.allocated), ("reserved", self.reserved)):
            _check_column(f"{self.name} {label}", column, len(self.allocated))
            _check_magnitude(f"{self.name} {label}", column)


@dataclass(frozen=True, slots=True)
class Waste:
    """Bytes reserved and not asked for, by one cause, at the peak of reserved memory."""

    cause: str
    bytes: int
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A name for the moment before an event: a step, a phase."""

    event: int
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class ReportInput:
    """What the report shows.

    Parameters
    ----------
    title : str
        What was run.
    events : Events
        The recording. The first `start` of them describe what was there when it began.
    stacks : tuple of stacks
        Each a tuple of ``(file, line, function)``, the allocating call first.
    categories : tuple of str
        The names that `Events.category` counts through.
    start : int
        How many leading events stand for the state before the recording.
    capacity : int
        Bytes of the device; 0 is not known.
    notes : tuple of str
        Short facts for the page's head: device, version, settings.
    marks : tuple of Mark
        Names of moments.
    strategies : tuple of StrategyRun
        Replays to set side by side.
    waste : tuple of Waste
        The lab's split of the waste at the peak.
    """

    title: str
    events: Events
    stacks: tuple[Frames, ...] = ()
    categories: tuple[str, ...] = ()
    start: int = 0
    capacity: int = 0
    notes: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    strategies: tuple[StrategyRun, ...] = ()
    waste: tuple[Waste, ...] = ()

    def __post_init__(self) -> None:
        _check_codes("category", self.events.category, NO_CATEGORY, len(self.categories))
        _check_codes("stack", self.events.stack, NO_STACK, len(self.stacks))
        if not 0 <= self.start <= len(self.events):
            raise ArgumentValueError(
                "lab report: start", expected=f"0 to {len(self.events)}", got=self.start,
                remedy="it counts the leading events that describe the state before",
            )  # fmt: skip


def _check_column(name: str, column: Column, length: int) -> None:
    """Refuse a column that is no list of `length` integers."""
    where = f"lab report: column {name}"
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise ArgumentValueError(
            where, expected="one dimension of integers", got=f"{column.dtype}{column.shape}"
        )
    if len(column) != length:
        raise ArgumentValueError(where, expected=f"{length} rows", got=len(column))


def _check_magnitude(name: str, column: Column) -> None:
    extreme = max(int(column.max()), -int(column.min())) if len(column) else 0
    if extreme >= LARGEST:
        where = f"lab report: column {name}"
        raise ArgumentValueError(where, expected="magnitudes below 2**51", got=extreme)


def _check_codes(name: str, column: Column, low: int, stop: int) -> None:
    if len(column) and not (low <= int(column.min()) and int(column.max()) < stop):
        raise ArgumentValueError(
            f"lab report: column {name}", expected=f"numbers from {low} to {stop - 1}",
            got=f"{int(column.min())} to {int(column.max())}",
            remedy="each must name an entry of the report's list",
        )  # fmt: skip
