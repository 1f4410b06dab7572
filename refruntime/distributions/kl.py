"""The Kullback-Leibler divergence of one distribution from another.

State
-----
The rule of each pair of classes.

Invariants
----------
* A pair of classes without a rule of its own uses the rule of its nearest bases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.distributions.bernoulli import Bernoulli
from refruntime.distributions.categorical import Categorical
from refruntime.distributions.independent import Independent, sum_rightmost
from refruntime.distributions.multivariate_normal import (
    MultivariateNormal,
    half_log_det,
    mahalanobis,
)
from refruntime.distributions.normal import Normal
from refruntime.distributions.uniform import Uniform
from refruntime.errors import KernelMissingError

Rule = Callable[[Any, Any], Any]
_rules: dict[tuple[type, type], Rule] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Rule], Rule]:
    """Make a function the rule of a pair of classes."""

    def enter(rule: Rule) -> Rule:
        _rules[type_p, type_q] = rule
        return rule

    return enter


def kl_divergence(p: Any, q: Any) -> Any:
    """Return the divergence of `p` from `q`, in nats.

    Raises
    ------
    KernelMissingError
        If no rule covers the two classes.
    """
    for base_p in type(p).__mro__:
        for base_q in type(q).__mro__:
            rule = _rules.get((base_p, base_q))
            if rule is not None:
                return rule(p, q)
    raise KernelMissingError(
        "kl_divergence",
        what="No KL(p || q) is implemented for these types",
        expected="a pair with a rule",
        got=f"{type(p).__name__} and {type(q).__name__}",
        remedy="write one with register_kl, or estimate it from samples",
    )


@register_kl(Normal, Normal)
def _normal(p: Any, q: Any) -> Any:
    ratio = ops.square(p.scale / q.scale)
    distance = ops.square((p.loc - q.loc) / q.scale)
    return 0.5 * (ratio + distance - 1 - ops.log(ratio))


@register_kl(Categorical, Categorical)
def _categorical(p: Any, q: Any) -> Any:
    terms = p.probs * (p.logits - q.logits)
    terms = ops.masked_fill(terms, ops.expand_as(ops.eq(q.probs, 0), terms), float("inf"))
    return ops.sum(ops.masked_fill(terms, ops.expand_as(ops.eq(p.probs, 0), terms), 0.0), -1)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Any, q: Any) -> Any:
    # Infinite where q cannot give what p can: xlogy counts 0 * log(0) as 0.
    ones = ops.xlogy(p.probs, p.probs) - ops.xlogy(p.probs, q.probs)
    zeros = ops.xlogy(1 - p.probs, 1 - p.probs) - ops.xlogy(1 - p.probs, 1 - q.probs)
    return ones + zeros


@register_kl(Uniform, Uniform)
def _uniform(p: Any, q: Any) -> Any:
    inside = ops.log((q.high - q.low) / (p.high - p.low))
    outside = ops.logical_or(ops.gt(q.low, p.low), ops.lt(q.high, p.high))
    return ops.masked_fill(inside, outside, float("inf"))


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(p: Any, q: Any) -> Any:
    size = p.event_shape[0]
    spread = ops.linalg_solve_triangular(q._factor, p._factor, upper=False)
    trace = ops.sum(ops.square(spread), (-2, -1))
    squared = mahalanobis(q._factor, q.loc - p.loc)
    return half_log_det(q._factor) - half_log_det(p._factor) + 0.5 * (trace + squared - size)


@register_kl(Independent, Independent)
def _independent(p: Any, q: Any) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise KernelMissingError(
            "kl_divergence",
            expected="the same number of event dimensions",
            got=f"{p.reinterpreted_batch_ndims} and {q.reinterpreted_batch_ndims}",
        )
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
