"""Advice is replayed, complete, and the same however it was computed."""

from __future__ import annotations

import pytest

from refruntime import _optional
from refruntime.errors import ArgumentValueError, OptionalDependencyError
from refruntime.lab.advice import OPTIONS, advise, candidates, pareto, smallest_device
from refruntime.lab.replay import CACHING, replay_events, strategies
from refruntime.lab.settings import check_settings
from refruntime.lab.sweep import Task, sweep
from tests.lab.recorded import alloc, events, free

MIB = 1 << 20
GROWING = [record for i in range(8) for record in (alloc(i, (20 + 4 * i) * MIB), free(i))]


def test_every_candidate_is_accepted_and_every_option_is_tried():
    found = list(candidates())
    assert len(found) == len(set(found)) > 100
    for conf in found:
        check_settings(conf)
    for key, values in OPTIONS.items():
        for value in values[1:]:
            assert any(f"{key}:{value}" in conf for conf in found)


def test_the_pareto_set_has_no_member_that_another_beats():
    listed = events(*GROWING)
    outcomes = [replay_events(listed, conf) for conf in list(candidates(False))[::9]]
    front = pareto(outcomes)
    for one in front:
        for other in outcomes:
            fewer = other.peak_reserved_bytes <= one.peak_reserved_bytes
            assert not (fewer and other.upstream_calls < one.upstream_calls)


def test_advice_finds_expandable_segments_for_growing_requests():
    advice = advise(events(*GROWING), jobs=1, confs=["", "expandable_segments:True"])
    best = advice.choices[0]
    assert best.outcome.conf == "expandable_segments:True"
    assert best.outcome.peak_reserved_bytes < advice.baseline.outcome.peak_reserved_bytes
    assert advice.avoiding == ()


def test_advice_names_what_would_have_avoided_a_failure():
    # Three pieces of 30 MiB stay behind in 40 MiB segments; 60 MiB only fit if those can grow.
    records = [alloc(1, 30 * MIB), alloc(2, 30 * MIB), alloc(3, 2 * MIB), free(1), free(2),
               alloc(4, 70 * MIB)]  # fmt: skip
    listed = events(*records, capacity=82 * MIB)
    plain = replay_events(listed)
    advice = advise(
        listed, jobs=1, confs=["", "large_segment_size_mb:64", "expandable_segments:True"]
    )
    assert plain.ooms == advice.baseline.outcome.ooms
    if plain.ooms:
        assert all(replay_events(listed, conf).ooms == 0 for conf in advice.avoiding)


def test_the_smallest_device_serves_the_run_and_a_smaller_one_does_not():
    listed = events(*GROWING)
    outcome = replay_events(listed)
    size = smallest_device(listed, outcome)
    assert replay_events(listed, "", size).ooms == 0
    assert replay_events(listed, "", size - (32 << 20)).ooms > 0


@pytest.mark.parametrize("last", [CACHING, "plain"], ids=["threads", "processes"])
def test_several_at_once_give_the_same_as_one(last):
    tasks = [Task(""), Task("expandable_segments:True"), Task("", 100 * MIB, last)]
    shares = []
    alone = sweep(events(*GROWING), tasks, jobs=1, progress=shares.append)
    spread = sweep(events(*GROWING), tasks, jobs=2)
    assert [each.peak_reserved_bytes for each in alone] == [
        each.peak_reserved_bytes for each in spread
    ]
    assert shares == [1 / 3, 2 / 3, 1.0]


def test_threads_replay_one_list_with_changing_settings_as_one_does():
    change = {"op": "settings", "conf": "max_split_size_mb:30"}
    fraction = {"op": "set_fraction", "fraction": 0.001}
    listed = events(*GROWING[:4], change, *GROWING[4:8], fraction, *GROWING[8:])
    tasks = [Task(f"max_split_size_mb:{size}") for size in range(21, 61)]
    alone = sweep(listed, tasks, jobs=1)
    spread = sweep(listed, tasks, jobs=4)
    assert [each.as_dict() | {"seconds": 0} for each in alone] == [
        each.as_dict() | {"seconds": 0} for each in spread
    ]


def test_a_senseless_setting_ends_a_sweep_on_threads():
    with pytest.raises(ArgumentValueError):
        sweep(events(*GROWING), [Task(""), Task("max_split_size_mb:x"), Task("")], jobs=2)


def test_a_local_cluster_gives_the_same_as_one_process():
    distributed = pytest.importorskip("distributed")
    tasks = [Task(""), Task("expandable_segments:True")]
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        spread = sweep(events(*GROWING), tasks, scheduler=cluster.scheduler_address)
    alone = sweep(events(*GROWING), tasks, jobs=1)
    assert [each.peak_reserved_bytes for each in alone] == [
        each.peak_reserved_bytes for each in spread
    ]


def test_a_cluster_without_dask_says_what_to_install(monkeypatch):
    missing = _optional.Missing("not here", "'refruntime[lab]'", "distributed")
    monkeypatch.setattr(_optional, "distributed", missing, raising=False)
    with pytest.raises(OptionalDependencyError, match=r"refruntime\[lab\]"):
        sweep(events(*GROWING), [Task("")], scheduler="tcp://127.0.0.1:1")


@pytest.mark.parametrize("name", ["caching", "plain", "bfc"])
def test_strategies_serve_the_same_requests(name):
    assert name in strategies()
    outcome = replay_events(events(*GROWING), strategy=name)
    assert outcome.strategy == name
    assert outcome.peak_allocated_bytes >= 48 * MIB


def test_unknown_strategies_and_settings_are_refused():
    with pytest.raises(ArgumentValueError, match="one of"):
        replay_events(events(*GROWING), strategy="magic")
    with pytest.raises(ArgumentValueError, match="nonsense"):
        replay_events(events(*GROWING), "nonsense:1")
