"""The command line: subcommands, what they print, and how they fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from refruntime import cli
from refruntime.config import KNOBS


def test_info_lists_every_knob_with_its_environment_variable(capsys):
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    for knob in KNOBS:
        assert knob.name in text
        assert knob.env in text


def test_info_json_is_one_object_with_versions_and_packages(capsys):
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["python"] == sys.version.split()[0]
    assert {row["name"] for row in facts["core"]} == set(cli.CORE_PACKAGES)
    assert {row["name"] for row in facts["optional"]} >= {"cupy", "mpi4py"}


def test_info_says_how_to_install_what_is_missing(monkeypatch, capsys):
    from refruntime import _optional

    monkeypatch.setitem(_optional.PACKAGES, "absent", ("no_such_package_here", "the-extra"))
    cli.main(["info"])
    line = next(row for row in capsys.readouterr().out.splitlines() if "absent" in row)
    assert "not installed: pip install the-extra" in line


def test_info_reports_a_setting_taken_from_the_environment():
    done = subprocess.run(
        [sys.executable, "-m", "refruntime", "info"],
        capture_output=True, text=True, env={**os.environ, "REFRUNTIME_NUM_THREADS": "3"},
        timeout=120, check=True,
    )  # fmt: skip
    line = next(row for row in done.stdout.splitlines() if "REFRUNTIME_NUM_THREADS" in row)
    assert line.split()[:3] == ["num_threads", "3", "environment"]


def test_no_command_prints_help_and_fails(capsys):
    assert cli.main([]) == 2
    text = capsys.readouterr().out
    assert all(command in text for command in ("run", "info", "demo"))


def test_unknown_command_is_named(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["fly"])
    assert stop.value.code == 2
    assert "fly" in capsys.readouterr().err


def test_demo_arguments_reach_the_demo_unread(monkeypatch):
    import refruntime.demo

    seen = []
    monkeypatch.setattr(refruntime.demo, "main", lambda args: seen.extend(args) or 5)
    assert cli.main(["demo", "--out", "somewhere", "--help"]) == 5
    assert seen == ["--out", "somewhere", "--help"]


def test_run_help_explains_both_forms(capsys):
    assert cli.main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    assert "SCRIPT" in text and "-m MODULE" in text
