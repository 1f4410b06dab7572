"""Files of every kind become recordings, and what they lack is said."""

from __future__ import annotations

import gzip
import json
import os
import pickle

import numpy as np
import pytest

from refruntime.errors import ArgumentValueError
from refruntime.lab import recording as rec
from refruntime.lab.readers import read

FRAME = {"name": "step", "filename": "train.py", "line": 7}
SEGMENT = {
    "device": 1, "address": 4096, "total_size": 2097152, "stream": 3, "segment_type": "small",
    "segment_pool_id": (0, 5), "is_expandable": False,
    "blocks": [
        {"address": 4096, "size": 512, "requested_size": 8, "state": "active_allocated",
         "frames": [FRAME]},
        {"address": 4608, "size": 1024, "requested_size": 9, "state": "active_pending_free",
         "frames": []},
        {"address": 5632, "size": 2095616, "requested_size": 0, "state": "inactive", "frames": []},
    ],
}  # fmt: skip
TRACE = [
    {"action": "alloc", "addr": 4096, "size": 8, "stream": 3, "time_us": 5, "frames": [FRAME]},
    {"action": "oom", "device_free": 77, "size": 512, "stream": 0, "time_us": 6, "frames": []},
    {"action": "brand_new", "addr": 1, "size": 2, "stream": 0, "time_us": 7, "frames": [FRAME]},
]


def snapshot(**changes):
    return {
        "segments": [SEGMENT],
        "device_traces": [[], TRACE],
        "allocator_settings": {},
        **changes,
    }


def written(tmp_path, value, kind="pickle", protocol=4):
    path = tmp_path / f"x.{kind}"
    path.write_bytes(
        pickle.dumps(value, protocol) if kind == "pickle" else json.dumps(value).encode()
    )
    return path


@pytest.mark.parametrize("kind", ["pickle", "json"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_snapshot_is_read_in_either_encoding(tmp_path, kind, zipped):
    path = written(tmp_path, snapshot(), kind)
    if zipped:
        path.write_bytes(gzip.compress(path.read_bytes()))
    recording = read(path)
    (device,) = recording.devices
    assert device.index == 1
    assert device.events.action.tolist() == [rec.ALLOC, rec.OOM, rec.OTHER]
    assert device.events.addr.tolist() == [4096, 77, 1]
    assert list(recording.stack_frames(int(device.events.stack[0]))) == [("train.py", 7, "step")]
    assert list(recording.stack_frames(int(device.events.stack[1]))) == []
    assert recording.pools[int(device.segments.pool[0])] == (0, 5)
    assert device.blocks.state.tolist() == [rec.ALLOCATED, rec.PENDING, rec.INACTIVE]
    assert device.blocks.requested.tolist() == [8, 9, 0]


def test_missing_keys_are_tolerated_and_missing_settings_noted(tmp_path):
    trace = [{"action": "alloc", "addr": 1}, {"action": "free_completed", "addr": 1, "size": 4}]
    recording = read(written(tmp_path, {"device_traces": [trace]}))
    assert recording.devices[0].events.size.tolist() == [0, 4]
    assert any("settings" in note for note in recording.notes)


def test_block_addresses_follow_from_sizes_where_a_version_has_none(tmp_path):
    blocks = [{key: block[key] for key in ("size", "state")} for block in SEGMENT["blocks"]]
    blocks[0]["history"] = [{"addr": 4096, "real_size": 8, "frames": [FRAME]}]
    recording = read(written(tmp_path, [{**SEGMENT, "blocks": blocks}]))
    (device,) = recording.devices
    assert device.blocks.address.tolist() == [4096, 4608, 5632]
    assert device.blocks.requested.tolist()[0] == 8
    assert list(recording.stack_frames(int(device.blocks.stack[0]))) == [("train.py", 7, "step")]
    assert any("no trace" in note for note in recording.notes)


def test_settings_are_given_back_as_text(tmp_path):
    table = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": 128 << 20,
             "garbage_collection_threshold": 0.8, "expandable_segments": True,
             "roundup_power2_divisions": {"1": 4, "2": 4}}  # fmt: skip
    recording = read(written(tmp_path, snapshot(allocator_settings=table)))
    assert recording.settings_text == (
        "max_split_size_mb:128,garbage_collection_threshold:0.8,expandable_segments:True,"
        "roundup_power2_divisions:4"
    )


def test_an_rmm_log_is_read_by_the_names_of_its_columns(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(
        "Thread,Time,Action,Pointer,Size,Stream\n"
        "1,10:00:01.000002,allocate,0x7f00,1024,2\n"
        "1,10:00:01:000003,allocate failure,0x0,99,0\n"
        "1,10:00:02.5,free,0x7f00,1024,2\n"
    )
    events = read(path).devices[0].events
    assert events.action.tolist() == [rec.ALLOC, rec.OOM, rec.FREE_REQUESTED, rec.FREE_COMPLETED]
    assert events.size.tolist() == [1024, 99, 1024, 1024]
    assert np.diff(events.time_us).tolist() == [1, 1_499_997, 0]


def test_buffers_end_before_others_begin_at_the_same_time(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("id,lower,upper,size\na,0,5,10\nb,5,9,20\n")
    events = read(path).devices[0].events
    assert events.action.tolist()[:4] == [
        rec.ALLOC, rec.FREE_REQUESTED, rec.FREE_COMPLETED, rec.ALLOC
    ]  # fmt: skip


def test_an_event_list_keeps_its_operations_and_its_device(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(
        '# a comment\n{"op":"config","capacity":"2G","conf":"","manual_events":true}\n'
        '{"op":"alloc","id":1,"size":512}\n{"op":"complete"}\n{"op":"free","id":1}\n'
    )
    recording = read(path)
    assert recording.capacity == 2 << 30
    assert [record["op"] for record in recording.script.records()] == [
        "config", "alloc", "complete", "free"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"hello world\n1,2\n", "no known format"),
        (b'{"op":"alloc","id":1}\n{broken\n', "line 2"),
        (b'{"op":"dance"}\n', "dance"),
        (b'{"a": 1}', "no segments or traces"),
        (pickle.dumps(5), "no dict"),
        (b"id,lower,upper,size\n1,5,5,1\n", "line 2"),
        (b"Thread,Time,Action,Pointer,Size,Stream\n1,x,allocate,1,1,1\n", "line 2"),
        (b"\x1f\x8b\x08 broken", "broken"),
    ],
)
def test_what_is_no_recording_is_one_error_that_names_the_file(tmp_path, content, words):
    path = tmp_path / "some_file"
    path.write_bytes(content)
    with pytest.raises(ArgumentValueError, match=words) as caught:
        read(path)
    assert "some_file" in str(caught.value)


def test_a_missing_file_is_the_same_kind_of_error(tmp_path):
    with pytest.raises(ArgumentValueError, match="No such file"):
        read(tmp_path / "nothing.pickle")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArgumentValueError, match="not a regular file"):
        read(tmp_path / "pipe")


def test_a_cut_gzip_is_an_error(tmp_path, mlp):
    path = tmp_path / "x.pickle.gz"
    path.write_bytes(mlp.read_bytes()[:5000])
    with pytest.raises(ArgumentValueError, match="cut off"):
        read(path)


def test_progress_rises_to_one(mlp):
    shares = []
    read(mlp, shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_our_own_snapshots_are_read(tmp_path):
    from refruntime.alloc import CachingAllocator, VirtualUpstream, dump

    allocator = CachingAllocator(VirtualUpstream(1 << 30))
    allocator.record(stacks=True)
    address = allocator.malloc(5000)
    allocator.malloc(3 << 20)
    allocator.free(address)
    dump(allocator.snapshot(), tmp_path / "own.pickle")
    recording = read(tmp_path / "own.pickle")
    (device,) = recording.devices
    assert device.events.count(rec.ALLOC) == 2
    assert device.reserved_bytes == allocator.reserved_bytes
    assert len(recording.categories) > 1
    assert any("test_readers.py" in frame[0] for frame in recording.frames)
