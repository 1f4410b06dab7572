"""Replay of an encoded event list in compiled code: the tables, the virtual device, the loop.

State
-----
A `Replayer` owns the tables of an allocator, a virtual device, and the arrays that the loop writes.

Invariants
----------
* It never reserves memory: all addresses are the virtual device's.
* After `run`, everything that happened can be read: results, the device's log, the trace, the
  tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from refruntime.alloc import replay_loop as loop
from refruntime.alloc import tables
from refruntime.alloc.driver import Device
from refruntime.alloc.event_list import EncodedList
from refruntime.alloc.tables import Tables, Words


class Replayer:
    """One replay.

    Parameters
    ----------
    events : EncodedList
        What to replay.
    results : bool
        Keep the result and the state after each event.
    log, trace : bool
        Keep the calls of the device; keep the allocator's history.
    manual_events : bool
        Whether events of streams pass only when the list says so.
    """

    def __init__(
        self,
        events: EncodedList,
        *,
        results: bool = True,
        log: bool = True,
        trace: bool = True,
        manual_events: bool = False,
    ) -> None:
        self.events = events
        self.tables = Tables()
        self.device = Device(
            events.settings[0].device_bytes, logged=log, manual_events=manual_events
        )
        self.state = np.zeros(loop.STATE_WORDS, np.int64)
        self.results = np.zeros((len(events.rows) if results else 0, loop.RESULT_WORDS), np.int64)
        self._names = np.zeros(events.names, np.int64)
        self._pools = np.zeros(events.pools, np.int64)
        self._settings = np.array([each.words() for each in events.settings], np.int64)
        self._point()
        events.settings[0].write(self.tables.header)
        if trace:
            self.tables.start_trace()

    def _point(self) -> None:
        state = self.state
        state[loop.EVENTS] = self.events.rows.ctypes.data
        state[loop.NAMES] = self._names.ctypes.data
        state[loop.RESULTS] = self.results.ctypes.data if len(self.results) else 0
        state[loop.SETTINGS] = self._settings.ctypes.data
        state[loop.POOLS] = self._pools.ctypes.data
        state[loop.COUNT] = len(self.events.rows)

    def run(self) -> None:
        """Replay to the end."""
        for _ in self.stops():
            pass

    def stops(self) -> Iterator[int]:
        """Replay to the end; yield the number of each snapshot event when it is reached."""
        state, header, device = self.state.ctypes.data, self.tables.address, self.device.address
        code = loop.run(header, device, state)
        while code != loop.FINISHED:
            if code == loop.STOPPED:
                yield int(self.state[loop.POSITION]) - 1
            else:
                self._make_room()
            code = loop.run(header, device, state)

    def _make_room(self) -> None:
        head = self.tables.header
        self.tables.make_room()
        nbytes = int(self.events.rows[self.state[loop.POSITION], 2])
        reserved = head[tables.RESERVED_BYTES] + head[tables.RESERVED_BYTES + 1]
        pages = (reserved + max(nbytes, 0)) // (2 << 20)
        self.device.make_room(4 * pages + 2 * tables.entries_needed(head) + 1)

    def trace(self) -> Words:
        """Return the allocator's history, an entry a row (see `tables`)."""
        return self.tables.trace_entries()

    def stats(self) -> Any:
        """Return the header, which holds the statistics."""
        return self.tables.header
