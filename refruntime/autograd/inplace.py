"""In-place writes and the history of views.

State
-----
A view knows the tensor it was taken from (`base`) and the version at which its own history was
set (`autograd.view_version`).

Invariants
----------
* Writing in place into a tensor makes the op its history; the old history stays behind the op.
* Writing into a view rewrites the base: the base's history becomes `CopySlices` (the gradient of
  the written part goes through the op, the rest goes on to the old history), and every other view
  of that base rebuilds its history from the base when it is next used.
* A base without history does not know its views. When a write gives it its first history, they are
  found among the objects that the garbage collector tracks, which happens once for a base.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

from refruntime import _dispatch
from refruntime._impl import AutogradMeta, TensorImpl, TensorMeta, meta_of, requires_grad
from refruntime._ops.opdef import OpDef, ops
from refruntime.autograd.modes import state
from refruntime.autograd.node import Edge, Node, OpNode, gradient_edge, node_class
from refruntime.errors import AutogradError


def record_inplace(
    op: OpDef, target: TensorImpl, inputs: tuple[Any, ...], params: dict[str, Any]
) -> TensorImpl:
    """Run the op into `target` (its first operand) and make the op its history."""
    if not state.grad:
        _dispatch.run_into(op, (target,), inputs, params)
        return target
    check_writable(op.name + "_", target)
    if op.vjp is None or not any(map(requires_grad, inputs)):
        _dispatch.run_into(op, (target,), inputs, params)
        if op.vjp is None and target.autograd is not None:
            target.autograd = None
        return target
    edges = tuple([gradient_edge(value) for value in inputs])
    # Operands are saved before the write, so that one which it changes is found out in backward.
    node = node_class(op)(_kept_operands(op, target, inputs), params, None, edges)
    _dispatch.run_into(op, (target,), inputs, params)
    node.save_outputs(target)
    node.output_metas = (target.meta,)
    _set_history(target, node)
    return target


def check_writable(name: str, target: TensorImpl) -> None:
    """Raise if `target` is a leaf that requires grad, or a view of one."""
    if requires_grad(target) and target.autograd.grad_fn is None:  # type: ignore[union-attr]
        raise _leaf_error(name, "a leaf Variable")
    base = target.base
    if base is None or not requires_grad(base):
        return
    if base.autograd.grad_fn is None:  # type: ignore[union-attr]
        raise _leaf_error(name, "a view of a leaf Variable")
    if target.autograd is None:
        raise AutogradError(
            name,
            what="A view was created in no_grad mode and is being modified inplace with grad mode "
            "enabled",
            expected="the view and the write both inside no_grad, or both outside",
            got="a view without history of a tensor that has one",
            remedy="take the view again, in the mode of the write",
        )
    _check_single_view(name, target)


def _check_single_view(name: str, target: TensorImpl) -> None:
    """Raise if `target` is, or is a view of, one of several views that one op made."""
    meta = target.autograd
    node, number = (None, 0) if meta is None else (meta.grad_fn, meta.output_nr)
    while isinstance(node, OpNode) and node.op.view is not None:
        if len(node.output_metas) > 1:
            raise AutogradError(
                name,
                what=f"Output {number} of {node.name()} is a view and is being modified inplace. "
                "This view is the output of a function that returns multiple views. Such "
                "functions do not allow the output views to be modified inplace",
                expected="a view that an op of its own made", got=f"an output of {node.name()}",
                remedy="use the out-of-place operation, or take the view by indexing",
            )  # fmt: skip
        node, number = node.next_functions[0]


def _leaf_error(name: str, what: str) -> AutogradError:
    return AutogradError(
        name,
        what=f"{what} that requires grad is being used in an in-place operation",
        expected="a tensor that is no leaf, or no_grad mode",
        got="a leaf that requires grad",
        remedy="write under no_grad(), or work on a clone",
    )


def _kept_operands(op: OpDef, target: TensorImpl, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands with the old value of `target` copied if the node must save it."""
    readers = [r for kind, index, r in node_class(op).save_plan if kind == "in" and index == 0]
    if not any(reader is None or requires_grad(inputs[reader]) for reader in readers):
        return inputs
    with_history = ops.clone(target)
    return tuple(with_history if value is target else value for value in inputs)


def _set_history(target: TensorImpl, node: OpNode) -> None:
    base = target if target.base is None else target.base
    first = not requires_grad(base)
    if base is target:
        _replace_history(target, node, 0)
    else:
        _replace_history(base, CopySlices(base, target, node), 0)
        refresh_view(target)
    if first:
        _refresh_other_views(base, target)


# References to a storage that one tensor, and one view of it, know: the slots `storage` and
# `counter` of both, and the argument of getrefcount.
_TENSOR_AND_VIEW = 5


def _refresh_other_views(base: TensorImpl, target: TensorImpl) -> None:
    """Give the views that were taken from `base` before it had a history theirs."""
    lone = _TENSOR_AND_VIEW if target is not base else _TENSOR_AND_VIEW - 2
    if sys.getrefcount(base.storage) <= lone:
        return
    for view in gc.get_referrers(base):
        if isinstance(view, TensorImpl) and view.base is base and view is not target:
            refresh_view(view)


def _replace_history(tensor: TensorImpl, node: Node, output_nr: int) -> None:
    old = tensor.autograd
    fresh = AutogradMeta(True, node, output_nr, tensor.counter.version)
    if old is not None and old.retains_grad:
        # What is kept is the gradient of the value that the tensor has now.
        old.grad_fn.retained_outputs.pop(old.output_nr, None)
        fresh.retains_grad = True
        node.retain_output(output_nr, tensor)
    tensor.autograd = fresh


def refresh_view(view: TensorImpl) -> None:
    """Rebuild the history of a view from its base, after a write through one of the two."""
    base = view.base
    assert base is not None
    if not requires_grad(base) or base.autograd.grad_fn is None:  # type: ignore[union-attr]
        if view.autograd is not None:
            view.autograd.view_version = view.counter.version
        return
    node = AsStridedBackward0(base, view)
    _replace_history(view, node, 0)


def _geometry(base: TensorImpl, view: TensorImpl) -> tuple[Any, Any, int]:
    itemsize = base.meta.dtype.itemsize
    offset = (view.byte_offset - base.byte_offset) // itemsize
    return view.meta.shape, view.meta.strides, offset


def _dense_geometry(base: TensorMeta, view: TensorImpl, offset: int) -> tuple[Any, Any, int]:
    """Translate a view of `base` into the same view of a row-major tensor of the same shape."""
    if base.contiguous:
        return view.meta.shape, view.meta.strides, offset
    return _translate(base, view.meta, offset)


def _translate(base: TensorMeta, view: TensorMeta, offset: int) -> tuple[Any, Any, int]:
    dense = meta_of(base.shape, base.dtype, base.device).strides
    by_stride = {s: d for s, d, n in zip(base.strides, dense, base.shape, strict=True) if n > 1}
    strides = []
    for size, stride in zip(view.shape, view.strides, strict=True):
        strides.append(_dense_stride(stride, by_stride) if size > 1 else 1)
    start = 0
    for stride in sorted(by_stride, reverse=True):
        start += (offset // stride) * by_stride[stride]
        offset %= stride
    return view.shape, tuple(strides), start


def _dense_stride(stride: int, by_stride: dict[int, int]) -> int:
    for known in sorted(by_stride, reverse=True):
        if stride % known == 0:
            return stride // known * by_stride[known]
    raise AutogradError(
        "view",
        what="this view of a non-contiguous base cannot be written in place under autograd",
        expected="a view made of whole dimensions of its base",
        got=f"stride {stride} over base strides {sorted(by_stride)}",
        remedy="write into a contiguous tensor",
    )


class AsStridedBackward0(Node):
    """The history of a view that was rebuilt from its base."""

    __slots__ = ("_base_meta", "_view")

    pure = True

    def __init__(self, base: TensorImpl, view: TensorImpl) -> None:
        super().__init__((gradient_edge(base),))
        self.output_metas = (view.meta,)
        self._base_meta = base.meta
        self._view = _dense_geometry(base.meta, view, _geometry(base, view)[2])

    def apply(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the operands from those of the outputs."""
        if grads[0] is None:
            return (None,)
        meta = self._base_meta
        whole = ops.zeros(tuple(meta.shape), dtype=meta.dtype, device=meta.device)
        return (ops.as_strided_scatter(whole, grads[0], *self._view),)


class CopySlices(Node):
    """The history of a base after `inner` wrote into one of its views."""

    __slots__ = ("_base_meta", "_view", "inner")

    pure = True

    def __init__(self, base: TensorImpl, view: TensorImpl, inner: OpNode) -> None:
        edges: list[Edge] = [gradient_edge_before(base)]
        edges.extend(inner.next_functions[1:])
        super().__init__(tuple(edges))
        self.output_metas = (base.meta,)
        self._base_meta = base.meta
        self._view = _dense_geometry(base.meta, view, _geometry(base, view)[2])
        self.inner = inner

    def apply(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the operands from those of the outputs."""
        gradient = grads[0]
        if gradient is None:
            return (None,) * len(self.next_functions)
        gradient = ops.contiguous(gradient)
        shape, strides, offset = self._view
        # A contiguous gradient may still be a part of a larger one: as_strided counts from the
        # start of the storage.
        offset += gradient.byte_offset // gradient.meta.dtype.itemsize
        part = ops.as_strided(gradient, shape, strides, offset)
        inner = self.inner.apply((part,))
        passed = inner[0]
        if passed is None:
            passed = ops.zeros(tuple(shape), dtype=gradient.dtype, device=gradient.device)
        rest = ops.as_strided_scatter(gradient, passed, shape, strides, offset)
        return (rest, *inner[1:])

    def release(self) -> None:
        """Drop what was saved."""
        self.inner.release()


def gradient_edge_before(base: TensorImpl) -> Edge:
    """Return the edge of `base` as it was before the write that is being recorded."""
    meta = base.autograd
    if meta is None or not meta.requires_grad:
        return (None, 0)
    return gradient_edge(base) if meta.grad_fn is None else (meta.grad_fn, meta.output_nr)
