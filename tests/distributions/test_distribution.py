"""What all distributions share: shapes, gradients through draws, validation."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.distributions import Bernoulli, Categorical, Distribution, Normal, Uniform
from refruntime.errors import ArgumentValueError


def test_samples_have_sample_batch_and_event_shape():
    assert Normal(torch.zeros(3), 1.0).sample((2, 4)).shape == (2, 4, 3)
    assert Categorical(torch.ones(5, 3)).sample((2,)).shape == (2, 5)
    assert Bernoulli(torch.ones(2)).sample(torch.Size([3])).shape == (3, 2)
    assert Normal(0.0, 1.0).expand((4,)).sample().shape == (4,)


def test_only_rsample_passes_gradients():
    loc = torch.zeros(3, requires_grad=True)
    assert not Normal(loc, 1.0).sample().requires_grad
    Normal(loc, 1.0).rsample((2,)).sum().backward()
    assert loc.grad.tolist() == [2.0] * 3
    low = torch.zeros(2, requires_grad=True)
    assert Uniform(low, 1.0).rsample().requires_grad


def test_policy_gradient_reaches_the_logits():
    logits = torch.zeros(2, requires_grad=True)
    categorical = Categorical(logits=logits)
    (-categorical.log_prob(torch.tensor(1))).backward()
    assert logits.grad.tolist() == [0.5, -0.5]


def test_derived_parameter_has_history_also_under_no_grad():
    probs = torch.tensor([0.5, 0.5], requires_grad=True)
    categorical = Categorical(probs)
    with torch.no_grad():
        first = categorical.logits
    assert first.requires_grad
    assert categorical.logits is first


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda: Normal(0.0, -1.0), "scale"),
        (lambda: Categorical(torch.tensor([-1.0, 2.0])), "probs"),
        (lambda: Categorical(), "Either"),
        (lambda: Uniform(1.0, 0.0), "low"),
        (lambda: Normal(0.0, 1.0).log_prob(1.0), "must be a Tensor"),
        (lambda: Bernoulli(0.5).log_prob(torch.tensor(0.3)), "support"),
        (lambda: Categorical(torch.ones(3)).log_prob(torch.tensor(3)), "support"),
    ],
)
def test_bad_parameters_and_outcomes_are_refused(act, text):
    with pytest.raises(ArgumentValueError, match=text):
        act()


def test_validation_can_be_switched_off():
    assert Normal(0.0, -1.0, validate_args=False).scale.item() == -1.0
    Distribution.set_default_validate_args(False)
    try:
        Normal(0.0, -1.0)
    finally:
        Distribution.set_default_validate_args(True)
    with pytest.raises(ArgumentValueError):
        Normal(0.0, -1.0)


def test_text_names_parameters_or_their_shapes():
    assert repr(Normal(0.0, 1.0)) == "Normal(loc: 0.0, scale: 1.0)"
    assert repr(Categorical(torch.ones(3))) == "Categorical(probs: torch.Size([3]))"
