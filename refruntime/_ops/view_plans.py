"""Running view ops from plans: what a rule says of a layout is worked out once.

State
-----
Each view op keeps its plans, by the meta of the source and the values of the parameters: the metas
of the views and their byte offsets from the source. All are dropped when there are too many.

Invariants
----------
* Parameters of view ops are hashable: ints, None, and tuples of them.
* A rule that raises leaves no plan, so the same mistake is explained again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime._impl import TensorImpl, TensorMeta, alias, meta_of
from refruntime._layout import View
from refruntime._ops.opdef import OpDef

_MAX_PLANS = 4096

Place = tuple[TensorMeta, int]
Run = Callable[[OpDef, tuple[Any, ...], dict[str, Any]], Any]


def _place(source: TensorMeta, view: View) -> Place:
    shape, strides, offset = view
    meta = meta_of(tuple(shape), source.dtype, source.device, tuple(strides))
    return meta, offset * source.dtype.itemsize


def one_view(rule: Callable[..., View]) -> Run:
    """Return the `run` of an op that makes one view."""
    plans: dict[Any, Place] = {}

    def run(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> TensorImpl:
        source: TensorImpl = inputs[0]
        key = (source.meta, *params.values())
        plan = plans.get(key)
        if plan is None:
            if len(plans) >= _MAX_PLANS:
                plans.clear()
            plan = plans[key] = _place(source.meta, rule(source.meta, **params))
        return alias(source, plan[0], source.byte_offset + plan[1])

    return run


def several_views(rule: Callable[..., tuple[View, ...]]) -> Run:
    """Return the `run` of an op that takes a tensor apart into views."""
    plans: dict[Any, list[Place]] = {}

    def run(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> tuple[Any, ...]:
        source: TensorImpl = inputs[0]
        key = (source.meta, *params.values())
        plan = plans.get(key)
        if plan is None:
            if len(plans) >= _MAX_PLANS:
                plans.clear()
            views = rule(source.meta, **params)
            plan = plans[key] = [_place(source.meta, view) for view in views]
        start = source.byte_offset
        return tuple([alias(source, meta, start + offset) for meta, offset in plan])

    return run
