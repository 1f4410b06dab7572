"""One of several categories, by probabilities or by logits."""

from __future__ import annotations

from typing import Any, ClassVar

from refruntime import _dtypes
from refruntime._layout import Size
from refruntime._ops.opdef import ops
from refruntime.autograd import no_grad
from refruntime.distributions import constraints
from refruntime.distributions.constraints import Constraint
from refruntime.distributions.distribution import Distribution, derived
from refruntime.errors import ArgumentValueError


def one_of(name: str, probs: Any, logits: Any) -> Any:
    """Return the one of two parameters that is given.

    Raises
    ------
    ArgumentValueError
        If both are given, or neither.
    """
    if (probs is None) == (logits is None):
        raise ArgumentValueError(
            name, what="Either `probs` or `logits` must be specified, but not both.",
            expected="one of probs, logits", got="neither" if probs is None else "both",
        )  # fmt: skip
    return probs if logits is None else logits


def clamped(probs: Any) -> Any:
    """Keep probabilities far enough from 0 and 1 for their logarithms."""
    tiny = _dtypes.finfo(probs.dtype).eps
    return ops.clamp(probs, tiny, 1 - tiny)


class Categorical(Distribution):
    """A whole number from 0 to the number of categories - 1.

    Parameters
    ----------
    probs : Tensor, optional
        Relative probabilities along the last dimension; they are divided by their sum.
    logits : Tensor, optional
        Their logarithms, up to a constant.
    """

    has_enumerate_support = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.simplex, "logits": constraints.real_vector,
    }  # fmt: skip

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = one_of("Categorical", probs, logits)
        if given.dim() < 1:
            raise ArgumentValueError(
                "Categorical", what="the parameter must be at least one-dimensional.",
                expected="a dimension of categories", got="a zero-dim tensor",
            )  # fmt: skip
        if logits is None:
            self.__dict__["probs"] = probs / ops.sum(probs, -1, keepdim=True)
        else:
            self.__dict__["logits"] = logits - ops.logsumexp(logits, -1, keepdim=True)
        self._num_events = given.shape[-1]
        super().__init__(given.shape[:-1], validate_args=validate_args)

    @derived
    def probs(self) -> Any:
        """The probabilities."""
        return ops.softmax(self.logits, -1)

    @derived
    def logits(self) -> Any:
        """The logarithms of the probabilities."""
        return ops.log(clamped(self.probs))

    @property
    def _param(self) -> Any:
        return self.__dict__["logits" if "logits" in self.__dict__ else "probs"]

    @property
    def support(self) -> Constraint:
        """The categories."""
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter."""
        shape: Size = self._param.shape
        return shape

    @property
    def mean(self) -> Any:
        """Not a number: categories have no mean."""
        return ops.full(self._batch_shape, float("nan"), dtype=self.probs.dtype)

    variance = mean

    @property
    def mode(self) -> Any:
        """The likeliest category."""
        return ops.argmax(self.probs, -1)

    def expand(self, batch_shape: Any) -> Categorical:
        """Return the same distribution for a larger batch shape."""
        shape = (*batch_shape, self._num_events)
        name = "logits" if "logits" in self.__dict__ else "probs"
        return type(self)(**{name: ops.expand(self._param, shape)}, validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw categories."""
        shape = self._extended_shape(sample_shape)
        with no_grad():
            rows = ops.reshape(self.probs, (-1, self._num_events))
            count = Size((sample_shape,) if isinstance(sample_shape, int) else sample_shape).numel()
            drawn = ops.multinomial(rows, count, True)
            return ops.reshape(ops.transpose(drawn, 0, 1), shape)

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the probability of each category."""
        if self._validate_args:
            self._validate_sample(value)
        places = ops.unsqueeze(value.long(), -1)
        places, logits = ops.broadcast_tensors(places, self.logits)
        return ops.squeeze(ops.gather(logits, -1, places[..., :1]), -1)

    def entropy(self) -> Any:
        """Return the entropy in nats."""
        finite = ops.clamp(self.logits, min=_dtypes.finfo(self.logits.dtype).min)
        return -ops.sum(finite * self.probs, -1)

    def enumerate_support(self, expand: bool = True) -> Any:
        """Return all categories along a new first dimension."""
        values = ops.arange(self._num_events, device=self._param.device)
        values = ops.view(values, (-1,) + (1,) * len(self._batch_shape))
        return ops.expand(values, (-1, *self._batch_shape)) if expand else values
