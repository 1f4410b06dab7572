"""What a recording says at a glance, and how two of them differ.

State
-----
None.

Invariants
----------
* Bytes by line are those in use when the most were; they add up to that peak.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from refruntime.lab import recording as rec
from refruntime.lab.history import History, history_of
from refruntime.lab.lines import line_of
from refruntime.lab.recording import Device, Recording

_MICROS: Final = 1e6


@dataclass(frozen=True, slots=True)
class Facts:
    """The figures of one device of a recording.

    Attributes
    ----------
    device : int
        Its number.
    events : dict
        How many there are of each action.
    seconds : float
        From the first event to the last.
    streams : int
        How many streams were allocated on.
    peak_requested_bytes : int
        The most bytes in use, as asked for.
    peak_event : int
        The event after which that was.
    recorded_peak_reserved_bytes : int
        The most bytes of segments; 0 if the file has none.
    by_line, by_category : dict
        Bytes in use at the peak.
    """

    device: int
    events: dict[str, int]
    seconds: float
    streams: int
    peak_requested_bytes: int
    peak_event: int
    recorded_peak_reserved_bytes: int
    by_line: dict[str, int]
    by_category: dict[str, int]

    def as_dict(self, most: int = 50) -> dict[str, Any]:
        """Return them for JSON, with so many lines at most."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {**found, "by_line": dict(list(self.by_line.items())[:most])}


def facts_of(recording: Recording, device: Device) -> Facts:
    """Collect the figures of a device."""
    history = history_of(device)
    events = device.events
    counts = np.bincount(events.action, minlength=len(rec.ACTIONS)).tolist()
    times = events.time_us[events.time_us > 0]
    peak, moment = _peak(history)
    by_line, by_category = _attributed(recording, history, moment)
    return Facts(
        device=device.index,
        events={name: count for name, count in zip(rec.ACTIONS, counts) if count},
        seconds=float((times.max() - times.min()) / _MICROS) if len(times) else 0.0,
        streams=len(np.unique(history.allocations.stream)),
        peak_requested_bytes=peak,
        peak_event=moment,
        recorded_peak_reserved_bytes=history.peak_reserved,
        by_line=by_line,
        by_category=by_category,
    )


def _peak(history: History) -> tuple[int, int]:
    """Return the most bytes in use, and the event after which they were (-1: before the trace)."""
    them = history.allocations
    if not len(them):
        return 0, -1
    lower, upper, size = them.begin, np.maximum(them.freed, them.begin + 1), them.size
    changes = np.zeros(len(history.events) + 2, np.int64)
    np.add.at(changes, lower + 1, size)
    np.subtract.at(changes, np.minimum(upper + 1, len(changes) - 1), size)
    alive = np.cumsum(changes[:-1])
    return int(alive.max()), int(np.argmax(alive)) - 1


def _attributed(
    recording: Recording, history: History, moment: int
) -> tuple[dict[str, int], dict[str, int]]:
    them = history.allocations
    living = (them.begin <= moment) & (moment < np.maximum(them.freed, them.begin + 1))
    lines, categories = Counter[str](), Counter[str]()
    for stack in np.unique(them.stack[living]).tolist():
        mask = living & (them.stack == stack)
        lines[line_of(recording, stack)] += int(them.size[mask].sum())
    for category in np.unique(them.category[living]).tolist():
        mask = living & (them.category == category)
        categories[recording.categories[category]] += int(them.size[mask].sum())
    return dict(lines.most_common()), dict(categories.most_common())


def differences(before: Facts, after: Facts) -> dict[str, tuple[int, int]]:
    """Return the lines whose bytes at the peak differ, the largest change first."""
    names = {**before.by_line, **after.by_line}
    pairs = {name: (before.by_line.get(name, 0), after.by_line.get(name, 0)) for name in names}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return dict(sorted(changed.items(), key=lambda item: -abs(item[1][1] - item[1][0])))
