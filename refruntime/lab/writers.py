"""Writers of recordings, in every format that can hold them.

State
-----
None.

Invariants
----------
* Snapshots open in PyTorch's memory viewer: plain dicts and lists, protocol 4, and where any entry
  has a category, all have one, "unknown" included.
* What a format cannot hold is left out; a format that could hold nothing of a recording is refused.
"""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from refruntime.errors import ArgumentValueError
from refruntime.lab import recording as rec
from refruntime.lab.history import history_of
from refruntime.lab.recording import Device, Recording
from refruntime.lab.script import script_of

Record = dict[str, Any]

_SUFFIXES: Final = {".pickle": "pickle", ".pkl": "pickle", ".json": "json", ".jsonl": "events"}


def write(recording: Recording, path: str | Path, format: str = "") -> str:
    """Write a recording; return the format.

    Parameters
    ----------
    recording : Recording
        What to write; formats of one device take the first.
    path : str or Path
        Where; gzipped if it ends in ``.gz``.
    format : str
        One of `FORMATS`; by default what the file's name says.

    Raises
    ------
    ArgumentValueError
        If the format is unknown, or the recording has nothing that it could hold.
    """
    path = Path(path)
    chosen = format or _by_name(path)
    if chosen not in FORMATS:
        raise ArgumentValueError(
            "convert", expected="a format: " + ", ".join(FORMATS), got=repr(format or path.name),
            remedy="give --to",
        )  # fmt: skip
    if not recording.devices:
        raise ArgumentValueError("convert", what=f"{recording.source} holds no device")
    data = FORMATS[chosen](recording)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return chosen


def _by_name(path: Path) -> str:
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    last = suffixes[-1] if suffixes else ""
    return _SUFFIXES.get(last, "")


# --- snapshots ----------------------------------------------------------------------------------


def snapshot_of(recording: Recording) -> Record:
    """Return a recording as a PyTorch snapshot: plain dicts and lists."""
    stacks = [
        [
            {"filename": file, "line": line, "name": name}
            for file, line, name in recording.stack_frames(stack)
        ]
        for stack in range(len(recording.stacks))
    ]
    count = max((device.index + 1 for device in recording.devices), default=0)
    traces: list[list[Record]] = [[] for _ in range(count)]
    segments: list[Record] = []
    for device in recording.devices:
        traces[device.index] = list(_entries(recording, device, stacks))
        segments += _segments(recording, device, stacks)
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": recording.settings,
        "external_annotations": list(recording.annotations),
    }


def _entries(recording: Recording, device: Device, stacks: list[Any]) -> Iterator[Record]:
    events, named = device.events, len(recording.categories) > 1
    for row in zip(*(getattr(events, name).tolist() for name in events.__slots__)):
        action, addr, size, stream, time_us, pool, stack, category = row
        entry: Record = {
            "action": rec.ACTIONS[action],
            "device_free" if action == rec.OOM else "addr": addr,
            "size": size,
            "stream": stream,
            "time_us": time_us,
            "frames": stacks[stack],
            "pool_id": recording.pools[pool],
        }
        if named:
            entry["category"] = recording.categories[category]
        yield entry


def _segments(recording: Recording, device: Device, stacks: list[Any]) -> list[Record]:
    held, blocks, named = device.segments, device.blocks, len(recording.categories) > 1
    found: list[Record] = []
    for row in zip(*(getattr(held, name).tolist() for name in held.__slots__)):
        address, size, stream, pool, is_small, is_expandable = row
        found.append(
            {
                "device": device.index,
                "address": address,
                "total_size": size,
                "stream": stream,
                "segment_type": "small" if is_small else "large",
                "segment_pool_id": recording.pools[pool],
                "is_expandable": bool(is_expandable),
                "allocated_size": 0,
                "active_size": 0,
                "requested_size": 0,
                "frames": [],
                "blocks": [],
            }
        )
    for row in zip(*(getattr(blocks, name).tolist() for name in blocks.__slots__)):
        segment, address, size, requested, state, stack, category = row
        block: Record = {
            "address": address, "size": size, "requested_size": requested,
            "state": rec.STATES[state], "frames": stacks[stack],
        }  # fmt: skip
        if named:
            block["category"] = recording.categories[category]
        home = found[segment]
        home["blocks"].append(block)
        home["allocated_size"] += size if state == rec.ALLOCATED else 0
        home["active_size"] += size if state != rec.INACTIVE else 0
        home["requested_size"] += requested if state != rec.INACTIVE else 0
    return found


def _pickled(recording: Recording) -> bytes:
    # The viewer reads protocols 2 to 4.
    return pickle.dumps(snapshot_of(recording), protocol=4)


def _json(recording: Recording) -> bytes:
    return json.dumps(snapshot_of(recording)).encode()


# --- lists --------------------------------------------------------------------------------------


def _events(recording: Recording) -> bytes:
    script = script_of(recording, recording.devices[0], exact=False).list
    return ("\n".join(script.lines()) + "\n").encode()


def _rmm(recording: Recording) -> bytes:
    from refruntime.lab.readers.csv_logs import RMM_COLUMNS

    words = {rec.ALLOC: "allocate", rec.FREE_REQUESTED: "free", rec.OOM: "allocate failure"}
    lines = [",".join(RMM_COLUMNS)]
    events = recording.devices[0].events
    keep = np.isin(events.action, tuple(words))
    mine = events[keep]
    columns = (mine.action, mine.addr, mine.size, mine.stream, mine.time_us)
    for action, addr, size, stream, time_us in zip(*(column.tolist() for column in columns)):
        pointer = 0 if action == rec.OOM else addr
        lines.append(f"0,{_clock(time_us)},{words[action]},{pointer:#x},{size},{stream}")
    return ("\n".join(lines) + "\n").encode()


def _clock(time_us: int) -> str:
    seconds, micros = divmod(time_us, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour % 24:02}:{minute:02}:{second:02}.{micros:06}"


def _buffers(recording: Recording) -> bytes:
    from refruntime.lab.readers.csv_logs import BUFFER_COLUMNS

    history = history_of(recording.devices[0])
    them, last = history.allocations, len(history.events)
    lines = [",".join(BUFFER_COLUMNS)]
    columns = (them.begin + 1, them.completed + 1, them.size)
    for number, (lower, upper, size) in enumerate(zip(*(column.tolist() for column in columns))):
        lines.append(f"{number},{lower},{max(min(upper, last + 1), lower + 1)},{size}")
    return ("\n".join(lines) + "\n").encode()


FORMATS: Final[dict[str, Callable[[Recording], bytes]]] = {
    "pickle": _pickled,
    "json": _json,
    "events": _events,
    "rmm": _rmm,
    "minimalloc": _buffers,
}
