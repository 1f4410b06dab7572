"""From samples to batches."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest

import refruntime as torch
from refruntime.utils.data import default_collate, default_convert

Point = namedtuple("Point", "x y")


def test_tensors_and_arrays_are_stacked():
    batch = default_collate([torch.ones(2), torch.zeros(2)])
    assert batch.tolist() == [[1, 1], [0, 0]]
    batch = default_collate([np.ones(2, np.int16), np.zeros(2, np.int16)])
    assert batch.dtype is torch.int16
    assert tuple(batch.shape) == (2, 2)


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ([1, 2], torch.int64), ([1.0, 2.0], torch.float64), ([True, False], torch.bool),
        ([np.float32(1), np.float32(2)], torch.float32), ([np.array(1), np.array(2)], torch.int64),
    ],
)  # fmt: skip
def test_numbers_become_tensors(samples, dtype):
    batch = default_collate(samples)
    assert batch.dtype is dtype
    assert batch.tolist() == [float(s) for s in samples]


def test_texts_stay_lists():
    assert default_collate(["a", "b"]) == ["a", "b"]
    assert default_collate([b"a", b"b"]) == [b"a", b"b"]


def test_containers_keep_their_structure():
    batch = default_collate([{"a": 1, "b": (2.0, "x")}, {"a": 3, "b": (4.0, "y")}])
    assert batch["a"].tolist() == [1, 3]
    assert type(batch["b"]) is list
    assert batch["b"][0].tolist() == [2.0, 4.0]
    assert batch["b"][1] == ["x", "y"]
    points = default_collate([Point(1, 2), Point(3, 4)])
    assert type(points) is Point
    assert points.y.tolist() == [2, 4]


def test_the_type_of_a_mapping_is_kept():
    assert type(default_collate([OrderedDict(a=1), OrderedDict(a=2)])) is OrderedDict
    made = default_collate([defaultdict(list, a=1), defaultdict(list, a=2)])
    assert type(made) is defaultdict
    assert made["a"].tolist() == [1, 2]


def test_what_cannot_be_collated():
    with pytest.raises(TypeError, match="found <class 'object'>"):
        default_collate([object()])
    with pytest.raises(TypeError, match="batch must contain"):
        default_collate([np.array(["a"]), np.array(["b"])])
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([[1, 2], [3]])


def test_conversion_without_batching():
    converted = default_convert({"a": np.ones(2), "b": (np.float64(2), "x"), "c": [None]})
    assert converted["a"].dtype is torch.float64
    assert float(converted["b"][0]) == 2.0
    assert converted["b"][1] == "x"
    assert converted["c"] == [None]
    assert default_convert(Point(np.ones(1), 2)).x.tolist() == [1.0]
