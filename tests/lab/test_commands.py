"""``refruntime lab``: what it prints, its JSON, and how it fails."""

from __future__ import annotations

import json
import shutil

import pytest

from refruntime import cli

REPLAY_KEYS = {
    "peak_allocated_bytes", "peak_reserved_bytes", "ooms", "retries", "upstream_calls",
    "segment_event_mismatches", "recorded_peak_reserved_bytes",
}  # fmt: skip


def run(capsys, *arguments, status=0):
    assert cli.main(["lab", *map(str, arguments)]) == status
    return capsys.readouterr()


def test_replay_gives_the_recorded_peak_as_json(capsys, mlp):
    result = json.loads(run(capsys, "replay", mlp, "--json").out)
    assert set(result) >= REPLAY_KEYS
    assert result["peak_reserved_bytes"] == result["recorded_peak_reserved_bytes"] == 574619648
    assert result["segment_event_mismatches"] == 0


def test_replay_under_other_settings_has_nothing_to_compare_with(capsys, mlp):
    result = json.loads(
        run(capsys, "replay", mlp, "--conf", "expandable_segments:True", "--json").out
    )
    assert set(result) >= REPLAY_KEYS
    assert result["recorded_peak_reserved_bytes"] is None
    assert result["conf"] == "expandable_segments:True"


def test_a_directory_gives_a_list_and_a_broken_file_does_not_stop_it(capsys, mlp, tmp_path):
    for name in ("a.pickle.gz", "b.pickle.gz"):
        shutil.copy(mlp, tmp_path / name)
    (tmp_path / "c.pickle").write_bytes(b"\x80\x04 broken")
    (tmp_path / "notes.txt").write_text("no recording")
    output = run(capsys, "replay", tmp_path, "--json", status=2)
    assert [row["segment_event_mismatches"] for row in json.loads(output.out)] == [0, 0]
    assert "c.pickle" in output.err and "Traceback" not in output.err


@pytest.mark.parametrize("command", ["inspect", "replay", "autopsy"])
def test_text_and_json_of_each_command(capsys, mlp, command):
    assert "mlp.pickle.gz" in run(capsys, command, mlp).out
    assert json.loads(run(capsys, command, mlp, "--json").out)["file"] == str(mlp)


def test_inspect_shows_waste_bounds_and_lines(capsys, mlp):
    result = json.loads(run(capsys, "inspect", mlp, "--json").out)
    assert result["bounds"]["packed_bytes"] >= result["bounds"]["peak_live_bytes"] > 0
    waste = result["waste_at_peak"]
    assert waste["reserved_bytes"] == waste["requested_bytes"] + sum(waste["waste_bytes"].values())
    assert result["events"]["alloc"] == 826


def test_autopsy_of_a_supposed_request(capsys, mlp):
    result = json.loads(run(capsys, "autopsy", mlp, "--request", "100M", "--json").out)
    (request,) = result["requests"]
    assert request["size"] == 100 << 20
    assert request["remedy_bytes"] == sum(pin["size"] for pin in request["remedy"])


def test_diff_and_convert(capsys, mlp, resnet, tmp_path):
    result = json.loads(run(capsys, "diff", mlp, resnet, "--json").out)
    assert result["peaks"]["peak_reserved_bytes"] == [574619648, 3028287488]
    assert "after" in run(capsys, "diff", mlp, resnet).out
    run(capsys, "convert", mlp, tmp_path / "x.jsonl")
    again = json.loads(run(capsys, "replay", tmp_path / "x.jsonl", "--json").out)
    assert again["peak_reserved_bytes"] == 574619648
    assert again["recorded_peak_reserved_bytes"] is None


def test_a_gate_holds_within_its_limit_and_fails_beyond(capsys, mlp, resnet, tmp_path):
    assert "ok" in run(capsys, "gate", mlp, mlp, "--peak-reserved", "+1%").out
    assert "FAIL" in run(capsys, "gate", mlp, resnet, "--peak-reserved", "+1%", status=1).out
    assert "ok" in run(capsys, "gate", mlp, "--peak-reserved", "1G", "--peak-allocated", "1G").out
    saved = tmp_path / "base.json"
    saved.write_text(run(capsys, "replay", mlp, "--json").out)
    assert "ok" in run(capsys, "gate", saved, mlp, "--peak-reserved", "+0%").out
    run(capsys, "gate", saved, resnet, "--peak-reserved", "+512M", status=1)


def test_a_gate_over_directories_pairs_files_by_name(capsys, mlp, resnet, tmp_path):
    for folder, source in (("before", mlp), ("after", resnet)):
        (tmp_path / folder).mkdir()
        shutil.copy(source, tmp_path / folder / "run.pickle.gz")
    arguments = (
        "gate",
        tmp_path / "before",
        tmp_path / "after",
        "--peak-reserved",
        "+1%",
        "--json",
    )
    (row,) = json.loads(run(capsys, *arguments, status=1).out)
    assert (row["file"], row["holds"]) == ("run.pickle.gz", False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "nowhere.pickle"], "nowhere.pickle"),
        (["gate", "FILE"], "--peak-reserved"),
        (["gate", "FILE", "--peak-reserved", "+1%"], "no baseline"),
        (["gate", "FILE", "--peak-reserved", "much"], "much"),
        (["replay", "FILE", "--conf", "max_split_size_mb:1"], "max_split_size_mb"),
        (["replay", "FILE", "--device", "7"], "no such device"),
        (["autopsy", "FILE", "--request", "-3"], "size"),
    ],
)
def test_what_is_wrong_is_one_line(capsys, mlp, arguments, words):
    arguments = [str(mlp) if each == "FILE" else each for each in arguments]
    output = run(capsys, *arguments, status=2)
    assert words in output.err
    assert output.err.startswith("refruntime lab: ") and output.err.count("\n") == 1
    assert output.out == ""


def test_advise_prints_settings_that_can_be_pasted(capsys, mlp):
    result = json.loads(run(capsys, "advise", mlp, "--jobs", "1", "--json").out)
    assert result["tried"] > 50
    best = result["choices"][0]
    assert best["peak_reserved_bytes"] <= result["baseline"]["peak_reserved_bytes"]
    assert best["smallest_device_bytes"] > 0
    replayed = json.loads(run(capsys, "replay", mlp, "--conf", best["conf"], "--json").out)
    assert replayed["peak_reserved_bytes"] == best["peak_reserved_bytes"]


def test_a_cluster_works_on_the_files_of_a_directory(capsys, mlp, tmp_path):
    distributed = pytest.importorskip("distributed")
    for name in ("a.pickle.gz", "b.pickle.gz"):
        shutil.copy(mlp, tmp_path / name)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        rows = json.loads(run(capsys, "replay", tmp_path, "--scheduler", address, "--json").out)
    assert [row["segment_event_mismatches"] for row in rows] == [0, 0]
