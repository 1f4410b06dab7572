"""The compiled replay loop: a list of events against the policy, on a virtual device.

State
-----
The words of one array, whose places stand below: where the events are (rows of integers), the block
of each name, the results, which private pools are begun. The loop stops, and is entered again where
it stopped, when tables must grow or somebody wants to look (SNAPSHOT).

Invariants
----------
* An event runs only when every table has room for all that it can write.
* The loop never calls Python.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

from refruntime._native import device_function, native, ptr_i64
from refruntime.alloc.counters import SNAPSHOT as TRACE_SNAPSHOT
from refruntime.alloc.counters import note, reserved_in_all, reset_all_peaks
from refruntime.alloc.driver import (
    CAPACITY,
    DEVICE_SYNC,
    EVENT_CAPACITY,
    EVENT_COUNT,
    FOREIGN,
    GRANULE,
    LOG,
    MANUAL,
    STEP,
    complete,
    complete_all,
    free_memory,
    has_room,
    log,
    synchronize,
)
from refruntime.alloc.driver import FAIL_NEXT as DEVICE_FAIL_NEXT
from refruntime.alloc.events import record_use
from refruntime.alloc.policy import allocate, release
from refruntime.alloc.pools import (
    need_pool,
    new_private_pool,
    release_pool,
)
from refruntime.alloc.release import release_cached, release_pool_cache
from refruntime.alloc.tables import (
    ACTIVE_BYTES,
    ADDRESS,
    ALLOCATED_BYTES,
    BLOCKS,
    DIVISION_COUNT,
    DIVISIONS,
    FAILED_SIZE,
    INACTIVE_SPLIT_BYTES,
    MAX_SPLIT,
    NUM_ALLOC_RETRIES,
    NUM_OOMS,
    REQUESTED_BYTES,
    SIZE,
    entries_needed,
    is_roomy,
)

# An event: what, and up to three arguments.
EVENT_WORDS: Final = 4
ALLOC: Final = 0  # name, bytes, stream
FREE: Final = 1  # name
RECORD_STREAM: Final = 2  # name, stream
SYNC: Final = 3
SYNC_STREAM: Final = 4  # stream
COMPLETE: Final = 5  # stream, or -1 for all; count, or -1 for all
EVENTS_MANUAL: Final = 6  # 0 or 1
EMPTY_CACHE: Final = 7
CONFIGURE: Final = 8  # number of the settings
SET_CAPACITY: Final = 9  # bytes
SET_FOREIGN: Final = 10  # bytes
FAIL_NEXT: Final = 11  # count
POOL_BEGIN: Final = 12  # number of the pool
POOL_END: Final = 13
POOL_DELETE: Final = 14
RESET_PEAK: Final = 15
SNAPSHOT: Final = 16
MEMORY_INFO: Final = 17

# Settings: the words of the header from MAX_SPLIT on.
SETTING_WORDS: Final = DIVISIONS + DIVISION_COUNT - MAX_SPLIT

# A result: address and size of the block (or a code, and what was tried of the upstream), then the
# state after the event.
RESULT_WORDS: Final = 9

# Words of the loop's own state
POSITION: Final = 0
EVENTS: Final = 1  # addresses of the events, blocks by name, results (or 0), settings and pools
NAMES: Final = 2
RESULTS: Final = 3
SETTINGS: Final = 4
POOLS: Final = 5
COUNT: Final = 6  # events in all
POOLS_MADE: Final = 7
OPEN_POOLS: Final = 8  # how many pools are begun
FAILURES: Final = 9
PEAK_RESERVED: Final = 10
PEAK_ALLOCATED: Final = 11
FIRST_OPEN: Final = 16  # the pools that are begun, by number, oldest first
MAX_OPEN: Final = 240
STATE_WORDS: Final = FIRST_OPEN + MAX_OPEN

FINISHED: Final = 0
ROOM_NEEDED: Final = 1
STOPPED: Final = 2


@native("int64(int64, int64, int64)")
def run(header, device, state):
    """Replay until the end (FINISHED), a SNAPSHOT event (STOPPED), or for lack of room."""
    h = ptr_i64(header)
    o = ptr_i64(device)
    s = ptr_i64(state)
    b = ptr_i64(h[BLOCKS])
    events = ptr_i64(s[EVENTS])
    while s[POSITION] < s[COUNT]:
        if not is_roomy(h) or not has_log_room(h, o, events[EVENT_WORDS * s[POSITION] + 2]):
            return ROOM_NEEDED
        at = EVENT_WORDS * s[POSITION]
        o[STEP] = s[POSITION]
        address, size = step(h, b, o, s, events[at], events[at + 1], events[at + 2], events[at + 3])
        s[PEAK_RESERVED] = max(s[PEAK_RESERVED], reserved_in_all(h))
        if s[RESULTS] != 0:
            write_result(h, s, address, size)
        s[POSITION] += 1
        if events[at] == SNAPSHOT:
            return STOPPED
    return FINISHED


@device_function
def has_log_room(h, o, nbytes):
    """Return whether the log has room for the calls of any event, for every page if need be."""
    if o[LOG] == 0:
        return o[EVENT_CAPACITY] - o[EVENT_COUNT] > entries_needed(h)
    pages = (reserved_in_all(h) + max(nbytes, 0)) // GRANULE
    return has_room(o, 4 * pages + 2 * entries_needed(h))


@device_function
def step(h, b, o, s, what, x, y, z):
    """Run one event; return the address and size of the block it served, or zeros."""
    if what == ALLOC:
        return allocate_named(h, b, o, s, x, y, z)
    if what == FREE:
        names = ptr_i64(s[NAMES])
        if names[x] != 0:
            release(h, b, o, names[x])
            names[x] = 0
    elif what == RECORD_STREAM:
        names = ptr_i64(s[NAMES])
        if names[x] != 0:
            record_use(h, b, names[x], y)
    elif what <= EMPTY_CACHE:
        step_streams(h, b, o, what, x, y)
    elif what >= POOL_BEGIN and what <= POOL_DELETE:
        step_pools(h, b, o, s, what, x)
    else:
        step_settings(h, b, o, s, what, x)
    return 0, 0


@device_function
def allocate_named(h, b, o, s, name, nbytes, stream):
    """Serve a request and remember its block by name."""
    if nbytes == 0:
        return 0, 0
    pools = ptr_i64(s[POOLS])
    owner = 0 if s[OPEN_POOLS] == 0 else pools[s[FIRST_OPEN + s[OPEN_POOLS] - 1]]
    k = allocate(h, b, o, nbytes, stream, 0, owner)
    if k <= 0:
        s[FAILURES] += 1
        return k, h[FAILED_SIZE]
    ptr_i64(s[NAMES])[name] = k
    return b[k + ADDRESS], b[k + SIZE]


@device_function
def step_streams(h, b, o, what, x, y):
    """Run an event about streams, or empty the cache."""
    if what == SYNC:
        complete_all(o)
        log(o, DEVICE_SYNC, 0, 0, 0)
    elif what == SYNC_STREAM:
        synchronize(o, x)
    elif what == COMPLETE and x < 0:
        complete_all(o)
    elif what == COMPLETE:
        complete(o, x, y)
    elif what == EVENTS_MANUAL:
        o[MANUAL] = x
    elif what == EMPTY_CACHE:
        release_cached(h, b, o)


@device_function
def step_settings(h, b, o, s, what, x):
    """Run an event that changes settings, the device, or what is counted."""
    if what == CONFIGURE:
        settings = ptr_i64(s[SETTINGS])
        for word in range(SETTING_WORDS):
            h[MAX_SPLIT + word] = settings[SETTING_WORDS * x + word]
    elif what == SET_CAPACITY:
        o[CAPACITY] = x
    elif what == SET_FOREIGN:
        o[FOREIGN] = x
    elif what == FAIL_NEXT:
        o[DEVICE_FAIL_NEXT] = x
    elif what == RESET_PEAK:
        reset_all_peaks(h, b)
    elif what == MEMORY_INFO:
        free_memory(o)
    elif what == SNAPSHOT:
        note(h, TRACE_SNAPSHOT, 0, h[ACTIVE_BYTES] + h[ACTIVE_BYTES + 1], 0, 0, 0)


@device_function
def step_pools(h, b, o, s, what, number):
    """Begin, end or delete a private pool."""
    pools = ptr_i64(s[POOLS])
    if what == POOL_BEGIN:
        if pools[number] == 0:
            s[POOLS_MADE] += 1
            pools[number] = new_private_pool(h, b, 0, s[POOLS_MADE], 0, 0)
            need_pool(h, b, pools[number])
        need_pool(h, b, pools[number])
        s[FIRST_OPEN + s[OPEN_POOLS]] = number
        s[OPEN_POOLS] += 1
    elif what == POOL_END:
        close_pool(s, number)
        release_pool(h, b, pools[number])
    elif pools[number] != 0:
        release_pool(h, b, pools[number])
        release_pool_cache(h, b, o, pools[number])
        pools[number] = 0


@device_function
def close_pool(s, number):
    """Take a pool out of those that are begun."""
    i = 0
    while i < s[OPEN_POOLS] and s[FIRST_OPEN + i] != number:
        i += 1
    if i == s[OPEN_POOLS]:
        return
    s[OPEN_POOLS] -= 1
    while i < s[OPEN_POOLS]:
        s[FIRST_OPEN + i] = s[FIRST_OPEN + i + 1]
        i += 1


@device_function
def write_result(h, s, address, size):
    """Write the result of an event."""
    r = ptr_i64(s[RESULTS])
    at = RESULT_WORDS * s[POSITION]
    r[at] = address
    r[at + 1] = size
    r[at + 2] = h[ALLOCATED_BYTES] + h[ALLOCATED_BYTES + 1]
    r[at + 3] = reserved_in_all(h)
    r[at + 4] = h[ACTIVE_BYTES] + h[ACTIVE_BYTES + 1]
    r[at + 5] = h[INACTIVE_SPLIT_BYTES] + h[INACTIVE_SPLIT_BYTES + 1]
    r[at + 6] = h[REQUESTED_BYTES] + h[REQUESTED_BYTES + 1]
    r[at + 7] = h[NUM_ALLOC_RETRIES]
    r[at + 8] = h[NUM_OOMS]
