"""Event lists (JSON lines): read as they are, and as a trace for what wants one.

State
-----
None.

Invariants
----------
* Addresses of the trace are made up, a different one for each allocation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from refruntime.errors import ArgumentValueError
from refruntime.lab import events as ev
from refruntime.lab import recording as rec
from refruntime.lab.readers.source import Source, unreadable
from refruntime.lab.recording import Device, Events, Recording

_BASE: Final = 1 << 40


def read_event_list(source: Source) -> Recording:
    """Read an event list."""
    try:
        script = ev.parse(_records(source))
    except ArgumentValueError as error:
        if error.op == "read":
            raise
        raise unreadable(source.path, str(error)) from None
    return Recording(
        source=str(source.path),
        format="event list",
        devices=(Device(0, _trace(script), *rec.no_segments()),),
        settings={"PYTORCH_CUDA_ALLOC_CONF": script.conf},
        notes=("an event list: requests alone, without addresses and segments",),
        capacity=script.capacity,
        script=script,
    )


def _records(source: Source) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(source.lines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            record = json.loads(line)
        except ValueError:
            raise unreadable(source.path, f"line {number} is no JSON") from None
        if not isinstance(record, dict):
            raise unreadable(source.path, f"line {number} is no JSON object")
        yield record


def _trace(script: ev.EventList) -> Events:
    """Return the allocations and frees as events."""
    rows: list[tuple[int, ...]] = []
    live: dict[int, tuple[int, int]] = {}
    columns = (script.op.tolist(), script.id.tolist(), script.size.tolist(), script.stream.tolist())
    for step, (op, id, size, stream) in enumerate(zip(*columns)):
        if op == ev.ALLOC:
            live[id] = (size, stream)
            rows.append((rec.ALLOC, _BASE + id, size, stream, step, 0, 0, 0))
        elif op == ev.FREE and id in live:
            size, stream = live.pop(id)
            for action in (rec.FREE_REQUESTED, rec.FREE_COMPLETED):
                rows.append((action, _BASE + id, size, stream, step, 0, 0, 0))
    return Events.of_rows(rows)
