"""Dual tensors: a value and its derivative along a direction, carried through every operator.

State
-----
A `DualLevel` is one running forward derivative; it knows its dual tensors weakly. A `Dual` holds
a primal and a tangent of the same shape and dtype.

Invariants
----------
* How an op acts on tangents is said by its record (`derivatives`).
* A tangent has memory of its own unless its primal is a view of another dual tensor's; it is then
  the same view of that one's tangent, made anew whenever it is asked for. Writes go to both.
* When the level ends, its tensors are what their primals are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from refruntime._layout import has_internal_overlap
from refruntime._ops.opdef import Inplace, OpDef, ops
from refruntime.autograd.levels import (
    Level,
    Wrapper,
    is_wrapper_of,
    kept,
    wrapper,
)
from refruntime.autograd.nested import batch_levels
from refruntime.autograd.promotion import become, copy_of, promote
from refruntime.errors import ArgumentTypeError

Values = tuple[Any, ...]


class DualLevel(Level):
    """One running forward derivative."""

    __slots__ = ("duals",)

    def __init__(self) -> None:
        super().__init__()
        self.duals: list[weakref.ref[Any]] = []

    def dual(self, primal: Any, tangent: Any) -> Any:
        """Make the dual tensor of a primal; without a tangent it is the primal itself."""
        if tangent is None:
            return primal
        made = wrapper(_Dual, self, primal.meta, primal)
        made.primal, made.own = primal, tangent
        self.duals.append(weakref.ref(made))
        return made

    def take_root(self, tensor: Any) -> None:
        """Make a tensor that is no view a dual one, in place; its tangent is zero."""
        meta = tensor.meta
        zeros = ops.empty_strided(
            tuple(meta.shape), meta.strides, dtype=meta.dtype, device=meta.device
        )
        become(tensor, self.dual(copy_of(tensor), ops.zero_(zeros)))
        self.duals.append(weakref.ref(tensor))

    def take_view(self, tensor: Any, source: Any, show: Callable[[Any], Any]) -> None:
        """Make a tensor a dual one in place: a view of another dual tensor."""
        inner = copy_of(tensor)
        # What is inside is a view of what is inside, as it was before.
        if isinstance(inner, Wrapper):
            inner.origin = (source.primal, show)
        else:
            inner.base = source.primal
        become(tensor, self.dual(inner, show(source.tangent)))
        tensor.own, tensor.origin = None, (source, show)
        self.duals.append(weakref.ref(tensor))

    def close(self) -> None:
        """Turn what is left of the level into primals."""
        self.alive = False
        for reference in self.duals:
            dual = reference()
            if dual is not None:
                become(dual, dual.primal)
        self.duals.clear()


class _Dual(Wrapper):
    """A tensor that carries a tangent."""

    kind = "forward derivatives"

    level: DualLevel
    primal: Any
    # The tangent, unless there is an origin to show it.
    own: Any = None

    @property
    def tangent(self) -> Any:
        """The derivative of the primal along the level's direction."""
        if self.origin is None:
            return self.own
        source, show = self.origin
        return show(source.tangent)

    def root(self) -> Any:
        """Return the dual tensor whose tangent this one's is a view of; itself if it is none."""
        found = self
        while found.origin is not None:
            found = found.origin[0]
        return found

    def run_op(self, op: OpDef, inputs: Values, params: dict[str, Any], out: Any) -> Any:
        """Run an op and its derivative."""
        from refruntime.autograd.derivatives import run

        if out is None:
            return run(self.level, op, inputs, params)
        return _write(self.level, run(self.level, op, kept(op, inputs, out), params), out)

    def parts(self) -> Values:
        """Return primal and tangent."""
        return self.primal, self.tangent

    def mapped(self, function: Callable[[Any], Any]) -> Any:
        """Return the dual tensor of ``function`` of both parts."""
        return self.level.dual(function(self.primal), function(self.tangent))

    def entered(self, function: Callable[[Any], Any]) -> Any:
        """Return the dual tensor of ``function(primal)`` and the same tangent."""
        return self.level.dual(function(self.primal), self.tangent)

    def lowered(self, batch: Any) -> Any:
        """Return the dual tensor with the dimension of a lower `vmap` level shown in front."""
        return self.mapped(batch.lower)

    def raised(self, batch: Any) -> Any:
        """Undo `lowered`."""
        return self.mapped(batch.raise_)

    def split_at(self, level: Level) -> tuple[Any, Any]:
        """Return primal and tangent at a lower level of forward derivatives."""
        first, second = split(self.primal, level), split(self.tangent, level)
        tangent = _both(self.level, first[1], second[1], self.primal)
        return self.level.dual(first[0], second[0]), tangent

    def join_at(self, level: Level, primal: Any, tangent: Any) -> Any:
        """Undo `split_at`."""
        first, second = split(primal, self.level), split(tangent, self.level)
        return self.level.dual(
            join(level, first[0], second[0]), _join_some(level, first[1], second[1])
        )

    def differentiated(
        self, outputs: list[Any], inputs: list[Any], cotangents: list[Any], below: Any
    ) -> list[Any]:
        """Return gradients: those of the primals, and the gradients of the tangents."""
        outs = [split(value, self.level) for value in outputs]
        weights = [(None, None) if c is None else split(c, self.level) for c in cotangents]
        points = [split(value, self.level)[0] for value in inputs]
        pairs = list(zip(outs, weights, strict=True))
        moving = [(out[0], weight[1]) for out, weight in pairs if weight[1] is not None]
        moving += [(out[1], weight[0]) for out, weight in pairs if out[1] is not None]
        tangents = [None] * len(points)
        if moving:
            tangents = below([m for m, _ in moving], points, [w for _, w in moving], False)
        primals = below([out[0] for out in outs], points, [w[0] for w in weights])
        return [_join_some(self.level, p, t) for p, t in zip(primals, tangents, strict=True)]

    def array(self) -> Any:
        """Return a NumPy view of the primal."""
        return self.primal.array()

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse: an array has no tangent."""
        raise ArgumentTypeError(
            "numpy", what="Can't call numpy() on Tensor that has a forward derivative",
            expected="a tensor without tangent", got="a dual tensor",
            remedy="use forward_ad.unpack_dual(x).primal.numpy()",
        )  # fmt: skip

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{repr(self.primal)[:-1]}, tangent={self.tangent!r})"


def _both(level: DualLevel, first: Any, second: Any, like: Any) -> Any:
    """Return the dual tensor of two parts of which either may be zero (None)."""
    if first is None and second is not None:
        first = ops.zeros_like(second)
    return None if first is None else level.dual(first, second)


def _join_some(level: Any, primal: Any, tangent: Any) -> Any:
    """Join a primal and a tangent of which either may be zero (None)."""
    if tangent is None:
        return primal
    return join(level, ops.zeros_like(tangent) if primal is None else primal, tangent)


def split(value: Any, level: Level) -> tuple[Any, Any]:
    """Return what `value` is and its tangent (or None) at a level."""
    if not isinstance(value, Wrapper) or value.level.number < level.number:
        return value, None
    if value.level is level:
        return value.primal, value.tangent  # type: ignore[attr-defined]
    return value.split_at(level)


def join(level: Any, primal: Any, tangent: Any) -> Any:
    """Return the dual tensor of a level, under the wrappers of higher levels."""
    top: Any = None
    for value in (primal, tangent):
        if isinstance(value, Wrapper) and value.level.number > level.number:
            top = value if top is None or value.level.number > top.level.number else top
    return level.dual(primal, tangent) if top is None else top.join_at(level, primal, tangent)


# ---------------------------------------------------------------------------------------------
# Writes


def _write(level: DualLevel, outputs: Any, out: Any) -> Any:
    """Write results (dual or not) into tensors that exist."""
    targets = out.target if isinstance(out, Inplace) else out
    if isinstance(targets, (tuple, list)):
        for target, value in zip(targets, outputs, strict=True):
            _write_one(level, target, value)
    else:
        _write_one(level, targets, outputs)
    return targets


def _write_one(level: DualLevel, target: Any, value: Any) -> None:
    primal, tangent = split(value, level)
    if not is_wrapper_of(target, level):
        if tangent is None:
            ops.copy_(target, primal)
            return
        promote(target, level)
    ops.copy_(target.primal, primal)
    if tangent is None:
        _writable(target.root(), ())
        ops.zero_(target.tangent)
    else:
        _writable(target.root(), batch_levels((tangent,)))
        ops.copy_(target.tangent, tangent)


def _writable(root: Any, batches: Any) -> None:
    """Give a tangent memory that can be written to, for each sample of some levels of `vmap`."""
    moved = root.own
    shared = has_internal_overlap(moved.meta.shape, moved.meta.strides)
    for batch in batches:
        if not batch.is_batched(moved):
            moved, shared = batch.spread(moved), True
    if shared:
        root.own = ops.clone(moved)
