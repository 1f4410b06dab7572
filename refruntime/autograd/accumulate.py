"""Gradients that meet: fitting one to its operand, and adding it to a leaf's.

Invariants
----------
* A gradient has the shape and dtype of the value that it belongs to: `fit` sums what was broadcast
  and casts what was promoted.
* `leaf.grad` never shares memory with another gradient or with anything of the user's: a gradient
  that nobody else holds is taken over as it is, any other one is copied.
"""

from __future__ import annotations

import sys

from refruntime._impl import TensorImpl, TensorMeta, detached
from refruntime._ops.opdef import ops
from refruntime.alloc.categories import GRADIENT
from refruntime.autograd.modes import state
from refruntime.errors import ShapeError


def fit(gradient: TensorImpl, meta: TensorMeta, name: str) -> TensorImpl:
    """Return `gradient` in the shape and dtype of `meta`."""
    if gradient.meta.shape != meta.shape:
        gradient = sum_to_shape(gradient, tuple(meta.shape), name)
    if gradient.meta.dtype is not meta.dtype:
        gradient = ops.to(gradient, meta.dtype)
    return gradient


def sum_to_shape(gradient: TensorImpl, shape: tuple[int, ...], name: str) -> TensorImpl:
    """Sum over the dimensions along which `shape` was broadcast to the gradient's shape."""
    extra = len(gradient.meta.shape) - len(shape)
    if extra < 0 or any(
        want not in (1, have) for want, have in zip(shape, gradient.meta.shape[extra:], strict=True)
    ):
        raise ShapeError(
            name,
            what="returned an invalid gradient",
            expected=f"a gradient of shape {shape} or one that broadcasts from it",
            got=str(tuple(gradient.meta.shape)),
            remedy="return a gradient shaped like the operand",
        )
    dims = list(range(extra))
    dims += [
        extra + i
        for i, want in enumerate(shape)
        if want == 1 and gradient.meta.shape[extra + i] != 1
    ]
    if dims:
        gradient = ops.sum(gradient, dims, True)
    return ops.view(gradient, shape) if extra else gradient


def accumulate(leaf: TensorImpl, gradient: TensorImpl) -> None:
    """Add `gradient` to the gradient of a leaf."""
    meta = leaf.autograd
    assert meta is not None
    if meta.grad is None:
        meta.grad = _own(gradient)
        meta.grad.storage.tag(GRADIENT)
    elif state.grad:
        meta.grad = ops.add(meta.grad, gradient)
    else:
        ops.add_(meta.grad, gradient)
    if meta.post_accumulate_hooks:
        for hook in list(meta.post_accumulate_hooks.values()):
            hook(leaf)


def _own(gradient: TensorImpl) -> TensorImpl:
    if state.grad:
        return ops.clone(gradient)  # type: ignore[no-any-return]
    if gradient.meta.contiguous and is_unshared(gradient):
        return detached(gradient)
    return ops.clone(gradient)  # type: ignore[no-any-return]


# References to a storage that only one tensor knows: its slots `storage` and `counter`, and the
# argument of getrefcount.
_LONE_STORAGE = 3


# References to a gradient on its way through the engine into `is_unshared`. The number depends on
# the interpreter, so the first gradient, which `calibrate` sends through, sets it.
_lone_tensor: int | None = None


def is_unshared(gradient: TensorImpl) -> bool:
    """Whether no other tensor has this memory, and only the running backward has this tensor."""
    global _lone_tensor
    if _lone_tensor is None:
        _lone_tensor = sys.getrefcount(gradient)
    return (
        gradient.base is None
        and sys.getrefcount(gradient) <= _lone_tensor
        and sys.getrefcount(gradient.storage) <= _LONE_STORAGE
    )
