"""How far a replay under the recorded settings comes out as recorded, and why it does not.

State
-----
None.

Invariants
----------
* Segment events are compared in order: action, bytes and stream, never addresses.
* A difference always has a reason in `Fidelity.reasons`, even if it is only that none was found.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

import numpy as np

from refruntime.lab import recording as rec
from refruntime.lab.history import History
from refruntime.lab.recording import Array, Device, Recording
from refruntime.lab.replay import Outcome, replay_events
from refruntime.lab.script import Script, script_of

_MOST_DOUBTS: Final = 64
_MATCHED_IN_ORDER: Final = 4000  # longer tails are compared without their order


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A replay beside the recording.

    Attributes
    ----------
    outcome : Outcome
        The replay, with details.
    script : Script
        What was replayed.
    agreed : int
        How many segment events are the same before the first difference.
    recorded_peak_reserved_bytes : int
        As the segments and segment events of the file tell it; 0 where it has none.
    recorded_segment_events, replayed_segment_events, segment_event_mismatches : int
        How many, and how many of them have no partner in the other list.
    first_mismatch : str
        The first difference, in words.
    reasons : tuple of str
        What the file lacks or holds that explains differences.
    """

    outcome: Outcome
    script: Script
    agreed: int
    recorded_peak_reserved_bytes: int
    recorded_segment_events: int
    replayed_segment_events: int
    segment_event_mismatches: int
    first_mismatch: str
    reasons: tuple[str, ...]

    @property
    def peak_error(self) -> float:
        """The replayed peak of reserved bytes over the recorded one, minus 1."""
        recorded = self.recorded_peak_reserved_bytes
        return self.outcome.peak_reserved_bytes / recorded - 1 if recorded else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        names = [name for name in self.__slots__ if name not in ("outcome", "script")]
        return {**self.outcome.as_dict(), **{name: getattr(self, name) for name in names}}


def check(recording: Recording, device: Device) -> Fidelity:
    """Replay a device's recording under its own settings and compare.

    Why segments were released is not always plain. Where a difference begins at a release, the
    other reason is tried, and kept if the replay then stays with the recording for longer.
    """
    doubted = frozenset[int]()
    best = _attempt(recording, device, doubted)
    for _ in range(_MOST_DOUBTS):
        release = _release_at(best)
        if release is None or release in doubted:
            break
        other = _attempt(recording, device, doubted | {release})
        if other.agreed <= best.agreed:
            break
        doubted, best = doubted | {release}, other
    return best


def _attempt(recording: Recording, device: Device, doubted: frozenset[int]) -> Fidelity:
    script = script_of(recording, device, doubted=doubted)
    return compare(recording, device, script, replay_events(script.list, details=True))


def _release_at(fidelity: Fidelity) -> int | None:
    """Return the release at which replay and recording part, if it is one."""
    if fidelity.segment_event_mismatches == 0:
        return None
    events = fidelity.script.history.events
    places = np.flatnonzero(np.isin(events.action, rec.SEGMENT_ACTIONS))
    place = int(places[fidelity.agreed]) if fidelity.agreed < len(places) else len(events)
    numbers = [
        number
        for number, release in enumerate(fidelity.script.releases)
        if release.since <= place <= release.end
    ]
    return numbers[0] if numbers else None


def compare(recording: Recording, device: Device, script: Script, outcome: Outcome) -> Fidelity:
    """Compare a replay of a script with what was recorded."""
    events = device.events
    mine = np.isin(events.action, rec.SEGMENT_ACTIONS)
    recorded = np.column_stack(
        [events.action[mine], events.size[mine], script.stream_numbers(events.stream[mine])]
    ).astype(np.int64)
    replayed = outcome.segment_events[:, [0, 2, 3]]
    known = len(device.segments) > 0 or len(recorded) > 0
    agreed, count, first = _mismatches(recorded, replayed) if known else (0, 0, "")
    history = script.history
    peak = history.peak_reserved if known else 0
    reasons = [*_gaps(device, history), *script.notes]
    if count:
        reasons += _unknowns(recording, history)
    if count and not reasons:
        reasons = ["none was found: the policy may be that of another version of PyTorch"]
    return Fidelity(
        outcome, script, agreed, peak, len(recorded), len(replayed), count, first, tuple(reasons)
    )


def _mismatches(recorded: Array, replayed: Array) -> tuple[int, int, str]:
    """Return how many events agree at first, how many have no partner, and the difference."""
    shortest = min(len(recorded), len(replayed))
    same = (recorded[:shortest] == replayed[:shortest]).all(axis=1)
    start = shortest if same.all() else int(np.argmin(same))
    if start == len(recorded) == len(replayed):
        return start, 0, ""
    left = [tuple(row) for row in recorded[start:].tolist()]
    right = [tuple(row) for row in replayed[start:].tolist()]
    first = f"segment event {start}: recorded {_said(left)}, replayed {_said(right)}"
    return start, _unmatched(left, right), first


def _unmatched(left: list[Any], right: list[Any]) -> int:
    if max(len(left), len(right)) > _MATCHED_IN_ORDER:
        have, want = Counter(left), Counter(right)
        return (have - want).total() + (want - have).total()
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    matched = sum(block.size for block in matcher.get_matching_blocks())
    return len(left) + len(right) - 2 * matched


def _said(rows: list[Any]) -> str:
    if not rows:
        return "nothing more"
    action, size, stream = rows[0]
    return f"{rec.ACTIONS[action]} of {size} bytes on stream {stream}"


def _unknowns(recording: Recording, history: History) -> list[str]:
    """Return what no file holds, and what may therefore have gone another way."""
    found = []
    private = int(np.count_nonzero(history.allocations.pool))
    if private:
        found.append(f"{private} allocations are of private pools (CUDA graphs, MemPool)")
    if "garbage_collection_threshold" in recording.settings_text:
        found.append("garbage collection depends on the memory fraction, which no file holds")
    if "expandable_segments:True" in recording.settings_text and history.initial:
        found.append("where expandable segments began before the trace is in no file")
    return found


def _gaps(device: Device, history: History) -> list[str]:
    """Return what the file lacks or contradicts."""
    gaps, events = history.gaps, device.events
    found = []
    if gaps.lost_frees or gaps.lost_allocs:
        found.append(
            f"events are missing ({gaps.lost_frees} frees, {gaps.lost_allocs} allocs): lost from "
            "the ring buffer, or left out by skip_actions"
        )
    if gaps.outside:
        found.append(
            f"{gaps.outside} blocks lie in no recorded segment: memory of another allocator, or "
            "segment events are missing"
        )
    if gaps.segments:
        found.append(f"{gaps.segments} segment events contradict the segments at the end")
    if len(events) and not events.count(rec.FREE_REQUESTED) and events.count(rec.FREE_COMPLETED):
        found.append("the trace has no free_requested: frees count when they were completed")
    if len(events) and not events.count(rec.FREE_COMPLETED) and events.count(rec.FREE_REQUESTED):
        found.append("the trace has no free_completed: frees count as done at once")
    if not len(events) and len(device.segments):
        found.append("the file has no trace: history was not recorded, or only the state was")
    return found
