"""Waste by cause, bounds, autopsies and patterns of runs whose answer is known."""

from __future__ import annotations

import pytest
from hypothesis import given

from refruntime.errors import ArgumentValueError
from refruntime.lab.autopsy import autopsy, failures
from refruntime.lab.bounds import bounds_of
from refruntime.lab.facts import differences, facts_of
from refruntime.lab.history import history_of
from refruntime.lab.patterns import find_patterns
from refruntime.lab.script import script_of
from refruntime.lab.waste import waste_at_peak
from tests.lab.recorded import alloc, events, free, listed, op, recording_of, steps

MIB = 1 << 20


@given(plan=steps)
def test_causes_of_waste_add_up_to_what_is_reserved(plan):
    waste = waste_at_peak(listed(plan))
    assert waste.reserved == waste.requested + sum(waste.causes.values())
    assert min(waste.causes.values()) >= 0


def causes(*records, conf=""):
    found = waste_at_peak(events(*records, conf=conf)).causes
    return {name: nbytes for name, nbytes in found.items() if nbytes}


def test_each_cause_is_found_where_it_is_made():
    assert causes(alloc(1, 20 * MIB - 100)) == {"rounding": 100}
    assert causes(alloc(1, 18 * MIB)) == {}
    assert causes(alloc(1, 5 * MIB), free(1), alloc(2, 19 * MIB)) == {"unsplit_remainder": MIB}
    used = causes(alloc(1, 30 * MIB, 1), free(1), alloc(2, 30 * MIB))
    assert used == {"stream_boundary": 30 * MIB}
    kept = causes(alloc(1, 30 * MIB), free(1), alloc(2, 40 * MIB))
    assert kept == {"unreturned_cache": 30 * MIB}
    pools = causes(alloc(1, MIB), free(1), alloc(2, 20 * MIB))
    assert pools == {"small_large_boundary": 2 * MIB}
    holes = causes(alloc(1, 5 * MIB), alloc(2, 5 * MIB), free(1), alloc(3, 20 * MIB))
    assert holes == {"split_remainder": 15 * MIB}
    late = causes(
        alloc(1, 30 * MIB), op("record_stream", id=1, stream=1), free(1), alloc(2, 30 * MIB)
    )
    assert late == {"pending_events": 30 * MIB}


def test_bounds_of_a_run(tmp_path):
    whole = events(alloc(1, 4096), alloc(2, 100), free(1), alloc(3, 4096))
    bounds = bounds_of(history_of(recording_of(tmp_path, whole).devices[0]))
    assert bounds.peak_requested_bytes == 4196
    assert bounds.peak_live_bytes == bounds.packed_bytes == 4608
    assert bounds.is_optimal


def test_an_autopsy_names_the_cheapest_way_to_make_room(tmp_path):
    whole = events(
        alloc(1, 30 * MIB), alloc(2, 30 * MIB), alloc(3, 2 * MIB), alloc(4, 12 * MIB), free(4),
        alloc(5, 60 * MIB), capacity=100 * MIB,
    )  # fmt: skip
    recording = recording_of(tmp_path, whole)
    script = script_of(recording, recording.devices[0])
    (step,) = failures(script)
    found = autopsy(recording, script, step)
    assert (found.size, found.segment_size) == (60 * MIB, 60 * MIB)
    # 80 MiB are pinned and 20 are left: 40 more are needed, so the 20 MiB segment with 2 MiB in
    # use and one of those of 30 MiB.
    assert found.device_left == 20 * MIB
    assert sorted(pin.size for pin in found.remedy) == [2 * MIB, 30 * MIB]
    assert found.segments[0].free == 18 * MIB
    assert [pin.size for pin in found.segments[0].pins] == [2 * MIB]


def test_an_autopsy_finds_a_gap_inside_a_segment(tmp_path):
    recording = recording_of(tmp_path, events(alloc(9, 40 * MIB), free(9), alloc(1, 10 * MIB),
                                              alloc(2, 2 * MIB), alloc(3, 20 * MIB), free(1),
                                              alloc(4, 12 * MIB), capacity=40 * MIB))  # fmt: skip
    script = script_of(recording, recording.devices[0])
    found = autopsy(recording, script, failures(script)[0])
    assert [pin.size for pin in found.remedy] == [2 * MIB]
    assert "gap in the segment" in found.how


def test_an_autopsy_needs_a_request(tmp_path):
    recording = recording_of(tmp_path, events(alloc(1, 512), free(1)))
    script = script_of(recording, recording.devices[0])
    with pytest.raises(ArgumentValueError, match="a step that is a request"):
        autopsy(recording, script, len(script.list) - 1)
    supposed = autopsy(recording, script, len(script.list) - 1, 3 * MIB)
    assert supposed.segment_size == 20 * MIB


def names(*records, conf=""):
    return [finding.name for finding in find_patterns(events(*records, conf=conf))]


def test_a_side_stream_that_was_used_once_is_found():
    many = [alloc(100 + i, 20 * MIB) for i in range(20)]
    assert "side stream used once" in names(alloc(1, 200 * MIB, 1), free(1), *many)
    assert "side stream used once" not in names(*many)


def test_memory_that_a_busy_side_stream_keeps_is_found():
    busy = [record for i in range(40) for record in (alloc(i, (20 + i) * MIB, 1), free(i))]
    assert "memory kept by a side stream" in names(*busy, alloc(99, 50 * MIB))


def test_requests_around_one_mebibyte_are_found():
    pairs = [alloc(i, MIB - 1000 + 2000 * (i % 2)) for i in range(64)]
    frees = [free(i) for i in range(64)]
    assert "1 MiB crossings" in names(*pairs, *frees, alloc(200, 2000))


def test_growing_requests_are_found_with_what_expandable_segments_would_save():
    growing = [record for i in range(8) for record in (alloc(i, (20 + 4 * i) * MIB), free(i))]
    (found, *_) = find_patterns(events(*growing))
    assert found.name == "small before large"
    assert "expandable_segments:True (replayed" in found.remedy
    assert found.nbytes > 0


def test_settings_that_do_harm_or_nothing_are_found():
    shrinking = [record for i in range(8) for record in (alloc(i, (90 - 8 * i) * MIB), free(i))]
    assert "max_split_size_mb costs memory" in names(*shrinking, conf="max_split_size_mb:20")
    threshold = "garbage_collection_threshold:0.5"
    inert = "garbage_collection_threshold without a fraction"
    assert inert in names(alloc(1, 512), conf=threshold)
    assert inert not in names(alloc(1, 512), conf=f"{threshold},per_process_memory_fraction:0.5")


def test_facts_attribute_the_peak_and_a_diff_shows_what_moved(mlp, resnet):
    from refruntime.lab.readers import read

    pair = []
    for path in (mlp, resnet):
        recording = read(path)
        pair.append(facts_of(recording, recording.devices[0]))
    assert sum(pair[0].by_line.values()) == pair[0].peak_requested_bytes
    assert sum(pair[0].by_category.values()) == pair[0].peak_requested_bytes
    (change,) = differences(*pair).values()
    assert change == (pair[0].peak_requested_bytes, pair[1].peak_requested_bytes)
