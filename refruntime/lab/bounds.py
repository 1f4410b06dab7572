"""Bounds of a recording: how little memory any allocator needs, and a packing that comes near.

State
-----
None.

Invariants
----------
* ``peak_live_bytes <= packed_bytes``, and no allocator that moves nothing reserves less than the
  first.
* Lifetimes end when the device is done with a block, not when its free was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refruntime.alloc import packing
from refruntime.lab.history import Allocations, History
from refruntime.lab.recording import Array

_UNIT = 512  # what device addresses are aligned to


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on the bytes that a run needs.

    Attributes
    ----------
    peak_requested_bytes, peak_live_bytes : int
        The most bytes in use at once, as asked for and rounded to 512.
    packed_bytes : int
        What an offline packing of all lifetimes takes.
    is_optimal : bool
        Whether the packing meets the bound.
    """

    peak_requested_bytes: int
    peak_live_bytes: int
    packed_bytes: int
    is_optimal: bool


def bounds_of(history: History, *, steps: int = 20_000) -> Bounds:
    """Return the bounds of a history.

    Parameters
    ----------
    history : History
        The allocations of a device.
    steps : int
        How long to search for a packing; see `refruntime.alloc.packing.pack`.
    """
    lower, upper, size = lifetimes(history.allocations)
    rounded = (np.maximum(size, 1) + _UNIT - 1) // _UNIT * _UNIT
    found = packing.pack(lower, upper, rounded, steps=steps)
    return Bounds(
        packing.lower_bound(lower, upper, size), found.lower_bound, found.height, found.is_optimal
    )


def lifetimes(them: Allocations) -> tuple[Array, Array, Array]:
    """Return when each allocation begins and ends, in events, and the bytes asked for."""
    lower = them.begin.astype(np.int64)
    return lower, np.maximum(them.completed.astype(np.int64), lower + 1), them.size
