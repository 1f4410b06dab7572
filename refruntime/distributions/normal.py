"""The normal distribution."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from refruntime._ops.opdef import ops
from refruntime.autograd import no_grad
from refruntime.distributions import constraints
from refruntime.distributions.constraints import Constraint
from refruntime.distributions.distribution import Distribution, broadcast_parameters

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Normal(Distribution):
    """The normal distribution of a mean and a standard deviation.

    Parameters
    ----------
    loc : Tensor or float
        The mean.
    scale : Tensor or float
        The standard deviation.
    """

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real, "scale": constraints.positive,
    }  # fmt: skip
    support = constraints.real

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_parameters(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Any:
        """The expectation."""
        return self.loc

    @property
    def mode(self) -> Any:
        """The likeliest outcome."""
        return self.loc

    @property
    def stddev(self) -> Any:
        """The standard deviation."""
        return self.scale

    @property
    def variance(self) -> Any:
        """The variance."""
        return ops.square(self.scale)

    def expand(self, batch_shape: Any) -> Normal:
        """Return the same distribution for a larger batch shape."""
        loc, scale = ops.expand(self.loc, batch_shape), ops.expand(self.scale, batch_shape)
        return type(self)(loc, scale, validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw; no gradient flows through the result."""
        shape = self._extended_shape(sample_shape)
        with no_grad():
            return ops.normal(ops.expand(self.loc, shape), ops.expand(self.scale, shape))

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw so that gradients flow to mean and standard deviation."""
        shape = self._extended_shape(sample_shape)
        noise = ops.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + noise * self.scale

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the density."""
        if self._validate_args:
            self._validate_sample(value)
        distance = (value - self.loc) / self.scale
        return -0.5 * ops.square(distance) - ops.log(self.scale) - _HALF_LOG_TWO_PI

    def cdf(self, value: Any) -> Any:
        """Return the probability of an outcome not above `value`."""
        if self._validate_args:
            self._validate_sample(value)
        return 0.5 * (1 + ops.erf((value - self.loc) / (self.scale * math.sqrt(2))))

    def icdf(self, value: Any) -> Any:
        """Return the outcome below which a given probability lies."""
        return self.loc + self.scale * ops.erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Any:
        """Return the entropy in nats."""
        return 0.5 + _HALF_LOG_TWO_PI + ops.log(self.scale)
