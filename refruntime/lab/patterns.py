"""Known ways to lose memory, found in a trace, with what to do about them.

State
-----
None.

Invariants
----------
* A finding says what was seen in figures, and where a setting helps, the replay that shows by how
  much; one that would gain nothing is not reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from refruntime.alloc import sizes
from refruntime.alloc.oom import format_size
from refruntime.lab import events as ev
from refruntime.lab.events import EventList
from refruntime.lab.preload import parts_of
from refruntime.lab.replay import Outcome, replay_events
from refruntime.lab.settings import check_settings
from refruntime.lab.state import Segment, state_at
from refruntime.lab.waste import peak_step

_NOTABLE: Final = 0.01  # share of the peak below which nothing is worth a word
_LARGE: Final = 0.1  # share of the peak that is worth a word however it came about
_FEW: Final = 8  # requests
_CROSSING: Final = sizes.SMALL_SIZE // 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One pattern.

    Attributes
    ----------
    name : str
        What people call it.
    evidence, remedy : str
        What was seen, and what to do.
    nbytes : int
        Reserved bytes at stake, or shown by replay to be saved.
    """

    name: str
    evidence: str
    remedy: str
    nbytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _View:
    """What the detectors look at: the list, its replay, and the segments at the peak."""

    events: EventList
    outcome: Outcome
    step: int
    segments: list[Segment]

    @property
    def notable(self) -> int:
        """Bytes below which nothing is worth a word."""
        return int(_NOTABLE * self.outcome.peak_reserved_bytes)

    def saved_by(self, conf: str) -> int:
        """Return the bytes that other settings reserve less, as replayed."""
        return (
            self.outcome.peak_reserved_bytes - replay_events(self.events, conf).peak_reserved_bytes
        )


def find_patterns(events: EventList) -> list[Finding]:
    """Return the patterns of a list, those at stake for the most bytes first."""
    if not len(events):
        return []
    outcome = replay_events(events, details=True)
    resets = np.flatnonzero(events.op == ev.RESET_PEAK)
    start = int(resets[-1]) if len(resets) else 0
    step = peak_step(outcome, start)
    view = _View(events, outcome, step, state_at(events, step + 1))
    found = [finding for detect in DETECTORS for finding in detect(view)]
    return sorted(found, key=lambda finding: -finding.nbytes)


def _side_streams(view: _View) -> list[Finding]:
    """A stream that served a few requests keeps segments that no other stream can use."""
    asked = view.events.op == ev.ALLOC
    found = []
    for stream in np.unique(view.events.stream[asked]).tolist():
        requests = int(np.count_nonzero(view.events.stream[asked] == stream))
        idle = sum(segment.free_bytes for segment in view.segments if segment.stream == stream)
        if stream == 0 or idle <= view.notable:
            continue
        seldom = requests <= _FEW or requests <= 0.01 * int(asked.sum())
        if not seldom and idle <= _LARGE * view.outcome.peak_reserved_bytes:
            continue
        found.append(
            Finding(
                "side stream used once" if seldom else "memory kept by a side stream",
                f"stream {stream} served {requests} of {int(asked.sum())} requests; at the "
                f"peak {format_size(idle)} lay free in its segments",
                "allocate what the stream works on from the main stream, or release the cache "
                "(torch.cuda.empty_cache) once it is done",
                idle,
            )
        )
    return found


def _crossings(view: _View) -> list[Finding]:
    """Sizes on both sides of 1 MiB take turns between two pools that share nothing."""
    events = view.events
    size = events.size[events.op == ev.ALLOC]
    above = (size > sizes.SMALL_SIZE) & (size <= sizes.SMALL_SIZE + _CROSSING)
    below = (size <= sizes.SMALL_SIZE) & (size > sizes.SMALL_SIZE - _CROSSING)
    small = [segment for segment in view.segments if segment.is_small]
    large = [segment for segment in view.segments if not segment.is_small]
    stuck = min(sum(segment.free_bytes for segment in side) for side in (small, large))
    if min(int(above.sum()), int(below.sum())) < _FEW or stuck <= view.notable:
        return []
    return [
        Finding(
            "1 MiB crossings",
            f"{int(below.sum())} requests just below 1 MiB and {int(above.sum())} just above it; "
            f"at the peak {format_size(stuck)} was free in one pool and no use to the other",
            "pad such buffers to one side of 1 MiB",
            stuck,
        )
    ]


def _small_first(view: _View) -> list[Finding]:
    """Growing requests leave behind whole segments that are each too small for the next."""
    if view.events.op[view.step] != ev.ALLOC:
        return []
    size, stream = int(view.events.size[view.step]), int(view.events.stream[view.step])
    whole = [
        segment.size
        for segment in view.segments
        if segment.is_free and not segment.is_small and segment.stream == stream
    ]
    kept = sum(whole)
    if kept < size or kept <= view.notable or max(whole) >= size:
        return []
    conf = _with(view.events.conf, "expandable_segments", "True")
    saved = view.saved_by(conf)
    proof = f" (replayed: {format_size(saved)} less)" if saved > 0 else ""
    return [
        Finding(
            "small before large",
            f"when {format_size(size)} were asked for at the peak, {len(whole)} whole segments of "
            f"{format_size(kept)} in all were free, each of them too small",
            f"allocate the largest first, or set expandable_segments:True{proof}",
            max(saved, kept if saved <= 0 else saved),
        )
    ]


def _max_split(view: _View) -> list[Finding]:
    """A split limit keeps large blocks whole, so that large requests each take a segment."""
    settings = check_settings(view.events.conf)
    if settings.max_split_size >= 1 << 60:
        return []
    saved = view.saved_by(_without(view.events.conf, "max_split_size_mb"))
    if saved <= view.notable:
        return []
    return [
        Finding(
            "max_split_size_mb costs memory",
            f"with max_split_size_mb at {settings.max_split_size >> 20}, "
            f"{format_size(view.outcome.peak_reserved_bytes)} are reserved",
            f"leave it out (replayed: {format_size(saved)} less)",
            saved,
        )
    ]


def _inert_collection(view: _View) -> list[Finding]:
    """Garbage is collected only where a share of the device is set."""
    settings = check_settings(view.events.conf)
    threshold = settings.garbage_collection_threshold
    limited = settings.per_process_memory_fraction < 1 or ev.SET_FRACTION in view.events.op
    if not threshold or limited:
        return []
    conf = _with(view.events.conf, "per_process_memory_fraction", "0.99")
    return [
        Finding(
            "garbage_collection_threshold without a fraction",
            f"garbage_collection_threshold:{threshold:g} is set, and does nothing: no memory "
            "fraction below 1 is",
            "set per_process_memory_fraction below 1 as well, or leave the threshold out",
            max(view.saved_by(conf), 0),
        )
    ]


def _with(conf: str, key: str, value: str) -> str:
    return ",".join([*_parts_without(conf, key), f"{key}:{value}"])


def _without(conf: str, key: str) -> str:
    return ",".join(_parts_without(conf, key))


def _parts_without(conf: str, key: str) -> list[str]:
    return [part for part in parts_of(conf) if part.split(":", 1)[0].strip() != key]


DETECTORS: Final[tuple[Callable[[_View], list[Finding]], ...]] = (
    _side_streams, _crossings, _small_first, _max_split, _inert_collection,
)  # fmt: skip
