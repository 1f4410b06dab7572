"""Sizes: how requests are rounded, which pool serves them, what a segment for them is.

The rules and constants are those of PyTorch's CUDACachingAllocator (2.14.1).
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

from refruntime._native import device_function
from refruntime.alloc.tables import (
    DIVISION_COUNT,
    DIVISIONS,
    FLAGS,
    IS_LARGE,
    LARGE,
    LARGE_POOL,
    LARGE_SEGMENT,
    MAX_SPLIT,
    NO_SPLIT,
    OWNER,
    POOL,
    SIZE,
    SMALL,
    SMALL_POOL,
)

MIN_BLOCK: Final = 512
SMALL_SIZE: Final = 1 << 20  # the largest request of the small pool
SMALL_SEGMENT: Final = 2 << 20
DEFAULT_LARGE_SEGMENT: Final = 20 << 20
MIN_LARGE: Final = 10 << 20  # from here on a request gets a segment of its own size
ROUND_LARGE: Final = 2 << 20
MAX_REQUEST: Final = (1 << 60) - 1
_WRAPS: Final = 1 << 55  # so many divisions times 512 are 0 in PyTorch's 64 bits


@device_function
def round_up(nbytes, unit):
    """Round up to a multiple of a power of two."""
    return (nbytes + unit - 1) & -unit


@device_function
def round_size(h, nbytes):
    """Return the size of the block for a request.

    A multiple of 512 bytes, or, where divisions of the powers of two are set, a step of those.
    """
    if nbytes < MIN_BLOCK:
        return MIN_BLOCK
    if h[DIVISIONS] > 1 or nbytes >= 2 * SMALL_SIZE:
        divisions = h[DIVISIONS + interval_of(nbytes)]
        if divisions > 1 and ((nbytes - 1) // MIN_BLOCK >= divisions or divisions >= _WRAPS):
            return round_to_step(nbytes, divisions)
    return round_up(nbytes, MIN_BLOCK)


@device_function
def interval_of(nbytes):
    """Return the interval of a size: how many powers of two above 1 MiB, from 0 to 15."""
    interval = 0
    while interval < DIVISION_COUNT - 1 and nbytes >= (2 * SMALL_SIZE) << interval:
        interval += 1
    return interval


@device_function
def round_to_step(nbytes, divisions):
    """Round up to the next of so many equal steps between two powers of two."""
    power = 1
    while power <= nbytes >> 1:
        power <<= 1
    if power == nbytes:
        return nbytes
    step = power // divisions
    return 2 * power if step == 0 else round_up(nbytes, step)


@device_function
def pool_for(b, owner, size):
    """Return the pool that serves a rounded size, of a private pool if `owner` is one."""
    if owner != 0:
        return b[owner + SMALL_POOL] if size <= SMALL_SIZE else b[owner + LARGE_POOL]
    return SMALL if size <= SMALL_SIZE else LARGE


@device_function
def segment_size(h, size):
    """Return the size of a new segment for a rounded size."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return h[LARGE_SEGMENT]
    return round_up(size, ROUND_LARGE)


@device_function
def page_size(h, large):
    """Return the size of a page of an expandable segment."""
    return h[LARGE_SEGMENT] if large else SMALL_SEGMENT


@device_function
def should_split(h, b, k, size, expandable):
    """Return whether block `k` is cut for a request that needs `size` bytes of it."""
    pool = b[k + POOL]
    owner = b[pool + OWNER]
    if owner != 0 and b[owner + FLAGS] & NO_SPLIT != 0:
        return False
    remainder = b[k + SIZE] - size
    if not b[pool + IS_LARGE] or expandable:
        return remainder >= MIN_BLOCK
    return size < h[MAX_SPLIT] and remainder > SMALL_SIZE
