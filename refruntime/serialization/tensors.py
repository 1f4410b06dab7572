"""Tensors through pickle and copy: `__reduce_ex__`, `__deepcopy__`, `__copy__`.

Invariants
----------
* A pickled tensor carries its elements as one buffer (out of band under protocol 5), its shape, its
  dense strides, what its memory is for and whether it requires grad; neither graph nor gradient.
* A deep copy copies whole storages through the memo, so views that shared memory share it after.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._device import Device
from refruntime._dtypes import dtype_named
from refruntime._impl import AutogradMeta, TensorImpl, array_of, detached, meta_of, wrap
from refruntime._layout import is_dense
from refruntime._storage import Storage, allocate
from refruntime.errors import AutogradError, DeviceError


def reduce_tensor(tensor: Any, protocol: Any) -> tuple[Any, ...]:
    """Return how pickle writes a tensor.

    Parameters
    ----------
    tensor : Tensor
        Device memory is copied to the host.
    protocol : int
        From 5 on the elements are a `pickle.PickleBuffer`.
    """
    host = tensor.detach() if tensor.meta.device.type == "cpu" else tensor.detach().cpu()
    elements, strides = _packed(host)
    buffer: Any = pickle.PickleBuffer(elements.data) if protocol >= 5 else elements.tobytes()
    meta = tensor.meta
    args = (
        type(tensor), buffer, meta.dtype.name, tuple(meta.shape), strides, str(meta.device),
        tensor.requires_grad, tensor.storage.category, dict(getattr(tensor, "__dict__", {})),
    )  # fmt: skip
    return rebuild_tensor, args


def _packed(tensor: TensorImpl) -> tuple[np.ndarray[Any, Any], tuple[int, ...] | None]:
    """Return the elements as a flat array of bytes, and strides if they are not row-major."""
    meta, array = tensor.meta, tensor.array()
    strides = None
    if not meta.contiguous and is_dense(meta.shape, meta.strides):
        order = sorted(range(meta.ndim), key=lambda dim: (-meta.strides[dim], dim))
        array = array.transpose(order)
        strides = tuple(meta.strides)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8), strides


def rebuild_tensor(
    kind: type[TensorImpl],
    buffer: Any,
    dtype_name: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    device: str,
    requires_grad: bool,
    category: int,
    attributes: dict[str, Any],
) -> TensorImpl:
    """Return the tensor that `reduce_tensor` described, with memory of its own."""
    meta = meta_of(tuple(shape), dtype_named(dtype_name), Device("cpu"), strides)
    storage = allocate(meta.nbytes, category=category)
    tensor: Any = wrap(storage, meta)
    if meta.nbytes:
        array_of(storage, meta_of((meta.nbytes,), _dtypes.uint8), 0)[:] = np.frombuffer(
            buffer, np.uint8
        )
    if device != "cpu":
        tensor = tensor.to(device)
    return _dressed(tensor, kind, requires_grad, attributes)


def _dressed(
    tensor: Any, kind: type[TensorImpl], requires_grad: bool, attributes: dict[str, Any]
) -> TensorImpl:
    tensor.__class__ = kind
    if attributes:
        tensor.__dict__.update(attributes)
    if requires_grad:
        tensor.autograd = AutogradMeta(requires_grad=True)
    return tensor  # type: ignore[no-any-return]


def copy_tensor(tensor: Any) -> TensorImpl:
    """Return another leaf over the same memory (``copy.copy``)."""
    twin = detached(tensor)
    return _dressed(twin, type(tensor), tensor.requires_grad, dict(tensor.__dict__))


def deepcopy_tensor(tensor: Any, memo: dict[int, Any]) -> TensorImpl:
    """Return a leaf with memory, gradient and attributes of its own (``copy.deepcopy``).

    Raises
    ------
    RuntimeError
        If the tensor is not a leaf: its history cannot be copied.
    """
    known = memo.get(id(tensor))
    if known is not None:
        return known  # type: ignore[no-any-return]
    if not tensor.is_leaf:
        raise AutogradError(
            "deepcopy",
            what="Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment",
            expected="a leaf",
            got=f"an output of {tensor.grad_fn.name()}",
            remedy="copy tensor.detach() instead",
        )
    twin: Any = wrap(_copied_storage(tensor.storage, memo), tensor.meta, tensor.byte_offset)
    twin = _dressed(twin, type(tensor), tensor.requires_grad, {})
    memo[id(tensor)] = twin
    if tensor.grad is not None:
        twin.grad = copy.deepcopy(tensor.grad, memo)
    if tensor.__dict__:
        twin.__dict__.update(copy.deepcopy(tensor.__dict__, memo))
    return twin  # type: ignore[no-any-return]


def _copied_storage(storage: Storage, memo: dict[int, Any]) -> Storage:
    known = memo.get(id(storage))
    if known is not None:
        return known  # type: ignore[no-any-return]
    if storage.device.type != "cpu":
        raise DeviceError("deepcopy", expected="a CPU tensor", got=str(storage.device))
    twin = allocate(storage.nbytes, storage.device, _category(storage))
    if storage.nbytes:
        whole = meta_of((storage.nbytes,), _dtypes.uint8)
        array_of(twin, whole, 0)[:] = array_of(storage, whole, 0)
    memo[id(storage)] = twin
    return twin


def _category(storage: Storage) -> int:
    from refruntime.alloc import categories

    # A copy of foreign memory is memory of ours.
    external = storage.category == categories.EXTERNAL
    return categories.TEMPORARY if external else storage.category
