"""How ops run on a whole batch: from the rule that a record names to one call.

State
-----
`RULES` maps the names that stand in ``OpDef.batch`` to functions. `_lifted` keeps for each view op
the op that shows the same view of every sample.

Invariants
----------
* A rule gets the operands with the batch as first dimension where they are batched, and says where
  (`Case`); its results have the batch as first dimension, all of them.
* Parameters that count dimensions count those of one sample; a rule shifts them.
* What a rule returns is made of recorded ops: its history needs nothing of `vmap`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta
from refruntime._ops.opdef import NO_PARAMS, REGISTRY, OpDef, ops
from refruntime._ops.view_plans import one_view, several_views
from refruntime.autograd.accumulate import fit
from refruntime.autograd.batching.batched import VmapLevel, run_each, sample_meta
from refruntime.autograd.derivatives import Residuals
from refruntime.autograd.levels import is_wrapper_of

Params = dict[str, Any]


class Case:
    """One call of an op on a batch.

    Parameters
    ----------
    level : VmapLevel
    op : OpDef
    operands : tuple
        Tensors (batched ones with the batch in front), numbers or None.
    batched : tuple of bool
    params : dict
    """

    __slots__ = ("batched", "level", "op", "operands", "params")

    def __init__(
        self, level: VmapLevel, op: OpDef, operands: tuple[Any, ...], batched: tuple[bool, ...],
        params: Params,
    ) -> None:  # fmt: skip
        self.level = level
        self.op = op
        self.operands = operands
        self.batched = batched
        self.params = params

    @property
    def size(self) -> int:
        """The number of samples."""
        return self.level.size

    def ndim(self, place: int) -> int:
        """Return how many dimensions an operand has in one sample."""
        value = self.operands[place]
        if not isinstance(value, TensorImpl):
            return 0
        return value.meta.ndim - self.batched[place]

    def length(self, place: int) -> int:
        """Return the size of the first dimension of a sample."""
        return int(self.operands[place].meta.shape[self.batched[place]])

    def whole(self, place: int) -> Any:
        """Return an operand with the batch in front, expanded if it has none."""
        value = self.operands[place]
        if not isinstance(value, TensorImpl) or self.batched[place]:
            return value
        return ops.expand(value, (self.size, *value.meta.shape))

    def wholes(self) -> tuple[Any, ...]:
        """Return all operands with the batch in front."""
        return tuple([self.whole(place) for place in range(len(self.operands))])

    def aligned(self, place: int, ndim: int) -> Any:
        """Return an operand that broadcasts against batches of samples with `ndim` dimensions."""
        value = self.operands[place]
        if not isinstance(value, TensorImpl) or not self.batched[place]:
            return value
        missing = ndim - (value.meta.ndim - 1)
        if missing <= 0:
            return value
        shape = value.meta.shape
        return ops.reshape(value, (shape[0], *(1,) * missing, *shape[1:]))

    def run(self, operands: tuple[Any, ...], **changes: Any) -> Any:
        """Run the op with some parameters changed."""
        return call(self.op, operands, {**self.params, **changes} if changes else self.params)

    def each(self) -> Any:
        """Run the op once a sample."""
        return run_each(self.level, self.op, self.operands, self.batched, self.params)


Rule = Callable[[Case], Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule under the names that records use."""

    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return enter


def run_batched(level: VmapLevel, op: OpDef, inputs: tuple[Any, ...], params: Params) -> Any:
    """Run an op for all samples of a level; the results have the batch in front."""
    batched = tuple([is_wrapper_of(value, level) for value in inputs])
    operands = tuple([v.value if flag else v for v, flag in zip(inputs, batched, strict=True)])
    case = Case(level, op, operands, batched, params)
    found = op.batch if callable(op.batch) else RULES.get(op.batch or "")
    if found is None and op.view is not None:
        found = _view
    if found is None and op.decomposition is not None:
        return _decomposed(level, op, inputs, params)
    return case.each() if found is None else found(case)


def _decomposed(level: VmapLevel, op: OpDef, inputs: tuple[Any, ...], params: Params) -> Any:
    assert op.decomposition is not None
    results = op.decomposition(*inputs, **params)
    if isinstance(results, tuple):
        return tuple([None if one is None else level.lower(one) for one in results])
    return level.lower(results)


def batch_call(name: str, operands: tuple[Any, ...], params: Params = NO_PARAMS) -> Any:
    """Call an op by its name."""
    return call(REGISTRY[name], operands, params)


# ---------------------------------------------------------------------------------------------
# Generic rules


@rule("pointwise")
def _pointwise(case: Case) -> Any:
    """Broadcast samples against each other."""
    places = range(len(case.operands))
    ndim = max(case.ndim(place) for place in places)
    operands = [case.aligned(place, ndim) for place in places]
    if ndim and any(case.batched[place] and not case.ndim(place) for place in places):
        operands = _promoted(case, operands)
    return case.run(tuple(operands))


def _promoted(case: Case, operands: list[Any]) -> list[Any]:
    """Cast batched zero-dim operands, which count less in promotion than what they became."""
    assert case.op.infer is not None
    samples = [_sample(case, place) for place in range(len(operands))]
    wanted = case.op.infer(*samples, **case.params)
    found = case.op.infer(
        *[v.meta if isinstance(v, TensorImpl) else v for v in operands], **case.params
    )
    if found.dtype is wanted.dtype:
        return operands
    return [
        ops.to(value, wanted.dtype) if case.batched[place] and not case.ndim(place) else value
        for place, value in enumerate(operands)
    ]


def _sample(case: Case, place: int) -> Any:
    value = case.operands[place]
    if not isinstance(value, TensorImpl):
        return value
    return sample_meta(value.meta) if case.batched[place] else value.meta


@rule("leading")
def _leading(case: Case) -> Any:
    """Run an op whose leading dimensions are its own batch."""
    return case.run(case.wholes())


@rule("broadcast")
def _broadcast(case: Case) -> Any:
    """Run an op whose leading dimensions broadcast, as its own batch."""
    places = range(len(case.operands))
    ndim = max(case.ndim(place) for place in places)
    return case.run(tuple([case.aligned(place, ndim) for place in places]))


@rule("decomposed")
def _parts(case: Case) -> Any:
    """Run an op as the ops that it is made of."""
    level = case.level
    inputs = tuple(
        [
            level.batched(v) if flag else v
            for v, flag in zip(case.operands, case.batched, strict=True)
        ]
    )
    return _decomposed(level, case.op, inputs, case.params)


@rule("each")
def _each(case: Case) -> Any:
    """Run an op once a sample."""
    return case.each()


@rule("copy")
def _copy(case: Case) -> Any:
    """Copy; strides that are asked for get those of the batch in front."""
    value = case.operands[0]
    strides = case.params.get("strides")
    if strides is None:
        return case.run((value,))
    shape = value.meta.shape
    span = 1 + sum((n - 1) * s for n, s in zip(shape[1:], strides, strict=True) if n > 1)
    return case.run((value,), strides=(span, *strides))


@rule("assign")
def _assign(case: Case) -> Any:
    """Write into all samples of a target."""
    ndim = case.ndim(0)
    source = case.aligned(1, ndim)
    if not isinstance(source, TensorImpl) or not case.batched[1]:
        return case.run((case.whole(0), source))
    return batch_call("assign", (case.whole(0), source))


# ---------------------------------------------------------------------------------------------
# Dimensions


def shifted(dim: int, ndim: int) -> int:
    """Return where a dimension of a sample is in the batch."""
    return (dim + ndim if dim < 0 else dim) + 1


@rule("reduction")
def _reduction(case: Case) -> Any:
    """Reduce dimensions of each sample; `dim` is a tuple, or None for all."""
    value, ndim, dim = case.operands[0], case.ndim(0), case.params["dim"]
    if not ndim:
        return case.run((ops.unsqueeze(value, -1),), dim=(1,), keepdim=False)
    dims = range(ndim) if dim is None else dim
    return case.run((value,), dim=tuple([shifted(d, ndim) for d in dims]))


@rule("product")
def _product(case: Case) -> Any:
    """Multiply dimensions of each sample; the op takes one at a time, or all."""
    value, ndim = case.operands[0], case.ndim(0)
    dim, keepdim = case.params["dim"], case.params["keepdim"]
    if ndim and dim is not None:
        return _reduction(case)
    result = case.run((ops.reshape(value, (case.size, -1)),), dim=(1,), keepdim=False)
    return ops.reshape(result, (case.size, *(1,) * ndim)) if keepdim else result


@rule("along")
def _along(case: Case) -> Any:
    """Work along one dimension of each sample."""
    ndim = max(case.ndim(place) for place in range(len(case.operands)))
    operands = case.wholes()
    if ndim:
        return case.run(operands, dim=shifted(case.params["dim"], ndim))
    results = case.run(tuple([ops.unsqueeze(v, -1) for v in operands]), dim=1)
    if "keepdim" in case.params and not case.params["keepdim"]:
        return results
    if isinstance(results, tuple):
        return tuple([ops.squeeze(result, 1) for result in results])
    return ops.squeeze(results, 1)


@rule("place")
def _place(case: Case) -> Any:
    """Find the place of an extreme along one dimension of each sample, or in all of it."""
    value, ndim, dim = case.operands[0], case.ndim(0), case.params["dim"]
    if ndim and dim is not None:
        return case.run((value,), dim=shifted(dim, ndim))
    result = case.run((ops.reshape(value, (case.size, -1)),), dim=1, keepdim=False)
    if not case.params["keepdim"]:
        return result
    return ops.reshape(result, (case.size, *(1,) * ndim))


@rule("dims")
def _dims(case: Case) -> Any:
    """Work on the dimensions that a parameter lists."""
    name = "dims" if "dims" in case.params else "dim"
    ndim = case.ndim(0)
    listed = case.params[name]
    moved: Any = tuple([shifted(d, ndim) for d in listed])
    return case.run((case.operands[0],), **{name: moved})


@rule("roll")
def _roll(case: Case) -> Any:
    """Roll a dimension of each sample."""
    return case.run((case.operands[0],), dim=shifted(case.params["dim"], case.ndim(0)))


@rule("repeat")
def _repeat(case: Case) -> Any:
    """Repeat each sample."""
    repeats = case.params["repeats"]
    return case.run((case.aligned(0, len(repeats)),), repeats=(1, *repeats))


@rule("pad")
def _pad(case: Case) -> Any:
    """Pad the dimensions of each sample."""
    return case.run((case.operands[0],), amounts=(0, 0, *case.params["amounts"]))


@rule("cat")
def _cat(case: Case) -> Any:
    """Join samples along a dimension."""
    ndim = max(case.ndim(place) for place in range(len(case.operands)))
    return case.run(case.wholes(), dim=shifted(case.params["dim"], ndim))


# ---------------------------------------------------------------------------------------------
# Views


@rule("view")
def _view(case: Case) -> Any:
    """Show the same view of every sample."""
    value = case.operands[0]
    if case.op.name in ("alias", "detach"):
        return call(case.op, (value,), case.params)
    return call(_lifted(case.op), (value,), case.params)


@functools.cache
def _lifted(op: OpDef) -> OpDef:
    """Return the op that shows of each sample of a batch what a view op shows of one tensor."""

    def rule_of_batch(meta: TensorMeta, **params: Any) -> Any:
        assert op.view is not None
        shown = op.view(sample_meta(meta), **params)
        size, stride = meta.shape[0], meta.strides[0]
        if _is_one_view(shown):
            return (size, *shown[0]), (stride, *shown[1]), shown[2]
        return tuple([((size, *s), (stride, *t), offset) for s, t, offset in shown])

    several = op.name.rpartition(".")[2] in ("unbind", "split_with_sizes")
    run: Any = several_views(rule_of_batch) if several else one_view(rule_of_batch)
    # Another name: what is known of the op by its name holds of one tensor.
    return OpDef(
        f"vmap.{op.name}", op.inputs, view=rule_of_batch, run=run,
        vjp=functools.partial(_lifted_vjp, op), backward_name=op.node_name, jvp="linear",
        batch="view",
    )  # fmt: skip


def _is_one_view(shown: Any) -> bool:
    return len(shown) == 3 and isinstance(shown[2], int)


def _lifted_vjp(op: OpDef, g: Any, n: Any) -> Any:
    """Apply the derivative of a view op to every sample of a gradient."""
    assert op.vjp is not None
    meta = n.metas[0]
    level = VmapLevel(meta.shape[0])
    grads = tuple([None if one is None else level.raise_(one) for one in _listed(g)])
    known = Residuals(op, (sample_meta(meta),), None, n.params, (True,))
    found = op.vjp(grads if isinstance(g, tuple) else grads[0], known)
    gradient = found[0] if isinstance(found, tuple) else found
    if gradient is None:
        return None
    # In samples: summing the batch down to its operand could take the batch for what was repeated.
    return level.lower(fit(gradient, known.metas[0], op.name))


def _listed(g: Any) -> tuple[Any, ...]:
    return g if isinstance(g, tuple) else (g,)


_DIMS_OF_VIEWS = {
    "select": ("dim",), "slice": ("dim",), "narrow": ("dim",), "diagonal": ("dim1", "dim2"),
}  # fmt: skip


@rule("part")
def _part(case: Case) -> Any:
    """Set or replace, in each sample, a part that a view op and its parameters name."""
    view, params = case.params["view"], dict(case.params["params"])
    changes: Params = {}
    ndim = case.ndim(0)
    if "shape" in case.params:
        ndim = len(case.params["shape"])
        changes["shape"] = (case.size, *case.params["shape"])
    if view == "_basic_index":
        params["entries"] = ((None, None, 1), *params["entries"])
    elif view == "as_strided":
        # Strides count in a row-major tensor, whose samples lie one after the other.
        whole = case.params.get("shape") or case.operands[0].meta.shape[case.batched[0] :]
        params["size"] = (case.size, *params["size"])
        params["stride"] = (math.prod(whole), *params["stride"])
    elif view in _DIMS_OF_VIEWS:
        for name in _DIMS_OF_VIEWS[view]:
            params[name] = shifted(params[name], ndim)
    else:
        return case.each()
    return case.run(case.wholes(), **changes, params=params)
