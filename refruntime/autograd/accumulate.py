"""Gradients that meet: fitting one to its operand, and adding it to a leaf's.

Invariants
----------
* A gradient has the shape and dtype of the value that it belongs to: `fit` sums what was broadcast
  and casts what was promoted.
* `leaf.grad` never shares memory with another gradient or with anything of the user's: a gradient
  that nobody else holds is taken over as it is, any other one is copied.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from refruntime._impl import TensorImpl, TensorMeta, plain_types
from refruntime._ops.opdef import REGISTRY, ops
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


def accumulate(leaf: TensorImpl, held: list[Any]) -> None:
    """Add the gradient that `held` holds, and nobody else knows of, to the gradient of a leaf."""
    meta = leaf.autograd
    assert meta is not None
    lock = _locks[(id(leaf) >> 4) % _LOCKS]
    lock.acquire()
    try:
        if meta.grad is None:
            gradient = held[0]
            if not (
                gradient.base is None
                and gradient.meta.contiguous
                and gradient.autograd is None
                and sys.getrefcount(gradient) <= LONE_OBJECT
                and sys.getrefcount(gradient.storage) <= LONE_STORAGE
            ):
                gradient = ops.clone(gradient)
            meta.grad = gradient
            if gradient.storage.category != GRADIENT:
                gradient.storage.tag(GRADIENT)
        elif state.grad:
            meta.grad = ops.add(meta.grad, held.pop())
        else:
            add_in_place(meta.grad, held.pop())
    finally:
        lock.release()
    if meta.post_accumulate_hooks:
        for hook in list(meta.post_accumulate_hooks.values()):
            hook(leaf)


def add_to_buffer(buffer: list[Any], number: int, held: list[Any]) -> None:
    """Sum the gradient in `held`, which is emptied, with the one at a place of `buffer`."""
    if buffer[number] is None:
        buffer[number] = held.pop()
    elif state.grad or type(held[0]) not in plain_types or not is_unshared(buffer, number):
        buffer[number] = ops.add(buffer[number], held.pop())
    else:
        add_in_place(buffer[number], held.pop())


def add_in_place(total: TensorImpl, gradient: TensorImpl) -> None:
    """Add `gradient` to `total`, which has no history."""
    if total.meta is gradient.meta and total.storage is not gradient.storage:
        REGISTRY["add"].kernel(total.meta.device.type)(total, total, gradient)  # type: ignore[misc]
        total.counter.version += 1
    else:
        ops.add_(total, gradient)


# Calls on several threads may meet at one leaf. A lock for each would have to be made anew in the
# child of a fork, so a few locks serve all leaves.
_LOCKS = 64
_locks = [threading.RLock() for _ in range(_LOCKS)]


def _renew_locks() -> None:
    _locks[:] = [threading.RLock() for _ in range(_LOCKS)]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def _references(held: list[Any]) -> int:
    value = held[0]
    return sys.getrefcount(value)


# What `getrefcount` says of an object that one container and one local variable hold: interpreters
# count the argument itself, or do not. And of a storage that one tensor alone knows: its slots
# `storage` and `counter`, and the value of the expression that read it.
LONE_OBJECT = _references([object()])
LONE_STORAGE = 3


def is_unshared(held: list[Any], number: int) -> bool:
    """Whether only `held` has this gradient, and no other tensor its memory."""
    gradient = held[number]
    return (
        gradient.base is None
        and sys.getrefcount(gradient) <= LONE_OBJECT
        and sys.getrefcount(gradient.storage) <= LONE_STORAGE
    )
