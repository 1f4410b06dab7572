"""The caching policy: plain functions over flat tables, the same source interpreted and compiled.

State
-----
All of it is in the tables (see `tables`): `h` is the header, `b` the blocks, `x` the index. Blocks
lie in segments; a segment is a span of the upstream, and a block without a previous neighbour
starts one. The rules here need nothing from the outside; `machine` carries a request on that does.

Invariants
----------
* The blocks of a segment tile it, and two neighbours are never both free.
* Blocks in use are in the index and free ones in the free set of their pool.
* Statistics change only when a request succeeds, a block is freed or a segment comes or goes.
* Nothing here raises: results below zero are codes.

The rules and constants are PyTorch's (CUDACachingAllocator with default settings).
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

from refruntime._native import device_function
from refruntime.alloc.free_set import best_fit, insert_free, is_split, remove_free, unlink
from refruntime.alloc.tables import (
    ACTIVE,
    ACTIVE_BYTES,
    ADDRESS,
    AGE,
    ALLOCATED,
    ALLOCATED_BYTES,
    ALLOCATION,
    CATEGORY,
    CATEGORY_BYTES,
    CATEGORY_COUNT,
    CHAIN,
    FREE,
    INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES,
    LARGE,
    NEXT,
    NUM_DEVICE_ALLOC,
    NUM_DEVICE_FREE,
    PEAK,
    PEAK_ALL,
    POOL,
    PREVIOUS,
    REQUESTED,
    REQUESTED_BYTES,
    RESERVED_BYTES,
    SEGMENT,
    SEGMENT_COUNT,
    SIZE,
    SMALL,
    SPARE_HEAD,
    SPARE_ROWS,
    STATE,
    STREAM,
    TOTAL,
    UNUSED,
    bucket,
)

MIN_BLOCK: Final = 512
SMALL_SIZE: Final = 1 << 20  # the largest request of the small pool
SMALL_SEGMENT: Final = 2 << 20
LARGE_SEGMENT: Final = 20 << 20
MIN_LARGE: Final = 10 << 20  # from here on a request gets a segment of its own size
ROUND_LARGE: Final = 2 << 20
MAX_REQUEST: Final = (1 << 60) - 1

# Codes. An address is positive.
DONE: Final = 0
MISS: Final = -1  # no cached block fits
ROWS_NEEDED: Final = -2  # grow the tables, then repeat the call
RESERVE: Final = -3  # answer with the address of OUTSIDE_SIZE bytes, or 0
RELEASE: Final = -4  # give OUTSIDE_SIZE bytes at OUTSIDE_ADDRESS back; any answer
OUT_OF_MEMORY: Final = -5
UNKNOWN: Final = -6  # no block in use has this address
GATED: Final = -7  # compiled calls are not allowed now
INVALID: Final = -8  # a size or a category that makes no sense


# --- rounding ---------------------------------------------------------------------------------


@device_function
def round_size(nbytes):
    """Return the size of the block for a request: a multiple of 512 bytes, at least one."""
    return MIN_BLOCK if nbytes < MIN_BLOCK else (nbytes + MIN_BLOCK - 1) & -MIN_BLOCK


@device_function
def pool_of(size):
    """Return the pool of a rounded size."""
    return SMALL if size <= SMALL_SIZE else LARGE


@device_function
def segment_size(size):
    """Return the size of a new segment for a rounded size."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return LARGE_SEGMENT
    return (size + ROUND_LARGE - 1) & -ROUND_LARGE


@device_function
def should_split(pool, remainder):
    """Return whether a block that is `remainder` bytes too big is split."""
    return remainder >= MIN_BLOCK if pool == SMALL else remainder > SMALL_SIZE


# --- statistics -------------------------------------------------------------------------------


@device_function
def increase(h, place, amount):
    """Add to the current value at `place` (a statistic and a pool), its total and the peaks."""
    current = h[place] + amount
    h[place] = current
    h[place + TOTAL] += amount
    h[place + PEAK] = max(h[place + PEAK], current)
    # Statistics start at even words: the other pool's value is the other one of the pair.
    peak_all = (place & -2) + PEAK_ALL
    h[peak_all] = max(h[peak_all], current + h[place ^ 1])


@device_function
def decrease(h, place, amount):
    """Subtract from the current value at `place`."""
    h[place] -= amount


@device_function
def change(h, place, amount):
    """Add or subtract, by the sign."""
    if amount > 0:
        increase(h, place, amount)
    else:
        decrease(h, place, -amount)


# --- rows -------------------------------------------------------------------------------------


@device_function
def take_row(h, b):
    """Return an unused row; the caller has made sure that there is one."""
    k = h[SPARE_HEAD]
    h[SPARE_HEAD] = b[k + NEXT]
    h[SPARE_ROWS] -= 1
    return k


@device_function
def give_row(h, b, k):
    """Put a row back."""
    b[k + STATE] = UNUSED
    b[k + NEXT] = h[SPARE_HEAD]
    h[SPARE_HEAD] = k
    h[SPARE_ROWS] += 1


# --- the index --------------------------------------------------------------------------------


@device_function
def enter_index(h, b, x, k):
    """Make block `k` findable by its address."""
    place = bucket(h, b[k + ADDRESS])
    b[k + CHAIN] = x[place]
    x[place] = k


@device_function
def find(h, b, x, address):
    """Return the block in use at an address, or 0."""
    k = x[bucket(h, address)]
    while k != 0 and b[k + ADDRESS] != address:
        k = b[k + CHAIN]
    return k


@device_function
def leave_index(h, b, x, k):
    """Make block `k` unfindable."""
    place = bucket(h, b[k + ADDRESS])
    before = x[place]
    if before == k:
        x[place] = b[k + CHAIN]
        return
    while b[before + CHAIN] != k:
        before = b[before + CHAIN]
    b[before + CHAIN] = b[k + CHAIN]


# --- requests served from the cache -----------------------------------------------------------


@device_function
def take(h, b, x, nbytes, stream, category):
    """Serve a request from the cache: an address, or MISS, ROWS_NEEDED or INVALID."""
    if nbytes <= 0 or nbytes > MAX_REQUEST or category < 0 or category >= CATEGORY_COUNT:
        return INVALID
    if h[SPARE_ROWS] == 0:
        return ROWS_NEEDED
    size = round_size(nbytes)
    link = best_fit(b, pool_of(size), stream, size)
    if link == 0:
        return MISS
    k = b[link]
    unlink(b, link)
    return hand_out(h, b, x, k, size, nbytes, category)


@device_function
def hand_out(h, b, x, k, size, nbytes, category):
    """Give the low end of block `k`, which is in no free set, to a request; return its address."""
    pool = b[k + POOL]
    was_split = is_split(b, k)
    if should_split(pool, b[k + SIZE] - size):
        k = split(h, b, k, size, was_split)
    elif was_split:
        decrease(h, INACTIVE_SPLIT + pool, 1)
        decrease(h, INACTIVE_SPLIT_BYTES + pool, b[k + SIZE])
    b[k + STATE] = ALLOCATED
    b[k + REQUESTED] = nbytes
    b[k + CATEGORY] = category
    enter_index(h, b, x, k)
    increase(h, ALLOCATION + pool, 1)
    increase(h, ALLOCATED_BYTES + pool, b[k + SIZE])
    increase(h, ACTIVE + pool, 1)
    increase(h, ACTIVE_BYTES + pool, b[k + SIZE])
    increase(h, REQUESTED_BYTES + pool, nbytes)
    h[CATEGORY_BYTES + category] += nbytes
    return b[k + ADDRESS]


@device_function
def split(h, b, k, size, was_split):
    """Cut `size` bytes off the low end of block `k`, return them; the rest of `k` becomes free."""
    low = take_row(h, b)
    b[low + STREAM] = b[k + STREAM]
    b[low + SIZE] = size
    b[low + AGE] = b[k + AGE]
    b[low + ADDRESS] = b[k + ADDRESS]
    b[low + POOL] = b[k + POOL]
    b[low + PREVIOUS] = b[k + PREVIOUS]
    b[low + NEXT] = k
    if b[k + PREVIOUS] != 0:
        b[b[k + PREVIOUS] + NEXT] = low
    b[k + PREVIOUS] = low
    b[k + ADDRESS] += size
    b[k + SIZE] -= size
    b[k + STATE] = FREE
    insert_free(b, k)
    if was_split:
        decrease(h, INACTIVE_SPLIT_BYTES + b[k + POOL], size)
    else:
        increase(h, INACTIVE_SPLIT + b[k + POOL], 1)
        increase(h, INACTIVE_SPLIT_BYTES + b[k + POOL], b[k + SIZE])
    return low


# --- frees ------------------------------------------------------------------------------------


@device_function
def give(h, b, x, address):
    """Free the block at an address (address 0 is no block): DONE or UNKNOWN."""
    if address == 0:
        return DONE
    k = find(h, b, x, address)
    if k == 0:
        return UNKNOWN
    leave_index(h, b, x, k)
    pool = b[k + POOL]
    decrease(h, ALLOCATION + pool, 1)
    decrease(h, ALLOCATED_BYTES + pool, b[k + SIZE])
    decrease(h, ACTIVE + pool, 1)
    decrease(h, ACTIVE_BYTES + pool, b[k + SIZE])
    decrease(h, REQUESTED_BYTES + pool, b[k + REQUESTED])
    h[CATEGORY_BYTES + b[k + CATEGORY]] -= b[k + REQUESTED]
    merge(h, b, k)
    b[k + STATE] = FREE
    insert_free(b, k)
    return DONE


@device_function
def merge(h, b, k):
    """Join block `k` with its free neighbours, and count what that does to split blocks."""
    count = 0
    nbytes = 0
    for side in range(PREVIOUS, NEXT + 1):
        gained = absorb(h, b, k, side)
        count -= gained != 0
        nbytes -= gained
    if is_split(b, k):
        count += 1
        nbytes += b[k + SIZE]
    change(h, INACTIVE_SPLIT + b[k + POOL], count)
    change(h, INACTIVE_SPLIT_BYTES + b[k + POOL], nbytes)


@device_function
def absorb(h, b, k, side):
    """Make the neighbour on one side part of block `k` if it is free; return the bytes gained."""
    other = b[k + side]
    if other == 0 or b[other + STATE] != FREE:
        return 0
    gained = b[other + SIZE]
    remove_free(b, other)
    b[k + ADDRESS] = min(b[k + ADDRESS], b[other + ADDRESS])
    b[k + SIZE] += gained
    beyond = b[other + side]
    b[k + side] = beyond
    if beyond != 0:
        b[beyond + PREVIOUS + NEXT - side] = k
    give_row(h, b, other)
    return gained


@device_function
def retag(h, b, x, address, category):
    """Move the block at an address to another category: DONE, UNKNOWN or INVALID."""
    if category < 0 or category >= CATEGORY_COUNT:
        return INVALID
    if address == 0:
        return DONE
    k = find(h, b, x, address)
    if k == 0:
        return UNKNOWN
    h[CATEGORY_BYTES + b[k + CATEGORY]] -= b[k + REQUESTED]
    h[CATEGORY_BYTES + category] += b[k + REQUESTED]
    b[k + CATEGORY] = category
    return DONE


# --- segments ---------------------------------------------------------------------------------


@device_function
def add_segment(h, b, address, size, pool, stream):
    """Enter a span of the upstream; return its one block, which is in no free set yet."""
    k = take_row(h, b)
    b[k + STREAM] = stream
    b[k + SIZE] = size
    b[k + AGE] = h[SEGMENT_COUNT]
    b[k + ADDRESS] = address
    b[k + POOL] = pool
    b[k + PREVIOUS] = 0
    b[k + NEXT] = 0
    h[SEGMENT_COUNT] += 1
    h[NUM_DEVICE_ALLOC] += 1
    increase(h, SEGMENT + pool, 1)
    increase(h, RESERVED_BYTES + pool, size)
    return k


@device_function
def drop_segment(h, b, k):
    """Forget the segment that block `k` fills, once the upstream has it back."""
    h[NUM_DEVICE_FREE] += 1
    decrease(h, SEGMENT + b[k + POOL], 1)
    decrease(h, RESERVED_BYTES + b[k + POOL], b[k + SIZE])
    give_row(h, b, k)


@device_function
def adopt(h, b, x, address, nbytes, stream, category):
    """Serve a request from a new segment at `address`: an address, or ROWS_NEEDED."""
    if h[SPARE_ROWS] < 2:
        return ROWS_NEEDED
    size = round_size(nbytes)
    k = add_segment(h, b, address, segment_size(size), pool_of(size), stream)
    return hand_out(h, b, x, k, size, nbytes, category)
