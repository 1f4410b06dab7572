"""Products with Jacobians and Hessians, and the matrices themselves."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.autograd import functional
from refruntime.errors import ArgumentTypeError, AutogradError, ShapeError

A = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def linear(x):
    return A @ x


def test_products_with_a_jacobian():
    x = torch.tensor([1.0, -1.0])
    value, found = functional.vjp(linear, x, torch.tensor([1.0, 0.0, 2.0]))
    assert value.tolist() == [-1.0, -1.0, -1.0]
    assert found.tolist() == [11.0, 14.0]
    assert not found.requires_grad
    value, found = functional.jvp(linear, x, torch.tensor([1.0, 2.0]))
    assert found.tolist() == [5.0, 11.0, 17.0]
    assert functional.jvp(lambda x: x.sin(), x, x)[1].tolist() == (x * x.cos()).tolist()


def test_structures_come_back_as_they_went_in():
    x, y = torch.ones(2), torch.ones(2) * 3
    outputs, found = functional.vjp(lambda a, b: (a * b).sum(), (x, y))
    assert outputs.item() == 6.0
    assert [part.tolist() for part in found] == [[3.0, 3.0], [1.0, 1.0]]
    outputs, found = functional.jvp(lambda a, b: (a * b, a), (x, y), (x, 0 * y))
    assert [part.tolist() for part in found] == [[3.0, 3.0], [1.0, 1.0]]


def test_jacobian_by_output_and_input():
    x, y = torch.randn(2), torch.randn(3)
    assert functional.jacobian(linear, x).tolist() == A.tolist()
    parts = functional.jacobian(lambda a, b: (a.outer(b), a.sum()), (x, y))
    assert parts[0][0].shape == (2, 3, 2)
    assert parts[0][1].shape == (2, 3, 3)
    assert parts[1][0].tolist() == [1.0, 1.0]
    assert parts[1][1].tolist() == [0.0] * 3


def test_second_derivatives():
    x = torch.tensor([1.0, 2.0])
    cube = lambda x: (x**3).sum()  # noqa: E731
    assert functional.hessian(cube, x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    value, found = functional.hvp(cube, x, torch.tensor([1.0, 1.0]))
    assert (value.item(), found.tolist()) == (9.0, [6.0, 12.0])
    mixed = functional.hessian(lambda a, b: (a * b).sum(), (x, x.clone()))
    np.testing.assert_array_equal(mixed[0][1].numpy(), np.eye(2))
    np.testing.assert_array_equal(mixed[0][0].numpy(), np.zeros((2, 2)))


def test_results_are_differentiable_when_asked():
    x = torch.tensor([2.0], requires_grad=True)
    matrix = functional.jacobian(lambda x: x**3, x, create_graph=True)
    matrix.sum().backward()
    assert x.grad.tolist() == [12.0]
    plain = functional.jacobian(lambda x: x**3, x)
    assert not plain.requires_grad


def test_bad_arguments_are_refused():
    x = torch.ones(2)
    with pytest.raises(ShapeError, match="None"):
        functional.vjp(linear, x)
    with pytest.raises(ShapeError, match="invalid size"):
        functional.vjp(linear, x, torch.ones(2))
    with pytest.raises(ArgumentTypeError):
        functional.vjp(linear, 1.0)
    with pytest.raises(ShapeError, match="single element"):
        functional.hessian(linear, x)
    with pytest.raises(AutogradError, match="strict"):
        functional.vjp(lambda a, b: a.sum(), (x, x), strict=True)


# ---------------------------------------------------------------------------------------------
# All rows, or all columns, at once


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_a_jacobian_at_once_is_the_jacobian_row_by_row(strategy):
    x, y = torch.randn(2, 3), torch.randn(3)

    def func(a, b):
        return (a @ b).sin(), b.outer(b) * a.sum()

    plain = functional.jacobian(func, (x, y))
    fast = functional.jacobian(func, (x, y), vectorize=True, strategy=strategy)
    for row, quick in zip(plain, fast, strict=True):
        for one, two in zip(row, quick, strict=True):
            np.testing.assert_allclose(two.numpy(), one.numpy(), rtol=1e-5, atol=1e-6)
    cube = lambda x: (x**3).sum()  # noqa: E731
    for outer in ("reverse-mode", "forward-mode"):
        found = functional.hessian(cube, y, vectorize=True, outer_jacobian_strategy=outer)
        np.testing.assert_allclose(found.numpy(), np.diag(6 * y.numpy()), rtol=1e-5, atol=1e-6)


def test_a_jacobian_at_once_can_be_differentiated():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    rows = functional.jacobian(lambda x: x**3, x, create_graph=True, vectorize=True)
    rows.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [6.0, 12.0])


def test_combinations_that_do_not_exist_are_refused():
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="not supported together"):
        functional.jacobian(torch.sin, x, strict=True, vectorize=True)
    with pytest.raises(NotImplementedError, match="vectorize=True"):
        functional.jacobian(torch.sin, x, strategy="forward-mode")
    with pytest.raises(NotImplementedError, match="create_graph"):
        functional.jacobian(torch.sin, x, True, vectorize=True, strategy="forward-mode")
    with pytest.raises(ValueError, match="strategy"):
        functional.jacobian(torch.sin, x, strategy="sideways")
    with pytest.raises(RuntimeError, match="independent of input 1"):
        functional.jacobian(lambda a, b: a * 2, (x, x), strict=True)
    with pytest.raises(RuntimeError, match="strict mode"):
        functional.hvp(lambda x: x.sum(), x, x, strict=True)
