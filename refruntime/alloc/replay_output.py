"""What a replay has to tell, in the format of the recordings: results, driver log, trace, snapshot.

State
-----
None.

Invariants
----------
* Places are segment numbers (in the order in which the device gave segments or addresses out) and
  offsets, never addresses.
* Only JSON types.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np

from refruntime.alloc import codes, counters, driver
from refruntime.alloc import replay_loop as loop
from refruntime.alloc.oom import Shortage, rejection
from refruntime.alloc.replayer import Replayer
from refruntime.alloc.snapshot import STATES, Block, segments_of, shape_of
from refruntime.alloc.tables import ADDRESS, REQUESTED, SIZE, STATE, Tables, Words
from refruntime.alloc.trace import ACTIONS

Record = dict[str, Any]
_DEVICE: Final = "GPU 0"

class Places:
    """Turns addresses into segment numbers and offsets."""

    def __init__(self, log: Words) -> None:
        given = log[np.isin(log[:, 1], (driver.MALLOC, driver.RESERVED)), 2]
        order = np.argsort(given)
        self._starts = given[order]
        self._numbers = order

    def find(self, address: int) -> tuple[int, int]:
        """Return the segment of an address and the offset in it."""
        at = int(np.searchsorted(self._starts, address, side="right")) - 1
        return int(self._numbers[at]), address - int(self._starts[at])


def results_of(replayer: Replayer, events: list[Record], places: Places) -> list[Record]:
    """Return one record an event: where an allocation went, and the state after the event."""
    live: set[Any] = set()
    return [
        {**_outcome(event, row, live, places), "st": row[2:]}
        for event, row in zip(events, replayer.results.tolist(), strict=True)
    ]


def _outcome(event: Record, row: list[int], live: set[Any], places: Places) -> Record:
    op, address = event["op"], row[0]
    if op == "alloc" and address < 0:
        return {"oom": True}
    if op == "alloc":
        live.add(event["id"])
        seg, off = places.find(address) if address else (None, None)
        return {"seg": seg, "off": off, "block": row[1]}
    if op in ("free", "record_stream") and event["id"] not in live:
        return {"skip": True}
    if op == "free":
        live.discard(event["id"])
    return {}


def messages_of(replayer: Replayer) -> list[list[Any]]:
    """Return the text of each out-of-memory error: [event, text]."""
    log, found = replayer.device.log(), []
    told = {step: args for step, call, *args in log.tolist() if call == driver.MEM_GET_INFO}
    now = replayer.events.settings[0]
    for step, (row, result) in enumerate(
        zip(replayer.events.rows.tolist(), replayer.results.tolist(), strict=True)
    ):
        if row[0] == loop.CONFIGURE:
            now = replayer.events.settings[row[1]]
        elif row[0] == loop.ALLOC and result[0] == codes.REJECTED:
            found.append([step, str(rejection(_DEVICE, row[2]))])
        elif row[0] == loop.ALLOC and result[0] < 0:
            free, total, _ = told[step]
            shortage = Shortage(
                _DEVICE, result[1], total, free, result[2], result[3], now.limit
            )  # fmt: skip
            found.append([step, str(shortage.error())])
    return found


def digests_of(results: list[Record], every: int) -> list[str]:
    """Return a digest for each run of `every` results.

    The first 16 hex digits of the SHA-256 of lines "seg off block" ("oom"; "-" for what is no
    allocation) and "allocated reserved active".
    """
    found = []
    for at in range(0, len(results), every):
        digest = hashlib.sha256()
        for result in results[at : at + every]:
            digest.update(_digest_line(result).encode())
        found.append(digest.hexdigest()[:16])
    return found


def _digest_line(result: Record) -> str:
    if result.get("oom"):
        what = "oom"
    elif "block" in result:
        what = f"{result['seg']} {result['off']} {result['block']}"
    else:
        what = "-"
    allocated, reserved, active, *_ = result["st"]
    return f"{what} {allocated} {reserved} {active}\n"


def driver_log_of(log: Words, places: Places) -> list[list[Any]]:
    """Return the calls of the device: [event, name, arguments]."""
    return [[step, *_call(call, args, places)] for step, call, *args in log.tolist()]


def _call(call: int, args: list[int], places: Places) -> list[Any]:
    a, b, _ = args
    if call in _WITH_SEGMENT:
        return [_WITH_SEGMENT[call], places.find(a)[0], b]
    if call in _WITH_PLACE:
        return [_WITH_PLACE[call], *places.find(a), b]
    if call == driver.MALLOC_FAILED:
        return ["malloc", None, b, "oom"]
    if call == driver.CREATE_FAILED:
        return ["create", a, "oom"]
    name, count, *rest = _PLAIN[call]
    return [name, *(a, b)[:count], *rest]


_WITH_SEGMENT: Final = {
    driver.MALLOC: "malloc",
    driver.FREE: "free",
    driver.RESERVED: "reserve",
    driver.ADDR_FREE: "addr_free",
}
_WITH_PLACE: Final = {
    driver.MAPPED: "map",
    driver.UNMAPPED: "unmap",
    driver.SET_ACCESS: "set_access",
}
_PLAIN: Final[dict[int, tuple[Any, ...]]] = {
    driver.CREATE: ("create", 1),
    driver.UNCREATE: ("release", 1),
    driver.EVENT_CREATE: ("event_create", 1),
    driver.EVENT_RECORD: ("event_record", 2),
    driver.EVENT_READY: ("event_query", 1, "ready"),
    driver.EVENT_NOT_READY: ("event_query", 1, "not_ready"),
    driver.EVENT_SYNC: ("event_sync", 1),
    driver.STREAM_SYNC: ("stream_sync", 1),
    driver.DEVICE_SYNC: ("device_sync", 0),
    driver.MEM_GET_INFO: ("mem_get_info", 2),
}


def trace_of(entries: Words, places: Places) -> list[list[Any]]:
    """Return the allocator's history: [action, segment, offset, size, stream]."""
    found = []
    for action, address, size, stream, *_ in entries.tolist():
        found.append([ACTIONS[action], *_place(action, address, places), size, stream])
    return found


def _place(action: int, address: int, places: Places) -> tuple[int | None, int | None]:
    if action == counters.OOM:
        return None, address
    if action in (counters.SNAPSHOT, counters.ANNOTATE):
        return None, None
    return places.find(address)


def snapshot_of(tables: Tables, places: Places) -> list[Record]:
    """Return the segments and their blocks, by address."""
    return [_segment(tables, blocks, places) for blocks in segments_of(tables)]


def _segment(tables: Tables, blocks: list[Block], places: Places) -> Record:
    shape = shape_of(tables, blocks)
    seg, off = places.find(shape["address"])
    return {
        "seg": seg,
        "off": off,
        "size": shape["total_size"],
        "allocated": shape["allocated_size"],
        "active": shape["active_size"],
        "requested": shape["requested_size"],
        "stream": shape["stream"],
        "type": shape["segment_type"],
        "expandable": shape["is_expandable"],
        "pool": list(shape["segment_pool_id"]),
        "blocks": [
            [row[ADDRESS] - shape["address"], row[SIZE], row[REQUESTED], STATES[row[STATE]]]
            for _, row in blocks
        ],
    }
