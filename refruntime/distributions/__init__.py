"""torch.distributions: what can be drawn, and how likely each outcome is."""

from __future__ import annotations

from refruntime.distributions import constraints
from refruntime.distributions.bernoulli import Bernoulli
from refruntime.distributions.categorical import Categorical
from refruntime.distributions.distribution import Distribution
from refruntime.distributions.independent import Independent
from refruntime.distributions.kl import kl_divergence, register_kl
from refruntime.distributions.multivariate_normal import MultivariateNormal
from refruntime.distributions.normal import Normal
from refruntime.distributions.uniform import Uniform

__all__ = [
    "Bernoulli", "Categorical", "Distribution", "Independent", "MultivariateNormal", "Normal",
    "Uniform", "constraints", "kl_divergence", "register_kl",
]  # fmt: skip
