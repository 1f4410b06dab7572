"""Snapshots: segments, blocks and trace as plain dicts and lists, in PyTorch's schema.

State
-----
None: a snapshot is read from the tables while nothing changes them.

Invariants
----------
* Only dict, list, int, str, bool and None, so that pickles (protocol 4) open in PyTorch's memory
  viewer, which runs no code.
* Segments are sorted by address, and their blocks tile them.
* Each block in use and each alloc of the trace has its `category`; an alloc shows the last one that
  the block was tagged with.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from refruntime.alloc import categories, core, trace
from refruntime.alloc.tables import (
    ADDRESS,
    ALLOCATED,
    CATEGORY,
    NEXT,
    POOL,
    PREVIOUS,
    REQUESTED,
    SIZE,
    SMALL,
    STATE,
    STREAM,
    UNUSED,
    Tables,
)
from refruntime.alloc.trace import Trace, TraceEvent, frames_as_dicts

Record = dict[str, Any]


def snapshot_of(tables: Tables, history: Trace) -> Record:
    """Return the snapshot of an allocator."""
    return {
        "segments": [_segment(blocks, history.live) for blocks in segments_of(tables)],
        "device_traces": [trace_entries(history.events)],
        "allocator_settings": _settings(),
        "external_annotations": [],
    }  # fmt: skip


def dump(snapshot: Record, path: str | Path) -> None:
    """Write a snapshot to a file that PyTorch's memory viewer opens."""
    with Path(path).open("wb") as file:
        # The viewer reads protocols 2 to 4.
        pickle.dump(snapshot, file, protocol=4)


def segments_of(tables: Tables) -> Iterator[list[list[int]]]:
    """Yield the rows of each segment's blocks, segments and blocks by address."""
    rows = tables.rows()
    heads = np.flatnonzero((rows[:, STATE] != UNUSED) & (rows[:, PREVIOUS] == 0))
    for head in heads[np.argsort(rows[heads, ADDRESS])]:
        blocks = [rows[head].tolist()]
        while blocks[-1][NEXT]:
            blocks.append(rows[blocks[-1][NEXT] // rows.shape[1]].tolist())
        yield blocks


def _segment(blocks: list[list[int]], live: dict[int, TraceEvent]) -> Record:
    head = blocks[0]
    used = [row for row in blocks if row[STATE] == ALLOCATED]
    in_use = sum(row[SIZE] for row in used)
    return {
        "device": 0,
        "address": head[ADDRESS],
        "total_size": sum(row[SIZE] for row in blocks),
        "stream": head[STREAM],
        "segment_type": "small" if head[POOL] == SMALL else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "allocated_size": in_use,
        "active_size": in_use,
        "requested_size": sum(row[REQUESTED] for row in used),
        "frames": [],
        "blocks": [_block(row, live) for row in blocks],
    }


def _block(row: list[int], live: dict[int, TraceEvent]) -> Record:
    allocated = row[STATE] == ALLOCATED
    event = live.get(row[ADDRESS]) if allocated else None
    record: Record = {
        "address": row[ADDRESS],
        "size": row[SIZE],
        "requested_size": row[REQUESTED] if allocated else 0,
        "state": "active_allocated" if allocated else "inactive",
        "frames": [] if event is None else frames_as_dicts(event.frames),
    }
    if allocated:
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
        "pool_id": (0, 0),
        "compile_context": "N/A",
        "user_metadata": "",
    }


def history_before(tables: Tables) -> list[TraceEvent]:
    """Return what is in the tables as the events that would have made it."""
    now = trace.now_us()
    events = []
    for blocks in segments_of(tables):
        head, size = blocks[0], sum(row[SIZE] for row in blocks)
        events.append(
            TraceEvent(
                trace.SEGMENT_ALLOC, head[ADDRESS], size, head[STREAM], categories.DEFAULT, now
            )
        )
        events += [
            TraceEvent(
                trace.ALLOC, row[ADDRESS], row[REQUESTED], row[STREAM], row[CATEGORY], now
            )
            for row in blocks
            if row[STATE] == ALLOCATED
        ]  # fmt: skip
    return events


def _settings() -> Record:
    """Return the settings in force under PyTorch's names: its defaults."""
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "large_segment_size": core.LARGE_SEGMENT,
        "roundup_power2_divisions": {},
    }
