"""Distances of all pairs."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import ArgumentValueError, ShapeError

RNG = np.random.default_rng(0)


def pairwise(a, b, p):
    gaps = np.abs(a[..., :, None, :] - b[..., None, :, :])
    if p == 0:
        return (gaps != 0).sum(-1)
    return gaps.max(-1) if p == np.inf else (gaps**p).sum(-1) ** (1 / p)


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 3, np.inf])
def test_distances_of_every_norm(p):
    a, b = RNG.standard_normal((2, 4, 3)), RNG.standard_normal((5, 3))
    got = torch.cdist(torch.tensor(a), torch.tensor(b), p)
    np.testing.assert_allclose(got.numpy(), pairwise(a, b, p))


def test_euclidean_distances_by_a_product():
    a = RNG.standard_normal((40, 3))
    got = torch.cdist(torch.tensor(a), torch.tensor(a))
    np.testing.assert_allclose(got.numpy(), pairwise(a, a, 2), atol=1e-6)


@pytest.mark.parametrize("mode", ["use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"])
def test_gradients(mode):
    a = torch.tensor(RNG.standard_normal((4, 3)), requires_grad=True)
    b = torch.tensor(RNG.standard_normal((2, 3)), requires_grad=True)
    act = lambda a, b: torch.cdist(a, b, compute_mode=mode)  # noqa: E731
    assert torch.autograd.gradcheck(act, [a, b], fast_mode=True)
    torch.cdist(a, a.detach(), compute_mode=mode).sum().backward()
    assert np.isfinite(a.grad.numpy()).all()


def test_bad_arguments_are_refused():
    with pytest.raises(ShapeError):
        torch.cdist(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(ArgumentValueError):
        torch.cdist(torch.ones(2, 3), torch.ones(2, 3), -1)
