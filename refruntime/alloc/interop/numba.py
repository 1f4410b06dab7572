"""Numba's device arrays from our allocators: a plugin of its external memory management.

Set ``NUMBA_CUDA_MEMORY_MANAGER=refruntime.alloc.interop.numba`` before a program starts, or call
``numba.cuda.set_memory_manager(memory_manager())`` before it first uses the GPU.

Invariants
----------
* A block lives as long as Numba's memory pointer to it.
* Numba does not say on which stream memory is used, and its own cudaFree waits for all of them. So
  a block that is freed serves nothing else before the work of every stream that synchronises with
  the legacy default stream is done: an event there comes after all of it.
* Host memory (pinned, mapped) stays with Numba.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Mapping
from typing import Any, Final

from refruntime import _optional
from refruntime.alloc.interop import DeviceAllocator, choose
from refruntime.errors import DeviceError, OutOfMemoryError

INTERFACE_VERSION: Final = 1
# The handle by which CUDA names the legacy default stream (cudaStreamLegacy).
LEGACY_STREAM: Final = 1
_OUT_OF_MEMORY: Final = 2


class DevicePlugin:
    """The device half of a memory manager; Numba's base class has the host half."""

    context: Any
    allocators: Mapping[int, DeviceAllocator] | None = None
    _chosen: DeviceAllocator | None = None

    def initialize(self) -> None:
        """Do nothing: the allocator is made when it is first asked."""

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface that this is written for."""
        return INTERFACE_VERSION

    def memalloc(self, size: int) -> Any:
        """Return a `numba.cuda.MemoryPointer` to `size` bytes.

        Raises
        ------
        CudaAPIError
            Numba's, if the allocator cannot serve it; the cause is the allocator's own error.
        """
        allocator = self._allocator()
        try:
            # An address is what Numba knows a block by, so that even no bytes need one.
            address = allocator.malloc(max(size, 1))
        except OutOfMemoryError as error:
            numba_error = _optional.numba_cuda.cudadrv.driver.CudaAPIError
            raise numba_error(_OUT_OF_MEMORY, str(error)) from error
        # Told now, because a finalizer may come when the allocator takes nothing but frees.
        allocator.record_stream(address, LEGACY_STREAM)
        return _optional.numba_cuda.MemoryPointer(
            weakref.proxy(self.context),
            ctypes.c_void_p(address),
            size,
            finalizer=functools.partial(allocator.free, address),
        )

    def get_memory_info(self) -> Any:
        """Return the free and the total bytes of the device; what we cache counts as used."""
        return _optional.numba_cuda.MemoryInfo(*self._allocator().upstream.memory_info())

    def reset(self) -> None:
        """Give unused segments back, and let the host half clear up."""
        # The base that has it joins in `memory_manager`.
        super().reset()  # type: ignore[misc]
        if self._chosen is not None:
            self._chosen.empty_cache()

    def _allocator(self) -> DeviceAllocator:
        if self._chosen is None:
            self._chosen = choose(self.allocators, self.context.device.id)
        return self._chosen


def memory_manager(allocators: Mapping[int, DeviceAllocator] | None = None) -> Any:
    """Return a class for `numba.cuda.set_memory_manager`.

    Parameters
    ----------
    allocators : mapping, optional
        The allocators to use, by index of the GPU; a GPU that is not in it uses the process-wide
        one (`refruntime.alloc.interop.gpu_allocator`).

    Raises
    ------
    OptionalDependencyError, DeviceError
        If Numba's GPU target is not installed, or is its simulator.

    Notes
    -----
    Arrays can be shared with other processes (`get_ipc_handle`) as long as their segments come from
    cudaMalloc, which those of expandable segments do not.
    """
    numba = _optional.numba_cuda
    if not hasattr(numba, "HostOnlyCUDAMemoryManager"):
        raise DeviceError(
            "memory_manager",
            expected="numba.cuda with its GPU target",
            got="its simulator, where arrays are NumPy's",
            remedy="unset NUMBA_ENABLE_CUDASIM",
        )
    bases = DevicePlugin, numba.GetIpcHandleMixin, numba.HostOnlyCUDAMemoryManager
    return type("MemoryManager", bases, {"allocators": allocators, "__module__": __name__})


def __getattr__(name: str) -> Any:
    """Make the class that Numba looks for in this module, once Numba looks for it."""
    if name != "_numba_memory_manager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, memory_manager())
