"""Reverse derivatives inside other transforms, and the reverse of reverse ones.

State
-----
An argument that is differentiated at a level is an alias with a `LevelInput` node as its history.
What is computed from it is recorded as always, on the tensors inside of whatever wrappers stand
around them.

Invariants
----------
* Inside an open `vmap`, an argument is first expanded over the batch: each sample has an argument
  of its own, so the gradient of the sum over the batch is the gradient of each sample.
* The derivative of a dual tensor is dual: the tangent of ``grad(y, x)`` is the gradient of the
  tangent of y, since both orders of differentiation agree.
* A result of a level keeps its history if something outside of the level is in it, and else has
  none; saved values are kept for as long as that needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from refruntime._impl import AutogradMeta, TensorImpl, detached, requires_grad
from refruntime._ops.opdef import ops
from refruntime.autograd.api import grad as plain_grad
from refruntime.autograd.levels import Level, Wrapper
from refruntime.autograd.modes import enable_grad, state
from refruntime.autograd.node import Node, gradient_edge, is_differentiable


class LevelInput(Node):
    """The history of an argument of a level: what flows to it flows on to the outside."""

    __slots__ = ("level",)

    def __init__(self, level: Level, source: TensorImpl) -> None:
        edge = gradient_edge(source)
        super().__init__((edge,) if edge[0] is not None else ())
        self.level = level
        self.output_metas = (source.meta,)

    def apply(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the operands from those of the outputs."""
        return tuple(grads[: len(self.next_functions)])


def enter(value: Any, level: Level, batches: Iterable[Any] = ()) -> Any:
    """Return an argument as the level sees it: values that can be differentiated by it.

    Parameters
    ----------
    value : tensor
        The argument.
    level : Level
        The level that differentiates.
    batches : iterable
        The open levels of `vmap`, over which the argument is expanded.
    """
    if not is_differentiable(value.meta):
        return value
    for batch in batches:
        value = batch.spread(value)
    return _entered(value, level)


def _entered(value: Any, level: Level) -> Any:
    if isinstance(value, Wrapper):
        return value.entered(lambda part: _entered(part, level))
    alias = detached(value)
    alias.autograd = AutogradMeta(True, LevelInput(level, value), 0, value.counter.version)
    return alias


def leave(value: Any, level: Level) -> Any:
    """Return a result of a level as the outside sees it."""
    if isinstance(value, Wrapper):
        return value.mapped(lambda part: leave(part, level))
    if not requires_grad(value):
        return value
    if state.grad and depends_on_outside((value,), level):
        return value
    return detached(value)


def depends_on_outside(values: Iterable[Any], level: Level) -> bool:
    """Whether histories of some tensors lead to something besides the arguments of `level`."""
    stack = [gradient_edge(part)[0] for value in values for part in _inside(value)]
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.next_functions:
            stack.extend([edge[0] for edge in node.next_functions])
        elif not (type(node) is LevelInput and _is_over(node.level, level)):
            return True
    return False


def _is_over(found: Level, level: Level) -> bool:
    return found is level or not found.alive


def batch_levels(values: Iterable[Any]) -> list[Any]:
    """Return the levels of `vmap` over which some of the values are batched, lowest first."""
    found: dict[int, Any] = {}
    waiting = [value for value in values if isinstance(value, Wrapper)]
    while waiting:
        one = waiting.pop()
        if hasattr(one.level, "spread"):
            found[one.level.number] = one.level
        waiting.extend(part for part in one.parts() if isinstance(part, Wrapper))
    return [found[number] for number in sorted(found)]


def _inside(value: Any) -> list[Any]:
    """Return the tensors with memory that a value stands for and that have a history."""
    if isinstance(value, Wrapper):
        return [leaf for part in value.parts() for leaf in _inside(part)]
    return [value] if requires_grad(value) else []


def gradients(
    outputs: list[Any], inputs: list[Any], cotangents: list[Any], *, create_graph: bool,
    retain_graph: bool = True,
) -> list[Any]:  # fmt: skip
    """Return ``sum over k of cotangents[k] * d outputs[k] / d inputs[i]`` for each i, or None.

    Parameters
    ----------
    outputs, cotangents : list of tensors
        What is differentiated, and the weights of its elements.
    inputs : list of tensors
        Arguments that `enter` made.
    create_graph, retain_graph : bool
        As in `grad`.
    """
    top = None
    for value in (*outputs, *inputs):
        if isinstance(value, Wrapper) and (top is None or value.level.number > top.level.number):
            top = value
    if top is None:
        return _plain(outputs, inputs, cotangents, create_graph, retain_graph)

    def below(outs: list[Any], ins: list[Any], weights: list[Any], last: bool = True) -> list[Any]:
        return gradients(
            outs, ins, weights, create_graph=create_graph, retain_graph=retain_graph or not last
        )

    found: list[Any] = top.differentiated(outputs, inputs, cotangents, below)
    return found


def _plain(
    outputs: list[Any], inputs: list[Any], cotangents: list[Any], create_graph: bool, retain: bool
) -> list[Any]:
    pairs = [
        (out, weight)
        for out, weight in zip(outputs, cotangents, strict=True)
        if requires_grad(out) and weight is not None
    ]
    wanted = [value for value in inputs if requires_grad(value)]
    if not pairs or not wanted:
        return [None] * len(inputs)
    roots, weights = zip(*pairs, strict=True)
    found = iter(
        plain_grad(roots, wanted, weights, retain, create_graph=create_graph, allow_unused=True)
    )
    return [next(found) if requires_grad(value) else None for value in inputs]


def transposed(
    function: Callable[[Any], Any], like: list[Any], batches: Iterable[Any], vectors: list[Any]
) -> list[Any]:
    """Apply the transpose of a linear function.

    Parameters
    ----------
    function : callable
        Linear; takes a list of tensors and returns a list of them (or None).
    like : list of tensors
        Metas of its arguments.
    batches : iterable
        Levels of `vmap` over which what `function` knows may be batched.
    vectors : list of tensors or None
        What the transpose is applied to: one for each result.
    """
    level = Level()
    create_graph = state.grad
    with enable_grad():
        zeros = [_zeros(value, level, batches) for value in like]
        results = function(zeros)
        pairs = [
            (result, vector)
            for result, vector in zip(results, vectors, strict=True)
            if result is not None and vector is not None
        ]
        outs = [result for result, _ in pairs]
        create_graph = create_graph and depends_on_outside(
            (*outs, *(vector for _, vector in pairs)), level
        )
        found = gradients(outs, zeros, [v for _, v in pairs], create_graph=create_graph)
    level.alive = False
    return [None if one is None else leave(one, level) for one in found]


def _zeros(value: Any, level: Level, batches: Iterable[Any]) -> Any:
    meta = value.meta
    zeros = ops.zeros(tuple(meta.shape), dtype=meta.dtype, device=meta.device)
    return enter(zeros, level, batches)
