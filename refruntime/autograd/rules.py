"""Shorter ways through the derivative rules of the ops that small programs are made of.

A derivative rule calls the public functions of the registry, so that it can be recorded, traced or
batched. When nothing looks on, that is most of the time which a small gradient takes. The functions
here do the same with the kernels' plans alone.

State
-----
None of their own; `node.plain_rules` gets one function for each op.

Invariants
----------
* A function here gives the same bits as the op's ``vjp``: the tests compare the two.
* Where anything is unusual (a subclass of Tensor, a hook of saved tensors, a number where a tensor
  is usual) it leaves the work to the ``vjp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from refruntime._impl import TensorMeta, alias, meta_of, plain_types
from refruntime._layout import broadcast_strides
from refruntime._ops.opdef import NO_PARAMS, REGISTRY
from refruntime.alloc.categories import GRADIENT
from refruntime.autograd.node import AccumulateGrad, apply_rule, plain_rules, released
from refruntime.autograd.saved import PackedValue, modified

Rule = Callable[[Any, Sequence[Any]], Sequence[Any]]


def _saved(node: Any, position: int) -> Any:
    """Return a saved tensor or number; None if it takes the long way."""
    saved = node.saved_values
    if saved is None:
        raise released(node)
    value, version = saved[position], saved[position + 1]
    if version is None:
        return None if type(value) is PackedValue else value
    if value.counter.version != version:
        raise modified(value, version, node)
    return value if type(value) in plain_types else None


def _both(node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    return grads[0], grads[0]


def _same(node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    return (grads[0],)


def _difference() -> Rule:
    op = REGISTRY["neg"]
    run = op.run

    def rule(node: Any, grads: Sequence[Any]) -> Sequence[Any]:
        gradient = grads[0]
        if node.next_functions[1][0] is None:
            return gradient, None
        if type(gradient) not in plain_types:
            return apply_rule(node, grads)
        return gradient, run(op, (gradient,), NO_PARAMS)

    return rule


def _product() -> Rule:
    op = REGISTRY["mul"]
    run, pair = op.run, op.run.__self__.run_pair

    def rule(node: Any, grads: Sequence[Any]) -> Sequence[Any]:
        gradient, saved = grads[0], node.saved_values
        if saved is None:
            raise released(node)
        if type(gradient) not in plain_types:
            return apply_rule(node, grads)
        (left, _), (right, _) = node.next_functions
        first = second = None
        if left is not None:
            other, version = saved[2], saved[3]
            if version is None or type(other) not in plain_types:
                if type(other) not in _NUMBERS:
                    return apply_rule(node, grads)
                first = run(op, (gradient, other), NO_PARAMS)
            elif other.counter.version != version:
                raise modified(other, version, node)
            else:
                first = pair(gradient, other, GRADIENT if type(left) is AccumulateGrad else None)
        if right is not None:
            other, version = saved[0], saved[1]
            if version is None or type(other) not in plain_types:
                return apply_rule(node, grads)
            if other.counter.version != version:
                raise modified(other, version, node)
            second = pair(gradient, other, GRADIENT if type(right) is AccumulateGrad else None)
        return first, second

    return rule


_NUMBERS = (float, int, bool)


def _quotient() -> Rule:
    op = REGISTRY["div"]
    run = op.run

    def rule(node: Any, grads: Sequence[Any]) -> Sequence[Any]:
        gradient = grads[0]
        (_, _), (right, _) = node.next_functions
        if right is None and type(gradient) in plain_types:
            other = _saved(node, 2)
            if other is not None:
                return run(op, (gradient, other), NO_PARAMS), None
        return apply_rule(node, grads)

    return rule


def _with_saved(name: str) -> Rule:
    """Return the rule of an op whose gradient is one op of the gradient and one saved value."""
    pair = REGISTRY[name].run.__self__.run_pair

    def rule(node: Any, grads: Sequence[Any]) -> Sequence[Any]:
        gradient = grads[0]
        if type(gradient) in plain_types:
            value = _saved(node, 0)
            if value is not None:
                return (pair(gradient, value),)
        return apply_rule(node, grads)

    return rule


def _with_gradient(name: str) -> Rule:
    """Return the rule of an op whose gradient is one op of the gradient."""
    op = REGISTRY[name]
    run = op.run

    def rule(node: Any, grads: Sequence[Any]) -> Sequence[Any]:
        if type(grads[0]) in plain_types:
            return (run(op, (grads[0],), NO_PARAMS),)
        return apply_rule(node, grads)

    return rule


_spread_metas: dict[tuple[TensorMeta, TensorMeta], TensorMeta] = {}
_MAX_METAS = 4096


def _spread(node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    """Show the gradient of a sum of all elements at each of them."""
    gradient = grads[0]
    if type(gradient) not in plain_types or gradient.meta.ndim:
        return apply_rule(node, grads)
    key = gradient.meta, node.metas[0]
    meta = _spread_metas.get(key)
    if meta is None:
        if len(_spread_metas) >= _MAX_METAS:
            _spread_metas.clear()
        shape = key[1].shape
        strides = tuple(broadcast_strides((), (), shape))
        meta = _spread_metas[key] = meta_of(shape, key[0].dtype, key[0].device, strides)
    return (alias(gradient, meta, gradient.byte_offset),)


def install() -> None:
    """Enter the rules; the registry must be complete."""
    plain_rules.update(
        add=_both, sub=_difference(), mul=_product(), div=_quotient(), alias=_same, expand=_same,
        sum=_spread, exp=_with_saved("mul"), neg=_with_gradient("neg"),
        relu=_with_saved("relu_backward"), tanh=_with_saved("tanh_backward"),
        sigmoid=_with_saved("sigmoid_backward"), log=_with_saved("div"),
    )  # fmt: skip
