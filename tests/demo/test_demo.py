"""``refruntime demo``: what it prints, writes and reaches."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from refruntime.demo import digits, main

FIELDS = {
    "accuracy", "seconds", "epochs", "peak_allocated_bytes", "peak_reserved_bytes", "strategies",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "new"
    # A process of its own: what other tests keep alive would count into the run's peaks.
    command = [sys.executable, "-m", "refruntime", "demo", "--out", str(folder), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def test_the_numbers_are_written(folder):
    numbers = json.loads((folder / "demo.json").read_text())
    assert set(numbers) == FIELDS
    assert numbers["accuracy"] > 0.85
    assert 0 < numbers["peak_allocated_bytes"] <= numbers["peak_reserved_bytes"]
    by_name = {result["name"]: result for result in numbers["strategies"]}
    assert set(by_name) == {"caching", "plain"}
    assert by_name["caching"]["upstream_calls"] < by_name["plain"]["upstream_calls"] / 100
    assert by_name["caching"]["peak_allocated_bytes"] == by_name["plain"]["peak_allocated_bytes"]


def test_the_replay_under_the_own_strategy_gives_the_peaks_of_the_run(folder):
    numbers = json.loads((folder / "demo.json").read_text())
    caching = next(r for r in numbers["strategies"] if r["name"] == "caching")
    assert caching["peak_allocated_bytes"] == numbers["peak_allocated_bytes"]


def test_the_report_shows_every_category_of_training(folder):
    page = (folder / "report.html").read_text()
    for name in ("parameters", "optimizer state", "gradients", "saved for backward"):
        assert name in page
    assert "loss and backward" in page
    assert 'id="segments-chart"' in page


def test_the_last_fifth_is_the_test_set():
    train, test = digits.load_digits()
    assert (len(train), len(test)) == (1438, 359)
    image, label = test[0]
    assert tuple(image.shape) == (1, 8, 8)
    assert image.min().item() >= 0
    assert image.max().item() == 1.0
    assert 0 <= label.item() <= 9


def test_the_images_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    train, test = digits.load_digits()
    for index in (0, 700, 1437):
        image, label = train[index]
        assert (image[0] * 16).tolist() == theirs.images[index].tolist()
        assert label.item() == theirs.target[index]
    assert test[0][1].item() == theirs.target[1438]


@pytest.mark.parametrize("epochs", ["0", "-1", "many"])
def test_impossible_epochs_are_refused(epochs, capsys):
    with pytest.raises(SystemExit):
        main(["--epochs", epochs])
    assert "--epochs" in capsys.readouterr().err


@pytest.mark.slow
def test_the_network_learns_to_read(tmp_path):
    assert main(["--out", str(tmp_path)]) == 0
    numbers = json.loads((tmp_path / "demo.json").read_text())
    assert numbers["accuracy"] >= 0.97
    assert numbers["seconds"] < 120
