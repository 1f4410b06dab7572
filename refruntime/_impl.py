"""TensorImpl: the record that every layer above passes around, and the metadata that it shares.

State
-----
A `TensorImpl` is six slots: storage, meta, byte offset, version counter, autograd state, view base.
`TensorMeta` (shape, strides, dtype, device) is immutable and interned, so plans and guards compare
one pointer.

Invariants
----------
* The user's `Tensor` is a subclass of `TensorImpl` and nothing else is instantiated: `set_shell`
  names it once, and every layer below creates results through `wrap`.
* `counter.version` is the write counter: the storage itself, or a `VersionCounter` for `.data`.
* `base` is the tensor whose storage a view was first taken from; it is never itself a view.
* `autograd` is None until a tensor requires grad, has a gradient, or has hooks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime._device import CPU, Device
from refruntime._dtypes import DType
from refruntime._layout import (
    Size,
    contiguous_strides,
    has_internal_overlap,
    is_contiguous,
    numel,
)
from refruntime._storage import (
    Storage,
    UntrackedCounter,
    VersionCounter,
    allocator_of,
    external,
)
from refruntime.alloc import categories
from refruntime.errors import DeviceError

# Interned records are dropped all at once when a program runs through very many shapes: plans then
# rebuild, and nothing depends on two equal records being one.
_MAX_INTERNED = 1 << 16


class TensorMeta:
    """Shape, strides (in elements), dtype and device of a tensor."""

    __slots__ = (
        "contiguous", "device", "dtype", "nbytes", "ndim", "numel", "shape", "span", "strides",
    )  # fmt: skip

    shape: Size
    strides: tuple[int, ...]
    dtype: DType
    device: Device

    def __init__(self, shape: Size, strides: tuple[int, ...], dtype: DType, device: Device) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.device = device
        self.ndim = len(shape)
        self.numel = numel(shape)
        self.nbytes = self.numel * dtype.itemsize
        self.contiguous = is_contiguous(shape, strides)
        # Bytes from the first element to the end of the last: what fresh memory must hold.
        self.span = self.nbytes if self.contiguous else _span_bytes(self)

    def __repr__(self) -> str:
        return f"TensorMeta({tuple(self.shape)}, {self.strides}, {self.dtype}, {self.device})"

    def __reduce__(self) -> tuple[Any, ...]:
        return meta_of, (tuple(self.shape), self.dtype, self.device, self.strides)


_interned: dict[tuple[Any, ...], TensorMeta] = {}


def meta_of(
    shape: tuple[int, ...],
    dtype: DType,
    device: Device = CPU,
    strides: tuple[int, ...] | None = None,
) -> TensorMeta:
    """Return the interned metadata of a tensor; strides default to row-major ones."""
    key = (shape, strides, dtype, device)
    found = _interned.get(key)
    return found if found is not None else _intern(key)


def _intern(key: tuple[Any, ...]) -> TensorMeta:
    shape, strides, dtype, device = key
    size = Size(shape)
    real = tuple(contiguous_strides(size)) if strides is None else tuple(strides)
    if len(_interned) >= _MAX_INTERNED:
        _interned.clear()
    meta = _interned.setdefault((size, real, dtype, device), TensorMeta(size, real, dtype, device))
    _interned[key] = meta
    return meta


def without_overlap(meta: TensorMeta) -> TensorMeta:
    """Return the meta of a fresh tensor like `meta`: row-major if its elements share memory."""
    if not has_internal_overlap(meta.shape, meta.strides):
        return meta
    return meta_of(tuple(meta.shape), meta.dtype, meta.device)


class AutogradMeta:
    """What autograd knows of one tensor.

    `grad_fn` is the node that made it (None for a leaf) and `output_nr` its place among that node's
    outputs. `accumulator` is a weak reference to the leaf's `AccumulateGrad`, which holds the leaf.
    `view_version` is the version of the memory at which the history was set; a view whose memory
    has another one was written through its base, and must rebuild its history.

    A node that has one output stands for the record of that output itself (`autograd.node.Node`).
    """

    # What most tensors never have stands on the class, and in the instance only when it is set.
    __slots__ = ("__dict__", "grad_fn", "requires_grad")

    output_nr = 0
    view_version = 0
    grad: Any = None
    hooks: dict[int, Any] | None = None
    post_accumulate_hooks: dict[int, Any] | None = None
    retains_grad: bool = False
    accumulator: Any = None

    def __init__(
        self, requires_grad: bool = False, grad_fn: Any = None, output_nr: int = 0,
        view_version: int = 0,
    ) -> None:  # fmt: skip
        self.requires_grad = requires_grad
        self.grad_fn = grad_fn
        if output_nr:
            self.output_nr = output_nr
        if view_version:
            self.view_version = view_version


class TensorImpl:
    """The slots of a tensor; see the module docstring."""

    __slots__ = ("__weakref__", "autograd", "base", "byte_offset", "counter", "meta", "storage")

    storage: Storage
    meta: TensorMeta
    byte_offset: int
    counter: Storage | VersionCounter | UntrackedCounter
    autograd: AutogradMeta | None
    base: TensorImpl | None

    @property
    def shape(self) -> Size:
        """The size of each dimension."""
        return self.meta.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.meta.dtype

    @property
    def device(self) -> Device:
        """Where the bytes are."""
        return self.meta.device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.meta.ndim

    def address(self) -> int:
        """Return the byte address of the first element."""
        return self.storage.ptr + self.byte_offset

    def array(self) -> np.ndarray[Any, Any]:
        """Return a NumPy view of the same memory (CPU only), whatever the strides."""
        return array_of(self.storage, self.meta, self.byte_offset)


_shell: type[TensorImpl] = TensorImpl

# The classes whose instances are plain tensors to operators; results of other subclasses keep
# their class.
plain_types: set[type] = {TensorImpl}


def set_shell(shell: type[TensorImpl]) -> None:
    """Name the class that `wrap` instantiates: the user's Tensor, set once by its module."""
    global _shell
    _shell = shell
    plain_types.add(shell)


def wrap(storage: Storage, meta: TensorMeta, byte_offset: int = 0) -> TensorImpl:
    """Make a tensor over a storage, with no history."""
    tensor = object.__new__(_shell)
    tensor.storage = storage
    tensor.meta = meta
    tensor.byte_offset = byte_offset
    tensor.counter = storage
    tensor.autograd = None
    tensor.base = None
    return tensor


# What memory is for when its maker does not say: `autograd` sets ACTIVATION while it runs an op
# that it records.
default_category = categories.TEMPORARY

_new = object.__new__


def empty_impl(meta: TensorMeta, category: int | None = None) -> TensorImpl:
    """Make a tensor with fresh, unset memory. Strided metas get the span that they reach."""
    # Written out, and not `wrap(allocate(...))`: every result of every op is made here.
    if category is None:
        category = default_category
    device, nbytes = meta.device, meta.span
    allocator = allocator_of(device)
    address = allocator.malloc(nbytes, 0, category)
    tensor = _new(_shell)
    storage = tensor.storage = tensor.counter = _new(Storage)
    storage.ptr = address
    storage.nbytes = nbytes
    storage.device = device
    storage.allocator = allocator
    storage.category = category
    storage.exports = 0
    storage.version = 0
    tensor.meta = meta
    tensor.byte_offset = 0
    tensor.autograd = None
    tensor.base = None
    return tensor


def _span_bytes(meta: TensorMeta) -> int:
    if meta.numel == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(meta.shape, meta.strides, strict=True))
    return (last + 1) * meta.dtype.itemsize


def alias(source: TensorImpl, meta: TensorMeta, byte_offset: int) -> TensorImpl:
    """Make a view of `source`: the same storage and version counter, other metadata."""
    view = wrap(source.storage, meta, byte_offset)
    view.counter = source.counter
    view.base = source if source.base is None else source.base
    return view


def detached(source: TensorImpl) -> TensorImpl:
    """Make a tensor over the same memory and version counter, with neither history nor base."""
    tensor = wrap(source.storage, source.meta, source.byte_offset)
    tensor.counter = source.counter
    return tensor


def requires_grad(value: Any) -> bool:
    """Whether `value` is a tensor to which gradients flow."""
    return (
        isinstance(value, TensorImpl)
        and value.autograd is not None
        and value.autograd.requires_grad
    )


class Exported:
    """Shows a storage to NumPy through the array interface; the array keeps it alive."""

    __slots__ = ("__array_interface__", "storage")

    def __init__(self, storage: Storage, interface: dict[str, Any]) -> None:
        self.storage = storage
        self.__array_interface__ = interface


def array_of(storage: Storage, meta: TensorMeta, byte_offset: int) -> np.ndarray[Any, Any]:
    """Return the NumPy view of a CPU storage under `meta`; it keeps the storage alive."""
    if meta.device.type != "cpu":
        raise DeviceError(
            "numpy", expected="a CPU tensor", got=str(meta.device), remedy="copy it with .cpu()"
        )
    dtype = meta.dtype.np
    if meta.numel == 0:
        return np.empty(meta.shape, dtype)
    # NumPy has no name for bfloat16 in the array interface: it travels as uint16.
    plain = dtype if dtype.kind in "biufc" else np.dtype(f"u{dtype.itemsize}")
    interface = {
        "version": 3,
        "shape": tuple(meta.shape),
        "typestr": plain.str,
        "data": (storage.ptr + byte_offset, False),
        "strides": tuple(stride * dtype.itemsize for stride in meta.strides),
    }
    array = np.asarray(Exported(storage, interface))
    return array if plain is dtype else array.view(dtype)


def from_array(array: np.ndarray[Any, Any], dtype: DType, owner: Any = None) -> TensorImpl:
    """Make a tensor over a NumPy array's memory (strides must be multiples of the item size)."""
    itemsize = array.dtype.itemsize
    strides = tuple(stride // itemsize for stride in array.strides)
    address = array.__array_interface__["data"][0]
    storage = external(address, array.nbytes, array if owner is None else owner)
    return wrap(storage, meta_of(tuple(array.shape), dtype, CPU, strides))
