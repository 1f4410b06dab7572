"""Forward derivatives of ops: from a record to the tangents of its results.

Invariants
----------
* A view or a linear op is applied to the tangents, a product is the sum of products with one
  operand replaced, a pointwise op scales by what its vjp scales by, and any other op's vjp is
  transposed: ``J t = d/du <vjp(u), t>``.
* A rule is made of recorded ops, so what it gives can be differentiated in turn.

Source of the transposition: Christianson, "Automatic Hessians by reverse accumulation", 1992; the
form used here is Townsend, "A new trick for calculating Jacobian vector products", 2017.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refruntime._dispatch import call
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import OpDef, ops
from refruntime.autograd.accumulate import fit
from refruntime.autograd.dual import DualLevel, split
from refruntime.autograd.levels import Shown, Wrapper, innermost, is_wrapper_of
from refruntime.autograd.nested import batch_levels, transposed
from refruntime.autograd.node import is_differentiable

Values = tuple[Any, ...]


def run(level: DualLevel, op: OpDef, inputs: Values, params: dict[str, Any]) -> Any:
    """Run an op on dual tensors: its result, with the tangent if it has one."""
    pairs = [split(value, level) for value in inputs]
    primals = tuple([primal for primal, _ in pairs])
    if op.vjp is None and op.jvp is None and op.decomposition is not None:
        return op.decomposition(*inputs, **params)
    outputs = call(op, primals, params)
    if op.vjp is None and op.jvp is None:
        return outputs  # not differentiable: no tangent
    tangents = tuple([tangent for _, tangent in pairs])
    found = derivative(op, primals, tangents, outputs, params)
    several = isinstance(outputs, tuple)
    outs = outputs if several else (outputs,)
    if op.view is None:
        found = [_own(tangent, tangents) for tangent in found]
    made = tuple([level.dual(out, tangent) for out, tangent in zip(outs, found, strict=True)])
    if op.view is not None and is_wrapper_of(inputs[0], level):
        for number, one in enumerate(made):
            one.own, one.origin = None, (inputs[0], Shown(op, params, number if several else None))
    return made if several else made[0]


def _own(tangent: Any, given: Values) -> Any:
    """Return a tangent in memory that no operand's tangent has."""
    if tangent is None:
        return None
    storage = innermost(tangent).storage
    shared = any(one is not None and innermost(one).storage is storage for one in given)
    return ops.clone(tangent) if shared else tangent


def derivative(
    op: OpDef, primals: Values, tangents: Values, outputs: Any, params: dict[str, Any]
) -> list[Any]:
    """Return the tangent (or None for zero) of each output of an op.

    Parameters
    ----------
    op : OpDef
        The record.
    primals, tangents : tuple
        The operands and their tangents (None: zero).
    outputs : tensor or tuple of tensors
        The result of the op.
    params : dict
        The parameters of the call.
    """
    rule = op.jvp if callable(op.jvp) else _RULES.get(op.jvp or "")
    if rule is None:
        rule = _RULES["linear"] if op.view is not None else _by_transposes
        if op.scalar is not None and _is_real(outputs) and all(map(_is_real, primals)):
            rule = _pointwise
    found = rule(op, primals, tangents, outputs, params)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _is_real(value: Any) -> bool:
    return not (isinstance(value, TensorImpl) and value.meta.dtype.is_complex)


def _linear(op: OpDef, primals: Values, tangents: Values, outputs: Any, params: Any) -> Any:
    """Apply a linear op to the tangents; operands without one count as zero."""
    moved = [
        _zero_of(primal) if tangent is None else tangent
        for primal, tangent in zip(primals, tangents, strict=True)
    ]
    return call(op, tuple(moved), params)


def _zero_of(primal: Any) -> Any:
    if isinstance(primal, TensorImpl):
        return ops.zeros_like(primal) if is_differentiable(primal.meta) else primal
    return type(primal)(0) if isinstance(primal, (int, float, complex)) else primal


def _bilinear(op: OpDef, primals: Values, tangents: Values, outputs: Any, params: Any) -> Any:
    """Add up the products with one factor replaced; a third operand is added."""
    rest = tangents[2:]
    total = None
    for place in (0, 1):
        if tangents[place] is None:
            continue
        operands = [*primals[:2], *rest]
        operands[place] = tangents[place]
        term = call(op, tuple(operands), params)
        total = term if total is None else ops.add(total, term)
        rest = (None,) * len(rest)
    if total is None:
        total = call(op, (ops.zeros_like(primals[0]), primals[1], *rest), params)
    return total


def _zero(op: OpDef, primals: Values, tangents: Values, outputs: Any, params: Any) -> Any:
    """Give no tangent: the result does not depend on the operands' values."""
    return (None,) * (len(outputs) if isinstance(outputs, tuple) else 1)


def _pointwise(op: OpDef, primals: Values, tangents: Values, outputs: Any, params: Any) -> Any:
    """Scale each tangent by what the vjp scales by: the Jacobian is diagonal."""
    assert op.vjp is not None
    total = None
    for place, tangent in enumerate(tangents):
        if tangent is None:
            continue
        needs = tuple(k == place for k in range(len(primals)))
        known = Residuals(op, primals, outputs, params, needs)
        term = op.vjp(_shaped(tangent, outputs), known)
        term = term[place] if isinstance(term, tuple) else term
        if term is not None:
            total = term if total is None else ops.add(total, term)
    return None if total is None else _shaped(total, outputs)


def _shaped(tangent: Any, like: Any) -> Any:
    """Return a tangent in shape and dtype of a result."""
    if tangent.meta.dtype is not like.meta.dtype:
        tangent = ops.to(tangent, like.meta.dtype)
    if tangent.meta.shape != like.meta.shape:
        tangent = ops.expand(tangent, like.meta.shape)
    return tangent


def _by_transposes(op: OpDef, primals: Values, tangents: Values, outputs: Any, params: Any) -> Any:
    """Transpose the vjp."""
    assert op.vjp is not None
    top = highest_batch((*primals, *tangents))
    if top is not None:
        return _under_batch(top, op, primals, tangents, outputs, params)
    outs = outputs if isinstance(outputs, tuple) else (outputs,)
    smooth = [
        k
        for k, out in enumerate(outs)
        if k not in op.nondiff_outputs and is_differentiable(out.meta)
    ]
    places = [k for k, tangent in enumerate(tangents) if tangent is not None]
    needs = tuple(tangent is not None for tangent in tangents)
    known = Residuals(op, primals, outputs, params, needs)

    def vjp(cotangents: list[Any]) -> list[Any]:
        given: list[Any] = [None] * len(outs)
        for k, cotangent in zip(smooth, cotangents, strict=True):
            given[k] = cotangent
        found = op.vjp(given[0] if len(given) == 1 else tuple(given), known)  # type: ignore[misc]
        found = found if isinstance(found, tuple) else (found,)
        return [_fitted(found[k], primals[k], op) for k in places]

    moved = transposed(
        vjp, [outs[k] for k in smooth], batch_levels((*primals, *tangents)),
        [tangents[k] for k in places],
    )  # fmt: skip
    result: list[Any] = [None] * len(outs)
    for k, tangent in zip(smooth, moved, strict=True):
        result[k] = tangent
    return result


def highest_batch(values: Iterable[Any]) -> Any:
    """Return the level of `vmap` that is outermost around some of the values, if one is."""
    levels = [value.level for value in values if isinstance(value, Wrapper)]
    top = max(levels, key=lambda level: level.number, default=None)
    return top if hasattr(top, "spread") else None


def _under_batch(
    batch: Any, op: OpDef, primals: Values, tangents: Values, outputs: Any, params: Any
) -> list[Any]:
    """Differentiate the op as it runs on the whole batch: dual tensors inside of batched ones."""
    inner, outer = DualLevel(), batch.twin()
    operands = []
    for primal, tangent in zip(primals, tangents, strict=True):
        batched = batch.is_batched(primal) or batch.is_batched(tangent)
        if batched:
            primal = batch.lower(primal)
            tangent = None if tangent is None else batch.lower(tangent)
        dual = inner.dual(primal, tangent) if isinstance(primal, TensorImpl) else primal
        operands.append(outer.batched(dual) if batched else dual)
    results = call(op, tuple(operands), params)
    results = results if isinstance(results, tuple) else (results,)
    parts = [split(outer.lower(result), inner)[1] for result in results]
    return [None if part is None else batch.raise_(part) for part in parts]


def _fitted(gradient: Any, primal: Any, op: OpDef) -> Any:
    return None if gradient is None else fit(gradient, primal.meta, op.name)


_RULES: dict[str, Any] = {"linear": _linear, "bilinear": _bilinear, "zero": _zero}


class Residuals:
    """What a vjp reads, without a node: operands, results, parameters."""

    def __init__(
        self, op: OpDef, primals: Values, outputs: Any, params: dict[str, Any],
        needs: tuple[bool, ...],
    ) -> None:  # fmt: skip
        self.op = op
        self.params = params
        self.needs = needs
        self.metas = tuple([v.meta if isinstance(v, TensorImpl) else v for v in primals])
        self._values = _saved(op, primals, outputs)

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        try:
            return self.params[name]
        except KeyError:
            raise AttributeError(f"{self.op.name} saves no {name!r}") from None

    def name(self) -> str:
        """Return the name of the node that would stand here."""
        return self.op.node_name


def _saved(op: OpDef, primals: Values, outputs: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for place, name in enumerate(op.inputs):
        if name.startswith("*"):
            values[name[1:]] = list(primals[place:])
        elif place < len(primals):
            values[name] = primals[place]
    outs = outputs if isinstance(outputs, tuple) else (outputs,)
    values.update({f"out{k}": out for k, out in enumerate(outs)}, out=outs[0])
    if not op.conjugates:
        return values
    return {name: _conjugated(value) for name, value in values.items()}


def _conjugated(value: Any) -> Any:
    if isinstance(value, TensorImpl) and value.meta.dtype.is_complex:
        return ops.conj(value)
    return value.conjugate() if isinstance(value, complex) else value
