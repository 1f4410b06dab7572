"""The memory of a GPU as an upstream, through CuPy and the CUDA driver.

State
-----
The pool of CuPy's and the memory object of each span; the ranges and pages of virtual memory; the
events that are out and those that can be used again.

Invariants
----------
* Spans are asked for on the null stream whatever stream is current, and what is released goes to
  the driver at once.
* CuPy's pool is a splitting cache itself. Each span has a pool of its own, so that it is neither
  kept nor cut for another, also when several threads, or a finalizer, come here at once.
* CuPy's current device and stream are the same after a call as before it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refruntime import _optional
from refruntime.alloc.upstream import device_pages
from refruntime.alloc.upstream.device_pages import DevicePages
from refruntime.alloc.upstream.protocol import UpstreamExhausted
from refruntime.alloc.upstream.spans import AddressRanges, check_span
from refruntime.errors import ArgumentValueError, DeviceError


class CupyUpstream:
    """One GPU.

    Parameters
    ----------
    device : int
        Its index.
    asynchronous : bool
        Take spans from the driver's stream-ordered pool (`cupy.cuda.MemoryAsyncPool`) instead of
        cudaMalloc. It is the device's current pool, which other code may use too; CuPy lets it
        keep no unused memory past a synchronisation.

    Raises
    ------
    OptionalDependencyError
        If CuPy is not installed.
    DeviceError
        If there is no such GPU, or no driver.

    Notes
    -----
    The limit that the variable ``CUPY_GPU_MEMORY_LIMIT`` sets holds for all spans and pages
    together. Virtual memory needs the package cuda-bindings, which comes with numba-cuda.
    """

    def __init__(self, device: int = 0, *, asynchronous: bool = False) -> None:
        self.device = device
        self._cuda: Any = _optional.cupy.cuda
        self._check_device()
        self._shared_pool = self._make_asynchronous_pool() if asynchronous else None
        self._spans: dict[int, int] = {}
        self._memories: dict[int, tuple[Any, Any]] = {}
        self._ranges = AddressRanges()
        self._pages: DevicePages | None = None
        self._events: dict[int, Any] = {}
        self._idle_events: list[Any] = []
        self._names = itertools.count(1)
        self.capacity = self._limited_capacity()
        self.supports_virtual_memory = device_pages.supported(device)

    @property
    def used(self) -> int:
        """The bytes given out now."""
        # Summed, not counted: a finalizer may reserve in the middle of another reserve.
        return sum(self._spans.values()) + self._ranges.mapped

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total bytes of the GPU, whoever uses it."""
        with self._cuda.Device(self.device):
            free, total = self._cuda.runtime.memGetInfo()
        return int(free), int(total)

    # --- spans --------------------------------------------------------------------------------

    def reserve(self, nbytes: int, stream: int) -> int:
        """Return the address of a span fresh from the driver; it is not bound to a stream."""
        self._check_room(nbytes)
        with self._on_null_stream():
            pool = self._shared_pool or self._cuda.MemoryPool()
            try:
                memory = pool.malloc(nbytes)
            except self._cuda.memory.OutOfMemoryError:
                raise UpstreamExhausted from None
        address = int(memory.ptr)
        self._memories[address] = pool, memory
        self._spans[address] = nbytes
        return address

    def release(self, address: int, nbytes: int) -> None:
        """Give a span back to the driver, which waits for all work of the GPU."""
        check_span(self._spans, address, nbytes)
        with self._on_null_stream():
            pool, memory = self._memories.pop(address)
            del self._spans[address], memory
            pool.free_all_blocks()

    def _check_device(self) -> None:
        runtime = self._cuda.runtime
        try:
            count = runtime.getDeviceCount()
        except runtime.CUDARuntimeError as error:
            raise DeviceError(
                "CupyUpstream", expected="an NVIDIA GPU with its driver", got=str(error),
                remedy="VirtualUpstream is a device that needs no GPU",
            ) from None  # fmt: skip
        if not 0 <= self.device < count:
            raise DeviceError(
                "CupyUpstream", expected=f"a GPU below {count}", got=f"device {self.device}"
            )

    def _limited_capacity(self) -> int:
        with self._cuda.Device(self.device):
            limit = int(self._cuda.MemoryPool().get_limit())
        total = self.memory_info()[1]
        return min(limit, total) if limit else total

    def _check_room(self, nbytes: int) -> None:
        if self.used + nbytes > self.capacity:
            raise UpstreamExhausted

    def _make_asynchronous_pool(self) -> Any:
        with warnings.catch_warnings():
            # CuPy warns that this pool is experimental; whoever asks for it knows.
            warnings.simplefilter("ignore", FutureWarning)
            return self._cuda.MemoryAsyncPool("current")

    @contextmanager
    def _on_null_stream(self) -> Iterator[None]:
        with self._cuda.Device(self.device), self._cuda.Stream.null:
            yield

    # --- virtual memory -----------------------------------------------------------------------

    def reserve_addresses(self, nbytes: int) -> int:
        """Return the start of a range of addresses of the GPU."""
        with self._in_context() as pages:
            address = pages.take(nbytes)
        self._ranges.add(address, nbytes)
        return address

    def release_addresses(self, address: int, nbytes: int) -> None:
        """Give a range back to the driver."""
        self._ranges.check_remove(address, nbytes)
        with self._in_context() as pages:
            pages.give(address, nbytes)
        self._ranges.remove(address)

    def map(self, address: int, nbytes: int, page: int) -> None:
        """Create pages and map them; the GPU itself can read and write them, its peers cannot."""
        self._ranges.check_map(address, nbytes, page)
        self._check_room(nbytes)
        with self._in_context() as pages:
            pages.map(address, nbytes, page)
        self._ranges.note_mapped(address, nbytes, page)

    def unmap(self, address: int, nbytes: int, page: int, stream: int) -> None:
        """Wait for the stream, then unmap and release page by page."""
        self._ranges.check_unmap(address, nbytes, page)
        with self._in_context() as pages:
            self._cuda.runtime.streamSynchronize(stream)
            for place in range(address, address + nbytes, page):
                pages.unmap(place, page)
                self._ranges.note_unmapped(place, page, page)

    @contextmanager
    def _in_context(self) -> Iterator[DevicePages]:
        """Make the context of the device current, which calls of the driver need."""
        if self._pages is None:
            self._pages = DevicePages(self.device)
        with self._cuda.Device(self.device):
            # A thread that is new to CUDA has device 0, and yet no context.
            self._cuda.runtime.setDevice(self.device)
            yield self._pages

    # --- streams ------------------------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Have the GPU copy bytes on a stream."""
        runtime = self._cuda.runtime
        with self._cuda.Device(self.device):
            runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream)

    def record_event(self, stream: int) -> int:
        """Record an event on a stream, given by its handle; return the name of the event."""
        with self._cuda.Device(self.device):
            if self._idle_events:
                event = self._idle_events.pop()
            else:
                event = self._cuda.Event(block=False, disable_timing=True)
            self._cuda.runtime.eventRecord(event.ptr, stream)
        name = next(self._names)
        self._events[name] = event
        return name

    def query_event(self, event: int) -> bool:
        """Whether the work before an event is done."""
        return bool(self._event(event).done)

    def wait_event(self, event: int) -> None:
        """Block until the work before an event is done."""
        self._event(event).synchronize()

    def release_event(self, event: int) -> None:
        """Take an event back, so that it can be recorded again."""
        self._idle_events.append(self._event(event))
        del self._events[event]

    def _event(self, name: int) -> Any:
        found = self._events.get(name)
        if found is None:
            raise ArgumentValueError(
                "event", expected="an event that was recorded and not given back", got=name
            )
        return found

    def synchronize(self, stream: int | None = None) -> None:
        """Block until the work of a stream, or of the whole GPU, is done."""
        with self._cuda.Device(self.device):
            if stream is None:
                self._cuda.runtime.deviceSynchronize()
            else:
                self._cuda.runtime.streamSynchronize(stream)
