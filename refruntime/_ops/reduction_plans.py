"""Running sums and means from plans: what a small reduction needs is worked out once.

State
-----
Each op keeps its plans, by the meta of the operand and the parameters: the meta of the result, and
how the kernel is called. All are dropped when there are too many, and when the default dtype
changes.

Invariants
----------
* A plan calls the loop that the op's kernel would call, with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime._dtypes import on_default_change
from refruntime._impl import TensorImpl, TensorMeta, empty_impl
from refruntime._ops.opdef import OpDef
from refruntime.kernels.fold import Fold
from refruntime.kernels.reduce import bind_reduce

_MAX_PLANS = 4096
_NAMES = ("dim", "keepdim", "dtype")

Scale = Callable[[TensorMeta, Any], float]
Launch = Callable[[TensorImpl, TensorImpl], Any]


def planned(
    op: OpDef, fold: Fold, scale: Scale, whole: dict[str, Any]
) -> Callable[..., TensorImpl]:
    """Return the `run` of an op that folds its operand over ``dim``.

    Parameters
    ----------
    op : OpDef
        The record; `planned` is entered as its ``run``.
    fold : Fold
        What its kernel folds with.
    scale : callable
        ``scale(meta, dim)`` is the number that the fold takes.
    whole : dict
        The parameters of a call that reduces everything and asks for nothing else.
    """
    plans: dict[Any, tuple[TensorMeta, Launch]] = {}
    on_default_change.append(plans.clear)

    def make(key: Any, x: TensorImpl, params: dict[str, Any]) -> tuple[TensorMeta, Launch]:
        assert op.infer is not None
        meta = op.infer(x.meta, **params)
        kernel, launch = op.kernel(x.meta.device.type), None
        assert kernel is not None
        if kernel is op.cpu:
            launch = bind_reduce(fold, meta, x.meta, params["dim"], scale(x.meta, params["dim"]))
        if launch is None:
            launch = lambda out, x: kernel(out, x, **params)  # noqa: E731
        if len(plans) >= _MAX_PLANS:
            plans.clear()
        plans[key] = meta, launch
        return meta, launch

    def run(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> TensorImpl:
        x: TensorImpl = inputs[0]
        # A sum of everything passes one and the same dict of parameters.
        key = x.meta if params is whole else (x.meta, *[params[name] for name in _NAMES])
        meta, launch = plans.get(key) or make(key, x, params)
        out = empty_impl(meta)
        launch(out, x)
        return out

    # Whoever exchanges kernels must be able to drop the plans that are bound to them.
    run.plans = plans  # type: ignore[attr-defined]
    return run
