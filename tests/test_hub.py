"""Weights from an address: fetched once, checked, kept."""

from __future__ import annotations

import hashlib

import pytest

import refruntime as torch
from refruntime.errors import ArgumentValueError


@pytest.fixture
def weights(tmp_path):
    """The address and checksum of a file of weights."""
    torch.save({"w": torch.ones(2)}, tmp_path / "made.pth")
    checksum = hashlib.sha256((tmp_path / "made.pth").read_bytes()).hexdigest()[:8]
    named = tmp_path / f"net-{checksum}.pth"
    (tmp_path / "made.pth").rename(named)
    return named


def test_weights_are_fetched_once_and_checked(weights, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.hub, "_folder", None)
    torch.hub.set_dir(tmp_path / "hub")
    address = weights.as_uri()
    state = torch.hub.load_state_dict_from_url(address, check_hash=True)
    assert state["w"].tolist() == [1.0, 1.0]
    assert "Downloading" in capsys.readouterr().out
    kept = tmp_path / "hub" / "checkpoints" / weights.name
    assert kept.exists()
    weights.unlink()
    assert torch.hub.load_state_dict_from_url(address)["w"].tolist() == [1.0, 1.0]


def test_wrong_checksum_leaves_no_file(weights, tmp_path):
    target = tmp_path / "copy.pth"
    with pytest.raises(ArgumentValueError, match="hash"):
        torch.hub.download_url_to_file(weights.as_uri(), str(target), "00", progress=False)
    assert list(tmp_path.iterdir()) == [weights]


def test_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "_folder", None)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert torch.hub.get_dir() == str(tmp_path / "hub")
