"""Other programs' GPU memory from our allocators: CuPy's (`cupy`) and Numba's (`numba`).

State
-----
One caching allocator a GPU, made when its memory is first asked for.

Invariants
----------
* Importing this package loads neither CuPy nor Numba.
* All faces of one GPU share its allocator, so that the figures of one tell of all.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping
from typing import Protocol

from refruntime.alloc import CachingAllocator
from refruntime.alloc.upstream import Upstream


class DeviceAllocator(Protocol):
    """What a face needs of an allocator; `refruntime.alloc.CachingAllocator` has it."""

    upstream: Upstream

    def malloc(self, nbytes: int, stream: int = 0, category: int = 0) -> int:
        """Return the address of `nbytes` bytes, to be used on a stream."""

    def free(self, address: int) -> None:
        """Take a block back."""

    def record_stream(self, address: int, stream: int) -> None:
        """Keep a block, once it is freed, until the work that the stream has by then is done."""

    def empty_cache(self) -> None:
        """Give unused segments back."""


_gpus: dict[int, CachingAllocator] = {}
# A finalizer may ask for an allocator while one is made.
_lock = threading.RLock()


def gpu_allocator(device: int = 0) -> CachingAllocator:
    """Return the process-wide caching allocator of a GPU.

    Raises
    ------
    OptionalDependencyError, DeviceError
        If CuPy is not installed, or there is no such GPU.
    """
    with _lock:
        if device not in _gpus:
            # Imported here: a face over allocators of the caller's needs no GPU.
            from refruntime.alloc.upstream.cupy import CupyUpstream

            made = CachingAllocator(CupyUpstream(device), device=f"cuda:{device}")
            if _gpus.setdefault(device, made) is made:
                atexit.register(made.retire)
        return _gpus[device]


def choose(allocators: Mapping[int, DeviceAllocator] | None, device: int) -> DeviceAllocator:
    """Return the allocator that the caller named for a GPU, or else the process-wide one."""
    if allocators is not None and device in allocators:
        return allocators[device]
    return gpu_allocator(device)
