"""Integrals and slopes of samples against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import ShapeError

DATA = np.random.default_rng(0).standard_normal((4, 5))
PLACES = np.array([0.0, 0.5, 0.7, 2.0, 2.5])


def test_integrals_by_the_trapezoidal_rule():
    y = torch.tensor(DATA)
    np.testing.assert_allclose(torch.trapezoid(y).numpy(), np.trapezoid(DATA))
    columns = np.trapezoid(DATA, dx=0.1, axis=0)
    np.testing.assert_allclose(torch.trapz(y, dx=0.1, dim=0).numpy(), columns)
    got = torch.trapezoid(y, torch.tensor(PLACES))
    np.testing.assert_allclose(got.numpy(), np.trapezoid(DATA, PLACES))
    whole = torch.cumulative_trapezoid(y, torch.tensor(PLACES))
    assert whole.shape == (4, 4)
    np.testing.assert_allclose(whole[:, -1].numpy(), np.trapezoid(DATA, PLACES))
    with pytest.raises(ShapeError, match="one `x` value"):
        torch.trapezoid(y, torch.ones(3))


@pytest.mark.parametrize("order", [1, 2])
def test_slopes(order):
    y = torch.tensor(DATA)
    for got, want in (
        (torch.gradient(y, edge_order=order), np.gradient(DATA, edge_order=order)),
        (torch.gradient(y, spacing=0.5, dim=1, edge_order=order),
         [np.gradient(DATA, 0.5, axis=1, edge_order=order)]),
        (torch.gradient(y, spacing=[torch.tensor(PLACES)], dim=1, edge_order=order),
         [np.gradient(DATA, PLACES, axis=1, edge_order=order)]),
    ):  # fmt: skip
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one.numpy(), other)
    with pytest.raises(ShapeError):
        torch.gradient(torch.ones(1))
