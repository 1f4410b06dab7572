"""A storage: a reference-counted span of device bytes that tensors share.

State
-----
Owned storages come from a caching allocator and go back to it when the last tensor drops them.
External storages (NumPy, DLPack, mmap, shared memory) belong to `owner`, are counted apart, and
are never moved or freed here.

Invariants
----------
* `version` counts the writes to the span. Tensors over one storage share it, save those made by
  `.data`, which carry a counter of their own.
* `exports` counts the addresses given to the outside; while it is above zero the span is pinned.
* `category` says what the bytes are for (`alloc.categories`); `tag` keeps the allocator informed.
"""

from __future__ import annotations

from typing import Any

from refruntime import alloc
from refruntime._device import CPU, Device
from refruntime.alloc import categories
from refruntime.errors import DeviceError


class VersionCounter:
    """A write counter of its own, for a tensor that must not share its storage's."""

    __slots__ = ("version",)

    def __init__(self, version: int = 0) -> None:
        self.version = version


class UntrackedCounter:
    """The counter of all inference tensors: writes are not counted."""

    __slots__ = ()

    @property
    def version(self) -> int:
        """Zero inside of inference mode; outside nobody may rely on it."""
        require_inference()
        return 0

    @version.setter
    def version(self, value: int) -> None:
        require_inference()


UNTRACKED = UntrackedCounter()


def _accept() -> None:
    """Stand in until the layer that knows of inference mode names its function."""


# Raises if this thread is not in inference mode.
require_inference: Any = _accept


class Storage:
    """A span of `nbytes` bytes at address `ptr` of `device`, taken from `allocator`."""

    __slots__ = (
        "__weakref__", "allocator", "category", "device", "exports", "nbytes", "ptr", "version",
    )  # fmt: skip

    def __init__(
        self, ptr: int, nbytes: int, device: Device, allocator: Any, category: int
    ) -> None:
        self.ptr = ptr
        self.nbytes = nbytes
        self.device = device
        self.allocator = allocator
        self.category = category
        self.exports = 0
        self.version = 0

    def __del__(self) -> None:
        self.allocator.free(self.ptr)

    def __repr__(self) -> str:
        kind = categories.name(self.category)
        return f"Storage({self.nbytes} bytes at {self.ptr:#x} on {self.device}, {kind})"

    def tag(self, category: int) -> None:
        """Say what the bytes are for now."""
        if category != self.category:
            self.category = category
            self.allocator.tag(self.ptr, category)

    @property
    def is_external(self) -> bool:
        """Whether the bytes belong to somebody else."""
        return self.allocator is None


class ExternalStorage(Storage):
    """A span that `owner` keeps alive; it is counted apart and keeps its category."""

    __slots__ = ("owner",)

    def __init__(self, ptr: int, nbytes: int, device: Device, owner: Any) -> None:
        super().__init__(ptr, nbytes, device, None, categories.EXTERNAL)
        self.owner = owner

    def __del__(self) -> None:
        """Give nothing back: the owner does."""

    def tag(self, category: int) -> None:
        """Keep the category EXTERNAL."""


class PinnedStorage(Storage):
    """A span of page-locked host memory; it counts as that, and not by category."""

    __slots__ = ()

    def tag(self, category: int) -> None:
        """Say what the bytes are for now."""
        self.category = category


def allocate(nbytes: int, device: Device = CPU, category: int = categories.TEMPORARY) -> Storage:
    """Take `nbytes` from the device's caching allocator.

    Raises
    ------
    OutOfMemoryError
        If the allocator cannot serve the request, also after releasing what it caches.
    DeviceError
        If the device has no allocator in this process.
    """
    allocator = allocator_of(device)
    return Storage(allocator.malloc(nbytes, 0, category), nbytes, device, allocator, category)


def allocate_pinned(nbytes: int, category: int = categories.TEMPORARY) -> PinnedStorage:
    """Take `nbytes` of page-locked host memory.

    Raises
    ------
    OutOfMemoryError
        If no more can be locked.
    """
    # Imported here: few programs pin memory.
    from refruntime.alloc.pinning import pinned

    allocator = pinned()
    return PinnedStorage(allocator.malloc(nbytes), nbytes, CPU, allocator, category)


def external(ptr: int, nbytes: int, owner: Any, device: Device = CPU) -> Storage:
    """Wrap bytes that `owner` keeps alive."""
    return ExternalStorage(ptr, nbytes, device, owner)


_cpu_allocator: Any = None
# The allocators of the GPUs that this process drives, by index.
gpu_allocators: list[Any] = []


def allocator_of(device: Device) -> Any:
    """Return the caching allocator that serves `device`."""
    if device is CPU and _cpu_allocator is not None:
        return _cpu_allocator
    return _find_allocator(device)


def _find_allocator(device: Device) -> Any:
    global _cpu_allocator
    if device is CPU:
        _cpu_allocator = alloc.host()
        return _cpu_allocator
    if device.type == "cuda" and (device.index or 0) < len(gpu_allocators):
        return gpu_allocators[device.index or 0]
    raise DeviceError(
        "allocate",
        expected="device cpu",
        got=str(device),
        remedy="no GPU is driven by this version; create the tensor with device='cpu'",
    )
