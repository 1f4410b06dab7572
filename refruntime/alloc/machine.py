"""The machine of a request that needs the outside: a resumable one.

State
-----
In the header `h`: the request in flight, its phase, and what the outside is asked to do. `begin`,
`begin_emptying` and `resume` run until they need the outside, put what they ask for into the header
and return a code; the caller does it and calls `resume` with the answer.

Invariants
----------
* The order is PyTorch's: ask the upstream; if it refuses, give it every whole cached segment back,
  large pool first, each pool in the order of its free set, and ask once more.
* A request that fails leaves all as it was, apart from the cache that was released for it and the
  counts of retries and failures.
* `RELEASING` names the one block whose segment the outside is taking back: it is in no free set,
  and returns to it if the outside fails (`abandon`).
"""
# Written in the subset that Numba compiles, as the rest of the core.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

from refruntime._native import device_function
from refruntime.alloc.core import (
    DONE,
    OUT_OF_MEMORY,
    RELEASE,
    RESERVE,
    ROWS_NEEDED,
    adopt,
    drop_segment,
    round_size,
    segment_size,
)
from refruntime.alloc.free_set import insert_free, next_whole, remove_free
from refruntime.alloc.tables import (
    ADDRESS,
    FREE,
    LARGE,
    LEAVING,
    NUM_ALLOC_RETRIES,
    NUM_OOMS,
    NUM_SYNC_ALL_STREAMS,
    OUTSIDE_ADDRESS,
    OUTSIDE_SIZE,
    OUTSIDE_STREAM,
    PHASE,
    POOL,
    RELEASING,
    REQUEST_BYTES,
    REQUEST_CATEGORY,
    REQUEST_SIZE,
    REQUEST_STREAM,
    SIZE,
    SMALL,
    STATE,
    STREAM,
)

# Phases of a request
IDLE: Final = 0
FIRST_RESERVE: Final = 1
RELEASING_CACHE: Final = 2
LAST_RESERVE: Final = 3
EMPTYING: Final = 4


@device_function
def begin(h, nbytes, stream, category):
    """Start a request that the cache could not serve; returns a code."""
    h[REQUEST_BYTES] = nbytes
    h[REQUEST_SIZE] = round_size(nbytes)
    h[REQUEST_STREAM] = stream
    h[REQUEST_CATEGORY] = category
    return ask_segment(h, FIRST_RESERVE)


@device_function
def begin_emptying(h, b):
    """Start to release every cached segment; returns a code."""
    h[PHASE] = EMPTYING
    h[NUM_SYNC_ALL_STREAMS] += 1
    return ask_release(h, b, 0)


@device_function
def resume(h, b, x, answer):
    """Go on with the answer from the outside; returns an address or a code."""
    phase = h[PHASE]
    released = h[RELEASING]
    if phase in (FIRST_RESERVE, LAST_RESERVE):
        if answer != 0:
            return settle(h, b, x, answer)
        if phase == LAST_RESERVE:
            h[PHASE] = IDLE
            h[NUM_OOMS] += 1
            return OUT_OF_MEMORY
        h[PHASE] = RELEASING_CACHE
        h[NUM_SYNC_ALL_STREAMS] += 1
    else:
        drop_segment(h, b, released)
        h[RELEASING] = 0
    return ask_release(h, b, released)


@device_function
def settle(h, b, x, address):
    """Serve the request in flight from a new segment at `address`."""
    result = adopt(
        h, b, x, address, h[REQUEST_BYTES], h[REQUEST_STREAM], h[REQUEST_CATEGORY]
    )  # fmt: skip
    if result != ROWS_NEEDED:
        h[PHASE] = IDLE
    return result


@device_function
def ask_segment(h, phase):
    """Ask the outside for a segment for the request in flight."""
    h[PHASE] = phase
    h[OUTSIDE_SIZE] = segment_size(h[REQUEST_SIZE])
    h[OUTSIDE_STREAM] = h[REQUEST_STREAM]
    return RESERVE


@device_function
def ask_release(h, b, last):
    """Ask the outside to take back the whole segment after `last`: large ones first, in set order.

    The row of `last` is unused by now, but nothing has changed its key.
    """
    in_small = last != 0 and b[last + POOL] == SMALL
    k = 0 if in_small else next_whole(b, LARGE, last)
    if k == 0:
        k = next_whole(b, SMALL, last if in_small else 0)
    if k != 0:
        remove_free(b, k)
        b[k + STATE] = LEAVING
        h[RELEASING] = k
        h[OUTSIDE_ADDRESS] = b[k + ADDRESS]
        h[OUTSIDE_SIZE] = b[k + SIZE]
        h[OUTSIDE_STREAM] = b[k + STREAM]
        return RELEASE
    if h[PHASE] == EMPTYING:
        h[PHASE] = IDLE
        return DONE
    h[NUM_ALLOC_RETRIES] += 1
    return ask_segment(h, LAST_RESERVE)


@device_function
def abandon(h, b):
    """Give the request in flight up, when the outside has failed in a way that is no answer."""
    k = h[RELEASING]
    if k != 0:
        b[k + STATE] = FREE
        insert_free(b, k)
        h[RELEASING] = 0
    h[PHASE] = IDLE
