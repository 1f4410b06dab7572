"""The normal distribution of vectors.

Invariants
----------
* Everything is computed from `scale_tril`, the Cholesky factor of the covariance matrix; the other
  two forms are derived from it when they are asked for.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from refruntime._ops.opdef import ops
from refruntime.distributions import constraints
from refruntime.distributions.constraints import Constraint
from refruntime.distributions.distribution import Distribution, derived
from refruntime.errors import ArgumentValueError


def _given_form(forms: dict[str, Any]) -> tuple[str, Any]:
    given = [(name, value) for name, value in forms.items() if value is not None]
    if len(given) != 1:
        raise ArgumentValueError(
            "MultivariateNormal",
            what="Exactly one of covariance_matrix or precision_matrix or scale_tril may be "
            "specified.",
            expected="one of them", got=", ".join(name for name, _ in given) or "none",
        )  # fmt: skip
    name, value = given[0]
    if value.dim() < 2:
        raise ArgumentValueError(
            "MultivariateNormal", what=f"{name} must be at least two-dimensional",
            expected="a matrix", got=f"shape {tuple(value.shape)}",
        )  # fmt: skip
    return name, value


def cholesky_of_inverse(matrix: Any) -> Any:
    """Return the Cholesky factor of the inverse of a positive-definite matrix."""
    # With the order of rows and columns reversed, the factor of the matrix itself, inverted and
    # turned over, is the factor of the inverse.
    factor = ops.linalg_cholesky(ops.flip(matrix, (-2, -1)))
    turned = ops.transpose(ops.flip(factor, (-2, -1)), -2, -1)
    identity = ops.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return ops.linalg_solve_triangular(turned, identity, upper=False)


def mahalanobis(factor: Any, difference: Any) -> Any:
    """Return the squared length of a difference in units of the covariance's factor."""
    column = ops.unsqueeze(difference, -1)
    solved = ops.linalg_solve_triangular(factor, column, upper=False)
    return ops.sum(ops.square(ops.squeeze(solved, -1)), -1)


def half_log_det(factor: Any) -> Any:
    """Return half the logarithm of the covariance's determinant."""
    return ops.sum(ops.log(ops.diagonal(factor, 0, -2, -1)), -1)


class MultivariateNormal(Distribution):
    """The normal distribution of vectors.

    Parameters
    ----------
    loc : Tensor
        The mean, shape ``(..., n)``.
    covariance_matrix, precision_matrix, scale_tril : Tensor, optional
        One of: the covariance, its inverse, its Cholesky factor; shape ``(..., n, n)``.
    """

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector

    def __init__(
        self,
        loc: Any,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        name, matrix = _given_form(
            {"covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix,
             "scale_tril": scale_tril}
        )  # fmt: skip
        batch = ops.broadcast_shapes(tuple(matrix.shape[:-2]), tuple(loc.shape[:-1]))
        self.loc = ops.expand(loc, (*batch, -1))
        self.__dict__[name] = ops.expand(matrix, (*batch, -1, -1))
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)
        # The factor of the matrix as it was given, before it was expanded.
        if name == "covariance_matrix":
            self._factor = ops.linalg_cholesky(matrix)
        else:
            self._factor = matrix if name == "scale_tril" else cholesky_of_inverse(matrix)

    @derived
    def scale_tril(self) -> Any:
        """The Cholesky factor of the covariance."""
        size = self._event_shape[0]
        return ops.expand(self._factor, (*self._batch_shape, size, size))

    @derived
    def covariance_matrix(self) -> Any:
        """The covariance."""
        return ops.matmul(self.scale_tril, ops.transpose(self.scale_tril, -2, -1))

    @derived
    def precision_matrix(self) -> Any:
        """The inverse of the covariance."""
        identity = ops.eye(self._event_shape[0], dtype=self.loc.dtype, device=self.loc.device)
        half = ops.linalg_solve_triangular(self.scale_tril, identity, upper=False)
        return ops.matmul(ops.transpose(half, -2, -1), half)

    @property
    def mean(self) -> Any:
        """The expectation."""
        return self.loc

    @property
    def mode(self) -> Any:
        """The likeliest outcome."""
        return self.loc

    @property
    def variance(self) -> Any:
        """The variances of the components."""
        return ops.sum(ops.square(self.scale_tril), -1)

    def expand(self, batch_shape: Any) -> MultivariateNormal:
        """Return the same distribution for a larger batch shape."""
        size = self._event_shape[0]
        loc = ops.expand(self.loc, (*batch_shape, size))
        factor = ops.expand(self._factor, (*batch_shape, size, size))
        return type(self)(loc, scale_tril=factor, validate_args=False)

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw so that gradients flow to the parameters."""
        shape = self._extended_shape(sample_shape)
        noise = ops.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + ops.squeeze(ops.matmul(self._factor, ops.unsqueeze(noise, -1)), -1)

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the density."""
        if self._validate_args:
            self._validate_sample(value)
        squared = mahalanobis(self._factor, value - self.loc)
        constant = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (constant + squared) - half_log_det(self._factor)

    def entropy(self) -> Any:
        """Return the entropy in nats."""
        constant = 0.5 * self._event_shape[0] * (1 + math.log(2 * math.pi))
        return ops.expand(half_log_det(self._factor) + constant, tuple(self._batch_shape))
