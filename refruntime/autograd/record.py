"""What the dispatcher asks of autograd: recording a call, and the rules of ``out=``.

State
-----
Each node class has a `recorder`, generated for the number of its operands and for what it saves.

Invariants
----------
* A call is recorded when the grad mode is on, an operand requires grad and the op has a derivative
  rule or a decomposition; otherwise its result has no history.
* A recorder writes the fields of a node as ``OpNode.__init__`` does, without loops: it is the way
  of calls with a fixed number of operands, one output, and no hooks of saved tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from refruntime import _impl
from refruntime._impl import AutogradMeta, TensorImpl, requires_grad
from refruntime._ops.opdef import OpDef
from refruntime.alloc.categories import TEMPORARY
from refruntime.autograd import saved as saving
from refruntime.autograd import streams
from refruntime.autograd.inplace import record_inplace
from refruntime.autograd.modes import state
from refruntime.autograd.node import (
    NO_EDGE,
    AccumulateGrad,
    OpNode,
    gradient_edge,
    next_number,
    node_class,
    set_history,
)
from refruntime.autograd.saved import RETAG
from refruntime.errors import AutogradError

__all__ = ["check_out", "record", "record_inplace"]

# Called with each node that is recorded; anomaly mode keeps the lines of the forward so.
observers: list[Callable[[Any], None]] = []


def record(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Run the op; when gradients are recorded, make its node the history of the outputs.

    An op with a decomposition but no derivative rule (a fused backward) is then run as its parts,
    whose histories make it differentiable to any order.
    """
    if not state.grad:
        return op.run(op, inputs, params)
    kind = op.node_class
    if kind is None:
        if op.vjp is None:
            if op.decomposition is not None:
                return op.decomposition(*inputs, **params)
            return op.run(op, inputs, params)
        kind = node_class(op)
    _impl.default_category = kind.output_category
    try:
        outputs = op.run(op, inputs, params)
    finally:
        _impl.default_category = TEMPORARY
    if op.node_class is not kind:
        # The first complex operands have made rules take conjugates.
        kind = node_class(op)
    if saving.active or kind.variadic or not isinstance(outputs, TensorImpl):
        node = kind(inputs, params, outputs)
        set_history(outputs, node, op.nondiff_outputs)
    else:
        node = (kind.recorder or _prepare(kind))(kind, inputs, params, outputs)
    if streams.active is not None:
        node.forward_stream = streams.active.current()
    if observers:
        for observer in observers:
            observer(node)
    return outputs


# ---------------------------------------------------------------------------------------------
# Recorders

_NAMES: dict[str, Any] = {
    "NO_EDGE": NO_EDGE, "RETAG": RETAG, "AccumulateGrad": AccumulateGrad,
    "AutogradMeta": AutogradMeta, "TensorImpl": TensorImpl, "gradient_edge": gradient_edge,
    "new": object.__new__, "next_number": next_number, "ref": weakref.ref,
}  # fmt: skip

# What is done with each operand: its meta and its edge.
_OPERAND = """
    if isinstance(x{i}, TensorImpl):
        m{i} = x{i}.meta
        known = x{i}.autograd
        if known is None:
            e{i} = NO_EDGE
        elif type(known) is not AutogradMeta:
            e{i} = known, 0
        elif not known.requires_grad:
            e{i} = NO_EDGE
        elif x{i}.base is not None:
            e{i} = gradient_edge(x{i})
        elif known.grad_fn is not None:
            e{i} = known.grad_fn, known.output_nr
        else:
            leaf = known.accumulator
            leaf = leaf and leaf()
            if leaf is None:
                leaf = new(AccumulateGrad)
                leaf.variable = x{i}
                known.accumulator = ref(leaf)
            e{i} = leaf, 0
    else:
        m{i}, e{i} = x{i}, NO_EDGE
"""
# What is done with a saved operand.
_SAVED = """
    s{i}, v{i} = x{i}, None
    if isinstance(x{i}, TensorImpl):
        v{i} = x{i}.counter.version
        if x{i}.storage.category in RETAG and type(e{i}[0]) is not AccumulateGrad:
            node.tag(x{i})
"""
# The same for one that is read for the gradient of another operand alone.
_SAVED_FOR = """
    s{i}, v{i} = None, None
    if e{reader}[0] is not None:
        s{i} = x{i}
        if isinstance(x{i}, TensorImpl):
            v{i} = x{i}.counter.version
            if x{i}.storage.category in RETAG and type(e{i}[0]) is not AccumulateGrad:
                node.tag(x{i})
"""

_RECORDER = """
def record(kind, inputs, params, output):
    node = new(kind)
    {names}, = inputs{operands}{saves}
    node.next_functions = ({edges},)
    node.metas = ({metas},)
    node.params = params
    node.output_metas = (output.meta,)
    node.saved_values = {saved}
    # After the edges: looking for them may make nodes.
    node.sequence_nr = next_number(){outputs}
    if output.base is None:
        output.autograd = node
    else:
        output.autograd = AutogradMeta(True, node, 0, output.counter.version)
    return node
"""


def _prepare(kind: type[OpNode]) -> Any:
    """Give a node class its recorder."""
    kind.recorder = staticmethod(_recorder(len(kind.op.inputs), kind.save_plan))
    return kind.recorder


@cache
def _recorder(count: int, plan: tuple[tuple[str, int, int | None], ...]) -> Any:
    """Return the function that makes the node of a call, and the history of its output."""
    saves, entries, outputs = "", [], ""
    for position, (kind, index, reader) in enumerate(plan):
        if kind == "in":
            saves += (_SAVED if reader is None else _SAVED_FOR).format(i=index, reader=reader)
            entries.append(f"s{index}, v{index}")
        else:
            entries.append("None, None")
            outputs += f"\n    node.save_output({position}, output, 0, True)"
    source = _RECORDER.format(
        names=_list("x", count), edges=_list("e", count), metas=_list("m", count),
        operands="".join(_OPERAND.format(i=i) for i in range(count)), saves=saves,
        saved=f"[{', '.join(entries)}]" if plan else None, outputs=outputs,
    )  # fmt: skip
    namespace = dict(_NAMES)
    exec(source, namespace)
    return namespace["record"]


def _list(letter: str, count: int) -> str:
    return ", ".join(f"{letter}{i}" for i in range(count))


def check_out(op: OpDef, outs: tuple[TensorImpl, ...], inputs: tuple[Any, ...]) -> None:
    """Raise if a gradient would have to flow through ``out=``."""
    if not state.grad:
        return
    for value in (*inputs, *outs):
        if requires_grad(value):
            raise AutogradError(
                op.name,
                what="functions with out=... arguments don't support automatic differentiation, "
                "but one of the arguments requires grad",
                expected="operands and out that do not require grad",
                got=f"a tensor of shape {tuple(value.meta.shape)} that requires grad",
                remedy="drop out=, or run under no_grad()",
            )
