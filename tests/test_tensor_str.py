"""Tensors as text, against what PyTorch 2.13 printed (``golden/printed_tensors.json``)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import refruntime as torch
from refruntime import _tensor_str
from refruntime._tensor_str import PrintOptions, append_suffixes, format_array

CASES = json.loads((Path(__file__).parent / "golden" / "printed_tensors.json").read_text())


@pytest.fixture(autouse=True)
def default_options():
    with _tensor_str.printoptions(profile="default"):
        yield


@pytest.mark.parametrize("case", CASES, ids=[case["expression"] for case in CASES])
def test_prints_as_pytorch_does(case):
    torch.set_printoptions(**case["options"])
    names = {"torch": torch, "nan": float("nan"), "inf": float("inf")}
    assert repr(eval(case["expression"], names)) == case["text"]


def test_only_the_edges_of_a_large_tensor_are_converted():
    values = np.zeros((4000, 4000), np.float32)
    values[2000, 2000] = 1e30  # would change the format if it were read
    assert format_array(values, 0).count("0.") == 36


def test_a_profile_is_a_starting_point_for_single_options():
    torch.set_printoptions(profile="short", linewidth=50)
    assert _tensor_str.get_printoptions() == {
        "precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 50, "sci_mode": None,
    }  # fmt: skip


def test_an_unknown_profile_is_refused_and_nothing_changes():
    before = _tensor_str.get_printoptions()
    with pytest.raises(ValueError, match="'default', 'short' or 'full'"):
        torch.set_printoptions(profile="long", precision=1)
    assert _tensor_str.get_printoptions() == before


def test_options_of_a_call_do_not_touch_those_of_the_process():
    assert format_array(np.array([0.125]), 0, PrintOptions(precision=1)) == "[0.1]"
    assert format_array(np.array([0.125]), 0) == "[0.1250]"


def test_suffixes_go_to_a_new_line_when_they_do_not_fit():
    assert append_suffixes("tensor([1]", ["dtype=x"], 7, 80) == "tensor([1], dtype=x)"
    assert append_suffixes("tensor([1]", ["dtype=x"], 7, 15) == "tensor([1],\n       dtype=x)"


def test_a_subclass_prints_under_its_own_name():
    class Mine(torch.Tensor):
        pass

    assert repr(torch.tensor([1]).as_subclass(Mine)) == "Mine([1])"


def test_printing_neither_records_nor_counts_as_a_write():
    x = torch.ones(3, requires_grad=True) * 2
    version = x._version
    repr(x)
    assert x._version == version
    x.sum().backward()
