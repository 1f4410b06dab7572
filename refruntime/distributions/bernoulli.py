"""Zero or one, by a probability or by a logit."""

from __future__ import annotations

from typing import Any, ClassVar

from refruntime._ops.opdef import ops
from refruntime.autograd import no_grad
from refruntime.distributions import constraints
from refruntime.distributions.categorical import clamped, one_of
from refruntime.distributions.constraints import Constraint
from refruntime.distributions.distribution import Distribution, broadcast_parameters, derived


class Bernoulli(Distribution):
    """One with a probability, else zero.

    Parameters
    ----------
    probs : Tensor or float, optional
        The probability of one.
    logits : Tensor or float, optional
        ``log(p / (1 - p))``.
    """

    has_enumerate_support = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.unit_interval, "logits": constraints.real,
    }  # fmt: skip
    support = constraints.boolean

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        name = "probs" if logits is None else "logits"
        (self.__dict__[name],) = broadcast_parameters(one_of("Bernoulli", probs, logits))
        self._given = name
        super().__init__(self._param.shape, validate_args=validate_args)

    @property
    def _param(self) -> Any:
        return self.__dict__[self._given]

    @derived
    def probs(self) -> Any:
        """The probability of one."""
        return ops.sigmoid(self.logits)

    @derived
    def logits(self) -> Any:
        """``log(p / (1 - p))``."""
        probs = clamped(self.probs)
        return ops.log(probs) - ops.log1p(-probs)

    @property
    def mean(self) -> Any:
        """The expectation."""
        return self.probs

    @property
    def mode(self) -> Any:
        """The likelier outcome; not a number when both are equally likely."""
        likelier = ops.ge(self.probs, 0.5).to(self.probs.dtype)
        return ops.masked_fill(likelier, ops.eq(self.probs, 0.5), float("nan"))

    @property
    def variance(self) -> Any:
        """The variance."""
        return self.probs * (1 - self.probs)

    def expand(self, batch_shape: Any) -> Bernoulli:
        """Return the same distribution for a larger batch shape."""
        return type(self)(
            **{self._given: ops.expand(self._param, batch_shape)}, validate_args=False
        )

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw zeros and ones."""
        with no_grad():
            return ops.bernoulli(ops.expand(self.probs, self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the probability of each outcome."""
        if self._validate_args:
            self._validate_sample(value)
        return value * self.logits - ops.softplus(self.logits)

    def entropy(self) -> Any:
        """Return the entropy in nats."""
        return ops.softplus(self.logits) - self.probs * self.logits

    def enumerate_support(self, expand: bool = True) -> Any:
        """Return both outcomes along a new first dimension."""
        values = ops.arange(2, dtype=self._param.dtype, device=self._param.device)
        values = ops.view(values, (-1,) + (1,) * len(self._batch_shape))
        return ops.expand(values, (-1, *self._batch_shape)) if expand else values
