"""The base of all distributions: shapes, validation, and what follows from them.

State
-----
`Distribution.validation`, whether parameters and outcomes are checked when a distribution is not
told itself.

Invariants
----------
* A sample has shape ``sample_shape + batch_shape + event_shape``.
* `rsample` passes gradients to the parameters; `sample` never does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ClassVar

from refruntime import _dtypes
from refruntime._layout import Size
from refruntime._ops.opdef import ops
from refruntime._tensor import Tensor
from refruntime.autograd import enable_grad, no_grad
from refruntime.distributions.constraints import Constraint
from refruntime.errors import ArgumentValueError


class Distribution:
    """Something that can be drawn.

    Parameters
    ----------
    batch_shape : sequence of int
        The shape of independent distributions that one object holds.
    event_shape : sequence of int
        The shape of one outcome.
    validate_args : bool, optional
        Whether to check parameters and outcomes.
    """

    has_rsample: ClassVar[bool] = False
    has_enumerate_support: ClassVar[bool] = False
    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    validation: ClassVar[bool] = __debug__

    def __init__(
        self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None
    ) -> None:
        self._batch_shape = Size(batch_shape)
        self._event_shape = Size(event_shape)
        self._validate_args = self.validation if validate_args is None else validate_args
        if self._validate_args:
            self._validate_parameters()

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Say whether distributions check their parameters when they are not told themselves."""
        Distribution.validation = value

    def _validate_parameters(self) -> None:
        for name, constraint in self.arg_constraints.items():
            value = self.__dict__.get(name)
            # A parameter that is derived from another one is not computed for its check.
            if value is not None and not bool(ops.all(constraint.check(value))):
                raise ArgumentValueError(
                    type(self).__name__,
                    what=f"Expected parameter {name} ({type(value).__name__} of shape "
                    f"{tuple(value.shape)}) of distribution {self!r} to satisfy the constraint "
                    f"{constraint}, but found invalid values",
                    expected=str(constraint),
                    got=repr(value),
                    remedy="correct the parameter, or pass validate_args=False",
                )

    def _validate_sample(self, value: Any) -> None:
        """Raise unless `value` can have come from this distribution."""
        if not isinstance(value, Tensor):
            raise ArgumentValueError(
                type(self).__name__,
                what="The value argument to log_prob must be a Tensor",
                expected="Tensor",
                got=type(value).__name__,
            )
        ops.broadcast_shapes(
            tuple(value.shape), tuple(self._batch_shape) + tuple(self._event_shape)
        )
        if not bool(ops.all(self.support.check(value))):
            raise ArgumentValueError(
                type(self).__name__,
                what=f"Expected value argument ({type(value).__name__} of shape "
                f"{tuple(value.shape)}) to be within the support ({self.support}) of the "
                f"distribution {self!r}, but found invalid values",
                expected=str(self.support),
                got=repr(value),
                remedy="correct the value, or pass validate_args=False",
            )

    @property
    def batch_shape(self) -> Size:
        """The shape of independent distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one outcome."""
        return self._event_shape

    @property
    def support(self) -> Constraint:
        """The outcomes that can come."""
        raise NotImplementedError

    @property
    def mean(self) -> Any:
        """The expectation."""
        raise NotImplementedError

    @property
    def mode(self) -> Any:
        """The likeliest outcome."""
        raise NotImplementedError

    @property
    def variance(self) -> Any:
        """The variance."""
        raise NotImplementedError

    @property
    def stddev(self) -> Any:
        """The standard deviation."""
        return ops.sqrt(self.variance)

    def expand(self, batch_shape: Any) -> Any:
        """Return the same distribution for a larger batch shape."""
        raise NotImplementedError

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw; no gradient flows through the result."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw so that gradients flow from the result to the parameters."""
        raise NotImplementedError

    def sample_n(self, n: int) -> Any:
        """Draw `n` times."""
        return self.sample((n,))

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the probability (density) of each outcome."""
        raise NotImplementedError

    def cdf(self, value: Any) -> Any:
        """Return the probability of an outcome not above `value`."""
        raise NotImplementedError

    def icdf(self, value: Any) -> Any:
        """Return the outcome below which a given probability lies."""
        raise NotImplementedError

    def entropy(self) -> Any:
        """Return the entropy in nats."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Any:
        """Return all outcomes along a new first dimension."""
        raise NotImplementedError

    def perplexity(self) -> Any:
        """Return the exponential of the entropy."""
        return ops.exp(self.entropy())

    def _extended_shape(self, sample_shape: Any = ()) -> Size:
        shape = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        return Size(shape + tuple(self._batch_shape) + tuple(self._event_shape))

    def __repr__(self) -> str:
        shown = [
            f"{name}: {value if value.numel() == 1 else value.size()}"
            for name in self.arg_constraints
            if (value := self.__dict__.get(name)) is not None
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def broadcast_parameters(*values: Any) -> tuple[Any, ...]:
    """Return parameters as tensors of one shape; numbers take dtype and device of the tensors."""
    like = next((value for value in values if isinstance(value, Tensor)), None)
    dtype = _dtypes.get_default_dtype() if like is None else like.dtype
    device = None if like is None else like.device
    tensors = [
        value if isinstance(value, Tensor) else ops.tensor(value, dtype=dtype, device=device)
        for value in values
    ]
    return tuple(ops.broadcast_tensors(*tensors))


def derived(function: Callable[[Any], Any]) -> Any:
    """Make a parameter that is computed from another when it is first asked for, with gradients."""

    @wraps(function)
    def compute(self: Any) -> Any:
        with enable_grad():
            return function(self)

    return cached_property(compute)
