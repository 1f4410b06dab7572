from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.autograd import gradcheck, gradgradcheck


def double(*shape):
    rng = np.random.default_rng(len(shape))
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


def test_every_way_to_ask_for_a_correction():
    x = torch.tensor([1.0, 2.0, 4.0])
    assert x.var(False).item() == x.var(unbiased=False).item() == x.var(correction=0).item()
    assert x.var(0, True).item() == x.var().item() == x.var(correction=1).item()
    assert x.var(correction=2).item() == pytest.approx(x.var().item() * 2)


def test_one_element_has_no_unbiased_variance():
    assert np.isnan(torch.ones(1).var().item())
    assert torch.ones(1).var(correction=0).item() == 0


def test_pairs_of_spread_and_mean():
    x = torch.arange(6.0).reshape(2, 3)
    var, mean = torch.var_mean(x, 1)
    std, same = torch.std_mean(x, 1, keepdim=True)
    assert var.tolist() == [1, 1] and mean.tolist() == [1, 4]
    assert std.shape == same.shape == (2, 1)


def test_both_outputs_of_var_mean_have_derivatives():
    assert gradcheck(lambda x: torch.var_mean(x, 1), [double(3, 4)])
    assert gradgradcheck(lambda x: torch.var_mean(x, 1), [double(3, 4)])


def test_the_gradient_of_a_spread_of_equals_is_zero():
    x = torch.full((4,), 2.0, requires_grad=True)
    x.std().backward()
    assert x.grad.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("order", [0.5, 1, 1.5, 2, 3, float("inf")])
def test_the_gradient_of_a_norm_at_zero_is_zero(order):
    x = torch.zeros(3, requires_grad=True)
    x.norm(order).backward()
    assert x.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("order", [0.5, 1, 2, 3, float("inf"), float("-inf")])
def test_norms_have_derivatives_of_both_orders(order):
    assert gradcheck(lambda x: x.norm(order, 1), [double(3, 4)])
    assert gradgradcheck(lambda x: x.norm(order, 1), [double(3, 4)])


def test_the_frobenius_norm_is_the_default():
    x = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert x.norm().item() == x.norm("fro").item() == torch.norm(x, dim=(0, 1)).item() == 5


def test_distances_are_norms_of_differences():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 6.0])
    assert torch.dist(a, b).item() == 5 and torch.dist(a, b, 1).item() == 7


def test_logsumexp_of_integers_is_floating():
    assert torch.logsumexp(torch.zeros(4, dtype=torch.int64), 0).item() == pytest.approx(np.log(4))


def test_the_gradient_of_logsumexp_at_minus_infinity_is_not_nan_elsewhere():
    x = torch.tensor([[0.0, float("-inf")], [1.0, 1.0]], requires_grad=True)
    x.logsumexp(1).sum().backward()
    assert x.grad.tolist() == [[1, 0], [0.5, 0.5]]
