from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.autograd import gradcheck, gradgradcheck


def double(*shape):
    rng = np.random.default_rng(sum(shape))
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


def both_orders(function, *inputs):
    assert gradcheck(function, list(inputs), fast_mode=True)
    assert gradgradcheck(function, list(inputs), fast_mode=True)


def invariant_svd(x):
    # What does not depend on the signs of singular vectors.
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    return s, u * u, vh * vh, (u * s) @ vh


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)])
def test_svd_has_derivatives_of_both_orders(shape):
    both_orders(invariant_svd, double(*shape))


def test_eigh_has_derivatives_of_both_orders():
    def function(x):
        values, vectors = torch.linalg.eigh(x + x.mT)
        return values, vectors * vectors

    both_orders(function, double(3, 3))


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_has_derivatives_of_both_orders(upper):
    eye = torch.eye(3, dtype=torch.float64)
    both_orders(lambda x: torch.linalg.cholesky(x @ x.mT + eye, upper=upper), double(3, 3))


@pytest.mark.parametrize("shape", [(5, 3), (2, 4)])
def test_least_squares_has_derivatives_of_both_orders(shape):
    both_orders(lambda a, b: torch.linalg.lstsq(a, b).solution, double(*shape), double(shape[0], 2))


def test_lu_puts_the_matrix_back_together_and_has_derivatives():
    x = double(4, 4)
    p, lower, upper = torch.linalg.lu(x)
    np.testing.assert_allclose((p @ lower @ upper).detach().numpy(), x.detach().numpy())
    both_orders(lambda x: torch.linalg.lu(x)[1:], x)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, float("inf"), float("-inf")])
def test_matrix_norms_equal_numpy_and_have_derivatives(order):
    x = double(3, 2)
    expected = np.linalg.norm(x.detach().numpy(), order)
    assert torch.linalg.norm(x, order).item() == pytest.approx(expected)
    both_orders(lambda x: torch.linalg.matrix_norm(x, order), x)


def test_logarithms_of_determinants_have_derivatives():
    eye = torch.eye(3, dtype=torch.float64)
    both_orders(lambda x: torch.logdet(x @ x.mT + eye), double(3, 3))


def test_powers_rank_and_condition():
    x = double(3, 3).detach()
    inverse = np.linalg.inv(x.numpy())
    np.testing.assert_allclose(torch.matrix_power(x, -2).numpy(), inverse @ inverse)
    np.testing.assert_allclose(torch.matrix_power(x, 0).numpy(), np.eye(3))
    assert torch.linalg.matrix_rank(torch.outer(x[0], x[1])).item() == 1
    assert torch.linalg.cond(x).item() == pytest.approx(np.linalg.cond(x.numpy()))


def test_failures_are_reported_as_linalg_errors_or_in_the_info():
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(torch.zeros(2, 2))
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert torch.linalg.cholesky_ex(bad).info.item() == 1
    assert torch.linalg.inv_ex(torch.eye(2)).info.item() == 0


def test_solving_from_the_right_and_with_vectors():
    a, b = double(3, 3).detach(), double(2, 3).detach()
    x = torch.linalg.solve(a, b, left=False)
    np.testing.assert_allclose((x @ a).numpy(), b.numpy())
    v = torch.linalg.solve(a, b[0])
    np.testing.assert_allclose((a @ v).numpy(), b[0].numpy())
