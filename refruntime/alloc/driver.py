"""The virtual device of compiled replay: what a CUDA driver would answer, and the log of its calls.

State
-----
Words of one int64 array `o`: the memory of the device, its streams (work submitted and work done)
and events, and the addresses of three tables: events, spare events, and the log, a row a call.

Invariants
----------
* Addresses only rise, so that no two spans of a run share one.
* A stream's work is done in order; an event has passed when the work before it is done.
* Memory is counted in units of 2 MiB, as drivers give it out.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, Final

import numpy as np

from refruntime._native import device_function, ptr_i64
from refruntime.alloc.questions import (
    FREE_MEMORY,
    MAP,
    QUERY_EVENT,
    RECORD_EVENT,
    RELEASE,
    RELEASE_ADDRESSES,
    RELEASE_EVENT,
    RESERVE,
    RESERVE_ADDRESSES,
    SYNCHRONIZE,
    UNMAP,
    WAIT_EVENT,
)

CAPACITY: Final = 0
FOREIGN: Final = 1  # bytes that other processes have
USED: Final = 2
FAIL_NEXT: Final = 3  # how many coming requests for memory fail
NEXT_SPAN: Final = 4  # the address of the next segment
NEXT_RANGE: Final = 5  # and of the next reservation of addresses
MANUAL: Final = 6  # whether events pass only when told to
LOG: Final = 7  # address of the log, or 0
LOG_CAPACITY: Final = 8  # in rows
LOG_COUNT: Final = 9
STEP: Final = 10  # the event of the list that is being replayed
EVENTS: Final = 11  # address of the events: stream and place in its work
SPARE_EVENTS: Final = 12  # address of the stack of events that nobody has
SPARE_COUNT: Final = 13
EVENT_COUNT: Final = 14  # events ever made
EVENT_CAPACITY: Final = 15
CALLS: Final = 16  # reservations, releases, maps and unmaps
STREAMS: Final = 24  # two words a stream: work submitted, work done
STREAM_COUNT: Final = 64
DEVICE_WORDS: Final = STREAMS + 2 * STREAM_COUNT

# A row of the log: step, call, and up to three arguments.
LOG_WORDS: Final = 5
MALLOC: Final = 0
MALLOC_FAILED: Final = 1
FREE: Final = 2
RESERVED: Final = 3
ADDR_FREE: Final = 4
CREATE: Final = 5
CREATE_FAILED: Final = 6
UNCREATE: Final = 7
MAPPED: Final = 8
SET_ACCESS: Final = 9
UNMAPPED: Final = 10
EVENT_CREATE: Final = 11
EVENT_RECORD: Final = 12
EVENT_READY: Final = 13
EVENT_NOT_READY: Final = 14
EVENT_SYNC: Final = 15
STREAM_SYNC: Final = 16
DEVICE_SYNC: Final = 17
MEM_GET_INFO: Final = 18

GRANULE: Final = 2 << 20
_SPANS_FROM: Final = 1 << 40
_RANGES_FROM: Final = 1 << 44
_FIRST_LOG: Final = 4096
_FIRST_EVENTS: Final = 1024


@device_function
def log(o, call, a, b, c):
    """Write a call into the log."""
    if o[LOG] == 0:
        return
    rows = ptr_i64(o[LOG])
    at = o[LOG_COUNT] * LOG_WORDS
    rows[at] = o[STEP]
    rows[at + 1] = call
    rows[at + 2] = a
    rows[at + 3] = b
    rows[at + 4] = c
    o[LOG_COUNT] += 1


@device_function
def granules(nbytes):
    """Round up to what a driver gives out."""
    return (nbytes + GRANULE - 1) & -GRANULE


@device_function
def take_memory(o, nbytes):
    """Count memory as used; return whether there was enough."""
    if o[FAIL_NEXT] > 0:
        o[FAIL_NEXT] -= 1
        return False
    if o[USED] + o[FOREIGN] > o[CAPACITY] or nbytes > o[CAPACITY] - o[USED] - o[FOREIGN]:
        return False
    o[USED] += nbytes
    return True


@device_function
def free_memory(o):
    """Return the bytes left, as `cudaMemGetInfo` tells them."""
    left = max(o[CAPACITY] - o[USED] - o[FOREIGN], 0)
    log(o, MEM_GET_INFO, left, o[CAPACITY], 0)
    return left


@device_function
def reserve(o, nbytes):
    """Give out a segment: its address, or 0."""
    o[CALLS] += 1
    if not take_memory(o, granules(nbytes)):
        log(o, MALLOC_FAILED, 0, nbytes, 0)
        # PyTorch warns of each failure, and the warning tells how much was free.
        free_memory(o)
        return 0
    address = o[NEXT_SPAN]
    o[NEXT_SPAN] += granules(nbytes)
    log(o, MALLOC, address, nbytes, 0)
    return address


@device_function
def release(o, address, nbytes):
    """Take a segment back."""
    o[CALLS] += 1
    o[USED] -= granules(nbytes)
    log(o, FREE, address, nbytes, 0)
    return 0


@device_function
def reserve_addresses(o, nbytes):
    """Give out addresses without memory."""
    address = o[NEXT_RANGE]
    o[NEXT_RANGE] += granules(nbytes)
    log(o, RESERVED, address, nbytes, 0)
    return address


@device_function
def map_pages(o, address, nbytes, page):
    """Put new pages behind addresses: 1, or 0 (and no page) if the memory does not suffice."""
    o[CALLS] += 1
    made = 0
    while made < nbytes and take_memory(o, page):
        log(o, CREATE, page, 0, 0)
        made += page
    if made < nbytes:
        log(o, CREATE_FAILED, page, 0, 0)
        free_memory(o)
        while made > 0:
            log(o, UNCREATE, page, 0, 0)
            o[USED] -= page
            made -= page
        return 0
    for offset in range(0, nbytes, page):
        log(o, MAPPED, address + offset, page, 0)
    log(o, SET_ACCESS, address, nbytes, 0)
    return 1


@device_function
def unmap_pages(o, address, nbytes, page, stream):
    """Take the pages behind addresses away, once the stream is done."""
    o[CALLS] += 1
    synchronize(o, stream)
    for offset in range(0, nbytes, page):
        log(o, UNMAPPED, address + offset, page, 0)
        log(o, UNCREATE, page, 0, 0)
        o[USED] -= page
    return 0


@device_function
def synchronize(o, stream):
    """Finish the work of a stream."""
    o[STREAMS + 2 * stream + 1] = o[STREAMS + 2 * stream]
    log(o, STREAM_SYNC, stream, 0, 0)
    return 0


@device_function
def record_event(o, stream):
    """Record an event behind the work of a stream; return its name."""
    if o[SPARE_COUNT] > 0:
        o[SPARE_COUNT] -= 1
        event = ptr_i64(o[SPARE_EVENTS])[o[SPARE_COUNT]]
    else:
        o[EVENT_COUNT] += 1
        event = o[EVENT_COUNT]
        log(o, EVENT_CREATE, event, 0, 0)
    work = STREAMS + 2 * stream
    o[work] += 1
    if not o[MANUAL]:
        o[work + 1] = o[work]
    events = ptr_i64(o[EVENTS])
    events[2 * event] = stream
    events[2 * event + 1] = o[work]
    log(o, EVENT_RECORD, event, stream, 0)
    return event


@device_function
def query_event(o, event):
    """Return whether an event has passed."""
    events = ptr_i64(o[EVENTS])
    passed = o[STREAMS + 2 * events[2 * event] + 1] >= events[2 * event + 1]
    log(o, EVENT_READY if passed else EVENT_NOT_READY, event, 0, 0)
    return 1 if passed else 0


@device_function
def wait_event(o, event):
    """Finish the work before an event."""
    events = ptr_i64(o[EVENTS])
    done = STREAMS + 2 * events[2 * event] + 1
    o[done] = max(o[done], events[2 * event + 1])
    log(o, EVENT_SYNC, event, 0, 0)
    return 0


@device_function
def release_event(o, event):
    """Let an event be recorded again; the last one that came back goes out first."""
    ptr_i64(o[SPARE_EVENTS])[o[SPARE_COUNT]] = event
    o[SPARE_COUNT] += 1
    return 0


@device_function
def complete(o, stream, count):
    """Finish the oldest pieces of work of a stream, so many, or all if `count` is negative."""
    work = STREAMS + 2 * stream
    left = o[work] - o[work + 1]
    o[work + 1] += left if count < 0 else min(count, left)


@device_function
def complete_all(o):
    """Finish the work of all streams."""
    for stream in range(STREAM_COUNT):
        complete(o, stream, -1)


@device_function
def answer(o, question, a, b, c, d):
    """Answer the core; see `questions`."""
    if question == RESERVE:
        return reserve(o, a)
    if question == RELEASE:
        return release(o, a, b)
    if question == QUERY_EVENT:
        return query_event(o, a)
    if question == RECORD_EVENT:
        return record_event(o, a)
    if question == RELEASE_EVENT:
        return release_event(o, a)
    if question == WAIT_EVENT:
        return wait_event(o, a)
    if question == MAP:
        return map_pages(o, a, b, c)
    if question == UNMAP:
        return unmap_pages(o, a, b, c, d)
    if question == RESERVE_ADDRESSES:
        return reserve_addresses(o, a)
    return answer_rarely(o, question, a, b)


@device_function
def answer_rarely(o, question, a, b):
    """Answer what is seldom asked."""
    if question == RELEASE_ADDRESSES:
        log(o, ADDR_FREE, a, b, 0)
    elif question == SYNCHRONIZE:
        synchronize(o, a)
    elif question == FREE_MEMORY:
        return free_memory(o)
    return 0


@device_function
def has_room(o, calls):
    """Return whether the tables have room for so many more rows of the log, and events."""
    if o[LOG] != 0 and o[LOG_CAPACITY] - o[LOG_COUNT] < calls:
        return False
    return o[EVENT_CAPACITY] - o[EVENT_COUNT] > calls


class Device:
    """The arrays of a virtual device.

    Parameters
    ----------
    capacity : int
        Bytes of memory.
    logged : bool
        Whether calls are written into the log.
    manual_events : bool
        Whether events pass only when told to.
    """

    def __init__(self, capacity: int, *, logged: bool = True, manual_events: bool = False) -> None:
        self.words = np.zeros(DEVICE_WORDS, np.int64)
        self.words[CAPACITY] = capacity
        self.words[NEXT_SPAN], self.words[NEXT_RANGE] = _SPANS_FROM, _RANGES_FROM
        self.words[MANUAL] = manual_events
        self._log = np.zeros((_FIRST_LOG if logged else 0, LOG_WORDS), np.int64)
        self._events = np.zeros((0, 2), np.int64)
        self._spare = np.zeros(0, np.int64)
        self._resize_events(_FIRST_EVENTS)
        self._point()

    @property
    def address(self) -> int:
        """Where the words are, for compiled code."""
        return int(self.words.ctypes.data)

    def make_room(self, calls: int) -> None:
        """Grow until so many more calls fit."""
        while len(self._log) and len(self._log) - self.words[LOG_COUNT] < calls:
            self._log = np.concatenate([self._log, np.zeros_like(self._log)])
        while self.words[EVENT_CAPACITY] - self.words[EVENT_COUNT] <= calls:
            self._resize_events(2 * int(self.words[EVENT_CAPACITY]))
        self._point()

    def log(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the log so far: step, call, and three arguments in each row (a view)."""
        return self._log[: self.words[LOG_COUNT]]

    def _resize_events(self, capacity: int) -> None:
        self._events = np.concatenate(
            [self._events, np.zeros((capacity - len(self._events), 2), np.int64)]
        )
        self._spare = np.concatenate([self._spare, np.zeros(capacity - len(self._spare), np.int64)])
        self.words[EVENT_CAPACITY] = capacity

    def _point(self) -> None:
        self.words[LOG] = self._log.ctypes.data if len(self._log) else 0
        self.words[LOG_CAPACITY] = len(self._log)
        self.words[EVENTS] = self._events.ctypes.data
        self.words[SPARE_EVENTS] = self._spare.ctypes.data
