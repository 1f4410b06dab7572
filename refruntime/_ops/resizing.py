"""Giving a tensor another size in place.

Invariants
----------
* The elements that the old span holds stay, in memory order; the span grows when it must, and never
  shrinks.
"""

from __future__ import annotations

from typing import Any

from refruntime._device import Device
from refruntime._dispatch import copy_into
from refruntime._dtypes import DType, get_default_dtype
from refruntime._impl import TensorImpl, alias, empty_impl, meta_of, requires_grad
from refruntime._ops.arguments import spread_ints
from refruntime._ops.opdef import front, ops, require_tensor
from refruntime.errors import AutogradError, ShapeError


@front(name="resize_")
def resize_(self: Any, *sizes: Any, memory_format: Any = None) -> Any:
    """Give the tensor another shape, row-major; new elements are unset."""
    require_tensor("resize_", self)
    shape = spread_ints("resize_", "sizes", sizes)
    if requires_grad(self):
        raise AutogradError(
            "resize_", what="cannot resize variables that require grad",
            expected="a tensor that does not require grad", got="one that does",
            remedy="use reshape, or detach() first",
        )  # fmt: skip
    meta = meta_of(shape, self.meta.dtype, self.meta.device)
    if self.byte_offset + meta.nbytes > self.storage.nbytes:
        _grow(self, meta.nbytes)
    self.meta = meta
    self.counter.version += 1
    return self


def _grow(tensor: TensorImpl, nbytes: int) -> None:
    """Put the tensor into a larger storage that begins with the bytes of the old one."""
    itemsize = tensor.meta.dtype.itemsize
    held = (tensor.storage.nbytes - tensor.byte_offset) // itemsize
    if tensor.storage.exports or tensor.base is not None:
        raise ShapeError(
            "resize_", what="the storage is shared and cannot grow",
            expected=f"at most {held} elements", got=str(nbytes // itemsize),
            remedy="make a new tensor",
        )  # fmt: skip
    flat = meta_of((nbytes // itemsize,), tensor.meta.dtype, tensor.meta.device)
    fresh = empty_impl(flat)
    part = meta_of((held,), tensor.meta.dtype, tensor.meta.device)
    copy_into(alias(fresh, part, 0), alias(tensor, part, tensor.byte_offset))
    tensor.storage, tensor.counter, tensor.byte_offset = fresh.storage, fresh.counter, 0


@front(name="resize_as_")
def resize_as_(self: Any, the_template: Any, *, memory_format: Any = None) -> Any:
    """Give the tensor the shape of another one."""
    return resize_(self, tuple(the_template.shape))


@front(method=False)
def empty_permuted(
    size: Any, physical_layout: Any, *, dtype: DType | None = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return an unset tensor whose dimensions lie in memory in the given order."""
    order = tuple(physical_layout)
    if sorted(order) != list(range(len(size))):
        raise ShapeError(
            "empty_permuted", expected=f"an order of {len(size)} dimensions", got=str(order)
        )
    strides, step = [0] * len(size), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= size[dim]
    kind = get_default_dtype() if dtype is None else dtype
    where = None if device is None else Device(device)
    made = ops.empty_strided(tuple(size), tuple(strides), dtype=kind, device=where)
    return made.requires_grad_(requires_grad)
