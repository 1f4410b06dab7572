"""Recordings of PyTorch's allocator in `data/extended` and `data/recorded`, event for event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refruntime.alloc.replay import options_of, replay_events
from tests.alloc.extended_player import expected, figures, play, read

DATA = Path(__file__).parent / "data"
EXTENDED = sorted((DATA / "extended").glob("*--*.json.gz"))
RECORDED = sorted((DATA / "recorded").glob("*--*.json.gz"))


def events_of(output: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = read(output.with_name(output.name.split("--")[0] + ".jsonl.gz"))
    return events


def differences(got: dict[str, Any], want: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that differ, each with the first place where they part."""
    plain = json.loads(json.dumps(got))
    return {key: _first(plain[key], want[key]) for key in want if plain[key] != want[key]}


def _first(got: Any, want: Any) -> Any:
    if isinstance(want, dict):
        return {key: (got.get(key), want[key]) for key in want if got.get(key) != want[key]}
    pairs = enumerate(zip(got, want))
    return next(((at, *pair) for at, pair in pairs if pair[0] != pair[1]), (len(got), len(want)))


def ids(outputs: list[Path]) -> list[str]:
    return [output.name.removesuffix(".json.gz") for output in outputs]


@pytest.mark.parametrize("output", EXTENDED, ids=ids(EXTENDED))
def test_extended_lists_go_as_recorded(output: Path) -> None:
    recorded = read(output)
    got, want = play(events_of(output), recorded["meta"]["conf"]), expected(recorded)
    got["messages"], want["messages"] = (
        [figures(message) for message in each["messages"]] for each in (got, want)
    )
    assert differences(got, want) == {}


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("output", RECORDED, ids=ids(RECORDED))
def test_plain_lists_go_as_recorded(output: Path, compiled: bool) -> None:
    recorded = read(output)
    config, *events = events_of(output)
    config |= {key: recorded["meta"][key] for key in ("capacity", "manual_events")}
    got = play([config, *events], recorded["meta"]["conf"], compiled=compiled)
    assert differences(got, expected(recorded)) == {}


@pytest.mark.parametrize("output", RECORDED, ids=ids(RECORDED))
def test_compiled_replay_of_plain_lists_goes_as_recorded(output: Path) -> None:
    recorded = read(output)
    meta = recorded.pop("meta")
    config, *events = events_of(output)
    options = options_of(
        config, conf=meta["conf"], capacity=meta["capacity"], manual_events=meta["manual_events"]
    )
    assert differences(replay_events(events, options), recorded) == {}


def test_the_recordings_are_there() -> None:
    shapes = {output.name.split("-s")[0] for output in EXTENDED}
    assert shapes >= {"capture", "capture_oom", "mempools_oom", "throw", "callbacks", "checkpoints"}
    assert {output.name.split("--")[0] for output in RECORDED} >= {"chaos-s0", "oom-s0"}
