"""The leak guard."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.testing import MemoryLeakError, assert_no_leak


def test_temporaries_are_no_leak():
    with assert_no_leak():
        x = torch.ones(1000)
        (x * 2 + 1).sum()
        del x


def test_reference_cycles_are_no_leak():
    class Cell:
        pass

    with assert_no_leak():
        cell = Cell()
        cell.own, cell.tensor = cell, torch.ones(1000)
        del cell


def test_what_stays_is_reported_with_its_size():
    kept = []
    text = r"1 blocks \(\d+ bytes\) are still in use"
    with pytest.raises(MemoryLeakError, match=text), assert_no_leak():
        kept.append(torch.ones(1000))
    assert kept[0].sum().item() == 1000


def test_blocks_can_be_allowed():
    with assert_no_leak(allowed_blocks=1):
        kept = torch.ones(3)
    assert kept.numel() == 3


def test_an_exception_is_not_hidden():
    with pytest.raises(KeyError), assert_no_leak():
        raise KeyError
