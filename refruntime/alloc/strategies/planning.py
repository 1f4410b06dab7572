"""Planning: where every block of a run should lie, when the run is known beforehand.

State
-----
None; a `Plan` is a value.

Invariants
----------
* Two blocks of a plan that are in use at the same time do not overlap, in every round of the part
  that repeats.
* A block that cannot be planned (it outlives a round of its own) has the offset `UNPLANNED`.

Method: blocks that live for more than half of the run are stacked at the bottom, as in STAlloc
("residents"); the others go, the largest first and of equal ones the earliest first, to the lowest
gap that is free for their whole life. That is the greedy-by-size heuristic of TensorFlow Lite
(Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020). On all
recorded training runs of this repository's bench it ends within 0.3 % of the peak of live bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from refruntime.alloc import packing
from refruntime.alloc.strategies.layout import UNPLANNED, Ints, Uses, pack_best
from refruntime.alloc.strategy import Request

_NEVER: Final = 1 << 60


class Plan(NamedTuple):
    """Offsets for the mallocs of a run, in order.

    Attributes
    ----------
    sizes, offsets : tuple of int
        What the n-th malloc will ask for, rounded, and where it goes; in bytes.
    total : int
        The bytes that the plan needs.
    repeat_from : int, optional
        The malloc with which the plan begins anew after its last one.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    total: int
    repeat_from: int | None = None


class Lives(NamedTuple):
    """The blocks of a run in order of their mallocs: bytes, and the steps of malloc and free."""

    sizes: Ints
    starts: Ints
    ends: Ints


class Round(NamedTuple):
    """Mallocs that a run repeats: from the `first` on, `length` of them."""

    first: int
    length: int


def lives_of(requests: Sequence[Request], alignment: int = 512) -> Lives:
    """Return the blocks of a list of requests; what is never freed lives for ever."""
    names: dict[int, int] = {}
    rows: list[tuple[int, int, int]] = []
    for step, request in enumerate(requests):
        if request.action == "alloc" and request.size > 0:
            names[request.id] = len(rows)
            rows.append((-(-request.size // alignment) * alignment, step, _NEVER))
        elif request.action == "free" and request.id in names:
            place = names.pop(request.id)
            rows[place] = (*rows[place][:2], step)
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Lives(table[:, 0], table[:, 1], table[:, 2])


def repeated_round(lives: Lives) -> Round | None:
    """Return the first repetition of the shortest round that fills the middle half of a run.

    Two mallocs are alike if their sizes, their lives and their distances to the malloc before are.
    """
    _, rows = np.unique(
        np.stack([lives.sizes, lives.ends - lives.starts, np.diff(lives.starts, prepend=0)]),
        axis=1,
        return_inverse=True,
    )
    kinds = rows.reshape(-1)
    quarter = len(kinds) // 4
    middle = kinds[quarter : len(kinds) - quarter]
    for length in range(1, len(middle) // 2 + 1):
        # Most lengths fail at the last place; looking there first is what keeps this quick.
        if middle[-1] == middle[-1 - length] and np.array_equal(middle[length:], middle[:-length]):
            breaks = np.flatnonzero(kinds[length:] != kinds[:-length])
            before = breaks[breaks < quarter]
            return Round(int(before[-1]) + 1 if len(before) else 0, length)
    return None


def plan_of(requests: Sequence[Request]) -> Plan:
    """Return the plan of a whole run."""
    lives = lives_of(requests)
    packed = packing.pack(lives.starts, np.minimum(lives.ends, len(requests)), lives.sizes)
    return Plan(tuple(lives.sizes.tolist()), tuple(packed.offset.tolist()), packed.height)


def plan_of_rounds(requests: Sequence[Request]) -> Plan | None:
    """Return the plan of a run's beginning and of the round that it repeats; None if it has none.

    The whole run is looked at only to find the round. What is planned, and from what, is its
    beginning up to the end of the second round: what a profile of some first steps would hold.
    """
    lives = lives_of(requests)
    repeated = repeated_round(lives)
    if repeated is None:
        return None
    plan = _plan_of_round(lives, repeated)
    twice = Round(repeated.first, 2 * repeated.length)
    if UNPLANNED in plan.offsets and twice.first + 2 * twice.length < len(lives.sizes):
        # What outlives its round, such as the last loss, takes turns at two places.
        return _plan_of_round(lives, twice)
    return plan


def _plan_of_round(lives: Lives, repeated: Round) -> Plan:
    first, stop = repeated.first, repeated.first + repeated.length
    period = int(lives.starts[stop] - lives.starts[first])
    horizon = int(lives.starts[stop]) + period
    sizes, starts = lives.sizes[:stop], lives.starts[:stop]
    ends = np.where(lives.ends[:stop] > horizon, _NEVER, lives.ends[:stop])
    again = np.arange(first, stop)
    unplanned = again[ends[again] - starts[again] > period]
    again = np.setdiff1d(again, unplanned)
    uses = Uses.once(starts, ends).without(unplanned).repeated(again, period)
    offsets, total = pack_best(sizes, ends - starts > horizon, uses)
    return Plan(tuple(sizes.tolist()), tuple(offsets.tolist()), total, first)
