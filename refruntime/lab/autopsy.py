"""Why a request failed: what pins each segment, and the least that would have had to go.

State
-----
None.

Invariants
----------
* Cached segments that are wholly free pin nothing: a failing request has them given back first.
* `Autopsy.remedy` is the smallest number of bytes in use, among all ways to make room by freeing
  blocks: a gap for the request inside one segment, or whole segments for the device to take back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from refruntime.alloc import sizes
from refruntime.errors import ArgumentValueError
from refruntime.lab import events as ev
from refruntime.lab import recording as rec
from refruntime.lab.lines import UNKNOWN, line_of
from refruntime.lab.recording import Recording
from refruntime.lab.script import Script
from refruntime.lab.settings import block_size, check_settings
from refruntime.lab.state import Block, Segment, state_at

_GRANULE: Final = 2 << 20


@dataclass(frozen=True, slots=True)
class Pin:
    """A block in use: its allocation, its bytes, and the line that asked for it."""

    id: int
    size: int
    line: str


@dataclass(frozen=True, slots=True)
class PinnedSegment:
    """A segment that blocks in use hold.

    Attributes
    ----------
    address, size, stream : int
        What it is.
    free, largest_free : int
        Its free bytes, and the largest piece of them.
    usable : bool
        Whether the failed request may use it (its stream and size class).
    pins : tuple of Pin
        The blocks in use, largest first.
    """

    address: int
    size: int
    stream: int
    free: int
    largest_free: int
    usable: bool
    pins: tuple[Pin, ...]


@dataclass(frozen=True, slots=True)
class Autopsy:
    """What is known of a failed request.

    Attributes
    ----------
    step, event : int
        The operation of the list, and the event of the trace.
    size, stream : int
        What was asked for; bytes and number of the stream.
    segment_size : int
        The segment that the device was asked for.
    reserved, allocated, free_in_segments : int
        Bytes at that time, once wholly free segments were given back.
    device_left : int
        What the device then had left, as far as known.
    segments : tuple of PinnedSegment
        What is left, those with the most free bytes first.
    remedy : tuple of Pin
        Blocks whose earlier release would have made room.
    how : str
        Which way that is.
    """

    step: int
    event: int
    size: int
    stream: int
    segment_size: int
    reserved: int
    allocated: int
    free_in_segments: int
    device_left: int
    segments: tuple[PinnedSegment, ...]
    remedy: tuple[Pin, ...]
    how: str

    @property
    def remedy_bytes(self) -> int:
        """The bytes of the remedy's blocks."""
        return sum(pin.size for pin in self.remedy)

    def as_dict(self, most: int = 50) -> dict[str, Any]:
        """Return it for JSON, with so many segments and blocks at most."""
        names = ("step", "event", "size", "stream", "segment_size", "reserved", "allocated",
                 "free_in_segments", "device_left", "how", "remedy_bytes")  # fmt: skip
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        found["remedy"] = [_pin_dict(pin) for pin in self.remedy]
        found["segments"] = [
            {
                **{name: getattr(segment, name) for name in PinnedSegment.__slots__},
                "pins": [_pin_dict(pin) for pin in segment.pins[:most]],
            }
            for segment in self.segments[:most]
        ]
        return found


def _pin_dict(pin: Pin) -> dict[str, Any]:
    return {"id": pin.id, "size": pin.size, "line": pin.line}


def failures(script: Script) -> list[int]:
    """Return the operations of a script whose request failed when it was recorded."""
    events = script.history.events
    known = script.origin >= 0
    origin = np.where(known, script.origin, 0)
    if not len(events):
        return []
    failed = known & (events.action[np.minimum(origin, len(events) - 1)] == rec.OOM)
    return np.flatnonzero(failed & (script.list.op == ev.ALLOC)).tolist()


def autopsy(recording: Recording, script: Script, step: int, size: int = 0) -> Autopsy:
    """Examine a request.

    Parameters
    ----------
    recording : Recording
        Where the script comes from; names the lines.
    script : Script
        What is replayed up to the request.
    step : int
        The operation: a request, or where to suppose one.
    size : int
        Suppose a request of so many bytes there, on the default stream.

    Raises
    ------
    ArgumentValueError
        If the operation is no request and no size was given.
    """
    events = script.list
    asked = size or (int(events.size[step]) if events.op[step] == ev.ALLOC else 0)
    if not asked:
        raise ArgumentValueError("autopsy", expected="a step that is a request", got=step)
    stream = 0 if size else int(events.stream[step])
    settings = check_settings(script.list.conf)
    rounded = block_size(settings, asked)
    segment_size = _segment_size(rounded, settings.large_segment_size)
    kept = [segment for segment in state_at(events, step) if not segment.is_free]
    reserved = sum(segment.size for segment in kept)
    event = int(script.origin[step])
    left = _device_left(script, event, reserved)
    pins = _Pins(recording, script)
    usable = {segment.address for segment in kept if _is_usable(segment, stream, rounded)}
    remedy, how = _remedy(kept, usable, rounded, max(segment_size - left, 0))
    pinned = [pins.segment(segment, segment.address in usable) for segment in kept]
    return Autopsy(
        step, event, asked, stream, segment_size, reserved,
        sum(block.size for segment in kept for block in segment.blocks if not block.is_free),
        sum(segment.free_bytes for segment in kept), left,
        tuple(sorted(pinned, key=lambda each: (-each.free, each.address))),
        tuple(pins.of(block) for block in remedy), how,
    )  # fmt: skip


def _segment_size(rounded: int, large: int) -> int:
    if rounded <= sizes.SMALL_SIZE:
        return sizes.SMALL_SEGMENT
    if rounded < sizes.MIN_LARGE:
        return large
    return int(sizes.round_up(rounded, sizes.ROUND_LARGE))


def _device_left(script: Script, event: int, reserved: int) -> int:
    """Return the bytes that the device has left besides what is pinned, 0 where nobody knows."""
    events = script.history.events
    if 0 <= event < len(events) and events.action[event] == rec.OOM:
        return int(events.addr[event]) + int(script.history.reserved[event]) - reserved
    capacity = script.capacity
    return max(capacity - reserved, 0) if capacity else 0


def _is_usable(segment: Segment, stream: int, rounded: int) -> bool:
    small = rounded <= sizes.SMALL_SIZE
    return segment.stream == stream and segment.is_small == small and not segment.is_private


class _Pins:
    """Names the lines of blocks."""

    def __init__(self, recording: Recording, script: Script) -> None:
        self._recording = recording
        self._stacks = script.history.allocations.stack

    def of(self, block: Block) -> Pin:
        """Return a block as a pin."""
        known = 0 <= block.id < len(self._stacks)
        stack = int(self._stacks[block.id]) if known else 0
        line = line_of(self._recording, stack) if known else UNKNOWN
        return Pin(block.id, block.size, line)

    def segment(self, segment: Segment, usable: bool) -> PinnedSegment:
        """Return a segment with its pins."""
        used = [self.of(block) for block in segment.blocks if not block.is_free]
        free = [block.size for block in segment.blocks if block.is_free]
        return PinnedSegment(
            segment.address, segment.size, segment.stream, sum(free), max(free, default=0),
            usable, tuple(sorted(used, key=lambda pin: -pin.size)),
        )  # fmt: skip


# --- the least that would have had to go ----------------------------------------------------------


def _remedy(
    kept: list[Segment], usable: set[int], rounded: int, shortage: int
) -> tuple[list[Block], str]:
    ways: list[tuple[int, list[Block], str]] = []
    for segment in kept:
        window = _window(segment, rounded) if segment.address in usable else None
        if window is not None:
            ways.append((_bytes(window), window, f"a gap in the segment at {segment.address:#x}"))
    whole = _whole_segments(kept, shortage)
    if whole is not None:
        blocks = [block for segment in whole for block in segment.blocks if not block.is_free]
        ways.append((_bytes(blocks), blocks, f"{len(whole)} whole segments given back"))
    if not ways:
        return [], "no set of blocks in these segments makes room for it"
    _, blocks, how = min(ways, key=lambda way: way[0])
    return blocks, how


def _bytes(blocks: list[Block]) -> int:
    return sum(block.size for block in blocks)


def _window(segment: Segment, rounded: int) -> list[Block] | None:
    """Return the blocks in use, fewest bytes, in a run of a segment that is long enough."""
    best: tuple[int, int, int] | None = None
    blocks, start, length, used = segment.blocks, 0, 0, 0
    for end, block in enumerate(blocks, 1):
        length += block.size
        used += 0 if block.is_free else block.size
        while length - blocks[start].size >= rounded:
            length -= blocks[start].size
            used -= 0 if blocks[start].is_free else blocks[start].size
            start += 1
        if length >= rounded and (best is None or used < best[0]):
            best = (used, start, end)
    if best is None:
        return None
    return [block for block in blocks[best[1] : best[2]] if not block.is_free]


def _whole_segments(kept: list[Segment], shortage: int) -> list[Segment] | None:
    """Return segments of at least so many bytes in all, with the fewest bytes in use in them."""
    need = -(-shortage // _GRANULE)
    if need <= 0:
        return []
    gains = [segment.size // _GRANULE for segment in kept]
    if sum(gains) < need:
        return None
    # least[n]: the fewest bytes in use among segments that give n units back, n cut at the need.
    least = np.full(need + 1, np.iinfo(np.int64).max >> 1, np.int64)
    least[0] = 0
    taken = np.zeros((len(kept), need + 1), bool)
    for i, (segment, gain) in enumerate(zip(kept, gains)):
        cost = segment.size - segment.free_bytes
        other = least[np.maximum(np.arange(need + 1) - gain, 0)] + cost
        taken[i] = other < least
        least = np.minimum(least, other)
    chosen, n = [], need
    for i in range(len(kept) - 1, -1, -1):
        if taken[i, n]:
            chosen.append(kept[i])
            n = max(n - gains[i], 0)
    return chosen
