"""Snapshots: segments, blocks and trace as plain dicts and lists, in PyTorch's schema.

State
-----
None: a snapshot is read from the tables while nothing changes them.

Invariants
----------
* Only dict, list, tuple, int, str, bool and None, so that pickles (protocol 4) open in PyTorch's
  memory viewer, which runs no code.
* Segments are sorted by address, and their blocks tile them; an expandable segment is one record
  for each range that has memory.
* Each block in use and each alloc of the trace has its `category`; an alloc shows the last one that
  the block was tagged with.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from refruntime.alloc import categories, trace
from refruntime.alloc.settings import AllocatorSettings
from refruntime.alloc.tables import (
    ADDRESS,
    ALLOCATED,
    CATEGORY,
    DEFERRED,
    EXPANDABLE_SEGMENT,
    FREE,
    ID_FIRST,
    ID_SECOND,
    IS_LARGE,
    NEXT,
    OWNER,
    PENDING,
    POOL,
    PREVIOUS,
    REQUESTED,
    ROW,
    SIZE,
    STATE,
    STREAM,
    UNMAPPED,
    Tables,
    Words,
)
from refruntime.alloc.trace import Trace, TraceEvent, frames_as_dicts

Record = dict[str, Any]
# A block: the offset of its row, and the words of the row.
Block = tuple[int, list[int]]

STATES: Final = {
    FREE: "inactive",
    ALLOCATED: "active_allocated",
    PENDING: "active_pending_free",
    DEFERRED: "active_pending_free",
}


def snapshot_of(tables: Tables, history: Trace, settings: AllocatorSettings) -> Record:
    """Return the snapshot of an allocator."""
    return {
        "segments": [_segment(tables, blocks, history) for blocks in segments_of(tables)],
        "device_traces": [trace_entries(history.events)],
        "allocator_settings": settings.as_snapshot(),
        "external_annotations": [],
    }  # fmt: skip


def dump(snapshot: Record, path: str | Path) -> None:
    """Write a snapshot to a file that PyTorch's memory viewer opens."""
    with Path(path).open("wb") as file:
        # The viewer reads protocols 2 to 4.
        pickle.dump(snapshot, file, protocol=4)


def segments_of(tables: Tables) -> Iterator[list[Block]]:
    """Yield the blocks of each segment, or range with memory of one, by address."""
    rows = tables.rows()
    is_block = np.isin(rows[:, STATE], tuple(STATES))
    after_unmapped = rows[rows[:, PREVIOUS] // ROW * is_block, STATE] == UNMAPPED
    heads = np.flatnonzero(is_block & ((rows[:, PREVIOUS] == 0) | after_unmapped))
    for head in heads[np.argsort(rows[heads, ADDRESS])]:
        yield list(_run(rows, int(head)))


def _run(rows: Words, head: int) -> Iterator[Block]:
    """Yield blocks from a row on, up to the end of the segment or to unmapped addresses."""
    number = head
    while number and rows[number, STATE] != UNMAPPED:
        yield number * ROW, rows[number].tolist()
        number = int(rows[number, NEXT]) // ROW


def pool_name(rows: Words, pool: int) -> tuple[int, int]:
    """Return the name of the private pool that a pool belongs to; (0, 0) for none."""
    owner = int(rows[pool // ROW, OWNER]) // ROW
    if owner == 0:
        return 0, 0
    return int(rows[owner, ID_FIRST]), int(rows[owner, ID_SECOND])


def shape_of(tables: Tables, blocks: list[Block]) -> Record:
    """Return what a segment is, without who asked for it."""
    rows, head = tables.rows(), blocks[0][1]
    active = [row for _, row in blocks if row[STATE] != FREE]
    return {
        "address": head[ADDRESS],
        "total_size": sum(row[SIZE] for _, row in blocks),
        "stream": head[STREAM],
        "segment_type": "large" if rows[head[POOL] // ROW, IS_LARGE] else "small",
        "segment_pool_id": pool_name(rows, head[POOL]),
        "is_expandable": head[EXPANDABLE_SEGMENT] != 0,
        "allocated_size": sum(row[SIZE] for row in active if row[STATE] == ALLOCATED),
        "active_size": sum(row[SIZE] for row in active),
        "requested_size": sum(row[REQUESTED] for row in active),
    }


def _segment(tables: Tables, blocks: list[Block], history: Trace) -> Record:
    contexts = tables.contexts()
    frames = history.frames(int(contexts[blocks[0][0] // ROW, 1]))
    return {
        "device": 0,
        **shape_of(tables, blocks),
        "frames": frames_as_dicts(frames),
        "blocks": [
            _block(row, history.frames(int(contexts[k // ROW, 0]))) for k, row in blocks
        ],
    }  # fmt: skip


def _block(row: list[int], frames: trace.Frames) -> Record:
    record: Record = {
        "address": row[ADDRESS],
        "size": row[SIZE],
        "requested_size": row[REQUESTED],
        "state": STATES[row[STATE]],
        "frames": frames_as_dicts(frames) if row[STATE] != FREE else [],
    }
    if row[STATE] == ALLOCATED:
        record["category"] = categories.name(row[CATEGORY])
    return record


def trace_entries(events: Iterable[TraceEvent]) -> list[Record]:
    """Return trace events in PyTorch's form; tags are folded into the allocs they refer to."""
    entries: list[Record] = []
    live: dict[int, Record] = {}
    for event in events:
        if event.action == trace.TAG:
            if event.addr in live:
                live[event.addr]["category"] = categories.name(event.category)
            continue
        entry = _entry(event)
        entries.append(entry)
        if event.action == trace.ALLOC:
            live[event.addr] = entry
    return entries


def _entry(event: TraceEvent) -> Record:
    place = "device_free" if event.action == trace.OOM else "addr"
    return {
        "action": event.action,
        place: event.addr,
        "size": event.size,
        "stream": event.stream,
        "time_us": event.time_us,
        "frames": frames_as_dicts(event.frames),
        "category": categories.name(event.category),
        "pool_id": event.pool,
        "compile_context": "N/A",
        "user_metadata": "",
    }


def history_before(tables: Tables) -> list[TraceEvent]:
    """Return what is in the tables as the events that would have made it."""
    now = trace.now_us()
    events = []
    for blocks in segments_of(tables):
        shape = shape_of(tables, blocks)
        action = trace.SEGMENT_MAP if shape["is_expandable"] else trace.SEGMENT_ALLOC
        stream, pool = shape["stream"], shape["segment_pool_id"]
        address, size = shape["address"], shape["total_size"]
        events.append(
            TraceEvent(action, address, size, stream, categories.DEFAULT, now, pool=pool)
        )  # fmt: skip
        events += [
            TraceEvent(
                trace.ALLOC, row[ADDRESS], row[REQUESTED], stream, row[CATEGORY], now, pool=pool
            )
            for _, row in blocks
            if row[STATE] != FREE
        ]
    return events
