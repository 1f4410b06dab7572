from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.autograd import gradcheck, gradgradcheck

NAN = float("nan")


def test_dtype_of_sums_follows_the_operand():
    assert torch.ones(3, dtype=torch.int32).sum().dtype is torch.int64
    assert torch.ones(3, dtype=torch.bool).sum().dtype is torch.int64
    assert torch.ones(3, dtype=torch.float16).sum().dtype is torch.float16
    assert torch.ones(3).sum(dtype=torch.float64).dtype is torch.float64
    assert torch.tensor([1.7, 1.7]).sum(dtype=torch.int64).item() == 2


def test_an_empty_tuple_of_dimensions_reduces_all():
    x = torch.arange(6.0).reshape(2, 3)
    assert x.sum(dim=()).item() == 15
    assert x.sum(dim=(), keepdim=True).shape == (1, 1)


def test_duplicate_dimensions_are_refused():
    with pytest.raises(RuntimeError, match="appears multiple times"):
        torch.ones(2, 3).sum((0, -2))


def test_zero_dim_tensors_take_dimension_zero():
    x = torch.tensor(3.0)
    assert x.sum(0).item() == x.mean(-1).item() == x.prod(0).item() == 3.0


def test_the_gradient_of_a_full_sum_is_a_view_of_one_number():
    x = torch.ones(1000, 1000, requires_grad=True)
    (g,) = torch.autograd.grad(x.sum(), x)
    assert g.shape == x.shape
    assert (g == 1).all()


def test_products_with_zeros_have_derivatives_of_both_orders():
    values = [[2.0, 0.0, 3.0], [0.0, 0.0, 1.5], [1.0, 2.0, -1.0]]
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: x.prod(1), [x])
    assert gradgradcheck(lambda x: x.prod(1), [x])
    assert gradcheck(lambda x: x.prod(), [x])


def test_nan_is_skipped_by_nansum_and_nanmean():
    x = torch.tensor([[1.0, NAN, 3.0], [NAN, NAN, NAN]], requires_grad=True)
    assert x.nansum(1).tolist() == [4.0, 0.0]
    means = x.nanmean(1)
    assert means[0].item() == 2.0 and np.isnan(means[1].item())
    x.nansum().backward()
    assert x.grad.tolist() == [[1, 0, 1], [0, 0, 0]]


def test_any_and_all_of_nothing():
    empty = torch.zeros(0, 2, dtype=torch.bool)
    assert not empty.any() and empty.all()
    assert empty.any(0).tolist() == [False, False] and empty.all(0).tolist() == [True, True]
    assert torch.ones(2, dtype=torch.uint8).all().dtype is torch.uint8


def test_counting_takes_nan_as_not_zero():
    assert torch.count_nonzero(torch.tensor([0.0, NAN, -1.0])).item() == 2
