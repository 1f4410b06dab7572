"""Gradients, products with Jacobians, Jacobians, Hessians, and all of these inside each other."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap


def tensor(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


def close(got, want):
    np.testing.assert_allclose(got.numpy(), np.asarray(want), rtol=1e-9, atol=1e-12)


X = tensor(5)
x = X.numpy()


def cubic(v):
    return (v**3).sum()


def test_gradient_and_value_of_a_function_of_one_number():
    close(grad(cubic)(X), 3 * x**2)
    found, value = grad_and_value(cubic)(X)
    close(found, 3 * x**2)
    close(value, (x**3).sum())
    assert not found.requires_grad
    assert not value.requires_grad


def test_several_arguments_containers_and_what_is_passed_on():
    a, b = tensor(3, 5), tensor(5, seed=1)
    first, second = grad(lambda a, b: (a @ b).sum(), argnums=(0, 1))(a, b)
    close(first, np.broadcast_to(b.numpy(), (3, 5)))
    close(second, a.numpy().sum(0))
    found = grad(lambda p: (p["w"] @ p["v"][0]).sum())({"w": a, "v": [b]})
    close(found["w"], first.numpy())
    close(found["v"][0], second.numpy())
    found, (value, aux) = grad_and_value(lambda v: (cubic(v), v.sum()), has_aux=True)(X)
    close(aux, x.sum())
    assert not aux.requires_grad
    assert value.ndim == 0


def test_gradients_of_gradients():
    close(grad(lambda v: grad(cubic)(v).sum())(X), 6 * x)
    third = grad(lambda v: grad(lambda u: grad(cubic)(u).sum())(v).sum())(X)
    close(third, np.full(5, 6.0))


def test_an_inner_derivative_does_not_see_the_outer_variable():
    # d/dx [x * d/dy (x + y)] = 1; a confusion of the two gives 2.
    found = grad(lambda a: a * grad(lambda b: a + b)(a))(torch.tensor(1.0))
    assert found.item() == 1.0
    mixed = jvp(lambda a: a * jvp(lambda b: a + b, (a,), (torch.ones(()),))[1],
                (torch.tensor(1.0),), (torch.ones(()),))  # fmt: skip
    assert mixed[1].item() == 1.0


def test_results_depend_on_outer_leaves_and_only_on_these():
    w = torch.tensor([3.0, 4.0], requires_grad=True)
    v = torch.tensor([1.0, 2.0], requires_grad=True)
    found = grad(lambda v: (v**2 * w).sum())(v)
    found.sum().backward()
    assert v.grad.tolist() == [6.0, 8.0]
    assert w.grad.tolist() == [2.0, 4.0]
    with torch.no_grad():
        assert not grad(lambda v: (v**2 * w).sum())(v).requires_grad


def test_no_grad_and_detach_inside_hide_what_they_say():
    def half(v):
        with torch.no_grad():
            hidden = (v**2).sum()
        return (v**2).sum() + hidden

    close(grad(half)(X), 2 * x)
    close(grad(lambda v: (v * v.detach()).sum())(X), x)


def test_a_pullback_runs_more_than_once_and_takes_the_nesting_of_the_outputs():
    outputs, pull = vjp(lambda v: {"s": v.sin(), "c": v.cos()}, X)
    ones, zeros = torch.ones_like(X), torch.zeros_like(X)
    (first,) = pull({"s": ones, "c": zeros})
    (second,) = pull({"s": zeros, "c": ones})
    close(outputs["s"], np.sin(x))
    close(first, np.cos(x))
    close(second, -np.sin(x))
    with pytest.raises(RuntimeError, match="structure"):
        pull(ones)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        vjp(torch.sin, X)[1](torch.ones(3, dtype=torch.float64))


def test_products_with_a_jacobian_from_the_right():
    value, moved = jvp(lambda v: v.sin() * v.sum(), (X,), (X,))
    close(value, np.sin(x) * x.sum())
    close(moved, np.cos(x) * x * x.sum() + np.sin(x) * x.sum())
    _, moved, aux = jvp(lambda v: (v.exp(), v), (X,), (X,), has_aux=True)
    close(moved, np.exp(x) * x)
    close(aux, x)
    _, nothing = jvp(lambda v: torch.ones(2), (X,), (X,))
    assert nothing.tolist() == [0.0, 0.0]
    with pytest.raises(RuntimeError, match="independent"):
        jvp(lambda v: torch.ones(2), (X,), (X,), strict=True)


def test_a_linear_function_is_given_back():
    value, push = linearize(lambda v: v.sin() * v.sum(), X)
    close(value, np.sin(x) * x.sum())
    close(push(X), np.cos(x) * x * x.sum() + np.sin(x) * x.sum())


@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_jacobians(jacobian):
    a, b = tensor(3, 5), tensor(5, seed=1)
    parts = jacobian(lambda a, b: (a @ b, b * 2), argnums=(0, 1))(a, b)
    close(parts[0][0], np.einsum("ik,j->ikj", np.eye(3), b.numpy()))
    close(parts[0][1], a.numpy())
    close(parts[1][0], np.zeros((5, 3, 5)))
    close(parts[1][1], 2 * np.eye(5))
    found, aux = jacobian(lambda v: (v.outer(v), v.sum()), has_aux=True)(X)
    assert found.shape == (5, 5, 5)
    close(aux, x.sum())


def test_jacobians_in_chunks_are_the_same():
    whole = jacrev(lambda v: v.outer(v).sin())(X)
    for size in (1, 2, 7, 100):
        close(jacrev(lambda v: v.outer(v).sin(), chunk_size=size)(X), whole.numpy())
    with pytest.raises(ValueError, match="chunk_size"):
        jacrev(cubic, chunk_size=0)


ORDERS = [
    lambda f: jacfwd(jacrev(f)), lambda f: jacrev(jacfwd(f)), lambda f: jacfwd(jacfwd(f)),
    lambda f: jacrev(jacrev(f)), hessian,
]  # fmt: skip


@pytest.mark.parametrize("second", ORDERS)
def test_second_derivatives_in_any_order_of_modes(second):
    close(second(cubic)(X), np.diag(6 * x))
    s = x.sum()
    # f_i = x_i^3 s
    found = second(lambda v: v**3 * v.sum())(X)
    want = np.zeros((5, 5, 5))
    for i in range(5):
        want[i, i, :] += 3 * x[i] ** 2
        want[i, :, i] += 3 * x[i] ** 2
        want[i, i, i] += 6 * x[i] * s
    close(found, want)


def test_products_with_a_hessian_without_the_hessian():
    value, found = jvp(grad(cubic), (X,), (X,))
    close(value, 3 * x**2)
    close(found, 6 * x**2)
    close(grad(lambda v: jvp(cubic, (v,), (X,))[1])(X), 6 * x**2)


def test_a_batch_of_gradients_and_hessians():
    rows = tensor(4, 5)
    close(vmap(grad(cubic))(rows), 3 * rows.numpy() ** 2)
    close(vmap(hessian(cubic))(rows), np.stack([np.diag(6 * r) for r in rows.numpy()]))
    # The batch may be of what is captured, too.
    found = vmap(lambda r: grad(lambda v: (v * r).sum() ** 2)(X))(rows)
    close(found, 2 * (rows.numpy() @ x)[:, None] * rows.numpy())
    nested = vmap(grad(lambda a: vmap(lambda b: (a * b).sum().sin())(rows).sum()))(rows)
    want = np.cos(rows.numpy() @ rows.numpy().T) @ rows.numpy()
    close(nested, want)


def test_mistakes_are_named():
    cases = [
        (lambda: grad(lambda v: v)(X), "scalar tensor, got tensor with 1 dims"),
        (lambda: grad(lambda v: 3.0)(X), "return tensor"),
        (lambda: grad(cubic, argnums=3)(X), "argnum=3"),
        (lambda: grad(cubic, argnums=(0, 0))(X), "unique"),
        (lambda: grad(cubic)(torch.tensor([1])), "floating point"),
        (lambda: grad(cubic, has_aux=True)(X), "has_aux"),
        (lambda: jacrev(lambda v: 3)(X), "tensors"),
        (lambda: jvp(cubic, X, X), "tuple"),
        (lambda: jvp(cubic, (X,), (X[:2],)), "same shape"),
        (lambda: jvp(cubic, (X,), (X.float(),)), "same dtype"),
    ]
    for call, text in cases:
        with pytest.raises(RuntimeError, match=text):
            call()
