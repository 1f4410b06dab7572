"""make_tensor."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.testing import make_tensor


def make(*shape, **kwargs):
    return make_tensor(*shape, **{"dtype": torch.float32, "device": "cpu", **kwargs})


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.float32, -9, 9), (torch.float64, -9, 9), (torch.bfloat16, -9, 9),
        (torch.int8, -9, 9), (torch.int64, -9, 9), (torch.uint8, 0, 9), (torch.bool, 0, 1),
    ],
)  # fmt: skip
def test_values_fill_the_default_range_of_the_dtype(dtype, low, high):
    x = make(4000, dtype=dtype)
    assert x.dtype is dtype
    least, most = x.double().min().item(), x.double().max().item()
    assert low <= least < low + 0.1
    assert high - 0.1 < most <= high


def test_bounds_and_shapes_are_obeyed():
    x = make((2, 3), dtype=torch.int32, low=3, high=5)
    assert tuple(x.shape) == (2, 3)
    assert set(x.flatten().tolist()) <= {3, 4}
    assert tuple(make(2, 3).shape) == (2, 3)


def test_noncontiguous_elements_stand_apart():
    x = make(4, 6, noncontiguous=True)
    assert x.stride() == (12, 2)
    assert not x.is_contiguous()


def test_zero_can_be_excluded():
    x = make(2000, dtype=torch.int64, exclude_zero=True)
    assert (x != 0).all().item()


def test_gradients_can_be_asked_for():
    assert make(3, requires_grad=True).requires_grad
    with pytest.raises(ValueError, match="requires_grad=True"):
        make(3, dtype=torch.int32, requires_grad=True)


def test_impossible_bounds_and_layouts_are_refused():
    with pytest.raises(ValueError, match="`low` must be less than `high`, but got 5 >= 1"):
        make(3, low=5, high=1)
    with pytest.raises(ValueError, match="exclude each other"):
        make(3, 3, noncontiguous=True, memory_format=torch.contiguous_format)
