"""CuPy's arrays from our allocators.

``install()`` makes every array that CuPy makes from then on a block of the GPU's caching
allocator; ``with using():`` does so for a while.

Invariants
----------
* A block lives as long as CuPy's last reference to it, and goes back to the allocator it is from.
* A block is bound to the stream that was current in CuPy when it was made, as in CuPy's own pool.
  What is used on another stream too has to be told, with `record_stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from refruntime import _optional
from refruntime.alloc import categories
from refruntime.alloc.interop import DeviceAllocator, choose
from refruntime.errors import ArgumentTypeError, OutOfMemoryError


class Block:
    """The owner of a block that CuPy holds: when the last reference goes, it is freed."""

    __slots__ = ("address", "allocator")

    def __init__(self, allocator: DeviceAllocator, address: int) -> None:
        self.allocator = allocator
        self.address = address

    def __del__(self) -> None:
        self.allocator.free(self.address)


class CupyAllocator:
    """An allocator function for `cupy.cuda.set_allocator`.

    Parameters
    ----------
    allocators : mapping, optional
        The allocators to use, by index of the GPU; a GPU that is not in it uses the process-wide
        one (`refruntime.alloc.interop.gpu_allocator`).
    category : int
        What the bytes are for, in the allocator's figures (`refruntime.alloc.categories`).
    """

    def __init__(
        self,
        allocators: Mapping[int, DeviceAllocator] | None = None,
        *,
        category: int = categories.DEFAULT,
    ) -> None:
        categories.name(category)
        self.allocators = allocators
        self.category = category
        # Looked up once: this is asked for every array.
        self._cuda: Any = _optional.cupy.cuda

    def __call__(self, nbytes: int) -> Any:
        """Return a `cupy.cuda.MemoryPointer` to `nbytes` bytes on the current device and stream.

        Raises
        ------
        cupy.cuda.memory.OutOfMemoryError
            If the allocator cannot serve it; the cause is the allocator's own error.
        """
        device, stream = current(self._cuda)
        allocator = choose(self.allocators, device)
        try:
            address = allocator.malloc(nbytes, stream, self.category)
        except OutOfMemoryError as error:
            used = allocator.upstream.used
            raise self._cuda.memory.OutOfMemoryError(nbytes, used) from error
        memory = self._cuda.UnownedMemory(address, nbytes, Block(allocator, address), device)
        return self._cuda.MemoryPointer(memory, 0)


def current(cuda: Any) -> tuple[int, int]:
    """Return the index of CuPy's current device, and the handle of its current stream."""
    return cuda.runtime.getDevice(), cuda.get_current_stream().ptr


def install(
    allocators: Mapping[int, DeviceAllocator] | None = None, *, category: int = categories.DEFAULT
) -> Callable[[int], Any]:
    """Let CuPy take its memory from our allocators, in all threads, from now on.

    Arrays that exist keep the memory they have. Parameters are those of `CupyAllocator`.

    Returns
    -------
    callable
        The allocator function before; `cupy.cuda.set_allocator` puts it back.
    """
    before: Callable[[int], Any] = _optional.cupy.cuda.get_allocator()
    _optional.cupy.cuda.set_allocator(CupyAllocator(allocators, category=category))
    return before


@contextmanager
def using(
    allocators: Mapping[int, DeviceAllocator] | None = None, *, category: int = categories.DEFAULT
) -> Iterator[None]:
    """Let CuPy take its memory from our allocators inside the ``with``, in all threads.

    Arrays made inside may outlive it. Parameters are those of `CupyAllocator`.

    Examples
    --------
    >>> with using():
    ...     x = cupy.ones(1000)
    >>> print(gpu_allocator().summary())
    """
    before = install(allocators, category=category)
    try:
        yield
    finally:
        _optional.cupy.cuda.set_allocator(before)


def record_stream(array: Any, stream: Any) -> None:
    """Say that an array is used on another stream than the one it was made on.

    Parameters
    ----------
    array : cupy.ndarray
        An array, or a view of one, that `CupyAllocator` made.
    stream : cupy.cuda.Stream
        Where it is used: its memory serves nothing else before the work that the stream has when
        the array is dropped is done.

    Raises
    ------
    ArgumentTypeError
        If the array's memory is not from our allocators.
    """
    owner = getattr(array.data.mem, "_owner", None)
    if not isinstance(owner, Block):
        raise ArgumentTypeError(
            "record_stream",
            expected="an array whose memory is from refruntime's allocators",
            got=f"memory of type {type(array.data.mem).__name__}",
        )
    if owner.address:
        owner.allocator.record_stream(owner.address, stream.ptr)
