"""Replaying an event list under any settings or strategy: the one place where lab meets allocator.

State
-----
The rows of the latest list that was replayed, and nothing else: `replay_events` is a function of
its arguments.

Invariants
----------
* The strategy ``caching`` runs in compiled code, decision for decision as PyTorch's allocator; the
  others see requests and frees, a free when the device is done with the block.
* The compiled loop reads rows that no replay changes, apart from the numbers of settings in them,
  which are the same for every replay of a list.
* Peaks and counts are those after the last ``reset_peak``, so that what rebuilds a state before a
  trace does not count.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from refruntime.alloc import counters, driver, tables
from refruntime.alloc import replay_loop as loop
from refruntime.alloc import strategy as requests
from refruntime.alloc.configuration import Configuration
from refruntime.alloc.event_list import EncodedList
from refruntime.alloc.replayer import Replayer
from refruntime.alloc.settings import AllocatorSettings
from refruntime.errors import ArgumentValueError
from refruntime.lab import events as ev
from refruntime.lab import recording as rec
from refruntime.lab.events import EventList
from refruntime.lab.recording import Array
from refruntime.lab.settings import check_settings

CACHING: Final = "caching"

_LOOP_OPS: Final = {
    ev.ALLOC: loop.ALLOC, ev.FREE: loop.FREE, ev.RECORD_STREAM: loop.RECORD_STREAM,
    ev.COMPLETE: loop.COMPLETE, ev.EMPTY_CACHE: loop.EMPTY_CACHE, ev.SYNC: loop.SYNC,
    ev.SYNC_STREAM: loop.SYNC_STREAM, ev.EVENTS: loop.EVENTS_MANUAL,
    ev.SET_FRACTION: loop.CONFIGURE, ev.SET_CAPACITY: loop.SET_CAPACITY,
    ev.SET_FOREIGN: loop.SET_FOREIGN, ev.FAIL_NEXT: loop.FAIL_NEXT, ev.SETTINGS: loop.CONFIGURE,
    ev.POOL_BEGIN: loop.POOL_BEGIN, ev.POOL_END: loop.POOL_END, ev.POOL_DELETE: loop.POOL_DELETE,
    ev.RESET_PEAK: loop.RESET_PEAK, ev.SNAPSHOT: loop.SNAPSHOT,
}  # fmt: skip
# Which column each argument of an operation of the loop comes from.
_ARGUMENTS: Final = {
    ev.ALLOC: ("id", "size", "stream"),
    ev.RECORD_STREAM: ("id", "stream"),
    ev.COMPLETE: ("stream", "size"),
    ev.SYNC_STREAM: ("stream",),
    ev.SET_CAPACITY: ("size",),
    ev.SET_FOREIGN: ("size",),
    ev.FAIL_NEXT: ("size",),
}


_SEGMENT_ACTIONS: Final = {
    counters.SEGMENT_ALLOC: rec.SEGMENT_ALLOC, counters.SEGMENT_FREE: rec.SEGMENT_FREE,
    counters.SEGMENT_MAP: rec.SEGMENT_MAP, counters.SEGMENT_UNMAP: rec.SEGMENT_UNMAP,
}  # fmt: skip

_NOTHING: Final[Array] = np.zeros(0, np.int64)
_NO_EVENTS: Final[Array] = np.zeros((0, 4), np.int64)


def _nothing() -> Array:
    return _NOTHING


def _no_events() -> Array:
    return _NO_EVENTS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay came to.

    Attributes
    ----------
    strategy, conf : str
        Under which strategy, beginning with which settings.
    capacity : int
        Bytes of the device.
    peak_allocated_bytes, peak_reserved_bytes : int
        The most bytes in blocks in use, and taken from the upstream.
    upstream_calls : int
        Segments and pages asked for and given back.
    ooms, retries : int
        Requests that failed, and times that the cache was released to serve one.
    seconds : float
        What it took here.
    reserved, allocated : ndarray of int64
        After each operation; empty unless `details` were asked for.
    segment_events : ndarray of shape (events, 4)
        Action (of `recording.ACTIONS`), address, bytes and stream; empty unless `details` were
        asked for, and for strategies without segments.
    """

    strategy: str
    conf: str
    capacity: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    upstream_calls: int
    ooms: int
    retries: int
    seconds: float
    reserved: Array = field(default_factory=_nothing, repr=False)
    allocated: Array = field(default_factory=_nothing, repr=False)
    segment_events: Array = field(default_factory=_no_events, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures alone, for JSON."""
        arrays = ("reserved", "allocated", "segment_events")
        return {name: getattr(self, name) for name in self.__slots__ if name not in arrays}


def replay_events(
    events: EventList,
    settings_text: str | None = None,
    capacity: int | None = None,
    strategy: str = CACHING,
    *,
    details: bool = False,
) -> Outcome:
    """Replay an event list.

    Parameters
    ----------
    events : EventList
        What was asked for.
    settings_text : str, optional
        Allocator settings in PyTorch's form; by default those of the list.
    capacity : int, optional
        Bytes of the device; by default those of the list.
    strategy : str
        ``caching``, or a registered strategy (which has no such settings).
    details : bool
        Also return the state after each operation and the segment events.

    Raises
    ------
    ArgumentValueError
        If the settings or the strategy make no sense.
    """
    events = events.under(settings_text, capacity)
    if strategy == CACHING:
        return _cached(events, details)
    return _other(events, strategy, details)


def strategies() -> list[str]:
    """Return the names of all strategies."""
    from refruntime.alloc import strategies as registered  # registers them  # noqa: F401

    return [CACHING, *sorted(set(requests.STRATEGIES) - {CACHING})]


# --- the caching allocator ----------------------------------------------------------------------


class _Rows(NamedTuple):
    """The rows of a list, which do not depend on its settings, and how many names they have."""

    of: weakref.ref[Array]
    rows: Array
    names: int
    pools: int


_latest: _Rows | None = None


def encoded(events: EventList) -> EncodedList:
    """Return an event list as the rows of the compiled loop.

    The rows of the latest list are kept: a sweep replays one list under many settings.
    """
    global _latest
    kept = _latest
    if kept is None or kept.of() is not events.op:
        kept = _latest = _rows_of(events)
    return EncodedList(kept.rows, kept.names, kept.pools, _settings(kept.rows, events))


def _rows_of(events: EventList) -> _Rows:
    rows = np.zeros((len(events), loop.EVENT_WORDS), np.int64)
    table = np.zeros(len(ev.OPS), np.int64)
    for op, number in _LOOP_OPS.items():
        table[op] = number
    rows[:, 0] = table[events.op]
    for op, columns in _ARGUMENTS.items():
        mask = events.op == op
        for place, column in enumerate(columns, 1):
            rows[mask, place] = getattr(events, column)[mask]
    names = _dense(rows, events, (ev.ALLOC, ev.FREE, ev.RECORD_STREAM))
    pools = _dense(rows, events, (ev.POOL_BEGIN, ev.POOL_END, ev.POOL_DELETE))
    return _Rows(weakref.ref(events.op), rows, names, pools)


def _dense(rows: Array, events: EventList, ops: tuple[int, ...]) -> int:
    """Number the ids of some operations without holes; return how many there are."""
    mask = np.isin(events.op, ops)
    known, rows[mask, 1] = np.unique(events.id[mask], return_inverse=True)
    return len(known)


def _settings(rows: Array, events: EventList) -> list[Configuration]:
    """Return the settings in force from the start and after each change, which the rows name."""
    found = [_configuration(check_settings(events.conf), events.capacity)]
    device = events.capacity
    changing = np.isin(events.op, (ev.SETTINGS, ev.SET_FRACTION, ev.SET_CAPACITY, ev.EVENTS))
    for place in np.flatnonzero(changing).tolist():
        op, size = int(events.op[place]), int(events.size[place])
        now = found[-1]
        if op == ev.SET_CAPACITY:
            device = size
            continue
        text = events.texts[size]
        if op == ev.EVENTS:
            rows[place, 1] = text == "manual"
            continue
        if op == ev.SET_FRACTION:
            found.append(now.with_fraction(float(text), device))
        else:
            found.append(Configuration(now.settings.updated(text), now.device_bytes, now.limit))
        rows[place, 1] = len(found) - 1
    return found


def _configuration(settings: AllocatorSettings, capacity: int) -> Configuration:
    return Configuration(settings, capacity).with_fraction(settings.per_process_memory_fraction)


def _cached(events: EventList, details: bool) -> Outcome:
    replayer = Replayer(
        encoded(events), results=details, log=False, trace=details,
        manual_events=events.manual_events,
    )  # fmt: skip
    loop.run.compile()  # or load it: not what is timed
    clock = time.perf_counter()
    before = _run_until(replayer, _start(events))
    counts = _run_until(replayer, len(events)) - before
    seconds = time.perf_counter() - clock
    header = replayer.tables.header
    return Outcome(
        strategy=CACHING,
        conf=events.conf,
        capacity=events.capacity,
        peak_allocated_bytes=int(header[tables.ALLOCATED_BYTES + tables.PEAK_ALL]),
        peak_reserved_bytes=int(header[tables.RESERVED_BYTES + tables.PEAK_ALL]),
        upstream_calls=int(counts[0]),
        ooms=int(counts[1]),
        retries=int(counts[2]),
        seconds=seconds,
        reserved=replayer.results[:, 3].copy() if details else _NOTHING,
        allocated=replayer.results[:, 2].copy() if details else _NOTHING,
        segment_events=_segment_events(replayer, int(before[3])) if details else _NO_EVENTS,
    )


def _start(events: EventList) -> int:
    """Return the first operation that counts: the one after the last ``reset_peak``."""
    resets = np.flatnonzero(events.op == ev.RESET_PEAK)
    return int(resets[-1]) + 1 if len(resets) else 0


def _run_until(replayer: Replayer, end: int) -> Array:
    """Run up to an operation; return calls, failures, retries and trace entries so far."""
    replayer.state[loop.COUNT] = end
    replayer.run()
    header = replayer.tables.header
    return np.array(
        [
            replayer.device.words[driver.CALLS], header[tables.NUM_OOMS],
            header[tables.NUM_ALLOC_RETRIES], header[tables.TRACE_COUNT],
        ]
    )  # fmt: skip


def _segment_events(replayer: Replayer, start: int) -> Array:
    """Return the segment events from an entry of the trace on, in our numbering of actions."""
    entries = replayer.trace()[start:, :4]
    found = entries[np.isin(entries[:, 0], tuple(_SEGMENT_ACTIONS))].copy()
    found[:, 0] = [_SEGMENT_ACTIONS[action] for action in found[:, 0].tolist()]
    return found


# --- other strategies ---------------------------------------------------------------------------


def _other(events: EventList, strategy: str, details: bool) -> Outcome:
    if strategy not in strategies():
        raise ArgumentValueError(
            "replay", expected="one of " + ", ".join(strategies()), got=repr(strategy)
        )
    steps = list(requests_of(events))
    clock = time.perf_counter()
    result = requests.run_strategy(steps, strategy, events.capacity)
    seconds = time.perf_counter() - clock
    allocated, reserved = (
        np.array([getattr(point, name) for point in result.timeline], np.int64)
        for name in ("allocated", "reserved")
    )
    return Outcome(
        strategy=strategy,
        conf="",
        capacity=events.capacity,
        peak_allocated_bytes=result.peak_allocated_bytes,
        peak_reserved_bytes=result.peak_reserved_bytes,
        upstream_calls=result.upstream_calls,
        ooms=result.ooms,
        retries=result.retries,
        seconds=seconds,
        reserved=reserved if details else _NOTHING,
        allocated=allocated if details else _NOTHING,
    )


def requests_of(events: EventList) -> Iterator[requests.Request]:
    """Yield requests and frees, each free when the device is done with the block."""
    used: dict[int, int] = {}
    waiting: dict[int, deque[int]] = {}
    manual = events.manual_events
    columns = (events.op.tolist(), events.id.tolist(), events.size.tolist(), events.stream.tolist())
    for op, id, size, stream in zip(*columns):
        if op == ev.ALLOC:
            yield requests.Request("alloc", id, size, stream)
        elif op == ev.RECORD_STREAM:
            used[id] = stream
        elif op == ev.EVENTS:
            manual = events.texts[size] == "manual"
        elif op == ev.FREE:
            queue = used.pop(id, None)
            if queue is None or not manual:
                yield requests.Request("free", id)
            else:
                waiting.setdefault(queue, deque()).append(id)
        elif op in (ev.COMPLETE, ev.SYNC, ev.SYNC_STREAM):
            everything = op == ev.SYNC or (op == ev.COMPLETE and stream < 0)
            count = size if op == ev.COMPLETE and size >= 0 else len(events)
            for queue in list(waiting) if everything else [stream]:
                done = waiting.get(queue, deque())
                for _ in range(min(count, len(done))):
                    yield requests.Request("free", done.popleft())
