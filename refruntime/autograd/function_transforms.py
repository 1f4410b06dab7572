"""Custom functions with dual or batched arguments.

Invariants
----------
* The arguments' highest level is handled first; what is inside goes to `apply` again.
* A generated batching rule is a custom function of the whole batch: its forward, backward and jvp
  run those of the class inside of a `vmap` level that the rule keeps for itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd.derivatives import highest_batch
from refruntime.autograd.dual import DualLevel, join, split
from refruntime.autograd.function import Function
from refruntime.autograd.levels import Wrapper, highest, is_wrapper_of
from refruntime.autograd.node import is_differentiable
from refruntime.errors import AutogradError

Values = tuple[Any, ...]


class VmapInfo(NamedTuple):
    """What a `vmap` static method is told of the call."""

    batch_size: int
    randomness: str


def apply_transformed(cls: type[Function], args: Values) -> Any:
    """Run a custom function that has wrappers among its arguments."""
    level = highest(args).level
    if isinstance(level, DualLevel):
        return _forward_derivative(cls, level, args)
    return _batched(cls, level, args)


def _listed(outputs: Any) -> tuple[list[Any], bool]:
    several = isinstance(outputs, (tuple, list))
    return (list(outputs) if several else [outputs]), several


# ---------------------------------------------------------------------------------------------
# Forward derivatives


def _forward_derivative(cls: type[Function], level: DualLevel, args: Values) -> Any:
    """Run the function on the primals and its `jvp` on the tangents."""
    pairs = [split(arg, level) for arg in args]
    batch = highest_batch([part for pair in pairs for part in pair])
    if batch is not None:
        return _under_batch(cls, level, batch, pairs)
    primals = tuple([primal for primal, _ in pairs])
    outputs, node = _with_context(cls, primals)
    moved = _tangents(cls, node, pairs)
    outs, several = _listed(outputs)
    if len(moved) != len(outs):
        raise AutogradError(
            cls.__name__, what="jvp returned an incorrect number of tangents",
            expected=str(len(outs)), got=str(len(moved)),
            remedy="return one tangent (or None) for each output",
        )  # fmt: skip
    duals = [_dual(level, out, tangent) for out, tangent in zip(outs, moved, strict=True)]
    return tuple(duals) if several else duals[0]


def _with_context(cls: type[Function], primals: Values) -> tuple[Any, Any]:
    """Run the function on primals; return the outputs and a context that has saved them."""
    if not any(isinstance(primal, Wrapper) for primal in primals):
        return cls._apply(primals)
    # An inner forward derivative: the outputs by its rule, and what is saved by a run of our own.
    node = cls._context()
    outs, _ = _listed(cls._run_forward(node, primals))
    node.seal(tuple(outs))
    return cls.apply(*primals), node


def _tangents(cls: type[Function], node: Any, pairs: list[tuple[Any, Any]]) -> list[Any]:
    given = [
        _zeros(primal) if tangent is None and node.materialize_grads else tangent
        for primal, tangent in pairs
    ]
    saved = node._saved
    if node.saved_for_forward is not None:
        node._saved = list(node.saved_for_forward)
    try:
        return _listed(cls.jvp(node, *given))[0]
    finally:
        node._saved = saved


def _under_batch(
    cls: type[Function], level: DualLevel, batch: Any, pairs: list[tuple[Any, Any]]
) -> Any:
    """Differentiate the function as it runs on the batch: dual tensors inside batched ones."""
    inner, outer = DualLevel(), batch.twin()
    args = []
    for primal, tangent in pairs:
        if batch.is_batched(primal) or batch.is_batched(tangent):
            lowered = None if tangent is None else batch.lower(tangent)
            args.append(outer.batched(inner.dual(batch.lower(primal), lowered)))
        else:
            args.append(primal if tangent is None else inner.dual(primal, tangent))
    outs, several = _listed(cls.apply(*args))
    duals = []
    for out in outs:
        primal, tangent = split(outer.lower(out), inner)
        moved = None if tangent is None else batch.raise_(tangent)
        duals.append(_dual(level, batch.raise_(primal), moved))
    return tuple(duals) if several else duals[0]


def _zeros(primal: Any) -> Any:
    if not isinstance(primal, TensorImpl) or not is_differentiable(primal.meta):
        return None
    return ops.zeros_like(primal)


def _dual(level: DualLevel, out: Any, tangent: Any) -> Any:
    if tangent is None or not isinstance(out, TensorImpl) or not is_differentiable(out.meta):
        return out
    return join(level, out, tangent)


# ---------------------------------------------------------------------------------------------
# Batches


def _batched(cls: type[Function], level: Any, args: Values) -> Any:
    """Run the function on a whole batch, by its own rule or by a generated one."""
    own_rule = cls.vmap is not Function.vmap
    if not cls._has_setup_context() and not own_rule:
        raise AutogradError(
            cls.__name__,
            what="In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, "
            "jacrev, ...), it must override the setup_context staticmethod",
        )
    if own_rule and cls.generate_vmap_rule:
        raise AutogradError(
            cls.__name__,
            what=f"You tried to vmap over {cls.__name__}, but it has both generate_vmap_rule=True "
            "and an overridden vmap staticmethod",
            remedy="set generate_vmap_rule=False or delete the vmap staticmethod",
        )
    flags = tuple([is_wrapper_of(arg, level) for arg in args])
    inside = tuple([arg.value if flag else arg for arg, flag in zip(args, flags, strict=True)])
    if own_rule:
        info = VmapInfo(level.size, level.randomness)
        in_dims = tuple([0 if flag else None for flag in flags])
        return _ruled(cls, level, cls.vmap(info, in_dims, *inside))
    if not cls.generate_vmap_rule:
        raise AutogradError(
            cls.__name__,
            what=f"You tried to vmap over {cls.__name__}, but it does not have vmap support",
            remedy="override the vmap staticmethod, or set generate_vmap_rule=True",
        )
    outputs = _generated(cls, level, flags).apply(*inside)
    outs, several = _listed(outputs)
    made = [level.batched(out) if isinstance(out, TensorImpl) else out for out in outs]
    return tuple(made) if several else made[0]


def _ruled(cls: type[Function], level: Any, result: Any) -> Any:
    """Wrap what a `vmap` static method returned: the outputs, and where the batch is in each."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise AutogradError(
            cls.__name__,
            what="Expected the vmap staticmethod to have two returns: the outputs and out_dims",
            expected="a pair", got=type(result).__name__,
        )  # fmt: skip
    outs, several = _listed(result[0])
    dims = list(result[1]) if isinstance(result[1], (tuple, list)) else [result[1]] * len(outs)
    if len(dims) != len(outs):
        raise AutogradError(
            cls.__name__, what="out_dims of the vmap staticmethod do not fit its outputs",
            expected=f"{len(outs)} dimensions", got=str(result[1]),
        )  # fmt: skip
    made = [
        level.batched(ops.movedim(out, dim, 0)) if isinstance(dim, int) else out
        for out, dim in zip(outs, dims, strict=True)
    ]
    return tuple(made) if several else made[0]


class _Context:
    """The context that the static methods of a class see inside of a generated rule."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.saved_tensors: Values = ()
        self.for_forward: Values | None = None
        self.non_differentiable: Values = ()
        self.materialize = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        self.for_forward = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize = value

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.non_differentiable = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        raise AutogradError(
            "mark_dirty", what="a generated vmap rule does not write to its inputs",
            expected="a forward without in-place writes", got="mark_dirty",
        )  # fmt: skip


def _generated(cls: type[Function], batch: Any, flags: tuple[bool, ...]) -> type[Function]:
    """Return the custom function of a whole batch that a class's methods make."""

    def at(level: Any, values: Values, which: Any) -> list[Any]:
        pairs = zip(values, which, strict=True)
        return [level.batched(v) if flag and isinstance(v, TensorImpl) else v for v, flag in pairs]

    def lowered(level: Any, values: list[Any]) -> Values:
        return tuple([level.lower(v) if isinstance(v, TensorImpl) else v for v in values])

    class Generated(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> Any:
            level = batch.twin()
            outs, several = _listed(cls.forward(*at(level, inputs, flags)))
            results = lowered(level, outs)
            return results if several else results[0]

        @staticmethod
        def setup_context(ctx: Any, inputs: Values, output: Any) -> None:
            level = batch.twin()
            results, several = _listed(output)
            outs = at(level, tuple(results), [True] * len(results))
            seen = _Context(ctx.needs_input_grad)
            samples = tuple(at(level, inputs, flags))
            cls.setup_context(seen, samples, tuple(outs) if several else outs[0])
            ctx.seen = seen
            ctx.kept = [level.is_batched(value) for value in seen.saved_tensors]
            ctx.save_for_backward(*[_inside(level, value) for value in seen.saved_tensors])
            if seen.for_forward is not None:
                ctx.kept_forward = [level.is_batched(value) for value in seen.for_forward]
                ctx.save_for_forward(*[_inside(level, value) for value in seen.for_forward])
            seen.saved_tensors, seen.for_forward = (), None
            ctx.set_materialize_grads(seen.materialize)
            marked = [any(out is one for one in seen.non_differentiable) for out in outs]
            ctx.mark_non_differentiable(*[r for r, m in zip(results, marked, strict=True) if m])
            seen.non_differentiable = ()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            level = batch.twin()
            ctx.seen.saved_tensors = tuple(at(level, ctx.saved_tensors, ctx.kept))
            given = at(level, grads, [True] * len(grads))
            found, _ = _listed(cls._backward_rule()(ctx.seen, *given))
            ctx.seen.saved_tensors = ()
            results = lowered(level, found)
            return tuple(
                [
                    ops.sum(one, 0) if one is not None and not flag else one
                    for one, flag in zip(results, flags, strict=True)
                ]
            )

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            level = batch.twin()
            kept = getattr(ctx, "kept_forward", ctx.kept)
            ctx.seen.saved_tensors = tuple(at(level, ctx.saved_tensors, kept))
            found, several = _listed(cls.jvp(ctx.seen, *at(level, tangents, flags)))
            ctx.seen.saved_tensors = ()
            results = lowered(level, found)
            return results if several else results[0]

    Generated.__name__ = f"Vmapped{cls.__name__}"
    return Generated


def _inside(level: Any, value: Any) -> Any:
    return value.value if is_wrapper_of(value, level) else value
