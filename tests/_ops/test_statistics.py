"""Quantiles, medians, modes, covariances and histograms against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import ArgumentValueError, DTypeError, ShapeError

RNG = np.random.default_rng(0)
DATA = RNG.standard_normal((4, 5, 3))


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles_of_each_interpolation(method):
    shares = np.array([0.0, 0.3, 0.77, 1.0])
    x = torch.tensor(DATA)
    for dim in (None, 0, 1, -1):
        for keepdim in (False, True):
            got = torch.quantile(x, torch.tensor(shares), dim, keepdim, interpolation=method)
            want = np.quantile(DATA, shares, dim, keepdims=keepdim, method=method)
            np.testing.assert_allclose(got.numpy(), want)
    assert torch.quantile(x, 0.5).shape == ()


def test_nan_decides_a_quantile_or_is_left_out():
    rows = DATA[:, :, 0].copy()
    rows[0, 2] = rows[3] = np.nan
    x = torch.tensor(rows)
    np.testing.assert_allclose(torch.quantile(x, 0.4, 1).numpy(), np.quantile(rows, 0.4, 1))
    want = np.nanquantile(rows[:3], 0.4, 1)
    np.testing.assert_allclose(torch.nanquantile(x, 0.4, 1).numpy()[:3], want)
    assert np.isnan(torch.nanquantile(x, 0.4, 1).numpy()[3])


def test_gradient_of_a_quantile_goes_to_two_neighbours():
    x = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    torch.quantile(x, 0.25).backward()
    assert x.grad.tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda x: torch.quantile(x, 1.5), ShapeError),
        (lambda x: torch.quantile(x.long(), 0.5), DTypeError),
        (lambda x: torch.quantile(x, 0.5, interpolation="cubic"), ArgumentValueError),
        (lambda x: torch.quantile(x[:0], 0.5), ShapeError),
        (lambda x: torch.histc(x, 0), ShapeError),
        (lambda x: torch.histc(x, 3, 2, 1), ShapeError),
        (lambda x: torch.cov(x), ShapeError),
    ],
)
def test_bad_arguments_are_refused(act, error):
    with pytest.raises(error):
        act(torch.tensor(DATA))


def test_median_without_nan():
    rows = np.array([[3.0, np.nan, 1.0, 2.0], [np.nan] * 4])
    values, places = torch.nanmedian(torch.tensor(rows), 1)
    assert values[0] == 2.0
    assert np.isnan(values[1])
    assert places[0] == 3
    assert torch.nanmedian(torch.tensor(rows)) == 2.0
    assert torch.nanmedian(torch.tensor(rows), 1, True).values.shape == (2, 1)


def test_mode_is_the_smallest_of_the_commonest():
    x = torch.tensor([[3, 1, 3, 1, 2], [5, 4, 3, 2, 1]])
    values, places = torch.mode(x)
    assert values.tolist() == [1, 1]
    assert places.tolist() == [3, 4]
    assert x.mode(0, True).values.shape == (1, 5)
    leaf = torch.tensor([1.0, 2.0, 2.0], requires_grad=True)
    torch.mode(leaf).values.backward()
    assert leaf.grad.tolist() == [0.0, 0.0, 1.0]


def test_covariance_with_weights():
    rows = DATA[:, :, 0]
    counts, weights = np.array([1, 2, 1, 3, 1]), np.array([0.5, 1.0, 0.2, 0.7, 2.0])
    x = torch.tensor(rows)
    np.testing.assert_allclose(torch.cov(x).numpy(), np.cov(rows))
    np.testing.assert_allclose(torch.cov(x, correction=0).numpy(), np.cov(rows, ddof=0))
    got = torch.cov(x, fweights=torch.tensor(counts), aweights=torch.tensor(weights))
    np.testing.assert_allclose(got.numpy(), np.cov(rows, fweights=counts, aweights=weights))
    np.testing.assert_allclose(torch.corrcoef(x).numpy(), np.corrcoef(rows))
    assert torch.cov(x[0]).shape == ()
    assert torch.autograd.gradcheck(torch.cov, [x.clone().requires_grad_()], fast_mode=True)


def test_histograms():
    single = DATA.astype(np.float32)
    x = torch.tensor(single)
    for low, high in ((0, 0), (-1, 1)):
        bounds = (single.min(), single.max()) if low == high else (low, high)
        want = np.histogram(single, 7, bounds)[0]
        assert torch.histc(x, 7, low, high).tolist() == want.tolist()
    edges = np.array([-1.0, 0.0, 0.3, 2.0])
    weight = RNG.uniform(size=DATA.shape)
    for density in (False, True):
        got = torch.histogram(
            torch.tensor(DATA), torch.tensor(edges), weight=torch.tensor(weight), density=density
        )
        want = np.histogram(DATA, edges, weights=weight, density=density)[0]
        np.testing.assert_allclose(got.hist.numpy(), want)
    assert torch.histogram(x, 4, range=(0.0, 1.0)).bin_edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
