"""Exponentials, tensor equations, solutions from factors, and forms that report."""

from __future__ import annotations

import math

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import ArgumentValueError, ShapeError

RNG = np.random.default_rng(0)


def tensor(*shape):
    return torch.tensor(RNG.standard_normal(shape))


def test_exponential_of_a_rotation_and_of_large_matrices():
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    got = torch.matrix_exp(turn * (math.pi / 3)).numpy()
    cos, sin = math.cos(math.pi / 3), math.sin(math.pi / 3)
    np.testing.assert_allclose(got, [[cos, -sin], [sin, cos]])
    np.testing.assert_allclose(
        torch.linalg.matrix_exp(torch.diag(torch.tensor([3.0, -40.0]).double())).numpy(),
        np.diag([math.exp(3), math.exp(-40)]), rtol=1e-12, atol=1e-12,
    )  # fmt: skip
    assert torch.matrix_exp(torch.zeros(0, 0)).shape == (0, 0)
    assert torch.autograd.gradcheck(torch.matrix_exp, [tensor(2, 3, 3).requires_grad_()])
    with pytest.raises(ShapeError):
        torch.matrix_exp(tensor(2, 3))


def test_powers_of_numbers():
    x = torch.tensor([1, 2, 3])
    assert torch.linalg.vander(x).tolist() == np.vander([1, 2, 3], increasing=True).tolist()
    assert torch.linalg.vander(x, N=1).tolist() == [[1], [1], [1]]
    with pytest.raises(ShapeError):
        torch.linalg.vander(x, N=0)


def test_tensors_as_maps():
    a = tensor(2, 3, 6)
    np.testing.assert_allclose(torch.linalg.tensorinv(a).numpy(), np.linalg.tensorinv(a.numpy()))
    b = tensor(2, 3)
    np.testing.assert_allclose(
        torch.linalg.tensorsolve(a, b).numpy(), np.linalg.tensorsolve(a.numpy(), b.numpy())
    )
    turned = torch.movedim(a, 2, 0)
    got = torch.linalg.tensorsolve(turned, b, dims=0)
    np.testing.assert_allclose(got.numpy(), torch.linalg.tensorsolve(a, b).numpy())
    with pytest.raises(ArgumentValueError):
        torch.linalg.tensorinv(a, 0)
    with pytest.raises(ShapeError):
        torch.linalg.tensorinv(a, 1)
    with pytest.raises(ShapeError):
        torch.linalg.tensorsolve(a, tensor(2))


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_solutions_from_factors(left, adjoint):
    a, b = tensor(2, 3, 3), tensor(2, 3, 2)
    b = b if left else b.transpose(-1, -2)
    factors, pivots = torch.linalg.lu_factor(a)
    x = torch.linalg.lu_solve(factors, pivots, b, left=left, adjoint=adjoint)
    matrix = a.transpose(-1, -2) if adjoint else a
    product = matrix @ x if left else x @ matrix
    np.testing.assert_allclose(product.numpy(), b.numpy(), atol=1e-12)


def test_forms_that_report():
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    result, info = torch.linalg.solve_ex(singular, torch.ones(2))
    assert info.item() == 1
    assert np.isnan(result.numpy()).all()
    assert torch.linalg.solve_ex(torch.eye(2), torch.ones(2)).info.item() == 0
    assert torch.linalg.lu_factor_ex(singular).info.item() == 2
    assert torch.linalg.lu_factor_ex(torch.eye(2)).info.item() == 0
    for act in (
        lambda: torch.linalg.solve_ex(singular, torch.ones(2), check_errors=True),
        lambda: torch.linalg.lu_factor_ex(singular, check_errors=True),
    ):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            act()
