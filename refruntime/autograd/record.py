"""What the dispatcher asks of autograd: recording a call, and the rules of ``out=``.

Invariants
----------
* A call is recorded when the grad mode is on, an operand requires grad and the op has a derivative
  rule or a decomposition; otherwise its result has no history.
"""

from __future__ import annotations

from typing import Any

from refruntime import _impl
from refruntime._impl import TensorImpl, requires_grad
from refruntime._ops.opdef import OpDef
from refruntime.alloc.categories import ACTIVATION, TEMPORARY
from refruntime.autograd.inplace import record_inplace
from refruntime.autograd.modes import state
from refruntime.autograd.node import node_class, set_history
from refruntime.errors import AutogradError

__all__ = ["check_out", "record", "record_inplace"]


def record(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Run the op; when gradients are recorded, make its node the history of the outputs.

    An op with a decomposition but no derivative rule (a fused backward) is then run as its parts,
    whose histories make it differentiable to any order.
    """
    if op.vjp is None and op.decomposition is not None and state.grad:
        return op.decomposition(*inputs, **params)
    if op.vjp is None or not state.grad:
        return op.run(op, inputs, params)
    _impl.default_category = ACTIVATION
    try:
        outputs = op.run(op, inputs, params)
    finally:
        _impl.default_category = TEMPORARY
    node = (op.node_class or node_class(op))(inputs, params, outputs)
    set_history(outputs, node, op.nondiff_outputs)
    return outputs


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
