"""Custom functions."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.autograd import Function
from refruntime.autograd import forward_ad as fw
from refruntime.errors import GradcheckError
from refruntime.func import grad, jacfwd, jacrev, jvp, vmap


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
    with pytest.warns(DeprecationWarning, match="apply"):
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
        with pytest.raises(GradcheckError):
            torch.autograd.gradcheck(Wrong.apply, x, fast_mode=fast)
        assert not torch.autograd.gradcheck(Wrong.apply, x, fast_mode=fast, raise_exception=False)
        assert torch.autograd.gradcheck(Cube.apply, x, fast_mode=fast)
    assert torch.autograd.gradgradcheck(Cube.apply, x)


# ---------------------------------------------------------------------------------------------
# What a context is told, and what a rule may return


def make(**methods):
    """Make a custom function that doubles its argument, with some methods replaced."""
    base = {
        "forward": lambda ctx, x: x * 2,
        "backward": lambda ctx, g: g * 2,
    }
    methods = {name: staticmethod(method) for name, method in {**base, **methods}.items()}
    return type("Made", (Function,), methods)


def test_wrong_results_of_backward_are_named():
    x = torch.ones(3, requires_grad=True)
    for backward, text in (
        (lambda ctx, g: (g, g), "expected 1, got 2"),
        (lambda ctx, g: torch.ones(2), "invalid gradient"),
        (lambda ctx, g: 3, "got int"),
    ):
        with pytest.raises(RuntimeError, match=text):
            make(backward=backward).apply(x).sum().backward()
    make(backward=lambda ctx, g: (g, None)).apply(x).sum().backward()


def test_missing_and_doubled_methods_are_named():
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(NotImplementedError, match="forward"):
        Function.apply(x)
    only_forward = type("Made", (Function,), {"forward": staticmethod(lambda ctx, x: x * 2)})
    with pytest.raises(NotImplementedError, match="backward or vjp"):
        only_forward.apply(x).sum().backward()
    make(backward=Function.backward, vjp=lambda ctx, g: g * 2).apply(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match="both 'backward' and 'vjp'"):
        make(vjp=lambda ctx, g: g).apply(x).sum().backward()
    with pytest.raises(TypeError, match="can only save variables"):
        make(forward=lambda ctx, x: ctx.save_for_backward(3)).apply(x)


def test_dirty_inputs_come_back_with_the_history_of_the_function():
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    double = make(forward=forward)
    y = torch.ones(2, requires_grad=True) * 1
    out = double.apply(y)
    assert out is y
    assert y.grad_fn.name() == "MadeBackward"
    with pytest.raises(RuntimeError, match="leaf"):
        double.apply(torch.ones(2, requires_grad=True))

    def lost(ctx, x):
        ctx.mark_dirty(x)
        return x * 2

    with pytest.raises(RuntimeError, match="marked as dirty"):
        make(forward=lost).apply(torch.ones(2, requires_grad=True) * 1)


def test_outputs_without_gradient():
    def forward(ctx, x):
        second = x * 3
        ctx.mark_non_differentiable(second)
        return x * 2, second, (x > 0)

    x = torch.ones(2, requires_grad=True)
    first, second, third = make(
        forward=forward, backward=lambda ctx, g, *rest: g * 2
    ).apply(x)  # fmt: skip
    assert first.requires_grad
    assert not second.requires_grad
    assert not third.requires_grad
    first.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_absent_gradients_arrive_as_zeros_or_as_none():
    seen = []

    def forward(ctx, x, materialize):
        ctx.set_materialize_grads(materialize)
        return x * 2, x * 3

    def backward(ctx, first, second):
        seen.append(second)
        return first * 2, None

    two = make(forward=forward, backward=backward)
    x = torch.ones(2, requires_grad=True)
    two.apply(x, True)[0].sum().backward()
    two.apply(x, False)[0].sum().backward()
    assert seen[0].tolist() == [0.0, 0.0]
    assert seen[1] is None


def test_keywords_fill_the_places_of_forward():
    x = torch.ones(2, requires_grad=True)
    scaled = make(forward=lambda ctx, x, n=5: x * n, backward=lambda ctx, g: (g * 3, None))
    assert scaled.apply(x, n=3).tolist() == [3.0, 3.0]
    scaled.apply(x=x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_an_input_returned_as_it_is_gets_a_history_of_its_own():
    x = torch.ones(2, requires_grad=True)
    out = make(forward=lambda ctx, x: x).apply(x)
    assert out is not x
    assert out.grad_fn.name() == "MadeBackward"
    assert x.is_leaf


# ---------------------------------------------------------------------------------------------
# Transforms


class Sine(Function):
    """Sine, with rules that can be told from those of the operator: three and five times it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * torch.cos(x)

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return 5 * t * torch.cos(x)


class Ruled(Sine):
    generate_vmap_rule = False
    calls = []

    @staticmethod
    def vmap(info, in_dims, x):
        Ruled.calls.append((info.batch_size, info.randomness, in_dims))
        return Ruled.apply(x), in_dims[0]


P = torch.tensor([[0.5, 1.0], [2.0, -1.0], [0.0, 3.0]], dtype=torch.float64)
COS = np.cos(P.numpy())


@pytest.mark.parametrize("function", [Sine, Ruled])
def test_transforms_use_the_rules_of_the_class(function):
    np.testing.assert_allclose(grad(lambda x: function.apply(x).sum())(P).numpy(), 3 * COS)
    np.testing.assert_allclose(jvp(function.apply, (P,), (P,))[1].numpy(), 5 * COS * P.numpy())
    np.testing.assert_allclose(vmap(function.apply)(P).numpy(), np.sin(P.numpy()))
    found = vmap(grad(lambda x: function.apply(x).sum()))(P)
    np.testing.assert_allclose(found.numpy(), 3 * COS)
    found = vmap(lambda x: jvp(function.apply, (x,), (x,))[1])(P)
    np.testing.assert_allclose(found.numpy(), 5 * COS * P.numpy())
    rows = vmap(jacrev(function.apply))(P)
    np.testing.assert_allclose(rows.numpy(), 3 * np.stack([np.diag(c) for c in COS]))
    columns = vmap(jacfwd(function.apply))(P)
    np.testing.assert_allclose(columns.numpy(), 5 * np.stack([np.diag(c) for c in COS]))
    nested = vmap(vmap(function.apply), in_dims=1, out_dims=1)(P)
    np.testing.assert_allclose(nested.numpy(), np.sin(P.numpy()))


def test_a_rule_of_the_user_is_told_the_batch():
    Ruled.calls.clear()
    vmap(Ruled.apply, randomness="same")(P)
    assert Ruled.calls == [(3, "same", (0,))]


def test_shared_arguments_of_a_generated_rule_get_the_sum_over_the_batch():
    class Product(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, w):
            return x * w

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * w, g * x

    w = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    out = vmap(Product.apply, in_dims=(0, None))(P, w)
    np.testing.assert_allclose(out.detach().numpy(), P.numpy() * [2.0, 3.0])
    out.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), P.numpy().sum(0))
    per_sample = vmap(grad(lambda w, x: Product.apply(x, w).sum()), in_dims=(None, 0))(
        w.detach(), P
    )
    np.testing.assert_allclose(per_sample.numpy(), P.numpy())


def test_functions_without_rules_say_what_they_lack():
    with pytest.raises(RuntimeError, match="setup_context"):
        vmap(Cube.apply)(P)
    plain = type("Plain", (Sine,), {"generate_vmap_rule": False})
    with pytest.raises(RuntimeError, match="does not have vmap support"):
        vmap(plain.apply)(P)
    both = type("Both", (Ruled,), {"generate_vmap_rule": True})
    with pytest.raises(RuntimeError, match="overridden vmap"):
        vmap(both.apply)(P)
    with fw.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        Cube.apply(fw.make_dual(P, P))
