"""Log-probabilities, entropies and divergences against closed forms over NumPy arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

import refruntime as torch
from refruntime.distributions import (
    Bernoulli,
    Categorical,
    Independent,
    MultivariateNormal,
    Normal,
    Uniform,
    kl_divergence,
)
from refruntime.errors import ArgumentValueError

LOGITS = [[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]]
COVARIANCE = np.array([[2.0, 0.5], [0.5, 1.0]])


def near(got, want, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=tolerance, atol=tolerance)


def test_normal_density_and_entropy():
    loc, scale, value = np.array([0.0, 1.0]), np.array([1.0, 2.0]), np.array([[0.5, -1.0]])
    normal = Normal(torch.tensor(loc), torch.tensor(scale))
    density = np.exp(-0.5 * ((value - loc) / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
    near(normal.log_prob(torch.tensor(value)), np.log(density))
    near(normal.entropy(), 0.5 * np.log(2 * math.pi * math.e * scale**2))
    near(normal.icdf(normal.cdf(torch.tensor(value))), value)
    near(kl_divergence(normal, normal), [0.0, 0.0])


@pytest.mark.parametrize("form", ["probs", "logits"])
def test_categorical_probabilities(form):
    logits = np.array(LOGITS)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    given = {"probs": 3 * probs, "logits": logits + 1.0}[form]
    categorical = Categorical(**{form: torch.tensor(given)})
    near(categorical.probs, probs)
    near(categorical.log_prob(torch.tensor([2, 0])), np.log([probs[0, 2], probs[1, 0]]))
    near(categorical.entropy(), -(probs * np.log(probs)).sum(-1))
    other = Categorical(logits=torch.zeros(3, dtype=torch.float64))
    near(kl_divergence(categorical, other), (probs * np.log(probs * 3)).sum(-1))


@pytest.mark.parametrize("form", ["probs", "logits"])
def test_bernoulli_probabilities(form):
    probs = np.array([0.2, 0.9])
    given = probs if form == "probs" else np.log(probs / (1 - probs))
    bernoulli = Bernoulli(**{form: torch.tensor(given)})
    near(bernoulli.log_prob(torch.tensor([1.0, 0.0])), np.log([0.2, 0.1]))
    near(bernoulli.entropy(), -(probs * np.log(probs) + (1 - probs) * np.log(1 - probs)))
    near(bernoulli.variance, probs * (1 - probs))


def test_uniform_density_is_zero_outside():
    uniform = Uniform(torch.tensor([0.0]), torch.tensor([4.0]), validate_args=False)
    near(uniform.log_prob(torch.tensor([[1.0], [5.0]])), [[-math.log(4)], [-np.inf]])
    near(uniform.cdf(torch.tensor([1.0])), [0.25])
    near(uniform.entropy(), [math.log(4)])


@pytest.mark.parametrize("form", ["covariance_matrix", "precision_matrix", "scale_tril"])
def test_multivariate_normal_in_its_three_forms(form):
    matrices = {
        "covariance_matrix": COVARIANCE,
        "precision_matrix": np.linalg.inv(COVARIANCE),
        "scale_tril": np.linalg.cholesky(COVARIANCE),
    }
    normal = MultivariateNormal(
        torch.zeros(2, dtype=torch.float64), **{form: torch.tensor(matrices[form])}
    )
    for name, matrix in matrices.items():
        near(getattr(normal, name), matrix)
    value = np.array([1.0, -1.0])
    determinant = np.linalg.det(2 * math.pi * COVARIANCE)
    want = -0.5 * (value @ np.linalg.inv(COVARIANCE) @ value + math.log(determinant))
    near(normal.log_prob(torch.tensor(value)), want)
    near(normal.entropy(), 0.5 * math.log(determinant) + 1)
    near(kl_divergence(normal, normal), 0.0)


def test_independent_sums_over_the_parts():
    normal = Normal(torch.zeros(4, 3), 1.0)
    joined = Independent(normal, 1)
    assert (joined.batch_shape, joined.event_shape) == ((4,), (3,))
    value = torch.randn(4, 3)
    near(joined.log_prob(value), normal.log_prob(value).sum(-1).numpy())
    with pytest.raises(ArgumentValueError):
        Independent(normal, 3)


def test_divergence_without_a_rule_is_refused():
    with pytest.raises(NotImplementedError, match="Normal and Bernoulli"):
        kl_divergence(Normal(0.0, 1.0), Bernoulli(0.5))


def test_moments_of_samples():
    torch.manual_seed(0)
    drawn = Normal(1.0, 2.0).sample((20000,))
    assert abs(float(drawn.mean()) - 1) < 0.1
    assert abs(float(drawn.std()) - 2) < 0.1
    probs = torch.tensor([0.2, 0.3, 0.5])
    counts = torch.bincount(Categorical(probs).sample((20000,)))
    near(counts / 20000, probs.numpy(), 0.05)
    factor = torch.linalg.cholesky(torch.tensor(COVARIANCE, dtype=torch.float32))
    drawn = MultivariateNormal(torch.zeros(2), scale_tril=factor).sample((20000,))
    near(drawn.t() @ drawn / 20000, COVARIANCE, 0.1)
