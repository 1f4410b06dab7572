"""Clipping gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn
from refruntime.nn.utils import (
    clip_grad_norm_,
    clip_grad_value_,
    get_total_norm,
    parameters_to_vector,
    vector_to_parameters,
)


def params():
    a, b, c = (nn.Parameter(torch.zeros(n)) for n in (2, 1, 3))
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([-4.0])
    return [a, b, c]


@pytest.mark.parametrize(("p", "norm"), [(2.0, 5.0), (1.0, 7.0), (math.inf, 4.0)])
def test_the_norm_is_that_of_all_gradients_together(p, norm):
    members = params()
    assert float(clip_grad_norm_(members, 100.0, p)) == pytest.approx(norm)
    assert float(get_total_norm([m.grad for m in members[:2]], p)) == pytest.approx(norm)
    assert members[0].grad.tolist() == [3.0, 0.0]


def test_larger_gradients_are_scaled_in_place():
    members = params()
    grad = members[0].grad
    clip_grad_norm_((m for m in members), 1.0)
    assert members[0].grad is grad
    np.testing.assert_allclose(grad.numpy(), [0.6, 0.0], rtol=1e-5)
    np.testing.assert_allclose(members[1].grad.numpy(), [-0.8], rtol=1e-5)


def test_one_tensor_is_enough_and_none_gives_zero():
    member = params()[1]
    assert float(clip_grad_norm_(member, 2.0)) == 4.0
    np.testing.assert_allclose(member.grad.numpy(), [-2.0], rtol=1e-5)
    assert float(clip_grad_norm_([], 1.0)) == 0.0


def test_an_infinite_norm_may_be_an_error():
    member = params()[1]
    member.grad = torch.tensor([math.inf])
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(member, 1.0, error_if_nonfinite=True)


def test_values_are_clipped_one_by_one():
    members = params()
    clip_grad_value_(members, 2.5)
    assert members[0].grad.tolist() == [2.5, 0.0]
    assert members[1].grad.tolist() == [-2.5]


def test_parameters_become_a_vector_and_back():
    net = nn.Linear(2, 3)
    vector = parameters_to_vector(net.parameters())
    assert tuple(vector.shape) == (9,)
    new = torch.arange(9.0)
    vector_to_parameters(new, net.parameters())
    assert net.weight.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert net.bias.tolist() == [6, 7, 8]
    with pytest.raises(TypeError, match=r"torch\.Tensor"):
        vector_to_parameters([1.0], net.parameters())
