"""Another size in place: what stays, when memory grows, what is refused."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.errors import AutogradError, ShapeError


def test_elements_stay_in_memory_order():
    x = torch.arange(6)
    storage = x.untyped_storage()
    assert x.resize_(2, 2).tolist() == [[0, 1], [2, 3]]
    assert x.resize_((3, 2)).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert x.untyped_storage() is storage
    assert x.resize_(10)[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert x.shape == (10,)
    assert torch.arange(4).resize_as_(torch.zeros(2, 2)).shape == (2, 2)


def test_transposed_tensor_becomes_row_major():
    assert torch.arange(6).reshape(2, 3).t().resize_(6).tolist() == [0, 1, 2, 3, 4, 5]


def test_growth_is_refused_where_memory_is_shared():
    x = torch.zeros(2)
    with pytest.raises(ShapeError, match="cannot grow"):
        x[:1].resize_(5)
    x.data_ptr()
    with pytest.raises(ShapeError, match="cannot grow"):
        x.resize_(5)
    with pytest.raises(AutogradError):
        torch.zeros(2, requires_grad=True).resize_(1)


def test_resizing_counts_as_a_write():
    x = torch.zeros(2)
    before = x._version
    assert x.resize_(1)._version == before + 1


def test_dimensions_in_another_memory_order():
    x = torch.empty_permuted((2, 3, 5), (0, 2, 1))
    assert x.stride() == (15, 1, 3)
    with pytest.raises(ShapeError):
        torch.empty_permuted((2, 3), (0, 0))
