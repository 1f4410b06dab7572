"""The uniform distribution on an interval."""

from __future__ import annotations

from typing import Any, ClassVar

from refruntime._ops.opdef import ops
from refruntime.distributions import constraints
from refruntime.distributions.constraints import Constraint
from refruntime.distributions.distribution import Distribution, broadcast_parameters
from refruntime.errors import ArgumentValueError


class Uniform(Distribution):
    """A number from `low`, included, to `high`, excluded.

    Parameters
    ----------
    low, high : Tensor or float
        The bounds.
    """

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "low": constraints.real, "high": constraints.real,
    }  # fmt: skip

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_parameters(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)
        if self._validate_args and not bool(ops.all(ops.lt(self.low, self.high))):
            raise ArgumentValueError(
                "Uniform", what="Uniform is not defined when low>= high",
                expected="low < high", got=f"low={low}, high={high}",
            )  # fmt: skip

    @property
    def support(self) -> Constraint:
        """The interval."""
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Any:
        """The middle."""
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Any:
        """Not a number: all outcomes are equally likely."""
        return self.high * float("nan")

    @property
    def variance(self) -> Any:
        """The variance."""
        return ops.square(self.high - self.low) / 12

    def expand(self, batch_shape: Any) -> Uniform:
        """Return the same distribution for a larger batch shape."""
        low, high = ops.expand(self.low, batch_shape), ops.expand(self.high, batch_shape)
        return type(self)(low, high, validate_args=False)

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw so that gradients flow to the bounds."""
        shape = self._extended_shape(sample_shape)
        part = ops.rand(shape, dtype=self.low.dtype, device=self.low.device)
        return self.low + part * (self.high - self.low)

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the density."""
        if self._validate_args:
            self._validate_sample(value)
        inside = ops.logical_and(ops.le(self.low, value), ops.lt(value, self.high))
        return ops.log(inside.to(self.low.dtype)) - ops.log(self.high - self.low)

    def cdf(self, value: Any) -> Any:
        """Return the probability of an outcome not above `value`."""
        if self._validate_args:
            self._validate_sample(value)
        return ops.clamp((value - self.low) / (self.high - self.low), 0, 1)

    def icdf(self, value: Any) -> Any:
        """Return the outcome below which a given probability lies."""
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Any:
        """Return the entropy in nats."""
        return ops.log(self.high - self.low)
