"""The state before the trace, as operations that bring an allocator into it.

State
-----
None.

Invariants
----------
* Rebuilding opens one segment after the other and fills it from its low end, live blocks and holes
  alike, so that no other segment has room for what is being placed; the holes are freed last.
* Rebuilding runs under settings that round and split by default; the recorded ones come after it.
* A segment that the policy would not make (of another version, or a made-up file) is not rebuilt:
  its live blocks are asked for in the order of their addresses, and that is noted.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from refruntime.alloc.settings import AllocatorSettings
from refruntime.lab import events as ev
from refruntime.lab.history import BEFORE, History, Span
from refruntime.lab.settings import block_size, check_settings

MIB: Final = 1 << 20
_SMALL_SEGMENT: Final = 2 * MIB
_LARGEST_SMALL: Final = MIB
_SMALLEST_SEGMENT: Final = 10 * MIB
_ROUND_LARGE: Final = 2 * MIB
_MIN_BLOCK: Final = 512
_LARGEST_GAP: Final = 1 << 40  # more than this lies between two segments, not inside one

# Bytes, and which allocation (-1: a hole).
_Piece = tuple[int, int]


def starting_conf(conf: str) -> str:
    """Return the settings to rebuild under: what cannot be changed later, and nothing else."""
    kept = ("expandable_segments", "large_segment_size_mb", "backend")
    return ",".join(part for part in parts_of(conf) if part.split(":", 1)[0].strip() in kept)


def parts_of(conf: str) -> list[str]:
    """Split settings at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in conf:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def ask(
    out: ev.Builder, history: History, streams: dict[int, int], pending: dict[int, int]
) -> None:
    """Ask for the live blocks, by address, with the sizes that the program had asked for."""
    them = history.allocations
    for id in np.flatnonzero(them.begin == BEFORE).tolist():
        _alloc(out, id, int(them.size[id]), streams[int(them.stream[id])], int(them.pool[id]))
    _free_pending(out, history, pending)


def rebuild(
    out: ev.Builder, history: History, streams: dict[int, int], pending: dict[int, int], conf: str
) -> list[str]:
    """Rebuild segments, live blocks and holes; returns what could not be."""
    rebuilder = _Rebuilder(out, history, streams, check_settings(conf))
    notes = rebuilder.run()
    _free_pending(out, history, pending)
    if starting_conf(conf) != conf:
        out.add(ev.SETTINGS, size=out.text(conf))
    return notes


def _alloc(out: ev.Builder, id: int, size: int, stream: int, pool: int) -> None:
    if pool:
        out.add(ev.POOL_BEGIN, pool)
    out.add(ev.ALLOC, id, size, stream)
    if pool:
        out.add(ev.POOL_END, pool)


def _free_pending(out: ev.Builder, history: History, pending: dict[int, int]) -> None:
    """Free what was freed before the trace and not completed."""
    for id in np.flatnonzero(history.allocations.pending).tolist():
        out.add(ev.RECORD_STREAM, id, stream=pending[id])
        out.add(ev.FREE, id)


class _Rebuilder:
    def __init__(
        self, out: ev.Builder, history: History, streams: dict[int, int],
        settings: AllocatorSettings,
    ) -> None:  # fmt: skip
        self.out = out
        self.settings = settings
        self.history = history
        self.streams = streams
        failed = len(history.events)  # more than the failed requests, which have ids too
        self.next_id = len(history.allocations) + failed
        self.holes: list[int] = []
        self.unmapped: list[int] = []
        self.mapped_to: dict[tuple[int, int, bool], int] = {}
        self.strange = 0

    def run(self) -> list[str]:
        """Rebuild every segment; returns notes."""
        them, spans = self.history.allocations, self.history.spans
        ids = np.flatnonzero(them.begin == BEFORE)
        starts = np.array([span.address for span in spans], np.int64)
        place = np.searchsorted(starts, them.address[ids], side="right") - 1
        groups: dict[int, list[int]] = {}
        for id, span in zip(ids.tolist(), place.tolist()):
            inside = span >= 0 and int(them.address[id]) < spans[span].address + spans[span].size
            groups.setdefault(span if inside else -1, []).append(id)
        for number, span in enumerate(spans):
            self._segment(span, groups.get(number, []))
        for id in groups.get(-1, []):
            self._place(id, int(them.size[id]), int(them.stream[id]), int(them.pool[id]))
        self._free_holes()
        return self._notes(len(groups.get(-1, [])))

    def _free_holes(self) -> None:
        """Free the holes; first those that were not mapped, which an empty cache then unmaps."""
        for hole in self.unmapped:
            self.out.add(ev.FREE, hole)
        if self.unmapped:
            self.out.add(ev.EMPTY_CACHE)
        for hole in self.holes:
            self.out.add(ev.FREE, hole)

    def _notes(self, outside: int) -> list[str]:
        notes = []
        if self.strange:
            notes.append(
                f"{self.strange} segments from before the trace are not what this policy makes "
                "(another version or another allocator); their live blocks were asked for anew"
            )
        if outside:
            notes.append(f"{outside} blocks from before the trace lie in no segment of the file")
        return notes

    def _segment(self, span: Span, ids: list[int]) -> None:
        them = self.history.allocations
        # What is in it tells the pool better than the size does.
        regular = span.is_expandable or span.size == _SMALL_SEGMENT or (
            span.size >= _SMALLEST_SEGMENT and span.size % _ROUND_LARGE == 0 and not span.is_small
        )  # fmt: skip
        if not regular:
            self.strange += 1
            for id in ids:
                self._place(id, int(them.size[id]), span.stream, span.pool)
            return
        if span.is_expandable:
            self._reach(span)
        else:
            self._open(span)
        for size, id in self._pieces(span, ids):
            if id < 0:
                self._hole(span, size, self.holes)
            else:
                self._place(id, size, span.stream, span.pool)

    def _open(self, span: Span) -> None:
        """Make the allocator get the segment: nothing that it has can serve this."""
        size = _LARGEST_SMALL if span.size == _SMALL_SEGMENT else span.size
        id = self._new_id()
        self._place(id, size, span.stream, span.pool)
        self.out.add(ev.FREE, id)

    def _reach(self, span: Span) -> None:
        """Fill the addresses between this mapped range and the one before it in its segment."""
        key = (span.stream, span.pool, span.is_small)
        gap = span.address - self.mapped_to.get(key, span.address)
        self.mapped_to[key] = span.address + span.size
        if 0 < gap < _LARGEST_GAP:
            self._hole(span, gap, self.unmapped)

    def _pieces(self, span: Span, ids: list[int]) -> list[_Piece]:
        """Return blocks and holes of a segment from its low end on."""
        them = self.history.allocations
        pieces: list[_Piece] = []
        at, end = span.address, span.address + span.size
        least = _MIN_BLOCK if span.is_small or span.is_expandable else _LARGEST_SMALL + 1
        if not span.is_expandable and span.size >= self.settings.max_split_size:
            least = span.size  # never split
        for i, id in enumerate(ids):
            start = int(them.address[id])
            if start > at:
                pieces.append((start - at, -1))
            beyond = int(them.address[ids[i + 1]]) if i + 1 < len(ids) else end
            size = int(them.block[id]) or block_size(self.settings, int(them.size[id]))
            if beyond - start - size < least:
                # Too little to have been split off: it belongs to the block.
                size = beyond - start
            pieces.append((size, id))
            at = start + size
        if end > at:
            pieces.append((end - at, -1))
        return pieces

    def _hole(self, span: Span, size: int, holes: list[int]) -> None:
        small = span.is_small or (span.is_expandable and size <= _LARGEST_SMALL)
        while size > 0:
            # A small segment takes no larger request than this.
            part = min(size, _LARGEST_SMALL) if small else size
            id = self._new_id()
            self._place(id, part, span.stream, span.pool)
            holes.append(id)
            size -= part

    def _place(self, id: int, size: int, stream: int, pool: int) -> None:
        _alloc(self.out, id, size, self.streams[stream], pool)

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1
