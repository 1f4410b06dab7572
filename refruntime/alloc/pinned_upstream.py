"""Where page-locked host memory comes from, and how the work that uses it is watched.

State
-----
Each upstream remembers the spans it has given out. `VirtualPinnedUpstream` hands out addresses that
no memory stands behind, and keeps a log of its calls.

Invariants
----------
* A span is released whole, once, by the call that belongs to the one that reserved it.
* A failed reserve changes nothing; lack of memory raises `UpstreamExhausted` and nothing else.
* Without CUDA there is nothing to lock pages for: `HostPinnedUpstream` gives ordinary ones, and its
  streams have done their work when the call returns.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, Protocol

import numpy as np

from refruntime import _optional
from refruntime.alloc.upstream import HostUpstream, UpstreamExhausted, VirtualUpstream
from refruntime.alloc.virtual_streams import Event, Timeline

PAGE: Final = 4096
_OUT_OF_MEMORY: Final = 2  # cudaErrorMemoryAllocation


class PinnedUpstream(Protocol):
    """What a pinned allocator needs from the outside."""

    def reserve_host(self, nbytes: int) -> int:
        """Return the address of fresh page-locked memory, or raise `UpstreamExhausted`."""

    def release_host(self, address: int, nbytes: int) -> None:
        """Take back what `reserve_host` gave."""

    def reserve_pages(self, nbytes: int) -> int:
        """Return the address of fresh ordinary memory, or raise `UpstreamExhausted`."""

    def release_pages(self, address: int, nbytes: int) -> None:
        """Take back what `reserve_pages` gave."""

    def touch_pages(self, address: int, nbytes: int) -> None:
        """Write to each page that begins in a span of `reserve_pages`, so that it is there."""

    def register(self, address: int, nbytes: int) -> None:
        """Lock a span of `reserve_pages`, or raise `UpstreamExhausted`."""

    def unregister(self, address: int, nbytes: int) -> None:
        """Unlock a span."""

    def record_event(self, stream: int) -> Any:
        """Return a mark behind the work that the stream has now."""

    def query_event(self, event: Any) -> bool:
        """Return whether that work is done; False while the thread's stream is captured."""

    def current_stream(self) -> int:
        """Return the stream that the calling thread uses."""

    def is_capturing(self, stream: int) -> bool:
        """Return whether work of the stream is put into a graph at present."""


def _touch(address: int, nbytes: int) -> None:
    """Write a zero to the first byte of each page that begins in a span of zeros."""
    first = -(-address // PAGE) * PAGE
    if first < address + nbytes:
        span = (ctypes.c_ubyte * (address + nbytes - first)).from_address(first)
        np.ctypeslib.as_array(span)[::PAGE] = 0


class HostPinnedUpstream:
    """Anonymous pages of this process, for machines without CUDA.

    Parameters
    ----------
    capacity : int, optional
        Bytes that can be reserved at once; by default what `HostUpstream` allows.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self._pages = HostUpstream(capacity)

    @property
    def used(self) -> int:
        """The bytes given out now."""
        return self._pages.used

    def reserve_host(self, nbytes: int) -> int:
        """Map fresh zero pages."""
        return self._pages.reserve(nbytes, 0)

    def release_host(self, address: int, nbytes: int) -> None:
        """Unmap a span."""
        self._pages.release(address, nbytes)

    reserve_pages = reserve_host
    release_pages = release_host

    def touch_pages(self, address: int, nbytes: int) -> None:
        """Write to each page that begins in the span."""
        _touch(address, nbytes)

    def register(self, address: int, nbytes: int) -> None:
        """Nothing: no device reads these pages."""

    def unregister(self, address: int, nbytes: int) -> None:
        """Nothing: no device read these pages."""

    def record_event(self, stream: int) -> None:
        """Return a mark that is reached: work on a CPU is done when the call returns."""

    def query_event(self, event: None) -> bool:
        """Return True."""
        return True

    def current_stream(self) -> int:
        """Return the only stream."""
        return 0

    def is_capturing(self, stream: int) -> bool:
        """Return False: there are no graphs."""
        return False


class CupyPinnedUpstream:
    """Page-locked memory of the CUDA driver, reached through CuPy.

    Streams are CUDA handles of the current device; 0 is its default stream. Memory pinned once is
    pinned for every device of the process.
    """

    def __init__(self) -> None:
        self._runtime = _optional.cupy.cuda.runtime
        self._pages = HostUpstream()

    def reserve_host(self, nbytes: int) -> int:
        """Call cudaHostAlloc."""
        try:
            return int(self._runtime.hostAlloc(nbytes, self._runtime.hostAllocDefault))
        except self._runtime.CUDARuntimeError as error:
            raise _exhausted(error) from None

    def release_host(self, address: int, nbytes: int) -> None:
        """Call cudaFreeHost, which waits for the device."""
        self._runtime.freeHost(address)

    def reserve_pages(self, nbytes: int) -> int:
        """Map fresh zero pages."""
        return self._pages.reserve(nbytes, 0)

    def release_pages(self, address: int, nbytes: int) -> None:
        """Unmap a span."""
        self._pages.release(address, nbytes)

    def touch_pages(self, address: int, nbytes: int) -> None:
        """Write to each page that begins in the span."""
        _touch(address, nbytes)

    def register(self, address: int, nbytes: int) -> None:
        """Call cudaHostRegister."""
        try:
            self._runtime.hostRegister(address, nbytes, 0)
        except self._runtime.CUDARuntimeError as error:
            raise _exhausted(error) from None

    def unregister(self, address: int, nbytes: int) -> None:
        """Call cudaHostUnregister."""
        self._runtime.hostUnregister(address)

    def record_event(self, stream: int) -> Any:
        """Record a fresh event without a time stamp."""
        event = _optional.cupy.cuda.Event(disable_timing=True)
        self._runtime.eventRecord(event.ptr, stream)
        return event

    def query_event(self, event: Any) -> bool:
        """Ask the driver, except while it captures: then even the question is an error."""
        return not self.is_capturing(self.current_stream()) and bool(event.done)

    def current_stream(self) -> int:
        """Return the handle of CuPy's current stream."""
        return int(_optional.cupy.cuda.get_current_stream().ptr)

    def is_capturing(self, stream: int) -> bool:
        """Ask the driver."""
        return bool(self._runtime.streamIsCapturing(stream))


def _exhausted(error: Any) -> Exception:
    """Return what to raise for a CUDA error: lack of memory has its own name."""
    return UpstreamExhausted() if error.status == _OUT_OF_MEMORY else error


class VirtualPinnedUpstream:
    """Host memory that exists only as an address space: for replay and tests.

    Parameters
    ----------
    capacity : int
        Bytes that can be reserved at once.
    timeline : Timeline, optional
        The streams whose work uses the memory; by default their work is done at once.

    Attributes
    ----------
    log : list of tuple
        The calls, oldest first: name and arguments, and for a query also the answer.
    """

    def __init__(self, capacity: int = 1 << 46, timeline: Timeline | None = None) -> None:
        self.timeline = Timeline() if timeline is None else timeline
        self.log: list[tuple[Any, ...]] = []
        self.stream = 0
        self.capturing: set[int] = set()
        self._spans = VirtualUpstream(capacity)

    @property
    def used(self) -> int:
        """The bytes given out now."""
        return self._spans.used

    def reserve_host(self, nbytes: int) -> int:
        """Return the next address."""
        self.log.append(("reserve_host", nbytes))
        return self._spans.reserve(nbytes, 0)

    def release_host(self, address: int, nbytes: int) -> None:
        """Forget a span."""
        self.log.append(("release_host", address, nbytes))
        self._spans.release(address, nbytes)

    def reserve_pages(self, nbytes: int) -> int:
        """Return the next address."""
        self.log.append(("reserve_pages", nbytes))
        return self._spans.reserve(nbytes, 0)

    def release_pages(self, address: int, nbytes: int) -> None:
        """Forget a span."""
        self.log.append(("release_pages", address, nbytes))
        self._spans.release(address, nbytes)

    def touch_pages(self, address: int, nbytes: int) -> None:
        """Log the call."""
        self.log.append(("touch_pages", address, nbytes))

    def register(self, address: int, nbytes: int) -> None:
        """Log the call."""
        self.log.append(("register", address, nbytes))

    def unregister(self, address: int, nbytes: int) -> None:
        """Log the call."""
        self.log.append(("unregister", address, nbytes))

    def record_event(self, stream: int) -> Event:
        """Record an event of the timeline."""
        self.log.append(("record_event", stream))
        return self.timeline.record(stream)

    def query_event(self, event: Event) -> bool:
        """Ask the timeline, except while the current stream is captured."""
        ready = self.stream not in self.capturing and self.timeline.reached(event.mark)
        self.log.append(("query_event", event.mark, ready))
        return ready

    def current_stream(self) -> int:
        """Return `stream`, which the test sets."""
        return self.stream

    def is_capturing(self, stream: int) -> bool:
        """Return whether the stream is in `capturing`, which the test sets."""
        return stream in self.capturing
