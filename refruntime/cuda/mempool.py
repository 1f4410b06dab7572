"""Memory pools of the user: memory that serves only what is asked for inside of a pool.

State
-----
A `MemPool` is a name and the allocator that keeps its memory; the memory itself is the allocator's.

Invariants
----------
* A pool's memory goes back to the driver when the pool and everything allocated in it are gone.
* `use_mem_pool` concerns the calling thread only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from refruntime import _storage
from refruntime.alloc.private_pools import PoolId, new_pool_id
from refruntime.alloc.upstream import UpstreamExhausted
from refruntime.cuda.devices import require
from refruntime.errors import ArgumentValueError


class CUDAPluggableAllocator:
    """GPU memory from two C functions of a shared library.

    Parameters
    ----------
    path_to_so_file : str or path
        The library.
    alloc_fn_name : str
        A function ``void *(ssize_t size, int device, cudaStream_t stream)``; NULL: no memory.
    free_fn_name : str
        A function ``void (void *address, ssize_t size, int device, cudaStream_t stream)``.
    """

    def __init__(
        self, path_to_so_file: str | Path, alloc_fn_name: str, free_fn_name: str
    ) -> None:
        library = ctypes.CDLL(str(path_to_so_file))
        self._alloc = getattr(library, alloc_fn_name)
        self._alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._alloc.restype = ctypes.c_void_p
        self._free = getattr(library, free_fn_name)
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._free.restype = None
        self._streams: dict[int, int] = {}
        self.device = 0
        self.used = 0
        self.capacity = 1 << 62

    def allocator(self) -> CUDAPluggableAllocator:
        """Return what a `MemPool` takes."""
        return self

    def reserve(self, nbytes: int, stream: int) -> int:
        """Return the address of a fresh span, or raise `UpstreamExhausted`."""
        address = self._alloc(nbytes, self.device, stream)
        if not address:
            raise UpstreamExhausted
        self._streams[address] = stream
        self.used += nbytes
        return int(address)

    def release(self, address: int, nbytes: int) -> None:
        """Take a span back."""
        self._free(address, nbytes, self.device, self._streams.pop(address))
        self.used -= nbytes


class MemPool:
    """Memory kept apart on the current GPU.

    Parameters
    ----------
    allocator : upstream, optional
        Where its segments come from, such as ``CUDAPluggableAllocator(...).allocator()``; by
        default where all others do.
    use_on_oom : bool
        Let its free blocks serve other requests when memory is short.
    no_split : bool
        Give out whole segments only.
    """

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        self.device = require("MemPool", None)
        self._allocator = _storage.gpu_allocators[self.device]
        self._upstream = allocator
        self._id: PoolId = new_pool_id()
        if allocator is not None and hasattr(allocator, "device"):
            allocator.device = self.device
        self._allocator.pools.create(
            self._id, no_split=no_split, use_on_oom=use_on_oom, upstream=allocator
        )

    @property
    def id(self) -> PoolId:
        """The name of the pool: two numbers."""
        return self._id

    @property
    def allocator(self) -> Any:
        """Where its segments come from, if not from where all others do."""
        return self._upstream

    def use_count(self) -> int:
        """Return how many hold the pool: this object, and each block that allocates in it."""
        return int(self._allocator.pools.use_count(self._id))

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Return the segments and blocks of the pool."""
        segments: list[dict[str, Any]] = self._allocator.snapshot()["segments"]
        return [each for each in segments if each["segment_pool_id"] == self._id]

    def __del__(self) -> None:
        if hasattr(self, "_id"):
            self._allocator.pools.release(self._id)
            self._allocator.empty_cache(self._id)


@contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Serve what this thread asks for inside the block from a pool.

    Parameters
    ----------
    pool : MemPool
        The pool.
    device : device, optional
        The GPU, which must be the pool's.
    """
    index = require("use_mem_pool", device)
    if index != pool.device:
        raise ArgumentValueError(
            "use_mem_pool", expected=f"the pool's GPU, cuda:{pool.device}", got=f"cuda:{index}"
        )
    pools = _storage.gpu_allocators[index].pools
    pools.begin(pool.id)
    try:
        yield
    finally:
        pools.end(pool.id)
        pools.release(pool.id)
