"""Rows and the index: taking rows, giving them back, and finding blocks in use by address.

State
-----
The list of spare rows and the chains of the index, in the tables.

Invariants
----------
* A row that is given back is in no set, queue or chain.
* Exactly the blocks in state ALLOCATED are in the index.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function, ptr_i64
from refruntime.alloc.tables import (
    ADDRESS,
    CHAIN,
    INDEX,
    NEXT,
    SPARE_HEAD,
    SPARE_ROWS,
    STATE,
    UNUSED,
    bucket,
)


@device_function
def take_row(h, b, state):
    """Return an unused row; the caller has made sure that there is one."""
    k = h[SPARE_HEAD]
    h[SPARE_HEAD] = b[k + NEXT]
    h[SPARE_ROWS] -= 1
    b[k + STATE] = state
    return k


@device_function
def give_row(h, b, k):
    """Put a row back."""
    b[k + STATE] = UNUSED
    b[k + NEXT] = h[SPARE_HEAD]
    h[SPARE_HEAD] = k
    h[SPARE_ROWS] += 1


@device_function
def enter_index(h, b, k):
    """Make block `k` findable by its address."""
    x = ptr_i64(h[INDEX])
    place = bucket(h, b[k + ADDRESS])
    b[k + CHAIN] = x[place]
    x[place] = k


@device_function
def find(h, b, address):
    """Return the block in use at an address, or 0."""
    x = ptr_i64(h[INDEX])
    k = x[bucket(h, address)]
    while k != 0 and b[k + ADDRESS] != address:
        k = b[k + CHAIN]
    return k


@device_function
def leave_index(h, b, k):
    """Make block `k` unfindable."""
    x = ptr_i64(h[INDEX])
    place = bucket(h, b[k + ADDRESS])
    before = x[place]
    if before == k:
        x[place] = b[k + CHAIN]
        return
    while b[before + CHAIN] != k:
        before = b[before + CHAIN]
    b[before + CHAIN] = b[k + CHAIN]
