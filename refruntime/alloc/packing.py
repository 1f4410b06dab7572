"""Offline packing: how little memory would have been enough, had all lifetimes been known.

State
-----
None.

Invariants
----------
* `lower_bound` is the most bytes alive at any moment: no packing is lower.
* A `Packing` is valid: buffers that live at the same time share no byte (`verify` says so).
* Parts of time that no buffer spans are packed on their own.

The problem is dynamic storage allocation, which is NP-hard. Greedy orders come first; where they
miss the bound and the part is small enough, a branch-and-bound over packings built from the bottom
up follows, with the orders of the greedy as its rankings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from refruntime.alloc import packing_search as kernels
from refruntime.errors import ArgumentValueError

Array = np.ndarray[Any, np.dtype[np.int64]]

DEFAULT_STEPS: Final = 400_000
_LARGEST_ORDERED: Final = 60_000  # buffers of a part beyond which only online orders are tried
_LARGEST_SEARCHED: Final = 1_500

_SEARCHED: Final = (
    ("crowd", "width", "area"), ("width", "area", "crowd"), ("crowd", "area", "width"),
)  # fmt: skip
_ORDERS: Final = (
    *_SEARCHED, ("area", "size"), ("size", "width"), ("width", "size"), ("crowd", "size"),
)  # fmt: skip
_SHAKES: Final = 16  # random rankings a round
_STRENGTHS: Final = (0.01, 0.02, 0.04, 0.1)


@dataclass(frozen=True, slots=True)
class Packing:
    """Places of buffers.

    Attributes
    ----------
    offset : ndarray of int64
        Bytes from the start, one entry a buffer.
    height : int
        Bytes that the packing takes.
    lower_bound : int
        Bytes that any takes at least.
    """

    offset: Array
    height: int
    lower_bound: int

    @property
    def is_optimal(self) -> bool:
        """Whether no packing can be lower."""
        return self.height == self.lower_bound


def lower_bound(lower: Array, upper: Array, size: Array) -> int:
    """Return the most bytes that are alive at any moment.

    Parameters
    ----------
    lower, upper : ndarray of int64
        When each buffer begins and ends; at `upper` its bytes are free already.
    size : ndarray of int64
        Bytes.
    """
    moments = np.concatenate([upper, lower])
    changes = np.concatenate([-size, size])
    order = np.argsort(moments, kind="stable")  # ends come first
    return int(np.cumsum(changes[order]).max(initial=0))


def pack(
    lower: Array, upper: Array, size: Array, *, capacity: int = 0, steps: int = DEFAULT_STEPS
) -> Packing:
    """Pack buffers into as little as can be found.

    Parameters
    ----------
    lower, upper, size : ndarray of int64
        As for `lower_bound`.
    capacity : int
        Be content with this many bytes; by default only with the lower bound.
    steps : int
        How many placements the search may try for each part, ranking and height.

    Raises
    ------
    ArgumentValueError
        If a buffer ends before it begins, or has a negative size.
    """
    lower, upper, size = (np.ascontiguousarray(a, np.int64) for a in (lower, upper, size))
    if len(lower) and ((lower >= upper).any() or (size < 0).any()):
        raise ArgumentValueError("pack", expected="lower < upper and size >= 0 for each buffer")
    offset, height = np.zeros(len(lower), np.int64), 0
    for part in _parts(lower, upper):
        found = _pack_part(lower[part], upper[part], size[part], capacity, steps)
        offset[part] = found.offset
        height = max(height, found.height)
    return Packing(offset, height, lower_bound(lower, upper, size))


def verify(packing: Packing, lower: Array, upper: Array, size: Array) -> bool:
    """Return whether no two buffers share a byte at any moment, and all lie within the height."""
    order = np.lexsort((packing.offset, lower))
    living: list[tuple[int, int, int]] = []
    for k in order.tolist():
        begin, end = int(packing.offset[k]), int(packing.offset[k] + size[k])
        living = [other for other in living if other[2] > lower[k]]
        if begin < 0 or end > packing.height:
            return False
        if any(begin < other[1] and other[0] < end for other in living):
            return False
        living.append((begin, end, int(upper[k])))
    return True


def _parts(lower: Array, upper: Array) -> Iterator[Array]:
    """Yield the buffers of each stretch of time that nothing spans the ends of."""
    if not len(lower):
        return
    order = np.argsort(lower, kind="stable")
    reach = np.maximum.accumulate(upper[order])
    cuts = np.flatnonzero(lower[order][1:] >= reach[:-1]) + 1
    yield from np.split(order, cuts)


def _pack_part(lower: Array, upper: Array, size: Array, capacity: int, steps: int) -> Packing:
    goal = max(lower_bound(lower, upper, size), capacity)
    bound = lower_bound(lower, upper, size)
    best = _greedy(lower, upper, size, bound, goal)
    if best.height <= goal or len(lower) > _LARGEST_SEARCHED or steps <= 0:
        return best
    return _searched(lower, upper, size, best, goal, steps)


# --- greedy -------------------------------------------------------------------------------------


def _greedy(lower: Array, upper: Array, size: Array, bound: int, goal: int) -> Packing:
    best = Packing(np.zeros(len(lower), np.int64), 1 << 62, bound)
    scratch = np.zeros(len(lower), np.int64)
    arrays = (lower, upper, size)
    born = np.argsort(lower, kind="stable")
    tries: list[tuple[Any, Array, tuple[int, ...]]] = [
        (kernels.place_online, born, (1,)), (kernels.place_online, born, (0,)),
    ]  # fmt: skip
    if len(lower) <= _LARGEST_ORDERED:
        tries += [
            (kernels.place_in_order, order, ()) for order in rankings(lower, upper, size).values()
        ]
    for kernel, order, more in tries:
        offset = np.zeros(len(lower), np.int64)
        order = np.ascontiguousarray(order, np.int64)
        addresses = [int(a.ctypes.data) for a in (*arrays, order, offset, scratch)]
        height = int(kernel(len(lower), *addresses, *more))
        if height < best.height:
            best = Packing(offset, height, bound)
        if best.height <= goal:
            break
    return best


def rankings(lower: Array, upper: Array, size: Array) -> dict[str, Array]:
    """Return orders in which to place buffers, by name; the first of each is placed first."""
    keys = _keys(lower, upper, size)
    return {" ".join(by): _descending([keys[name] for name in by]) for by in _ORDERS}


def _keys(lower: Array, upper: Array, size: Array) -> dict[str, Any]:
    """Return what buffers are ranked by.

    Width is the length of a life, area that times the size, crowd the most bytes that are alive at
    any moment of it.
    """
    width = (upper - lower).astype(float)
    crowd = _crowding(lower, upper, size).astype(float)
    return {"width": width, "area": width * size, "crowd": crowd, "size": size.astype(float)}


def _descending(keys: list[Any]) -> Array:
    """Return the order in which the first key falls, the others deciding between equals."""
    return np.lexsort([-key for key in reversed(keys)]).astype(np.int64)


def _crowding(lower: Array, upper: Array, size: Array) -> Array:
    """Return the most bytes that are alive at any moment of each buffer's life."""
    first, last, totals = _sections(lower, upper, size)
    if not len(totals):
        return np.zeros(0, np.int64)
    # A sparse table answers each range's maximum in two looks.
    table = [totals]
    while len(table[-1]) > 1 << (len(table) - 1):
        half = 1 << (len(table) - 1)
        table.append(np.maximum(table[-1][:-half], table[-1][half:]))
    level = np.maximum(np.frexp((last - first).astype(float))[1] - 1, 0)
    level = np.minimum(level, len(table) - 1)
    out = np.zeros(len(lower), np.int64)
    for k in np.unique(level).tolist():
        mask = level == k
        row = table[k]
        left = np.minimum(first[mask], len(row) - 1)
        right = np.clip(last[mask] - (1 << k), 0, len(row) - 1)
        out[mask] = np.maximum(row[left], row[right])
    return out


def _sections(lower: Array, upper: Array, size: Array) -> tuple[Array, Array, Array]:
    """Return each buffer's first section and the one behind its last, and each section's bytes."""
    moments = np.unique(np.concatenate([lower, upper]))
    first, last = np.searchsorted(moments, lower), np.searchsorted(moments, upper)
    changes = np.zeros(len(moments), np.int64)
    np.add.at(changes, first, size)
    np.subtract.at(changes, last, size)
    return first, last, np.cumsum(changes)[:-1]


# --- search -------------------------------------------------------------------------------------


class _Search:
    """The search over one part, with the memory that it needs."""

    def __init__(self, lower: Array, upper: Array, size: Array) -> None:
        first, last, totals = _sections(lower, upper, size)
        self.size = size
        self._first, self._last = (np.ascontiguousarray(a, np.int64) for a in (first, last))
        self._sections = len(totals)
        self._keys = _keys(lower, upper, size)
        self._random = np.random.default_rng(len(size))
        count = len(size)
        row = 2 * (count + self._sections) + kernels.TAIL_WORDS
        self._scratch = np.empty((count + 1) * row, np.int64)
        self._parts = np.empty(kernels.PART_WORDS * (count + self._sections), np.int64)

    def within(self, height: int, steps: int) -> Array | None:
        """Return offsets within a height, or None if none were found in so many steps a ranking.

        Every ranking gets few steps first, then twice as many, and so on: which of them is lucky
        cannot be told before. Between them come shaken ones, in which the luck is drawn.
        """
        limit = min(2 * len(self.size), steps)
        while True:
            for rank, by_crowd in self._rankings():
                offset = np.zeros(len(self.size), np.int64)
                code = self._run(rank, by_crowd, offset, height, limit)
                if code == kernels.FOUND:
                    return offset
                if code == kernels.IMPOSSIBLE:
                    return None
            if limit == steps:
                return None
            limit = min(2 * limit, steps)

    def _rankings(self) -> Iterator[tuple[Array, bool]]:
        for by in _SEARCHED:
            yield self._ranking(by, 0.0)
        for shake in range(_SHAKES):
            strength = _STRENGTHS[shake % len(_STRENGTHS)]
            yield self._ranking(_SEARCHED[shake % len(_SEARCHED)], strength)

    def _ranking(self, by: tuple[str, ...], strength: float) -> tuple[Array, bool]:
        """Return ranks by some keys, shaken; and whether the search ranks by crowd before that."""
        keys = [self._keys[name] for name in by if name != "crowd"]
        if strength:
            keys = [key * np.exp(self._random.normal(0, strength, len(key))) for key in keys]
        return _inverse(_descending(keys)), by[0] == "crowd"

    def _run(self, rank: Array, by_crowd: bool, offset: Array, height: int, steps: int) -> int:
        arrays = (self._first, self._last, self.size, rank)
        addresses = [int(array.ctypes.data) for array in arrays]
        memory = [int(array.ctypes.data) for array in (self._scratch, self._parts)]
        place = int(offset.ctypes.data)
        return int(
            kernels.search(
                len(self.size), self._sections, *addresses, by_crowd, place, height, steps, *memory
            )
        )


def _searched(
    lower: Array, upper: Array, size: Array, best: Packing, goal: int, steps: int
) -> Packing:
    """Search within the goal, then within heights between it and the best that is known."""
    search = _Search(lower, upper, size)
    low, high, height = goal, best.height, goal
    while low < high and high - low >= max(high >> 10, 1):
        found = search.within(height, steps)
        if found is None:
            low = height + 1
        else:
            best = Packing(found, int((found + size).max()), best.lower_bound)
            high = best.height
        height = (low + high) // 2
    return best


def _inverse(order: Array) -> Array:
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank
