"""From a recording to an event list: what the program asked for, ready to be replayed.

State
-----
None: `script_of` is a pure function of a history.

Invariants
----------
* The trace's own part keeps the order of events. A delayed completion becomes a recorded use of a
  stream of work (there are as many as the order of completions needs), which a ``complete`` ends
  where the trace shows it.
* Cached segments that were released by the program become ``empty_cache``; those released to serve
  a request do not: the replayed allocator finds that out by itself, on a device of the same size.
* With `exact`, the list begins by rebuilding segments, blocks and holes as they were before the
  trace, and the device has too little exactly where it had; without, it begins by asking for the
  live blocks alone, which any strategy can serve in its way, on a device of one size.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import Final

import numpy as np

from refruntime.lab import events as ev
from refruntime.lab import preload
from refruntime.lab import recording as rec
from refruntime.lab.events import EventList
from refruntime.lab.history import BEFORE, History, history_of
from refruntime.lab.recording import Array, Device, Recording
from refruntime.lab.releases import Release, Releases, releases_of

UNLIMITED: Final = 1 << 42  # of a device whose size nobody knows: 4 TiB
MOST_STREAMS: Final = 63  # of the replayed device

# Order of what happens at one event of the trace.
_COMPLETE, _EMPTY, _BEGIN, _USE, _CALL, _END = range(6)


@dataclass(frozen=True, slots=True)
class Script:
    """An event list made of a recording.

    Attributes
    ----------
    list : EventList
        The operations; ids are places in `history.allocations`, then failed requests, then fillers.
    origin : ndarray of int64
        The event of the trace that each operation comes from, -1 before the trace.
    start : int
        The first operation of the trace's own part.
    history : History
        Where it comes from.
    notes : tuple of str
        What had to be assumed.
    streams : tuple of int
        The handles of the streams, in the order of their numbers.
    releases : tuple of Release
        Where cached segments were released.
    capacity : int
        Bytes of the device as far as the file tells, 0 if it does not.
    """

    list: EventList
    origin: Array
    start: int
    history: History
    notes: tuple[str, ...] = ()
    streams: tuple[int, ...] = (0,)
    releases: tuple[Release, ...] = ()
    capacity: int = 0

    def stream_numbers(self, handles: Array) -> Array:
        """Return the numbers that stream handles have in the list."""
        return np.searchsorted(np.array(self.streams, np.int64), handles)

    def step_of(self, event: int | None) -> int:
        """Return the first operation at an event of the trace or after it; the last, if None."""
        if event is None:
            return len(self.list) - 1
        return min(int(np.searchsorted(self.origin, event)), len(self.list) - 1)


def script_of(
    recording: Recording, device: Device, *, exact: bool = True,
    doubted: frozenset[int] = frozenset(),
) -> Script:  # fmt: skip
    """Return a device's recording as an event list.

    Parameters
    ----------
    recording : Recording
        What was read.
    device : Device
        One of its devices.
    exact : bool
        Rebuild the state before the trace block by block, or only ask for its live blocks.
    doubted : set of int
        Releases of cached segments (places in `Script.releases`) to be taken for the other kind.
    """
    history = history_of(device)
    if recording.script is not None:
        script = recording.script
        return Script(script, np.arange(len(script)), 0, history, capacity=script.capacity)
    releases = releases_of(history, recording.settings_text, doubted)
    return _Maker(recording, history, releases).script(exact)


class _Maker:
    """Collects the operations of one list."""

    def __init__(self, recording: Recording, history: History, releases: Releases) -> None:
        self.recording = recording
        self.history = history
        self.conf = recording.settings_text
        self.releases = releases
        self.notes: list[str] = []
        self.streams = _stream_numbers(history)
        self._columns: list[tuple[Array, ...]] = []

    def script(self, exact: bool) -> Script:
        """Make the list."""
        before = ev.Builder()
        numbers = self._pending()
        if exact:
            # The device's size sets the address range of expandable segments; apart from that, it
            # has too little only where the recorded one had (`_shortages`).
            before.add(ev.SET_CAPACITY, size=UNLIMITED)
            self.notes += preload.rebuild(before, self.history, self.streams, numbers, self.conf)
        else:
            preload.ask(before, self.history, self.streams, numbers)
        before.add(ev.RESET_PEAK)
        start = len(before.rows)
        self._calls(numbers, exact)
        rows, origin = self._sorted(before)
        conf = preload.starting_conf(self.conf) if exact else self.conf
        capacity = self.releases.capacity or UNLIMITED if exact else self._capacity()
        listed = EventList.of_matrix(rows, tuple(before.texts), capacity, conf, True)
        return Script(
            listed, origin, start, self.history, tuple(self.notes), tuple(sorted(self.streams)),
            self.releases.each, self.recording.capacity or self.releases.capacity,
        )  # fmt: skip

    # --- the trace's own part -------------------------------------------------------------------

    def _calls(self, numbers: dict[int, int], exact: bool) -> None:
        """Add allocs, frees, failed requests, emptied caches, and the uses of private pools."""
        them, never = self.history.allocations, len(self.history.events)
        streams = self._numbered(them.stream)
        own = np.flatnonzero(them.begin != BEFORE)
        self._add(them.begin[own], _CALL, ev.ALLOC, own, them.size[own], streams[own])
        freed = np.flatnonzero((them.freed != never) & ~them.pending)
        self._add(them.freed[freed], _CALL, ev.FREE, freed)
        pooled = own[them.pool[own] != 0]
        self._add(them.begin[pooled], _BEGIN, ev.POOL_BEGIN, them.pool[pooled])
        self._add(them.begin[pooled], _END, ev.POOL_END, them.pool[pooled])
        self._failures()
        empty = np.array(self.releases.emptied(exact), np.int64)
        self._add(empty, _EMPTY, ev.EMPTY_CACHE, np.zeros(len(empty), np.int64))
        self._completions(numbers)
        if exact:
            self._shortages()

    def _shortages(self) -> None:
        """Let the device have as little as it had where a request ran short."""
        forced = self.releases.forced()
        if not forced:
            return
        events, most = (np.array(column, np.int64) for column in zip(*forced))
        self._add(events, _BEGIN, ev.SET_CAPACITY, events * 0, most)
        self._add(events, _END, ev.SET_CAPACITY, events * 0, most * 0 + UNLIMITED)

    def _failures(self) -> None:
        events = self.history.events
        failed = np.flatnonzero(events.action == rec.OOM)
        ids = len(self.history.allocations) + np.arange(len(failed))
        streams = self._numbered(events.stream[failed])
        self._add(failed, _CALL, ev.ALLOC, ids, events.size[failed], streams)

    def _completions(self, numbers: dict[int, int]) -> None:
        them, never = self.history.allocations, len(self.history.events)
        used = np.array(sorted(numbers), np.int64)
        if not len(used):
            return
        streams = np.array([numbers[id] for id in used.tolist()])
        inside = ~them.pending[used]
        self._add(
            them.freed[used][inside], _USE, ev.RECORD_STREAM, used[inside],
            np.zeros(int(inside.sum()), np.int64), streams[inside],
        )  # fmt: skip
        ends = them.completed[used]
        # Those that a release of the cache waited for are completed by the replayed one as well.
        told = (ends != never) & ~self.releases.waited(ends)
        self._add(
            ends[told], _COMPLETE, ev.COMPLETE, used[told] * 0,
            np.ones(int(told.sum()), np.int64), streams[told],
        )  # fmt: skip

    def _add(
        self, event: Array, order: int, op: int, id: Array,
        size: Array | None = None, stream: Array | None = None,
    ) -> None:  # fmt: skip
        nothing = np.zeros(len(event), np.int64)
        self._columns.append(
            (
                event * 8 + order, nothing + op, id.astype(np.int64),
                nothing if size is None else size, nothing if stream is None else stream,
            )
        )  # fmt: skip

    def _sorted(self, before: ev.Builder) -> tuple[Array, Array]:
        key, *columns = (np.concatenate(parts) for parts in zip(*self._columns))
        order = np.argsort(key, kind="stable")
        head = np.array(before.rows, np.int64).reshape(-1, 4)
        rows = np.concatenate([head, np.column_stack(columns)[order]])
        origin = np.concatenate([np.full(len(head), BEFORE), key[order] // 8])
        return rows, origin

    # --- streams --------------------------------------------------------------------------------

    def _numbered(self, handles: Array) -> Array:
        """Return the numbers of stream handles."""
        known = np.array(sorted(self.streams), np.int64)
        return np.searchsorted(known, handles) if len(known) else np.zeros(0, np.int64)

    def _pending(self) -> dict[int, int]:
        """Return the stream of work that each delayed free waits for, by allocation.

        A stream's work ends in order: each free is put behind the latest that is completed no later
        than itself, which needs the fewest streams.
        """
        them, never = self.history.allocations, len(self.history.events)
        late = (them.completed > them.freed + 1) & (them.freed != never) | them.pending
        ids = np.flatnonzero(late)
        when = np.where(them.pending[ids], BEFORE, them.freed[ids])
        ids = ids[np.argsort(when, kind="stable")]
        first, most = len(self.streams), MOST_STREAMS - len(self.streams)
        queues: list[tuple[int, int]] = []
        numbers: dict[int, int] = {}
        for id, end in zip(ids.tolist(), them.completed[ids].tolist()):
            place = bisect_right(queues, (end, MOST_STREAMS)) - 1
            if place < 0 and len(queues) >= most:
                place = 0
            queue = queues.pop(place)[1] if place >= 0 else len(queues)
            insort(queues, (end, queue))
            numbers[id] = first + queue
        if len(queues) == most:
            self.notes.append("more streams of work than the replayed device has: some were joined")
        return numbers

    def _capacity(self) -> int:
        known = self.recording.capacity or self.releases.capacity
        if known and not self.recording.capacity:
            how = "the failed requests" if self.releases.told else "the releases of the cache"
            self.notes.append(
                f"the file does not hold the device's size; {how} say about {known} bytes"
            )
        return known or UNLIMITED


def _stream_numbers(history: History) -> dict[int, int]:
    """Number the handles in their order, in which the allocator sorts; 0 is the default stream."""
    handles = {0, *np.unique(history.allocations.stream).tolist()}
    handles |= {span.stream for span in history.spans}
    handles |= set(np.unique(history.events.stream[history.events.action == rec.OOM]).tolist())
    return {handle: number for number, handle in enumerate(sorted(handles))}
