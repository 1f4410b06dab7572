"""Curves and segments from hand-made traces."""

from __future__ import annotations

import pytest

from refruntime.alloc import categories, trace
from refruntime.alloc.trace import Sample, TraceEvent
from refruntime.demo import history
from refruntime.demo.history import Mark

MIB = 1 << 20
BASE = 0x1000000


def event(action, addr=0, size=0, category=categories.TEMPORARY, at=0):
    return TraceEvent(action, addr, size, 0, category, at)


def freed(addr, size, at):
    actions = (trace.FREE_REQUESTED, trace.FREE_COMPLETED)
    return [event(action, addr, size, at=at) for action in actions]


@pytest.fixture
def events():
    return [
        event(trace.SEGMENT_ALLOC, BASE, 2 * MIB, at=10),
        event(trace.ALLOC, BASE, 1000, categories.PARAMETER, at=11),
        event(trace.ALLOC, BASE + 4096, 600, at=12),
        event(trace.TAG, BASE + 4096, 600, categories.SAVED, at=13),
        *freed(BASE, 1000, at=14),
        event(trace.ALLOC, BASE, 100, at=15),
    ]


def test_samples_know_the_index_of_their_event(events):
    indexed = list(history.indexed_samples(events))
    assert [index for index, _ in indexed] == [0, 1, 2, 3, 5, 6]
    assert indexed[3][1].by_category[categories.SAVED] == 600


def test_the_peak_is_the_largest_total(events):
    index, sample = history.peak(history.indexed_samples(events))
    assert index == 2
    assert sum(sample.by_category) == 1600


def test_segments_are_tiled_by_used_and_free_blocks(events):
    (segment,) = history.segments_after(events)
    assert segment["size"] == 2 * MIB
    assert segment["pool"] == "small"
    assert [(b["offset"], b["size"], b["category"]) for b in segment["blocks"]] == [
        (0, 512, "temporary"),
        (512, 3584, "free"),
        (4096, 1024, "saved"),
        (5120, 2 * MIB - 5120, "free"),
    ]
    assert segment["blocks"][2]["requested"] == 600


def test_a_released_segment_is_gone(events):
    taken = event(trace.SEGMENT_ALLOC, BASE * 4, 20 * MIB)
    released = event(trace.SEGMENT_FREE, BASE * 4, 20 * MIB)
    assert len(history.segments_after([*events, taken, released])) == 1
    assert [s["pool"] for s in history.segments_after([*events, taken])] == ["small", "large"]


def samples(totals):
    rest = [0] * (categories.COUNT - 2)
    return [Sample(i, (0, total, *rest), 100) for i, total in enumerate(totals)]


def test_thinning_keeps_the_peak_and_the_end():
    totals = [(7 * i) % 50 for i in range(1000)]
    totals[333] = 999
    kept = history.thin(samples(totals), 10)
    assert len(kept) <= 11
    assert 333 in kept
    assert kept[-1] == 999


def test_few_samples_are_all_kept():
    assert history.thin(samples([1, 2, 3]), 10) == [0, 1, 2]


def test_a_curve_leaves_out_categories_that_never_occur(events):
    marks = [Mark(11, "forward", 1), Mark(14, "loss and backward", 1)]
    curve = history.curve([s for _, s in history.indexed_samples(events)], marks)
    assert [layer["name"] for layer in curve["categories"]] == ["parameter", "saved", "temporary"]
    assert curve["time"][0] == 0.0
    assert curve["event"] == [0, 1, 2, 3, 4, 5]
    assert curve["labels"][0] == "start"
    assert curve["labels"][1] == "step 1, forward"
    assert curve["labels"][-1] == "step 1, loss and backward"
    assert curve["reserved"] == [2 * MIB] * 6


def test_the_largest_step_is_cut_at_its_marks():
    marks = [
        Mark(2, "forward", 1), Mark(4, "optimizer", 1), Mark(6, "forward", 2),
        Mark(8, "evaluation", 0),
    ]  # fmt: skip
    taken = history.largest_step(samples([0, 0, 1, 9, 1, 1, 2, 2, 2, 50]), marks)
    assert [s.time_us for s in taken] == [2, 3, 4, 5, 6]
    taken = history.largest_step(samples([0, 0, 1, 1, 1, 1, 2, 9, 2, 50]), marks)
    assert [s.time_us for s in taken] == [6, 7, 8]
