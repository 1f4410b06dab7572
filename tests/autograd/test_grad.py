"""`grad`, `backward(inputs=)`, and higher derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch


def test_grad_returns_without_accumulating():
    x = torch.tensor([3.0], requires_grad=True)
    (g,) = torch.autograd.grad((x * x).sum(), x)
    assert g.tolist() == [6.0] and x.grad is None


def test_grad_of_an_intermediate():
    x = torch.tensor([3.0], requires_grad=True)
    y = x * 2
    (g,) = torch.autograd.grad((y * y).sum(), y)
    assert g.tolist() == [12.0]


def test_grad_of_both_an_intermediate_and_its_leaf():
    x = torch.tensor([3.0], requires_grad=True)
    y = x * 2
    gy, gx = torch.autograd.grad((y * y).sum(), (y, x))
    assert (gy.tolist(), gx.tolist()) == ([12.0], [24.0])


def test_unused_input_raises_or_gives_none_or_zeros():
    x = torch.ones(1, requires_grad=True)
    y = torch.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad((x * 2).sum(), (x, y))
    assert torch.autograd.grad((x * 2).sum(), (x, y), allow_unused=True)[1] is None
    zeros = torch.autograd.grad((x * 2).sum(), (x, y), materialize_grads=True)[1]
    assert zeros.tolist() == [0.0]


def test_third_derivative():
    x = torch.tensor([2.0], requires_grad=True)
    value = (x**4).sum()
    for expected in (32.0, 48.0, 48.0):
        (value,) = torch.autograd.grad(value, x, create_graph=True)
        np.testing.assert_allclose(value.item(), expected, rtol=1e-6)


def test_backward_inputs_limits_what_accumulates():
    x = torch.ones(1, requires_grad=True)
    y = torch.ones(1, requires_grad=True)
    (x * y).sum().backward(inputs=[x])
    assert x.grad.tolist() == [1.0] and y.grad is None


def test_create_graph_makes_the_gradient_differentiable():
    x = torch.tensor([2.0], requires_grad=True)
    (x**3).sum().backward(create_graph=True)
    (second,) = torch.autograd.grad(x.grad.sum(), x)
    np.testing.assert_allclose(second.tolist(), [12.0], rtol=1e-6)


def test_several_outputs_with_their_gradients():
    x = torch.ones(2, requires_grad=True)
    a, b = x * 2, x * 3
    torch.autograd.backward([a, b], [torch.ones(2), torch.tensor([1.0, 10.0])])
    np.testing.assert_array_equal(x.grad.numpy(), [5.0, 32.0])
