"""Random operators inside `vmap`: refused, one draw for all samples, or a draw for each.

Invariants
----------
* What random operators do is said by the level (``randomness=``); refusing is the default.
* A draw for each sample is a stream of its own, whose key is made of the seed and the offset that
  the call has reserved: the same program draws the same numbers again.
"""

from __future__ import annotations

from typing import Any

from refruntime import _dispatch
from refruntime._impl import TensorImpl, TensorMeta, meta_of
from refruntime._ops.opdef import OpDef, ops
from refruntime.autograd.batching.batched import VmapLevel
from refruntime.autograd.batching.generic import Case, rule
from refruntime.autograd.levels import Wrapper, stack
from refruntime.errors import AutogradError

_MASK = (1 << 64) - 1


def _stream(seed: int, offset: int, number: int = 0) -> int:
    """Return the key of a stream of its own (the finalizer of SplitMix64 over both numbers)."""
    mixed = (seed + 0x9E3779B97F4A7C15 * (offset + 1) + 0xD1B54A32D192ED03 * number) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _MASK
    return mixed ^ (mixed >> 31)


def _apart(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a draw that no other draw shares blocks with."""
    return {"seed": _stream(params["seed"], params["offset"]), "offset": 0}


def _refused(op: OpDef) -> AutogradError:
    return AutogradError(
        "vmap",
        what="vmap: called random operation while in randomness error mode. Please either use the "
        "'same' or 'different' randomness flags on vmap or perform the randomness operation out of "
        "vmap",
        expected="randomness='same' or 'different'", got=op.name,
    )  # fmt: skip


@rule("random")
def _random(case: Case) -> Any:
    """Draw for every element of the batch, or once for all samples."""
    if case.level.randomness == "error":
        raise _refused(case.op)
    if case.level.randomness == "different":
        return _run(case, case.wholes(), _apart(case.params))
    return _once(case)


def _once(case: Case) -> Any:
    """Draw with the same numbers in each sample."""
    rows = [
        _run(case, tuple([_nth(v, flag, k) for v, flag in zip(case.operands, case.batched)]), {})
        for k in range(case.size)
    ]
    return ops.stack(rows)


def _run(case: Case, operands: tuple[Any, ...], changes: dict[str, Any]) -> Any:
    """Run the op; what it draws is decided already."""
    return _dispatch.call_under(watched, case.op, operands, {**case.params, **changes})


def _nth(value: Any, batched: bool, k: int) -> Any:
    return ops.select(value, 0, k) if batched else value


@rule("random_each")
def _random_each(case: Case) -> Any:
    """Draw sample by sample, for ops whose draw is no elementwise one."""
    if case.level.randomness == "error":
        raise _refused(case.op)
    rows = []
    for k in range(case.size):
        operands = tuple([_nth(v, flag, k) for v, flag in zip(case.operands, case.batched)])
        changes = {}
        if case.level.randomness == "different":
            changes = {"seed": _stream(case.params["seed"], case.params["offset"], k), "offset": 0}
        rows.append(_run(case, operands, changes))
    return ops.stack(rows)


# ---------------------------------------------------------------------------------------------
# Draws without a batched operand


def watched(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any], out: Any) -> Any:
    """Run an op; a random one that sees nothing of the batch, as the levels of its thread say."""
    if not op.random or any(isinstance(value, Wrapper) for value in inputs):
        return _dispatch.call_under(watched, op, inputs, params, out)
    levels = [one for one in stack.levels if isinstance(one, VmapLevel)]
    if any(level.randomness == "error" for level in levels):
        raise _refused(op)
    different = [level for level in levels if level.randomness == "different"]
    if not different:
        return _dispatch.call_under(watched, op, inputs, params, out)
    if out is not None:
        raise AutogradError(
            "vmap", what="vmap: Cannot ask for different inplace randomness on an unbatched tensor",
            expected="a batched target", got=f"{op.name}_ of an unbatched tensor",
            remedy="make the target from a batched tensor, or use the out-of-place form",
        )  # fmt: skip
    return _drawn(op, inputs, params, different)


def _drawn(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any], levels: Any) -> Any:
    """Draw for each sample of all levels and wrap the result."""
    sizes = tuple([level.size for level in levels])
    if op.name in ("randperm", "sample_categories"):
        result = _each_drawn(op, inputs, params, sizes)
    else:
        changes = _apart(params)
        if "meta" in params:
            changes["meta"] = _widened(params["meta"], sizes)
        operands = tuple(
            [
                ops.expand(v, (*sizes, *v.meta.shape)) if isinstance(v, TensorImpl) else v
                for v in inputs
            ]
        )
        result = _dispatch.call_under(watched, op, operands, {**params, **changes})
    for level in levels:
        result = level.batched(result)
    return result


def _widened(meta: TensorMeta, sizes: tuple[int, ...]) -> TensorMeta:
    return meta_of((*sizes, *meta.shape), meta.dtype, meta.device)


def _each_drawn(op: OpDef, inputs: Any, params: dict[str, Any], sizes: tuple[int, ...]) -> Any:
    count = 1
    for size in sizes:
        count *= size
    rows = []
    for k in range(count):
        key = _stream(params["seed"], params["offset"], k)
        changed = {**params, "seed": key, "offset": 0}
        rows.append(_dispatch.call_under(watched, op, inputs, changed))
    stacked = ops.stack(rows)
    return ops.reshape(stacked, (*sizes, *stacked.meta.shape[1:]))
