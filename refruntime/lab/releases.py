"""Why cached segments were released: to serve a request, or because the program said so.

State
-----
None.

Invariants
----------
* Released segments that the next request could have used were released by the program: a request
  that ran short had looked there before.
* What no file tells (the device's size, other processes' memory) is not needed to replay a trace as
  it was: the replayed device has too little exactly where the recorded one had.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refruntime.lab import recording as rec
from refruntime.lab.history import History
from refruntime.lab.recording import Array
from refruntime.lab.settings import check_settings

_LARGEST_SMALL = 1 << 20
_SMALL_SEGMENT = 2 << 20


@dataclass(frozen=True, slots=True)
class Release:
    """A run of released segments.

    Attributes
    ----------
    first, end : int
        Its first event, and the next call of the program (a request, a failed one, or a free).
    since : int
        The first event after the call before it.
    held, wanted, left : int
        Bytes reserved before it, bytes that the next request then took, bytes reserved after that.
    served : bool
        Whether a request follows at all.
    by_program : bool
        Whether the program emptied its cache, as far as can be told.
    """

    first: int
    end: int
    since: int
    held: int
    wanted: int
    left: int
    served: bool
    by_program: bool


@dataclass(frozen=True, slots=True)
class Releases:
    """All releases of a trace, its failed requests, and what they say of the device's size."""

    each: tuple[Release, ...]
    failures: tuple[tuple[int, int], ...]
    capacity: int
    told: bool

    def emptied(self, exact: bool) -> list[int]:
        """Return the events at which the program emptied its cache.

        On a device of one size (not `exact`), so are those that this size cannot explain.
        """
        return [
            release.first
            for release in self.each
            if release.by_program or (not exact and release.held + release.wanted <= self.capacity)
        ]

    def forced(self) -> list[tuple[int, int]]:
        """Return the requests that ran short, and the most bytes that the device can have had."""
        short = [(each.end, each.left) for each in self.each if not each.by_program]
        failed = {event for event, _ in self.failures}
        return [*(pair for pair in short if pair[0] not in failed), *self.failures]

    def waited(self, events: Array) -> Array:
        """Return which events lie inside a request that ran short, which waits for the device."""
        mask = np.zeros(len(events), bool)
        for each in self.each:
            if not each.by_program:
                mask |= (events >= each.since) & (events < each.end)
        return mask


def releases_of(history: History, conf: str, doubted: frozenset[int] = frozenset()) -> Releases:
    """Find the releases of a trace and their reasons.

    Parameters
    ----------
    history : History
        Of the trace.
    conf : str
        The settings that it ran under.
    doubted : set of int
        Releases whose reason is to be taken for the other one.
    """
    events = history.events
    calls = np.flatnonzero(np.isin(events.action, (rec.ALLOC, rec.FREE_REQUESTED, rec.OOM)))
    given = np.flatnonzero(np.isin(events.action, (rec.SEGMENT_FREE, rec.SEGMENT_UNMAP)))
    closing = np.searchsorted(calls, given)
    found = []
    for number, call in enumerate(np.unique(closing).tolist()):
        places = given[closing == call]
        end = int(calls[call]) if call < len(calls) else len(events)
        since = int(calls[call - 1]) + 1 if call else 0
        found.append(_release(history, places, since, end, conf, number in doubted))
    failed = np.flatnonzero(events.action == rec.OOM)
    failures = [(event, int(history.reserved[event])) for event in failed.tolist()]
    told = int((history.reserved[failed] + events.addr[failed]).max(initial=0))
    limits = [each.held + each.wanted - 1 for each in found if not each.by_program]
    # A limit below what was held at some time is one that came and went: it is not the device's.
    limits = [limit for limit in limits if limit >= history.peak_reserved]
    return Releases(tuple(found), tuple(failures), told or min(limits, default=0), told > 0)


def _release(
    history: History, places: Array, since: int, end: int, conf: str, doubted: bool
) -> Release:
    events, first = history.events, int(places[0])
    served = end < len(events) and events.action[end] != rec.FREE_REQUESTED
    held = int(history.reserved[first - 1]) if first else history.initial_reserved
    left = int(history.reserved[min(end, len(events) - 1)])
    inside = slice(first, end)
    taken = np.isin(events.action[inside], (rec.SEGMENT_ALLOC, rec.SEGMENT_MAP))
    wanted = int(events.size[inside][taken].sum())
    if not wanted and served:
        wanted = int(events.size[end])
    short = served and (taken.any() or events.action[end] == rec.OOM)
    by_program = not short or _usable(events, places, end, conf)
    return Release(first, end, since, held, wanted, left, served, by_program != (doubted and short))


def _usable(events: rec.Events, places: Array, end: int, conf: str) -> bool:
    """Return whether a released segment could have served the request at `end`."""
    settings = check_settings(conf)
    size = int(events.size[end])
    own = events.stream[places] == events.stream[end]
    whole = events.action[places] == rec.SEGMENT_FREE
    sizes = events.size[places][own & whole]
    if size <= _LARGEST_SMALL:
        return bool((sizes == _SMALL_SEGMENT).any())
    sizes = sizes[(sizes >= size) & (sizes > _SMALL_SEGMENT)]
    most = settings.max_split_size
    oversize = sizes >= most
    fits = np.where(
        oversize, (size >= most) & (sizes < size + settings.max_non_split_rounding), True
    )
    return bool(fits.any())
