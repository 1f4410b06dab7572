"""A recording replays as it was: segment for segment, also when its beginning is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refruntime.lab.fidelity import check
from refruntime.lab.history import history_of
from refruntime.lab.readers import read
from refruntime.lab.script import script_of
from tests.lab.recorded import alloc, events, free, listed, op, recording_of, steps

MIB = 1 << 20


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_runs_of_the_real_allocator_replay_event_for_event(name, request):
    recording = read(request.getfixturevalue(name))
    found = check(recording, recording.devices[0])
    assert found.recorded_segment_events > 10
    assert found.segment_event_mismatches == 0
    assert found.peak_error == 0
    assert found.reasons == ()


@given(plan=steps, conf=st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:32",
                                         "roundup_power2_divisions:4"]))  # fmt: skip
def test_a_whole_recording_replays_exactly(plan, conf, tmp_path_factory):
    recording = recording_of(tmp_path_factory.mktemp("run"), listed(plan, conf))
    for device in recording.devices:
        found = check(recording, device)
        assert (found.segment_event_mismatches, found.peak_error) == (0, 0), found.first_mismatch


@given(plan=steps, share=st.floats(0, 1))
def test_a_recording_without_its_beginning_replays_exactly(plan, share, tmp_path_factory):
    whole = listed(plan, uses=False)
    keep = int(share * 2 * len(whole))
    recording = recording_of(tmp_path_factory.mktemp("run"), whole, keep)
    for device in recording.devices:
        found = check(recording, device)
        assert found.script.history.gaps.lost_frees == 0
        assert (found.segment_event_mismatches, found.peak_error) == (0, 0), found.first_mismatch


def test_the_state_before_a_trace_has_its_blocks_where_they_were(tmp_path):
    whole = events(alloc(1, 600), alloc(2, 700), alloc(3, 30 * MIB), free(1), alloc(4, 5 * MIB))
    recording = recording_of(tmp_path, whole, keep=2)
    history = history_of(recording.devices[0])
    assert [span.size for span in history.spans] == [2 * MIB, 30 * MIB]
    assert history.allocations.size[history.allocations.begin < 0].tolist() == [700, 30 * MIB]


def test_a_late_completion_keeps_the_block_from_being_reused(tmp_path):
    whole = events(
        alloc(1, 30 * MIB), op("record_stream", id=1, stream=1), free(1), alloc(2, 30 * MIB),
        op("complete"), alloc(3, 30 * MIB),
    )  # fmt: skip
    recording = recording_of(tmp_path, whole)
    script = script_of(recording, recording.devices[0])
    names = [record["op"] for record in script.list.records()]
    assert names.index("record_stream") < names.index("complete")
    found = check(recording, recording.devices[0])
    assert found.segment_event_mismatches == 0
    assert found.outcome.peak_reserved_bytes == 60 * MIB


def test_a_request_that_ran_short_is_told_from_an_emptied_cache(tmp_path):
    short = events(alloc(1, 40 * MIB), free(1), alloc(2, 80 * MIB), capacity=100 * MIB)
    recording = recording_of(tmp_path, short)
    found = check(recording, recording.devices[0])
    assert (found.segment_event_mismatches, found.outcome.retries) == (0, 1)
    emptied = events(alloc(1, 80 * MIB), free(1), op("empty_cache"), alloc(2, 40 * MIB))
    recording = recording_of(tmp_path, emptied)
    found = check(recording, recording.devices[0])
    assert (found.segment_event_mismatches, found.outcome.retries) == (0, 0)


def test_a_failed_request_fails_again_and_tells_the_size_of_the_device(tmp_path):
    whole = events(alloc(1, 40 * MIB), alloc(2, 80 * MIB), alloc(3, 20 * MIB), capacity=100 * MIB)
    recording = recording_of(tmp_path, whole)
    found = check(recording, recording.devices[0])
    assert (found.segment_event_mismatches, found.outcome.ooms) == (0, 1)
    assert found.script.capacity == 100 * MIB


def test_what_a_trace_lacks_is_named(tmp_path):
    whole = events(alloc(1, 3 * MIB), alloc(2, 3 * MIB), free(1), alloc(3, 3 * MIB), free(3))
    recording = recording_of(tmp_path, whole)
    (device,) = recording.devices
    frees = device.events.action == 2
    first = int(frees.argmax())
    keep = [i for i in range(len(device.events)) if i not in (first - 1, first)]
    cut = type(device)(0, device.events[keep], device.segments, device.blocks)
    found = check(recording, cut)
    assert any("events are missing" in reason for reason in found.reasons)
