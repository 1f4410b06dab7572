"""From an allocator's trace to what the report draws: curves, the segments at the peak.

Invariants
----------
* Curves keep peaks: of the samples that fall on one point of the chart, the largest is kept.
* Blocks of a segment tile it: what is not in use is free.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from refruntime.alloc import categories, sizes, trace
from refruntime.alloc.trace import Sample, TraceEvent, timeline
from refruntime.viz.report import CATEGORIES, LABELS, Block, MemoryCurve, Segment

# Points of a curve: more than a screen has columns would not be seen.
MAX_POINTS = 1200


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of the run: what begins there, and the number of its training step (0: none)."""

    time_us: int
    label: str
    step: int


def indexed_samples(events: Sequence[TraceEvent]) -> Iterator[tuple[int, Sample]]:
    """Yield ``(index of the event, memory after it)`` for each event that changes memory."""
    position = 0

    def feed() -> Iterator[TraceEvent]:
        nonlocal position
        for index, event in enumerate(events):
            position = index
            yield event

    for sample in timeline(feed()):
        yield position, sample


def peak(samples: Iterable[tuple[int, Sample]]) -> tuple[int, Sample]:
    """Return the event index and the sample with the most bytes in use."""
    return max(samples, key=lambda pair: sum(pair[1].by_category))


def thin(samples: Sequence[Sample], limit: int = MAX_POINTS) -> list[int]:
    """Return the places of about `limit` samples: the largest of each run, and the last."""
    count = len(samples)
    width = -(-count // limit)
    runs = (range(start, min(start + width, count)) for start in range(0, count, width))
    kept = [max(run, key=lambda place: sum(samples[place].by_category)) for run in runs]
    if kept and kept[-1] != count - 1:
        kept.append(count - 1)
    return kept


def curve(samples: Sequence[Sample], marks: Sequence[Mark]) -> MemoryCurve:
    """Return the memory curve of some samples; categories that never occur are left out."""
    places = thin(samples)
    points = [samples[place] for place in places]
    names = [name for name in CATEGORIES if any(p.by_category[number(name)] for p in points)]
    begin = samples[0].time_us
    return {
        "event": places,
        "time": [round((p.time_us - begin) / 1e6, 6) for p in points],
        "categories": [
            {
                "name": name,
                "label": LABELS[name],
                "bytes": [p.by_category[number(name)] for p in points],
            }
            for name in names
        ],
        "reserved": [p.reserved for p in points],
        "labels": [label_at(p.time_us, marks) for p in points],
    }


def number(name: str) -> int:
    """Return the allocator's number of a category."""
    return categories.number(name)


def label_at(time_us: int, marks: Sequence[Mark]) -> str:
    """Return what the run was doing at a moment."""
    place = bisect_right(marks, time_us, key=lambda mark: mark.time_us) - 1
    if place < 0:
        return "start"
    mark = marks[place]
    return f"step {mark.step}, {mark.label}" if mark.step else mark.label


def largest_step(samples: Sequence[Sample], marks: Sequence[Mark]) -> list[Sample]:
    """Return the samples of the training step that reached the most bytes in use.

    A step lasts from its first mark to the next mark that is not its own.
    """
    spans: list[list[Sample]] = []
    bounds = [mark for i, mark in enumerate(marks) if i == 0 or mark.step != marks[i - 1].step]
    times = [sample.time_us for sample in samples]
    for mark, after in zip(bounds, [*bounds[1:], None], strict=True):
        if mark.step:
            end = len(samples) if after is None else bisect_right(times, after.time_us)
            spans.append(list(samples[bisect_left(times, mark.time_us) : end]))
    return max(spans, key=lambda span: max((sum(s.by_category) for s in span), default=0))


def segments_after(events: Iterable[TraceEvent]) -> list[Segment]:
    """Return the segments and their blocks as they are after some events, by address."""
    sizes: dict[int, int] = {}
    live: dict[int, TraceEvent] = {}
    for event in events:
        if event.action == trace.SEGMENT_ALLOC:
            sizes[event.addr] = event.size
        elif event.action == trace.SEGMENT_FREE:
            sizes.pop(event.addr, None)
        elif event.action in (trace.ALLOC, trace.TAG):
            live[event.addr] = event
        elif event.action == trace.FREE_COMPLETED:
            live.pop(event.addr, None)
    in_use = [live[address] for address in sorted(live)]
    return [_segment(address, sizes[address], in_use) for address in sorted(sizes)]


def _segment(address: int, size: int, in_use: Sequence[TraceEvent]) -> Segment:
    blocks: list[Block] = []
    at = 0
    for event in in_use:
        offset = event.addr - address
        if not 0 <= offset < size:
            continue
        if offset > at:
            blocks.append(_block(at, offset - at, 0, "free"))
        taken = sizes.round_up(max(event.size, 1), sizes.MIN_BLOCK)
        blocks.append(_block(offset, taken, event.size, categories.name(event.category)))
        at = offset + taken
    if at < size:
        blocks.append(_block(at, size - at, 0, "free"))
    pool = "small" if size <= sizes.SMALL_SEGMENT else "large"
    return {"address": address, "size": size, "pool": pool, "blocks": blocks}


def _block(offset: int, size: int, requested: int, category: str) -> Block:
    return {
        "offset": offset,
        "size": size,
        "requested": requested,
        "category": category,
        "label": LABELS[category],
    }
