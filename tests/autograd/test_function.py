"""Custom functions."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.factor = 3
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.factor * x**2


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        return x * factor, x + factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, first, second):
        return first * ctx.factor + second, None


def test_custom_backward_is_used_and_differentiable():
    x = torch.tensor([2.0], requires_grad=True)
    (g,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    assert g.tolist() == [12.0]
    assert torch.autograd.grad(g.sum(), x)[0].tolist() == [12.0]


def test_setup_context_style_with_two_outputs():
    x = torch.tensor([2.0], requires_grad=True)
    a, b = Scale.apply(x, 5.0)
    (a + 2 * b).sum().backward()
    assert x.grad.tolist() == [7.0]


def test_unused_output_arrives_as_zeros():
    x = torch.tensor([2.0], requires_grad=True)
    a, _ = Scale.apply(x, 5.0)
    a.sum().backward()
    assert x.grad.tolist() == [5.0]


def test_node_is_named_after_the_class():
    x = torch.ones(1, requires_grad=True)
    assert Cube.apply(x).grad_fn.name() == "CubeBackward"


def test_needs_input_grad():
    seen = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.needs_input_grad)
            return g, None

    x = torch.ones(1, requires_grad=True)
    Probe.apply(x, torch.ones(1)).sum().backward()
    assert seen == [(True, False)]


def test_wrong_number_of_gradients_raises():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, g):
            return g

    x = torch.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        Wrong.apply(x, x).sum().backward()


def test_once_differentiable_refuses_a_second_derivative():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 2 * x

    x = torch.tensor([3.0], requires_grad=True)
    (g,) = torch.autograd.grad((Once.apply(x) ** 2).sum(), x, create_graph=True)
    assert g.tolist() == [108.0]
    with pytest.raises(RuntimeError, match="twice"):
        g.sum().backward()


def test_apply_under_no_grad_has_no_history():
    x = torch.ones(1, requires_grad=True)
    with torch.no_grad():
        assert not Cube.apply(x).requires_grad


def test_function_is_not_instantiated():
    with pytest.raises(RuntimeError, match="apply"):
        Cube()


def test_gradcheck_finds_a_wrong_rule():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3

    x = torch.tensor(np.linspace(-1, 1, 4), requires_grad=True)
    for fast in (False, True):
        with pytest.raises(torch.autograd.gradcheck.__globals__["GradcheckError"]):
            torch.autograd.gradcheck(Wrong.apply, x, fast_mode=fast)
        assert not torch.autograd.gradcheck(Wrong.apply, x, fast_mode=fast, raise_exception=False)
        assert torch.autograd.gradcheck(Cube.apply, x, fast_mode=fast)
    assert torch.autograd.gradgradcheck(Cube.apply, x)
