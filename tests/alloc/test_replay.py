"""The replay command: what it takes, what it writes, what it refuses."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refruntime.alloc import replay_loop as loop
from refruntime.alloc.event_list import encode, parse_bytes
from refruntime.alloc.replay import main, options_of, replay_events
from refruntime.errors import ArgumentValueError

MIB = 1 << 20
EVENTS = [
    {"op": "config", "capacity": "64M", "manual_events": True, "shape": "mine", "seed": 3},
    {"op": "alloc", "id": "a", "size": 3 * MIB},
    {"op": "alloc", "id": "b", "size": 30 * MIB, "stream": 2},
    {"op": "record_stream", "id": "b", "stream": 1},
    {"op": "free", "id": "b"},
    {"op": "alloc", "id": "c", "size": 50 * MIB},
    {"op": "free", "id": "c"},
    {"op": "settings", "conf": "expandable_segments:True"},
    {"op": "pool_begin", "pool": 1},
    {"op": "alloc", "id": "a2", "size": 5},
    {"op": "snapshot"},
    {"op": "pool_end", "pool": 1},
    {"op": "free", "id": "a2"},
    {"op": "pool_delete", "pool": 1},
    {"op": "alloc", "id": "z", "size": 0},
    {"op": "reset_peak"},
    {"op": "empty_cache"},
]


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_text("# a comment\n" + "".join(json.dumps(event) + "\n" for event in EVENTS))
    return path


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def test_the_command_writes_everything_that_can_be_compared(
    listed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json.gz"
    assert main([str(listed), str(out)]) == 0
    assert "16 events, 1 OOM" in capsys.readouterr().out
    found = _read(out)
    assert set(found) == {
        "meta", "results", "driver_log", "trace", "snapshot", "stats", "snapshots",
    }  # fmt: skip
    meta = found["meta"]
    assert (meta["capacity"], meta["manual_events"], meta["shape"]) == (64 * MIB, True, "mine")
    results = found["results"]
    assert results[0] == {"seg": 0, "off": 0, "block": 3 * MIB, "st": results[0]["st"]}
    assert results[4]["oom"] and results[5] == {"skip": True, "st": results[5]["st"]}
    assert results[13]["seg"] is None and results[13]["block"] == 0
    assert [number for number, _ in found["snapshots"]] == [9]
    assert ["alloc", 0, 0, 3 * MIB, 0] in found["trace"]
    assert [2, "event_create", 1] not in found["driver_log"]
    assert [3, "event_create", 1] in found["driver_log"]
    assert found["stats"]["num_ooms"] == 1


def test_options_of_the_command_override_those_of_the_list(listed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json.gz"
    options = ["--capacity", "1G", "--conf", "max_split_size_mb:64", "--no-history", "--va"]
    assert main([str(listed), str(out), *options, "firstfit"]) == 0
    found = _read(out)
    assert found["meta"]["n_oom"] == 0 and found["meta"]["capacity"] == 1 << 30
    assert found["stats"]["max_split_size"] == 64 * MIB
    assert found["trace"] == []


def test_digests_stand_in_for_results_and_history(listed: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "out.json.gz", tmp_path / "whole.json.gz"
    assert main([str(listed), str(out), "--digest", "10"]) == 0
    found = _read(out)
    assert "results" not in found and "trace" not in found
    assert [len(digest) for digest in found["digests"]] == [16, 16]
    assert main([str(listed), str(whole), "--digest", "1000"]) == 0
    assert len(_read(whole)["digests"]) == 1


def test_texts_of_failures_are_kept_if_asked(listed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json.gz"
    assert main([str(listed), str(out), "--messages"]) == 0
    ((event, text),) = _read(out)["messages"]
    assert event == 4
    figures = ["50.00 MiB", "64.00 MiB", "is free", "3.00 MiB is allocated", "is reserved"]
    assert [text.find(figure) for figure in figures] == sorted(map(text.find, figures))
    assert all(figure in text for figure in figures)


def test_bench_prints_nanoseconds_an_event(
    listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(listed), "--bench", "--runs", "1"]) == 0
    assert "ns/event, 1 OOM" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("not json", 'line 1: expected a JSON object with an "op"'),
        ('{"id": 1}', 'expected a JSON object with an "op"'),
        ('{"op": "dance"}', "event 0: expected one of alloc"),
        ('{"op": "alloc", "id": 1}', "expected a value for 'size'"),
        ('{"op": "alloc", "id": 1, "size": 5, "stream": 99}', "stream: expected a number from 0"),
        ('{"op": "alloc", "id": 1, "size": -5}', "expected a size of 0 bytes or more"),
        ('{"op": "alloc", "id": 1, "size": "big"}', "expected a size of 0 bytes or more"),
        ('{"op": ["alloc"]}', "event 0: expected one of alloc"),
        ('{"op": "alloc", "id": [1], "size": 5}', "event 0: expected values of the right types"),
        ('{"op": "pool_begin", "pool": [1, 2]}', "event 0: expected values of the right types"),
        ('{"op": "sync_stream", "stream": "x"}', "expected values of the right types"),
        ('{"op": "set_fraction", "fraction": "half"}', "expected values of the right types"),
        ('{"op": "settings", "conf": 3}', "expected values of the right types"),
        ('{"op": "set_foreign", "bytes": "many"}', "expected values of the right types"),
        ('{"op": "set_foreign", "bytes": 1e30}', "expected values of the right types"),
        ('{"op": "set_foreign", "bytes": 36893488147419103232}', "expected numbers of 64 bits"),
    ],
)
def test_a_bad_list_gets_one_clear_line(
    line: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line + "\n")
    assert main([str(path), str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert complaint in message and message.count("\n") == 1


def test_what_is_not_there_or_cut_off_is_refused(
    listed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nothing.jsonl"), "out"]) == 2
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(listed.read_bytes())[:-12])
    assert main([str(cut), "out"]) == 2
    noise = tmp_path / "snapshot.pickle"
    noise.write_bytes(bytes(range(128, 256)))
    assert main([str(noise), "out"]) == 2
    assert main([str(listed), "out", "--conf", "no_such_key:1"]) == 2
    assert main([str(listed), "out", "--capacity", "lots"]) == 2
    assert capsys.readouterr().err.count("replay: ") == 5


def test_a_rejected_settings_text_keeps_what_stands_before_the_fault() -> None:
    events = [
        {"op": "settings", "conf": "max_split_size_mb:64,garbage_collection_threshold:7"},
        {"op": "alloc", "id": 1, "size": 100 * MIB},
        {"op": "free", "id": 1},
        {"op": "alloc", "id": 2, "size": 30 * MIB},
    ]
    found = replay_events(events, options_of({}))
    assert [result.get("seg") for result in found["results"]] == [None, 0, None, 1]


def test_interpreted_and_compiled_replay_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(EVENTS[0])
    compiled = replay_events(EVENTS[1:], options)
    monkeypatch.setattr(loop.run, "entry", loop.run.py_func)
    interpreted = replay_events(EVENTS[1:], options)
    del compiled["meta"]["seconds"], interpreted["meta"]["seconds"]
    assert interpreted == compiled


def test_tables_grow_in_the_middle_of_a_list() -> None:
    events = [{"op": "alloc", "id": i, "size": 512 * (1 + i % 9)} for i in range(3000)]
    events += [{"op": "free", "id": i} for i in range(0, 3000, 2)]
    found = replay_events(events, options_of({}, conf="expandable_segments:True"))
    assert found["stats"]["allocation.all.current"] == 1500
    assert len(found["trace"]) == 3000 + 2 * 1500 + found["stats"]["num_device_alloc"]


def test_sizes_are_read_with_their_units() -> None:
    assert [parse_bytes(text) for text in ("80G", "1.5M", "4096", 7)] == [
        80 << 30, 3 << 19, 4096, 7,
    ]  # fmt: skip
    with pytest.raises(ArgumentValueError):
        parse_bytes("ten")


def test_names_may_be_used_again() -> None:
    events = [{"op": "alloc", "id": 1, "size": 5}, {"op": "free", "id": 1}] * 2
    assert encode(events, options_of({}).configuration()).names == 1


def test_the_module_runs_as_a_command(listed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "refruntime.alloc.replay", str(listed), str(tmp_path / "out")],
        capture_output=True, text=True, env=os.environ, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
