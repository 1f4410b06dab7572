"""Sets of values: what parameters may be, and what a distribution can give.

Invariants
----------
* ``check(value)`` answers for each event: the last `event_dim` dimensions of the value are reduced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refruntime._ops.opdef import ops

__all__ = [
    "Constraint", "boolean", "dependent", "greater_than", "half_open_interval", "independent",
    "integer_interval", "interval", "lower_cholesky", "nonnegative", "nonnegative_integer",
    "positive", "positive_definite", "real", "real_vector", "simplex", "unit_interval",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Constraint:
    """A set of values.

    Parameters
    ----------
    name : str
        What errors call it.
    check : callable
        Maps a tensor to a bool tensor: which events are in the set.
    event_dim : int
        How many trailing dimensions make one event.
    is_discrete : bool
        Whether the set is countable.
    """

    name: str
    check: Callable[[Any], Any]
    event_dim: int = 0
    is_discrete: bool = False

    def __str__(self) -> str:
        return self.name


def _all(flags: Any, dims: int) -> Any:
    """Join the last `dims` dimensions of flags."""
    for _ in range(dims):
        flags = ops.all(flags, -1)
    return flags


def _unordered(value: Any) -> Any:
    """Whether each value is a number at all."""
    return ops.eq(value, value)


# Depends on other parameters; checked by who knows them.
dependent = Constraint("Dependent()", lambda value: _unordered(value))
real = Constraint("Real()", _unordered)
real_vector = Constraint("RealVector()", lambda value: _all(_unordered(value), 1), event_dim=1)
boolean = Constraint(
    "Boolean()", lambda value: ops.logical_or(ops.eq(value, 0), ops.eq(value, 1)), is_discrete=True
)


def greater_than(lower_bound: Any) -> Constraint:
    """Values above a bound."""
    return Constraint(
        f"GreaterThan(lower_bound={lower_bound})", lambda value: ops.gt(value, lower_bound)
    )


def greater_than_eq(lower_bound: Any) -> Constraint:
    """Values not below a bound."""
    return Constraint(
        f"GreaterThanEq(lower_bound={lower_bound})", lambda value: ops.ge(value, lower_bound)
    )


def interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Values from a bound to another, both included."""
    return Constraint(
        f"Interval(lower_bound={lower_bound}, upper_bound={upper_bound})",
        lambda value: ops.logical_and(ops.ge(value, lower_bound), ops.le(value, upper_bound)),
    )


def half_open_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Values from a bound, included, to another, excluded."""
    return Constraint(
        f"HalfOpenInterval(lower_bound={lower_bound}, upper_bound={upper_bound})",
        lambda value: ops.logical_and(ops.ge(value, lower_bound), ops.lt(value, upper_bound)),
    )


def integer_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Whole numbers from a bound to another, both included."""

    def check(value: Any) -> Any:
        whole = ops.eq(ops.remainder(value, 1), 0)
        return ops.logical_and(whole, interval(lower_bound, upper_bound).check(value))

    name = f"IntegerInterval(lower_bound={lower_bound}, upper_bound={upper_bound})"
    return Constraint(name, check, is_discrete=True)


def independent(base: Constraint, dims: int) -> Constraint:
    """Events of which each part satisfies another constraint."""
    return Constraint(
        f"IndependentConstraint({base}, {dims})",
        lambda value: _all(base.check(value), dims),
        event_dim=base.event_dim + dims,
        is_discrete=base.is_discrete,
    )


def _is_simplex(value: Any) -> Any:
    total = ops.sum(value, -1)
    near = ops.lt(ops.abs(ops.sub(total, 1)), 1e-6)
    return ops.logical_and(_all(ops.ge(value, 0), 1), near)


def _is_whole(value: Any) -> Any:
    return ops.logical_and(ops.eq(ops.remainder(value, 1), 0), ops.ge(value, 0))


def _is_lower_cholesky(value: Any) -> Any:
    lower = _all(ops.eq(ops.tril(value), value), 2)
    return ops.logical_and(lower, _all(ops.gt(ops.diagonal(value, 0, -2, -1), 0), 1))


def _is_positive_definite(value: Any) -> Any:
    gap = ops.abs(ops.sub(value, ops.transpose(value, -2, -1)))
    symmetric = _all(ops.le(gap, 1e-6), 2)
    return ops.logical_and(symmetric, ops.eq(ops.linalg_cholesky_ex(value)[1], 0))


positive = greater_than(0.0)
nonnegative = greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
nonnegative_integer = Constraint("IntegerGreaterThan(lower_bound=0)", _is_whole, is_discrete=True)
simplex = Constraint("Simplex()", _is_simplex, event_dim=1)
lower_cholesky = Constraint("LowerCholesky()", _is_lower_cholesky, event_dim=2)
positive_definite = Constraint("PositiveDefinite()", _is_positive_definite, event_dim=2)
