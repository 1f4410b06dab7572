"""Where reserved bytes go that nobody asked for, one number a cause.

State
-----
None.

Invariants
----------
* The causes add up: reserved bytes are the bytes asked for by blocks in use plus all of them.
* A free byte has the first cause that applies, seen from the request that made the peak: the pool
  of a graph, another stream, the other of the small and large pools, a whole segment that was not
  given back, else a hole between blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from refruntime.lab import events as ev
from refruntime.lab.events import EventList
from refruntime.lab.replay import Outcome, replay_events
from refruntime.lab.settings import block_size, check_settings
from refruntime.lab.state import PENDING, Segment, state_at

CAUSES: Final = {
    "rounding": "sizes rounded up",
    "unsplit_remainder": "blocks larger than needed whose rest was too small to split off",
    "split_remainder": "holes between blocks in use, too small for the request",
    "small_large_boundary": "free in the pool of the other size class",
    "stream_boundary": "free, but on another stream",
    "pending_events": "freed, but the device is not known to be done with it",
    "unreturned_cache": "whole free segments that were kept",
    "graph_pools": "free in private pools (CUDA graphs, MemPool)",
}
_LARGEST_SMALL: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Waste:
    """The waste at one moment.

    Attributes
    ----------
    step : int
        The operation after which it is.
    reserved, requested : int
        Bytes taken from the upstream, and asked for by blocks in use.
    causes : dict
        Bytes by the names of `CAUSES`.
    """

    step: int
    reserved: int
    requested: int
    causes: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "step": self.step, "reserved_bytes": self.reserved,
            "requested_bytes": self.requested, "waste_bytes": dict(self.causes),
        }  # fmt: skip


def waste_at_peak(events: EventList, outcome: Outcome | None = None) -> Waste:
    """Return the waste when the most bytes were reserved, after the last ``reset_peak``.

    Parameters
    ----------
    events : EventList
        The list, with the settings and the device to replay it under.
    outcome : Outcome, optional
        A replay of it with details, if there is one already.
    """
    if outcome is None or not len(outcome.reserved):
        outcome = replay_events(events, details=True)
    if not len(events):
        return Waste(0, 0, 0, dict.fromkeys(CAUSES, 0))
    resets = np.flatnonzero(events.op == ev.RESET_PEAK)
    start = int(resets[-1]) if len(resets) else 0
    step = peak_step(outcome, start)
    stream, small = _request(events, step)
    segments = state_at(events, step + 1)
    causes = _causes(segments, events.conf, stream, small)
    reserved = sum(segment.size for segment in segments)
    requested = sum(
        block.requested
        for segment in segments
        for block in segment.blocks
        if not block.is_free and block.state != PENDING
    )
    return Waste(step, reserved, requested, causes)


def peak_step(outcome: Outcome, start: int) -> int:
    """Return the operation that reserved the most; if it was so from the start, the fullest one."""
    reserved = outcome.reserved[start:]
    if len(reserved) and reserved[0] == reserved.max():
        allocated = np.where(reserved == reserved.max(), outcome.allocated[start:], -1)
        return start + int(np.argmax(allocated))
    return start + int(np.argmax(reserved))


def _request(events: EventList, step: int) -> tuple[int, bool]:
    """Return stream and size class of the request at a step, or of the last one before it."""
    asked = np.flatnonzero(events.op[: step + 1] == ev.ALLOC)
    if not len(asked):
        return 0, False
    return int(events.stream[asked[-1]]), bool(events.size[asked[-1]] <= _LARGEST_SMALL)


def _causes(segments: list[Segment], conf: str, stream: int, small: bool) -> dict[str, int]:
    causes = dict.fromkeys(CAUSES, 0)
    settings = check_settings(conf)
    for segment in segments:
        why = _why_free(segment, stream, small)
        for block in segment.blocks:
            if block.is_free:
                causes[why] += block.size
            elif block.state == PENDING:
                causes["pending_events"] += block.size
            else:
                rounded = min(block_size(settings, block.requested), block.size)
                causes["rounding"] += rounded - block.requested
                causes["unsplit_remainder"] += block.size - rounded
    return causes


def _why_free(segment: Segment, stream: int, small: bool) -> str:
    if segment.is_private:
        return "graph_pools"
    if segment.stream != stream:
        return "stream_boundary"
    if segment.is_small != small:
        return "small_large_boundary"
    return "unreturned_cache" if segment.is_free else "split_remainder"
