"""What is written reads as what it was, in every format that can hold it."""

from __future__ import annotations

import json
import pickle
import pickletools

import numpy as np
import pytest

from refruntime.errors import ArgumentValueError
from refruntime.lab.history import history_of
from refruntime.lab.readers import read
from refruntime.lab.replay import replay_events
from refruntime.lab.script import script_of
from refruntime.lab.writers import FORMATS, snapshot_of, write


@pytest.mark.parametrize("name", ["x.pickle", "x.json", "x.pickle.gz"])
def test_snapshots_come_back_whole(mlp, tmp_path, name):
    before = read(mlp)
    write(before, tmp_path / name)
    after = read(tmp_path / name)
    for old, new in zip(before.devices, after.devices, strict=True):
        for part in ("events", "segments", "blocks"):
            for column in getattr(old, part).__slots__:
                kept, found = (getattr(getattr(each, part), column) for each in (old, new))
                np.testing.assert_array_equal(kept, found, err_msg=column)
    assert after.settings == before.settings
    assert snapshot_of(after)["segments"] == snapshot_of(before)["segments"]


def test_a_written_pickle_is_one_that_the_viewer_opens(mlp, tmp_path):
    write(read(mlp), tmp_path / "x.pickle")
    data = (tmp_path / "x.pickle").read_bytes()
    names = {op.name for op, _, _ in pickletools.genops(data)}
    assert data[1] == 4
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
    entry = pickle.loads(data)["device_traces"][0][0]
    assert {"action", "addr", "size", "stream", "time_us", "frames"} <= set(entry)


def test_categories_include_unknown_once_there_are_any(tmp_path):
    frames = []
    trace = [
        {"action": "alloc", "addr": 1, "size": 4, "category": "gradient", "frames": frames},
        {"action": "alloc", "addr": 2, "size": 4, "frames": frames},
    ]
    (tmp_path / "x.json").write_text(json.dumps({"device_traces": [trace], "segments": []}))
    snapshot = snapshot_of(read(tmp_path / "x.json"))
    assert [entry["category"] for entry in snapshot["device_traces"][0]] == ["gradient", "unknown"]


def test_an_event_list_replays_to_the_same_figures(mlp, tmp_path):
    recording = read(mlp)
    write(recording, tmp_path / "x.jsonl.gz")
    lists = [
        script_of(each, each.devices[0], exact=False).list
        for each in (recording, read(tmp_path / "x.jsonl.gz"))
    ]
    first, second = (replay_events(each) for each in lists)
    assert first.peak_reserved_bytes == second.peak_reserved_bytes > 0
    assert first.upstream_calls == second.upstream_calls


@pytest.mark.parametrize("format", ["rmm", "minimalloc"])
def test_logs_keep_sizes_and_lifetimes(mlp, tmp_path, format):
    recording = read(mlp)
    assert write(recording, tmp_path / "x.csv", format) == format
    them = [
        history_of(each.devices[0]).allocations for each in (recording, read(tmp_path / "x.csv"))
    ]
    assert sorted(them[0].size.tolist()) == sorted(them[1].size.tolist())


def test_a_format_is_chosen_by_name_or_asked_for(mlp, tmp_path):
    with pytest.raises(ArgumentValueError, match="--to"):
        write(read(mlp), tmp_path / "x.csv")
    assert set(FORMATS) == {"pickle", "json", "events", "rmm", "minimalloc"}
