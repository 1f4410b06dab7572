"""Batch dimensions of a distribution, taken as parts of one outcome."""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.distributions import constraints
from refruntime.distributions.constraints import Constraint
from refruntime.distributions.distribution import Distribution
from refruntime.errors import ArgumentValueError


def sum_rightmost(value: Any, dims: int) -> Any:
    """Sum the last `dims` dimensions."""
    return ops.sum(value, tuple(range(-dims, 0))) if dims else value


class Independent(Distribution):
    """A distribution whose last batch dimensions belong to the outcome.

    Parameters
    ----------
    base_distribution : Distribution
        The distribution of the parts.
    reinterpreted_batch_ndims : int
        How many of its batch dimensions become event dimensions.
    """

    def __init__(
        self,
        base_distribution: Any,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        if reinterpreted_batch_ndims > len(base_distribution.batch_shape):
            raise ArgumentValueError(
                "Independent",
                what="Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape)",
                expected=f"at most {len(base_distribution.batch_shape)}",
                got=str(reinterpreted_batch_ndims),
            )
        shape = base_distribution.batch_shape + base_distribution.event_shape
        event = reinterpreted_batch_ndims + len(base_distribution.event_shape)
        border = len(shape) - event
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        super().__init__(shape[:border], shape[border:], validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether gradients flow through a draw of the parts."""
        return bool(self.base_dist.has_rsample)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether the outcomes can be listed."""
        return bool(self.base_dist.has_enumerate_support) and not self.reinterpreted_batch_ndims

    @property
    def support(self) -> Constraint:
        """The outcomes whose parts can come."""
        return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Any:
        """The expectation."""
        return self.base_dist.mean

    @property
    def mode(self) -> Any:
        """The likeliest outcome."""
        return self.base_dist.mode

    @property
    def variance(self) -> Any:
        """The variances of the parts."""
        return self.base_dist.variance

    def expand(self, batch_shape: Any) -> Independent:
        """Return the same distribution for a larger batch shape."""
        parts = tuple(self.event_shape[: self.reinterpreted_batch_ndims])
        base = self.base_dist.expand((*batch_shape, *parts))
        return type(self)(base, self.reinterpreted_batch_ndims, validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw; no gradient flows through the result."""
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw so that gradients flow to the parameters."""
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the probability (density) of each outcome."""
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Any:
        """Return the entropy in nats."""
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist}, {self.reinterpreted_batch_ndims})"
