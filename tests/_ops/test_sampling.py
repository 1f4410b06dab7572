"""Bernoulli, normal with tensors, multinomial and Poisson; all seeds are fixed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import refruntime as torch
from refruntime.random import Generator

N = 20000


@pytest.fixture
def generator():
    return Generator().manual_seed(4321)


def test_bernoulli_follows_each_chance(generator):
    chances = torch.tensor([0.0, 0.25, 0.9, 1.0])
    x = torch.bernoulli(chances.expand(N, 4), generator=generator)
    means = x.numpy().mean(axis=0)
    assert means[0] == 0.0
    assert means[3] == 1.0
    np.testing.assert_allclose(means[1:3], [0.25, 0.9], atol=0.02)
    assert set(np.unique(x.numpy())) == {0.0, 1.0}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool]
)
def test_bernoulli_fills_every_dtype(generator, dtype):
    x = torch.empty(N, dtype=dtype).bernoulli_(0.3, generator=generator)
    assert x.dtype is dtype
    assert abs(x.double().mean().item() - 0.3) < 0.02


def test_bernoulli_with_a_tensor_of_chances_broadcasts(generator):
    x = torch.empty(N, 2).bernoulli_(torch.tensor([0.2, 0.7]), generator=generator)
    np.testing.assert_allclose(x.numpy().mean(axis=0), [0.2, 0.7], atol=0.02)


def test_bernoulli_with_p_ignores_the_values():
    assert torch.bernoulli(torch.tensor([5.0, 7.0]), 1.0).tolist() == [1.0, 1.0]


def test_bernoulli_has_zero_gradient():
    p = torch.tensor([0.5, 0.5], requires_grad=True)
    torch.bernoulli(p).sum().backward()
    assert p.grad.tolist() == [0.0, 0.0]


def test_normal_takes_a_mean_and_deviation_for_each_element(generator):
    mean, std = torch.tensor([0.0, 100.0]), torch.tensor([[1.0], [0.1]])
    draws = [torch.normal(mean, std, generator=generator).numpy() for _ in range(3000)]
    values = np.stack(draws)
    np.testing.assert_allclose(values.mean(axis=0), [[0, 100], [0, 100]], atol=0.1)
    np.testing.assert_allclose(values.std(axis=0), [[1, 1], [0.1, 0.1]], rtol=0.06)


def test_normal_in_its_other_forms(generator):
    assert torch.normal(torch.tensor([7.0]), 0.0).tolist() == [7.0]
    assert torch.normal(3.0, torch.tensor([0.0, 0.0])).tolist() == [3.0, 3.0]
    assert torch.normal(torch.tensor([1.0], dtype=torch.float16), 0.0).dtype is torch.float16
    x = torch.normal(2.0, 3.0, (N,), generator=generator).numpy()
    assert stats.kstest(x, stats.norm(2.0, 3.0).cdf).pvalue > 1e-3


def test_multinomial_with_replacement_follows_the_weights(generator):
    weights = torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 2.0]])
    x = torch.multinomial(weights, N, replacement=True, generator=generator).numpy()
    assert x.dtype == np.int64
    shares = np.stack([np.bincount(row, minlength=3) / N for row in x])
    np.testing.assert_allclose(shares, [[0, 0.25, 0.75], [0.5, 0, 0.5]], atol=0.02)
    assert shares[0, 0] == shares[1, 1] == 0.0


def test_multinomial_without_replacement_takes_each_category_once(generator):
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(5000, 4)
    x = torch.multinomial(weights, 4, generator=generator).numpy()
    assert (np.sort(x, axis=1) == np.arange(4)).all()
    first = np.bincount(x[:, 0], minlength=4) / 5000
    np.testing.assert_allclose(first, [0.1, 0.2, 0.3, 0.4], atol=0.03)


@pytest.mark.parametrize(
    ("weights", "samples", "text"),
    [
        ([0.0, 0.0], 1, "sum of probabilities <= 0"),
        ([-1.0, 2.0], 1, "element < 0"),
        ([float("nan"), 2.0], 1, "element < 0"),
        ([1.0, 0.0], 3, "without replacement"),
        ([1.0, 0.0], 0, "n_sample <= 0"),
        ([[[1.0]]], 1, "1 or 2 dim"),
        ([1, 0], 1, "floating-point dtypes"),
    ],
)
def test_impossible_multinomials_are_refused(weights, samples, text):
    with pytest.raises(RuntimeError, match=text):
        torch.multinomial(torch.tensor(weights), samples)


@pytest.mark.parametrize("rate", [0.2, 3.0, 9.9, 10.0, 50.0, 1000.0])
def test_poisson_follows_its_rate(generator, rate):
    x = torch.poisson(torch.full((N,), rate, dtype=torch.float64), generator=generator).numpy()
    assert abs(x.mean() - rate) < 5 * np.sqrt(rate / N)
    assert abs(x.var() / rate - 1) < 0.06
    low, high = stats.poisson(rate).ppf([0.001, 0.999])
    inside = x[(x >= low) & (x <= high)].astype(int)
    edges = np.unique(stats.poisson(rate).ppf(np.linspace(0.05, 0.95, 10)))
    observed = [np.count_nonzero(inside <= edge) / N for edge in edges]
    np.testing.assert_allclose(observed, stats.poisson(rate).cdf(edges), atol=0.015)


def test_poisson_of_rate_zero_and_of_a_negative_one():
    assert torch.poisson(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.poisson(torch.tensor([-1.0]))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: torch.bernoulli(torch.tensor([2.0])), RuntimeError, "p_in >= 0 && p_in <= 1"),
        (lambda: torch.bernoulli(torch.tensor([1, 0])), NotImplementedError, "'Long'"),
        (lambda: torch.empty(2).bernoulli_(2.0), RuntimeError, r"p to be in \[0, 1\]"),
        (lambda: torch.normal(0.0, 1.0), TypeError, "invalid combination"),
        (lambda: torch.normal(torch.zeros(2), -1.0), RuntimeError, "std >= 0.0"),
        (lambda: torch.normal(0.0, torch.tensor([-1.0])), RuntimeError, "all elements of std"),
        (lambda: torch.normal(torch.tensor([1]), 1.0), NotImplementedError, "'Long'"),
        (lambda: torch.poisson(torch.tensor([1])), NotImplementedError, "'Long'"),
    ],
)
def test_impossible_parameters_are_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
