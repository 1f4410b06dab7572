"""Who owned what when: allocations with their lifetimes, and the state before the trace.

State
-----
None: `history_of` is a pure function of a device's recording.

Invariants
----------
* Playing the trace backwards from the segments at the end gives the segments before it; a block
  that is freed before it is allocated, or that is in use at the end and never allocated, was there
  before the trace.
* Allocations stand in the order in which they began; those from before the trace come first, by
  address.
* What does not add up is counted in `Gaps`, never repaired in silence.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from refruntime.lab import recording as rec
from refruntime.lab.recording import Array, Device, Events

BEFORE: Final = -1


class Span(NamedTuple):
    """A segment before the trace, or a mapped range of an expandable one."""

    address: int
    size: int
    stream: int
    pool: int
    is_small: bool
    is_expandable: bool


@dataclass(frozen=True, slots=True)
class Gaps:
    """What the trace does not say.

    Attributes
    ----------
    lost_frees : int
        Addresses that were given out again without a free in between, or are not in use at the end.
    lost_allocs : int
        Frees of what was free already, and blocks in use at the end though freed last.
    outside : int
        Allocations that lie in no segment that the file knows of.
    segments : int
        Segment events that contradict the segments at the end.
    """

    lost_frees: int = 0
    lost_allocs: int = 0
    outside: int = 0
    segments: int = 0


@dataclass(frozen=True, slots=True)
class Allocations:
    """One entry an allocation.

    Attributes
    ----------
    address, size : ndarray of int64
        Where, and the bytes asked for.
    block : ndarray of int64
        The bytes of the block, 0 where the file does not say.
    stream : ndarray of int64
        The handle of the stream.
    pool, stack, category : ndarray of int32
        Places in the tables of the recording.
    begin, freed, completed : ndarray of int64
        The events of the alloc (`BEFORE` if there is none), of the request to free, and of its
        completion; the number of events where that never came.
    pending : ndarray of bool
        Whether the free was requested before the trace already.
    """

    address: Array
    size: Array
    block: Array
    stream: Array
    pool: Array
    stack: Array
    category: Array
    begin: Array
    freed: Array
    completed: Array
    pending: Array

    def __len__(self) -> int:
        return len(self.address)

    def __getitem__(self, keep: Array) -> Allocations:
        return Allocations(*(getattr(self, name)[keep] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class History:
    """The allocations of a device, the segments before its trace, and what is missing."""

    events: Events
    allocations: Allocations
    spans: tuple[Span, ...]
    gaps: Gaps
    reserved: Array

    @property
    def initial(self) -> int:
        """How many allocations were there before the trace."""
        return int(np.count_nonzero(self.allocations.begin == BEFORE))

    @property
    def initial_reserved(self) -> int:
        """The bytes of the segments before the trace."""
        return sum(span.size for span in self.spans)

    @property
    def peak_reserved(self) -> int:
        """The most bytes of segments at any time."""
        return max(self.initial_reserved, int(self.reserved.max(initial=0)))


def history_of(device: Device) -> History:
    """Find out the history of a device."""
    runs = _runs(device.events)
    resting = _untouched(device, runs)
    allocations, gaps = _merge(device, runs, resting)
    spans, odd = _spans_before(device)
    outside = _outside(device, spans, allocations) if len(device.segments) or spans else 0
    gaps = Gaps(gaps.lost_frees, gaps.lost_allocs, outside, odd)
    initial = sum(span.size for span in spans)
    return History(
        device.events, allocations, spans, gaps, initial + np.cumsum(_deltas(device.events))
    )


def _deltas(events: Events) -> Array:
    """Return by how much each event changes the reserved bytes."""
    sign = np.zeros(len(rec.ACTIONS), np.int64)
    sign[[rec.SEGMENT_ALLOC, rec.SEGMENT_MAP]] = 1
    sign[[rec.SEGMENT_FREE, rec.SEGMENT_UNMAP]] = -1
    return sign[events.action] * events.size


# --- allocations --------------------------------------------------------------------------------


class _Runs(NamedTuple):
    """One entry a use of an address: its events (-1 where there is none) and what is odd."""

    address: Array
    begin: Array
    freed: Array
    completed: Array
    last_of_address: Array
    extra: int


def _runs(events: Events) -> _Runs:
    """Cut the events of each address into uses, each of which begins with an alloc."""
    kinds = (rec.ALLOC, rec.FREE_REQUESTED, rec.FREE_COMPLETED)
    places = np.flatnonzero(np.isin(events.action, kinds))
    order = places[np.argsort(events.addr[places], kind="stable")]
    address, action = events.addr[order], events.action[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = address[1:] != address[:-1]
    starts = fresh | (action == rec.ALLOC)
    run = np.cumsum(starts) - 1
    count = int(run[-1]) + 1 if len(run) else 0
    firsts = np.flatnonzero(starts)
    last = np.ones(count, bool)
    if count:
        last[:-1] = fresh[firsts[1:]]
    begin, freed, completed = (_first_of(kind, action, order, run, count) for kind in kinds)
    found = sum(int(np.count_nonzero(column >= 0)) for column in (begin, freed, completed))
    return _Runs(address[firsts], begin, freed, completed, last, len(order) - found)


def _first_of(kind: int, action: Array, order: Array, run: Array, count: int) -> Array:
    """Return the first event of a kind in each run, or -1."""
    out = np.full(count, -1, np.int64)
    mask = action == kind
    runs, first = np.unique(run[mask], return_index=True)
    out[runs] = order[mask][first]
    return out


def _untouched(device: Device, runs: _Runs) -> Array:
    """Return the blocks that are in use at the end and that no event is about."""
    blocks = device.blocks
    active = blocks.state != rec.INACTIVE
    return np.flatnonzero(active & ~np.isin(blocks.address, runs.address))


def _merge(device: Device, runs: _Runs, resting: Array) -> tuple[Allocations, Gaps]:
    events, blocks, never = device.events, device.blocks, len(device.events)
    freed, completed, lost = _ends(device, runs, never)
    source = np.where(runs.begin >= 0, runs.begin, np.minimum(freed, completed))
    source = np.minimum(source, max(never - 1, 0))
    sizes, ends = _final_sizes(device, runs)
    alive = (completed == never) & runs.last_of_address
    named = (runs.begin >= 0) | _frees_name_allocs(events, runs)
    columns = (
        (runs.address, blocks.address),
        (events.size[source], blocks.requested),
        (np.where(alive, sizes, 0), blocks.size),
        (events.stream[source], device.segments.stream[blocks.segment]),
        (events.pool[source], device.segments.pool[blocks.segment]),
        (np.where(named, events.stack[source], 0), blocks.stack),
        (events.category[source], blocks.category),
        (runs.begin, np.full(len(blocks), BEFORE)),
        (freed, np.full(len(blocks), never)),
        (completed, np.full(len(blocks), never)),
        ((runs.begin < 0) & (runs.freed < 0) & (events.count(rec.FREE_REQUESTED) > 0),
         blocks.state == rec.PENDING),
    )  # fmt: skip
    merged = Allocations(*(np.concatenate([a, b[resting]]) for a, b in columns))
    if len(events) and not events.pool.any():
        # Older versions name the pool of a segment, but not of an event.
        merged = replace(merged, pool=_pools_by_place(device, merged))
    order = np.lexsort((merged.address, merged.begin))
    gone = int(np.count_nonzero(alive & ~ends)) if len(device.segments) else 0
    reborn = int(np.count_nonzero((completed != never) & runs.last_of_address & ends))
    return merged[order], Gaps(lost + gone, runs.extra + reborn)


def _frees_name_allocs(events: Events, runs: _Runs) -> bool:
    """Return whether a free shows the stack of its alloc (it does unless all stacks were kept)."""
    both = (runs.begin >= 0) & (runs.freed >= 0)
    asked, freed = events.stack[runs.begin[both]], events.stack[runs.freed[both]]
    return bool(asked.any()) and float(np.mean(asked == freed)) > 0.9


def _pools_by_place(device: Device, them: Allocations) -> Array:
    """Return the pool of the segment in which each allocation lies; 0 where there is none now."""
    held = device.segments
    if not held.pool.any():
        return them.pool
    place = np.maximum(np.searchsorted(held.address, them.address, side="right") - 1, 0)
    inside = (them.address - held.address[place] >= 0) & (
        them.address < held.address[place] + held.size[place]
    )
    return np.where(inside, held.pool[place], them.pool)


def _ends(device: Device, runs: _Runs, never: int) -> tuple[Array, Array, int]:
    """Return when each use was freed and completed, and how many frees are missing."""
    freed, completed = runs.freed.copy(), runs.completed.copy()
    if not (completed >= 0).any() and not (device.blocks.state == rec.PENDING).any():
        completed = freed.copy()  # a trace without completions: each free counts as done at once
    freed = np.where(freed < 0, completed, freed)
    cut = (completed < 0) & ~runs.last_of_address
    following = np.roll(runs.begin, -1)
    completed = np.where(cut, following, completed)
    freed = np.where(cut & (freed < 0), following, freed)
    freed[freed < 0] = never
    completed[completed < 0] = never
    return freed, completed, int(np.count_nonzero(cut))


def _final_sizes(device: Device, runs: _Runs) -> tuple[Array, Array]:
    """Return the size of the block in use at the end at each run's address, and if there is one."""
    blocks = device.blocks
    active = np.flatnonzero(blocks.state != rec.INACTIVE)
    active = active[np.argsort(blocks.address[active])]
    if not len(active):
        return np.zeros(len(runs.address), np.int64), np.zeros(len(runs.address), bool)
    addresses = blocks.address[active]
    place = np.minimum(np.searchsorted(addresses, runs.address), len(active) - 1)
    found = addresses[place] == runs.address
    return np.where(found, blocks.size[active][place], 0), found


# --- segments -----------------------------------------------------------------------------------


def _spans_before(device: Device) -> tuple[tuple[Span, ...], int]:
    """Play the segment events backwards; return the segments before, and how many do not fit."""
    whole, mapped, odd = dict[int, Span](), _Ranges(), 0
    held = device.segments
    for row in zip(*(getattr(held, name).tolist() for name in held.__slots__)):
        span = Span(*row)
        if span.is_expandable:
            mapped.add(span)
        else:
            whole[span.address] = span
    events = device.events
    places = np.flatnonzero(np.isin(events.action, rec.SEGMENT_ACTIONS))[::-1]
    for place in places.tolist():
        span = _span_of(events, place)
        action = events.action[place]
        if action == rec.SEGMENT_ALLOC:
            odd += whole.pop(span.address, None) is None
        elif action == rec.SEGMENT_FREE:
            whole[span.address] = span
        elif action == rec.SEGMENT_MAP:
            odd += not mapped.remove(span)
        else:
            mapped.add(span)
    return tuple(sorted([*whole.values(), *mapped.spans()])), odd


def _span_of(events: Events, place: int) -> Span:
    size, stream, pool = (
        int(column[place]) for column in (events.size, events.stream, events.pool)
    )
    expandable = events.action[place] in (rec.SEGMENT_MAP, rec.SEGMENT_UNMAP)
    return Span(int(events.addr[place]), size, stream, pool, size == 2 << 20, expandable)


class _Ranges:
    """Mapped ranges, by address; what touches is joined."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: dict[int, Span] = {}

    def add(self, span: Span) -> None:
        """Map a range."""
        place = bisect_right(self._starts, span.address)
        if place and self._end(place - 1) == span.address:
            before = self._pop(place - 1)
            span = before._replace(size=before.size + span.size)
            place -= 1
        if place < len(self._starts) and self._starts[place] == span.address + span.size:
            after = self._pop(place)
            span = after._replace(address=span.address, size=span.size + after.size)
        self._starts.insert(place, span.address)
        self._spans[span.address] = span

    def remove(self, span: Span) -> bool:
        """Unmap a range; returns whether it was mapped as a whole."""
        place = bisect_right(self._starts, span.address) - 1
        if place < 0 or self._end(place) < span.address + span.size:
            return False
        around = self._pop(place)
        left = span.address - around.address
        right = around.address + around.size - span.address - span.size
        if right:
            self.add(around._replace(address=span.address + span.size, size=right))
        if left:
            self.add(around._replace(size=left))
        return True

    def spans(self) -> list[Span]:
        """Return what is mapped."""
        return [self._spans[start] for start in self._starts]

    def _end(self, place: int) -> int:
        span = self._spans[self._starts[place]]
        return span.address + span.size

    def _pop(self, place: int) -> Span:
        return self._spans.pop(self._starts.pop(place))


def _outside(device: Device, spans: tuple[Span, ...], allocations: Allocations) -> int:
    """Return how many allocations lie in no segment from before the trace or of its own."""
    events = device.events
    given = np.isin(events.action, (rec.SEGMENT_ALLOC, rec.SEGMENT_MAP))
    starts = np.array([*(span.address for span in spans), *events.addr[given]], np.int64)
    sizes = np.array([*(span.size for span in spans), *events.size[given]], np.int64)
    if not len(starts):
        return len(allocations)
    order = np.argsort(starts, kind="stable")
    ends = np.maximum.accumulate((starts + sizes)[order])
    place = np.searchsorted(starts[order], allocations.address, side="right") - 1
    inside = (place >= 0) & (allocations.address < ends[np.maximum(place, 0)])
    return int(np.count_nonzero(~inside))
