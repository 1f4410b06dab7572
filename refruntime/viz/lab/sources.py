"""Report inputs from what the runtime has: the trace of a live allocator, or a recording.

State
-----
None.

Invariants
----------
* What was there before comes first, as events, and is counted by `ReportInput.start`.
* Nothing is guessed here: what a recording leaves open stays open.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from refruntime.alloc import categories
from refruntime.alloc.trace import Frames, Trace
from refruntime.errors import ArgumentValueError
from refruntime.lab import recording as rec
from refruntime.lab.history import BEFORE, Allocations, History, history_of
from refruntime.lab.recording import Device, Recording
from refruntime.viz.lab import inputs
from refruntime.viz.lab.inputs import Events, ReportInput, action_code, rounded

Column = NDArray[Any]

# Codes of a recording's actions as those of the report.
_CODES: Final = np.array([action_code(name) for name in rec.ACTIONS])


def of_trace(trace: Trace, title: str, **more: Any) -> ReportInput:
    """Return the input of a report on an allocator's own trace.

    Parameters
    ----------
    trace : Trace
        Recorded, with stacks or without.
    title : str
        What was run.
    **more
        Other fields of `ReportInput`.
    """
    stacks: dict[Frames, int] = {}
    pools: dict[tuple[int, int], int] = {(0, 0): 0}
    rows = [
        (
            action_code(event.action), event.addr, event.size, event.stream, event.time_us,
            event.category,
            stacks.setdefault(event.frames, len(stacks)) if event.frames else inputs.NO_STACK,
            pools.setdefault(event.pool, len(pools)),
        )
        for event in (*trace.initial, *trace.events)
    ]  # fmt: skip
    table = np.array(rows, np.int64).reshape(-1, 8)
    action, address, size, stream, time_us, category, stack, pool = table.T.copy()
    return ReportInput(
        title=title,
        events=Events(action, address, size, stream, time_us, category, stack, pool=pool),
        stacks=tuple(stacks),
        categories=categories.NAMES,
        start=len(trace.initial),
        **more,
    )


def of_recording(
    recording: Recording, device: int | None = None, title: str = "", **more: Any
) -> ReportInput:
    """Return the input of a report on one device of a recording.

    Parameters
    ----------
    recording : Recording
        What a reader made of a file.
    device : int, optional
        The number of the device; by default the one with the most events.
    title : str
        By default the recording's source.
    **more
        Other fields of `ReportInput`.
    """
    chosen = _device(recording, device)
    history = history_of(chosen)
    before = _before(history)
    return ReportInput(
        title=title or recording.source,
        events=_joined(before, _events(history, chosen)),
        stacks=tuple(tuple(recording.stack_frames(s)) for s in range(1, len(recording.stacks))),
        categories=recording.categories[1:],
        start=len(before),
        capacity=recording.capacity,
        **more,
    )


def _device(recording: Recording, number: int | None) -> Device:
    found = [one for one in recording.devices if number is None or one.index == number]
    if not found:
        raise ArgumentValueError(
            "lab report: device", got=number,
            expected="one of " + ", ".join(str(one.index) for one in recording.devices),
        )  # fmt: skip
    return max(found, key=lambda one: len(one.events))


def _events(history: History, device: Device) -> Events:
    """Return a device's events; place 0 of a recording's tables says that nothing was recorded."""
    events, known = device.events, history.allocations
    held = rounded(events.size)
    begun = (known.begin != BEFORE) & (known.block > 0)
    held[known.begin[begun]] = known.block[begun]
    return Events(
        action=_CODES[events.action],
        address=events.addr,
        size=events.size,
        stream=events.stream,
        time_us=events.time_us,
        category=events.category.astype(np.int64) - 1,
        stack=events.stack.astype(np.int64) - 1,
        held=held,
        pool=events.pool,
    )


def _before(history: History) -> Events:
    """Return the state before the trace as the events that would have made it."""
    known = history.allocations[history.allocations.begin == BEFORE]
    pending = known[known.pending]
    spans = np.array(
        [
            (
                inputs.SEGMENT_MAP if span.is_expandable else inputs.SEGMENT_ALLOC,
                span.address, span.size, span.stream, span.pool,
            )
            for span in history.spans
        ],
        np.int64,
    ).reshape(-1, 5)  # fmt: skip
    action, address, size, stream, pool = spans.T
    none = np.zeros(len(spans), np.int64)
    segments = Events(
        action, address, size, stream, none, none - 1, none - 1, held=none, pool=pool
    )  # fmt: skip
    return _joined(
        segments, _rows(known, inputs.ALLOC), _rows(pending, inputs.FREE_REQUESTED)
    )  # fmt: skip


def _rows(known: Allocations, action: int) -> Events:
    return Events(
        action=np.full(len(known), action),
        address=known.address,
        size=known.size,
        stream=known.stream,
        time_us=np.zeros(len(known), np.int64),
        category=known.category.astype(np.int64) - 1,
        stack=known.stack.astype(np.int64) - 1,
        held=np.where(known.block > 0, known.block, rounded(known.size)),
        pool=known.pool,
    )


def _joined(*parts: Events) -> Events:
    columns = [part.columns() for part in parts]
    return Events(**{name: np.concatenate([c[name] for c in columns]) for name in columns[0]})
