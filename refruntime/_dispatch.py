"""Running an op: modes -> autocast -> autograd -> the kernel of the device.

State
-----
Three hook slots that higher layers fill: `modes` (functions that may take a call over: fake
execution, tracing, function transforms; the last entered is asked first), `autocast`, and
`autograd` (which records the graph).

Invariants
----------
* Every op of every program passes `call`; nothing else runs kernels.
* A call that fails leaves its operands as they were.
* ``out=`` and in-place calls compute straight into the target when dtype and shape are its own and
  memory overlaps fully or not at all; otherwise into a temporary that is then copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from refruntime._dtypes import can_cast, on_default_change
from refruntime._impl import (
    TensorImpl,
    TensorMeta,
    alias,
    empty_impl,
    meta_of,
    plain_types,
    requires_grad,
)
from refruntime._layout import extent, has_internal_overlap
from refruntime._ops.opdef import (
    NO_PARAMS,
    REGISTRY,
    Inplace,
    OpDef,
    meta_or_value,
    ops,
    require_tensor,
    set_default_run,
)
from refruntime._storage import UNTRACKED
from refruntime.errors import DeviceError, DTypeError, KernelMissingError, ShapeError

Call = Callable[..., Any]


class AutogradHooks(Protocol):
    """What the autograd layer does for the dispatcher."""

    def record(self, op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Run the op and put it into the graph."""

    def record_inplace(
        self, op: OpDef, target: TensorImpl, inputs: tuple[Any, ...], params: dict[str, Any]
    ) -> Any:
        """Run the op into `target` and make the op its history."""

    def check_out(self, op: OpDef, outs: tuple[TensorImpl, ...], inputs: tuple[Any, ...]) -> None:
        """Raise if a gradient would have to flow through ``out=``."""


# A mode is entered for all threads; it looks itself whether it concerns the thread that calls.
modes: list[Call] = []
autocast: Call | None = None
autograd: AutogradHooks | None = None


def note_made(tensor: TensorImpl) -> None:
    """Take note of a tensor that was made without an op; filled by the layer of the modes."""


def require_writable(name: str) -> None:
    """Raise if this thread may not write to inference tensors; filled by the layer of the modes."""


def call(
    op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any] = NO_PARAMS, out: Any = None
) -> Any:
    """Run `op` on `inputs` (tensors, Python numbers or None) and return its output or outputs.

    Parameters
    ----------
    op : OpDef
        The record.
    inputs : tuple
        One entry an operand of the record.
    params : dict
        The keyword parameters of the kernel.
    out : tensor, tuple of tensors or Inplace, optional
        Where the result goes.

    Raises
    ------
    KernelMissingError
        If the op has no kernel for the device or dtype.
    DeviceError
        If the operands are on different devices.
    """
    if modes:
        return modes[-1](op, inputs, params, out)
    if autocast is not None:
        inputs = autocast(op, inputs)
    if out is not None:
        return _call_into(op, inputs, params, out)
    recorded = False
    for value in inputs:
        kind = type(value)
        if kind in plain_types:
            meta = value.autograd
            if meta is not None and meta.requires_grad:
                recorded = True
        elif kind not in _SCALARS:
            return _call_unusual(op, inputs, params)
    if recorded:
        return autograd.record(op, inputs, params)  # type: ignore[union-attr]
    return op.run(op, inputs, params)


_SCALARS: frozenset[type] = frozenset({float, int, bool, complex, type(None)})


_mode_counts: dict[Call, int] = {}
_modes_lock = threading.Lock()


def enter_mode(mode: Call) -> None:
    """Let a mode see every call until it has been left as often as it was entered."""
    with _modes_lock:
        _mode_counts[mode] = _mode_counts.get(mode, 0) + 1
        if mode not in modes:
            modes.append(mode)


def leave_mode(mode: Call) -> None:
    """Undo one `enter_mode`."""
    with _modes_lock:
        _mode_counts[mode] -= 1
        if not _mode_counts[mode]:
            del _mode_counts[mode]
            modes.remove(mode)


def call_under(
    mode: Call, op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any], out: Any = None
) -> Any:
    """Run a call as it would run without `mode` and those entered after it."""
    place = modes.index(mode) if mode in modes else 0
    if place:
        return modes[place - 1](op, inputs, params, out)
    if autocast is not None:
        inputs = autocast(op, inputs)
    if out is not None:
        return _call_into(op, inputs, params, out)
    return _call_unusual(op, inputs, params)


def _call_unusual(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Run a call that has operands of subclasses of Tensor, or NumPy scalars."""
    subclass = None
    operands = list(inputs)
    for position, value in enumerate(inputs):
        if isinstance(value, np.generic):
            operands[position] = value.item()
        elif not isinstance(value, (TensorImpl, *_SCALARS)):
            require_tensor(op.name, value, op.inputs[min(position, len(op.inputs) - 1)])
        elif isinstance(value, TensorImpl) and type(value) not in plain_types:
            subclass = subclass or type(value)
            if hasattr(value, "call_op"):  # a class whose memory is not that of its elements
                return value.call_op(op, inputs, params)
    if any(map(requires_grad, operands)):
        outputs = autograd.record(op, tuple(operands), params)  # type: ignore[union-attr]
    else:
        outputs = op.run(op, tuple(operands), params)
    if subclass is not None:
        # A subclass stays itself through operators, as in torch.
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            output.__class__ = subclass
    return outputs


def run(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Run an op from its record, without autograd: a view, or allocate and launch the kernel."""
    if op.view is not None:
        return _run_view(op, inputs, params)
    device, metas = _inferred(op, inputs, params)
    if type(metas) is tuple:
        outputs: Any = tuple([empty_impl(meta) for meta in metas])
    else:
        outputs = empty_impl(metas)
    launch(op, device, outputs, inputs, params)
    return outputs


set_default_run(run)

# What `infer` answered for each op and each combination of metas and parameters: it is pure, reads
# no more of a number operand than its type, and would take longer than a small kernel. Dropped all
# at once when a program runs through very many shapes, and when the default dtype changes.
_answers: dict[Any, Any] = {}
_MAX_ANSWERS = 1 << 14
on_default_change.append(_answers.clear)


def _inferred(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> tuple[str, Any]:
    """Return the device type and the metas of the outputs."""
    # A draw has a seed and an offset of its own: its answer would never be asked for again.
    key = None if op.random else _key(op, inputs, params)
    answer = _answers.get(key) if key is not None else None
    if answer is None:
        assert op.infer is not None
        device = common_device(op.name, inputs)
        answer = device, op.infer(*map(meta_or_value, inputs), **params)
        _remember(key, answer)
    return answer


def _key(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Return what decides the answer, or None if it cannot be looked up."""
    key: list[Any] = [op]
    for value in inputs:
        key.append(value.meta if isinstance(value, TensorImpl) else type(value))
    for value in params.values():
        # 1, 1.0 and True are equal, and decide dtypes differently.
        key.append(type(value))
        key.append(value)
    result = tuple(key)
    try:
        hash(result)
    except TypeError:
        return None
    return result


def _remember(key: Any, answer: Any) -> None:
    if key is None:
        return
    if len(_answers) >= _MAX_ANSWERS:
        _answers.clear()
    _answers[key] = answer


def _run_view(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> TensorImpl:
    source = inputs[0]
    require_tensor(op.name, source)
    assert op.view is not None
    shape, strides, offset = op.view(source.meta, **params)
    meta = meta_of(tuple(shape), source.meta.dtype, source.meta.device, tuple(strides))
    return alias(source, meta, source.byte_offset + offset * meta.dtype.itemsize)


def launch(
    op: OpDef, device_type: str, out: Any, inputs: tuple[Any, ...], params: dict[str, Any]
) -> None:
    """Run the kernel of `device_type` into `out`."""
    kernel = op.kernel(device_type)
    if kernel is None:
        raise KernelMissingError(
            op.name,
            what=f"no kernel for device {device_type}",
            expected="an op with a kernel there",
            got=", ".join(str(v.meta.dtype) for v in inputs if isinstance(v, TensorImpl)),
            remedy="move the operands to the CPU with .cpu()",
        )
    kernel(out, *inputs, **params)


def common_device(name: str, inputs: tuple[Any, ...]) -> str:
    """Return the device type of the operands; zero-dim CPU tensors may join any device."""
    found = None
    for value in inputs:
        if not isinstance(value, TensorImpl):
            continue
        device = value.meta.device
        if found is None or (found.type == "cpu" and device.type != "cpu"):
            found = device
        elif device != found and not (device.type == "cpu" and value.meta.ndim == 0):
            raise DeviceError(
                name,
                what="Expected all tensors to be on the same device",
                expected=str(found),
                got=str(device),
                remedy="move one of them with .to(device)",
            )
    return "cpu" if found is None else found.type


# ---------------------------------------------------------------------------------------------
# Results that go into memory that exists


def _call_into(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any], out: Any) -> Any:
    for value in inputs:
        kind = type(value)
        if kind not in plain_types and kind not in _SCALARS and hasattr(value, "call_op"):
            if hasattr(value, "call_into"):
                return value.call_into(op, inputs, params, out)
            target = out.target if isinstance(out, Inplace) else out
            return ops.copy_(target, value.call_op(op, inputs, params))
    if isinstance(out, Inplace):
        if out.target.counter is UNTRACKED:
            require_writable(op.name + "_")
        return autograd.record_inplace(op, out.target, inputs, params)  # type: ignore[union-attr]
    outs = out if isinstance(out, (tuple, list)) else (out,)
    for value in outs:
        require_tensor(op.name, value, "out")
        if value.counter is UNTRACKED:
            require_writable(op.name)
    if autograd is not None:
        autograd.check_out(op, tuple(outs), inputs)
    run_into(op, tuple(outs), inputs, params, resize=True)
    return out


def run_into(
    op: OpDef,
    outs: tuple[TensorImpl, ...],
    inputs: tuple[Any, ...],
    params: dict[str, Any],
    resize: bool = False,
) -> None:
    """Run `op` and leave its outputs in `outs`, bumping their versions."""
    device, metas = _inferred(op, inputs, params)
    if metas is outs[0].meta and metas.contiguous and not _touches(outs[0], inputs):
        # The usual in-place call: the target is what the op would have made.
        launch(op, device, outs[0], inputs, params)
        outs[0].counter.version += 1
        return
    device = common_device(op.name, (*inputs, *outs))
    metas = metas if isinstance(metas, tuple) else (metas,)
    if len(metas) != len(outs):
        raise ShapeError(
            op.name, what="wrong number of out= tensors", expected=str(len(metas)),
            got=str(len(outs)), remedy="pass one tensor for each output",
        )  # fmt: skip
    for out, meta in zip(outs, metas, strict=True):
        _check_target(op.name, out, meta, resize)
    temporaries = [_target(out, meta, inputs) for out, meta in zip(outs, metas, strict=True)]
    launch(op, device, temporaries[0] if len(outs) == 1 else tuple(temporaries), inputs, params)
    for out, temporary in zip(outs, temporaries, strict=True):
        if temporary is not out:
            copy_into(out, temporary)
        out.counter.version += 1


def _check_target(name: str, out: TensorImpl, meta: TensorMeta, resize: bool) -> None:
    if not can_cast(meta.dtype, out.meta.dtype):
        raise DTypeError(
            name,
            what=f"result type {meta.dtype.name} can't be cast to the desired output type "
            f"{out.meta.dtype.name}",
            expected=f"an output of {meta.dtype}",
            got=str(out.meta.dtype),
            remedy="use the functional form, or convert the target first",
        )
    if out.meta.shape == meta.shape:
        if has_internal_overlap(out.meta.shape, out.meta.strides):
            raise ShapeError(
                name,
                what="unsupported operation: more than one element of the written-to tensor "
                "refers to a single memory location",
                expected="a target whose elements are apart",
                got=f"shape {tuple(out.meta.shape)} with strides {out.meta.strides}",
                remedy="call .clone() or .contiguous() on it first",
            )
        return
    if not resize:
        raise ShapeError(
            name,
            what=f"output with shape {list(out.meta.shape)} doesn't match the broadcast shape "
            f"{list(meta.shape)}",
            expected=f"a target of shape {tuple(meta.shape)}",
            got=str(tuple(out.meta.shape)),
            remedy="use the functional form",
        )
    _resize(out, meta)


def _resize(out: TensorImpl, meta: TensorMeta) -> None:
    fresh = empty_impl(meta_of(meta.shape, out.meta.dtype, out.meta.device))
    out.storage, out.meta, out.byte_offset = fresh.storage, fresh.meta, 0
    out.counter = fresh.counter


def _target(out: TensorImpl, meta: TensorMeta, inputs: tuple[Any, ...]) -> TensorImpl:
    """Return `out` when the kernel may write straight into it, else a temporary."""
    if out.meta.dtype is not meta.dtype or out.meta.device != meta.device:
        return empty_impl(meta)
    for value in inputs:
        if isinstance(value, TensorImpl) and value is not out and _overlaps_partly(out, value):
            return empty_impl(meta)
    return out


def _touches(out: TensorImpl, inputs: tuple[Any, ...]) -> bool:
    """Whether an operand other than `out` itself lies in the storage of `out`."""
    storage = out.storage
    for value in inputs:
        if value is not out and isinstance(value, TensorImpl) and value.storage is storage:
            return True
    return False


def _overlaps_partly(out: TensorImpl, value: TensorImpl) -> bool:
    if out.storage is not value.storage:
        return False
    if out.byte_offset == value.byte_offset and out.meta is value.meta:
        return False
    first, second = _byte_range(out), _byte_range(value)
    return first[0] < second[1] and second[0] < first[1]


def _byte_range(value: TensorImpl) -> tuple[int, int]:
    low, high = extent(value.meta.shape, value.meta.strides)
    itemsize = value.meta.dtype.itemsize
    return value.byte_offset + low * itemsize, value.byte_offset + (high + 1) * itemsize


def copy_into(target: TensorImpl, source: TensorImpl) -> None:
    """Copy (and cast, and broadcast) `source` into `target`'s memory; no autograd, no version."""
    launch(REGISTRY["copy"], target.meta.device.type, target, (source,), NO_PARAMS)
