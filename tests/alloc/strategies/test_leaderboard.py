"""The leaderboard tells the truth, and the claims of its page hold on the runs at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "alloc"


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BENCH / "results.json").read_text())["runs"]
    return found


def fragmentation(run: dict[str, Any], strategy: str) -> float:
    live: int = run["peak_live"]
    reserved: int = run["strategies"][strategy]["peak_reserved"]
    return 1 - live / reserved


def test_figures_of_the_small_runs_and_the_page_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "leaderboard.py"), "--check", "--runs", "mlp,resnet18"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_run_was_served_by_every_strategy(runs: dict[str, Any]) -> None:
    served = [set(run["strategies"]) for run in runs.values()]
    assert len(runs) >= 5
    assert all(names == served[0] for names in served)


def test_nobody_reserves_less_than_lives_unless_requests_failed(runs: dict[str, Any]) -> None:
    for run in runs.values():
        for figures in run["strategies"].values():
            assert figures["peak_reserved"] >= run["peak_live"] or figures["ooms"]


def test_stitching_removes_at_least_15_points_where_they_are_there(runs: dict[str, Any]) -> None:
    wasteful = [run for run in runs.values() if fragmentation(run, "caching") > 0.15]
    gains = [
        fragmentation(run, "caching") - fragmentation(run, "gmlake-top-up") for run in wasteful
    ]
    assert len(gains) >= 3
    assert sum(gains) / len(gains) >= 0.15
    assert max(gains) >= 0.33


def test_planning_a_known_run_removes_nearly_all_fragmentation(runs: dict[str, Any]) -> None:
    before = [fragmentation(run, "caching") for run in runs.values()]
    after = [fragmentation(run, "stalloc-whole-run") for run in runs.values()]
    assert 1 - sum(after) / sum(before) >= 0.792


def test_planning_rounds_removes_all_where_a_run_repeats(runs: dict[str, Any]) -> None:
    repeating = [run for run in runs.values() if not run["strategies"]["stalloc"].get("unplanned")]
    assert len(repeating) >= 2
    assert all(fragmentation(run, "stalloc") < 0.01 for run in repeating)
