"""Snapshots of replayed event lists: what a recorder would have written of such a run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from refruntime.alloc import counters, snapshot
from refruntime.alloc.replayer import Replayer
from refruntime.lab import events as ev
from refruntime.lab.events import EventList, parse
from refruntime.lab.readers import read
from refruntime.lab.recording import Recording
from refruntime.lab.replay import encoded

ACTIONS = {
    counters.ALLOC: "alloc",
    counters.FREE_REQUESTED: "free_requested",
    counters.FREE_COMPLETED: "free_completed",
    counters.SEGMENT_ALLOC: "segment_alloc",
    counters.SEGMENT_FREE: "segment_free",
    counters.SEGMENT_MAP: "segment_map",
    counters.SEGMENT_UNMAP: "segment_unmap",
    counters.OOM: "oom",
}


def events(*records: dict[str, Any], capacity: int = 80 << 30, conf: str = "") -> EventList:
    """Make an event list, with events of streams that end when the list says so."""
    config = {"op": "config", "capacity": capacity, "conf": conf, "manual_events": True}
    return parse([config, *records])


def snapshot_of(listed: EventList, keep: int | None = None) -> dict[str, Any]:
    """Replay a list; return the snapshot at its end, with the last `keep` events of the trace."""
    replayer = Replayer(
        encoded(listed), results=False, log=False, trace=True, manual_events=listed.manual_events
    )
    replayer.run()
    trace = [_entry(row) for row in replayer.trace().tolist() if row[0] in ACTIONS]
    segments = []
    for blocks in snapshot.segments_of(replayer.tables):
        shape = snapshot.shape_of(replayer.tables, blocks)
        segments.append({"device": 0, **shape, "frames": [], "blocks": _blocks(blocks)})
    return {
        "segments": segments,
        "device_traces": [trace if keep is None else trace[len(trace) - min(keep, len(trace)) :]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": listed.conf},
    }


def _entry(row: list[int]) -> dict[str, Any]:
    action, address, size, stream = row[:4]
    place = "device_free" if action == counters.OOM else "addr"
    return {"action": ACTIONS[action], place: address, "size": size, "stream": stream,
            "time_us": 1, "frames": []}  # fmt: skip


def _blocks(blocks: list[Any]) -> list[dict[str, Any]]:
    from refruntime.alloc import tables as t

    return [
        {
            "address": row[t.ADDRESS], "size": row[t.SIZE], "requested_size": row[t.REQUESTED],
            "state": snapshot.STATES[row[t.STATE]], "frames": [],
        }
        for _, row in blocks
    ]  # fmt: skip


def recording_of(folder: Path, listed: EventList, keep: int | None = None) -> Recording:
    """Return the recording of a replayed list, by way of a snapshot file."""
    path = folder / "recorded.pickle"
    path.write_bytes(pickle.dumps(snapshot_of(listed, keep), protocol=4))
    return read(path)


def alloc(id: int, size: int, stream: int = 0) -> dict[str, Any]:
    """Return the record of a request."""
    return {"op": "alloc", "id": id, "size": size, "stream": stream}


def free(id: int) -> dict[str, Any]:
    """Return the record of a free."""
    return {"op": "free", "id": id}


def op(name: str, **fields: Any) -> dict[str, Any]:
    """Return the record of another operation."""
    assert name in ev.OPS
    return {"op": name, **fields}


# --- lists of any kind --------------------------------------------------------------------------

MIB = 1 << 20

sizes = st.sampled_from([1, 600, 5000, 900_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 25 * MIB, 70 * MIB])
steps = st.lists(
    st.tuples(st.integers(0, 9), sizes, st.integers(0, 2)), min_size=1, max_size=120
)  # fmt: skip


def listed(plan, conf="", capacity=80 << 30, uses=True):
    """Make a list: requests, frees of a random block, uses on other streams, completions."""
    records, live = [], []
    for id, (what, size, stream) in enumerate(plan):
        if what < 6 or not live:
            records.append(alloc(id, size, stream))
            live.append((id, stream))
        elif what < 9:
            chosen, home = live.pop(size % len(live))
            if what == 8 and uses:
                records.append(op("record_stream", id=chosen, stream=(home + 1) % 3))
            records.append(free(chosen))
        else:
            records.append(op("complete"))
    return events(*records, conf=conf, capacity=capacity)
