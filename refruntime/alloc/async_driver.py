"""The driver under cudaMallocAsync: what is asked of it, the model of it, and the real one.

State
-----
`VirtualAsyncDriver` is a timeline and a pool. `CupyAsyncDriver` has the handle of the pool and the
streams that it has made.

Invariants
----------
* A driver is one device's, and serves from that device's default pool.
* Lack of memory raises `UpstreamExhausted`, and nothing else does.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from refruntime import _optional
from refruntime.alloc.stream_ordered import StreamOrderedPool
from refruntime.alloc.upstream import Upstream, UpstreamExhausted
from refruntime.alloc.virtual_streams import Event, Timeline

UNLIMITED: Final = (1 << 64) - 1
# A virtual device numbers the streams that it is asked for above those of any program.
FIRST_OWN_STREAM: Final = 1 << 48
_OUT_OF_MEMORY: Final = 2  # cudaErrorMemoryAllocation


class PoolUsage(NamedTuple):
    """Bytes of the driver's pool: reserved and used, now and at most since the last reset."""

    reserved: int
    reserved_high: int
    used: int
    used_high: int


class AsyncDriver(Protocol):
    """What the backend asks of the driver, for one device and its default pool."""

    def malloc_async(self, nbytes: int, stream: int) -> int:
        """Return memory for later work of the stream, or raise `UpstreamExhausted`."""

    def free_async(self, address: int, stream: int) -> None:
        """Free behind the work that the stream has now."""

    def keep_memory(self) -> None:
        """Let the pool hold on to all memory, and allow it all three ways of reuse."""

    def create_stream(self) -> int:
        """Return a stream of our own."""

    def record_event(self, stream: int) -> Any:
        """Return a fresh event behind the work that the stream has now."""

    def wait_event(self, stream: int, event: Any) -> None:
        """Make later work of the stream wait for an event."""

    def destroy_event(self, event: Any) -> None:
        """Give an event back; those who wait for it still do."""

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for the work of a stream, or of the device."""

    def memory_info(self) -> tuple[int, int]:
        """Return the free and all bytes of the device."""

    def usage(self) -> PoolUsage:
        """Return the figures of the pool."""

    def reset_peaks(self) -> None:
        """Make the present figures of the pool the highest."""

    def trim_pool(self, keep: int) -> None:
        """Release what is free, down to `keep` bytes."""


class VirtualAsyncDriver:
    """The driver of a virtual device, with the model of its pool.

    Parameters
    ----------
    upstream : Upstream
        The device's memory; it must have virtual memory.
    timeline : Timeline, optional
        Its streams; by default their work is done at once.
    """

    def __init__(self, upstream: Upstream, timeline: Timeline | None = None) -> None:
        self.timeline = Timeline() if timeline is None else timeline
        self.pool = StreamOrderedPool(upstream, self.timeline)
        self._upstream = upstream
        self._streams = FIRST_OWN_STREAM

    def malloc_async(self, nbytes: int, stream: int) -> int:
        """Ask the pool."""
        return self.pool.malloc(nbytes, stream)

    def free_async(self, address: int, stream: int) -> None:
        """Give back to the pool."""
        self.pool.free(address, stream)

    def keep_memory(self) -> None:
        """Set the attributes of the pool."""
        policy = self.pool.policy
        policy.release_threshold = UNLIMITED
        policy.follow_event_dependencies = True
        policy.allow_opportunistic = True
        policy.allow_internal_dependencies = True

    def create_stream(self) -> int:
        """Return the next number."""
        self._streams += 1
        return self._streams - 1

    def record_event(self, stream: int) -> Event:
        """Record on the timeline."""
        return self.timeline.record(stream)

    def wait_event(self, stream: int, event: Event) -> None:
        """Wait on the timeline."""
        self.timeline.wait(stream, event)

    def destroy_event(self, event: Event) -> None:
        """Nothing: an event is a value."""

    def synchronize(self, stream: int | None = None) -> None:
        """Do the work of a stream, or of all."""
        self.pool.synchronize(stream)

    def memory_info(self) -> tuple[int, int]:
        """Ask the device."""
        return self._upstream.memory_info()

    def usage(self) -> PoolUsage:
        """Return the figures of the pool."""
        reserved, used = self.pool.reserved, self.pool.used
        return PoolUsage(reserved.current, reserved.high, used.current, used.high)

    def reset_peaks(self) -> None:
        """Make the present figures the highest."""
        self.pool.reserved.reset_high()
        self.pool.used.reset_high()

    def trim_pool(self, keep: int) -> None:
        """Trim the pool."""
        self.pool.trim_to(keep)


class CupyAsyncDriver:
    """The CUDA driver, reached through CuPy. Streams are its handles; 0 is the default stream.

    Parameters
    ----------
    device : int
        The GPU.
    """

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self._cuda: Any = _optional.cupy.cuda
        self._runtime: Any = self._cuda.runtime
        self._pool = self._runtime.deviceGetDefaultMemPool(device)
        self._own_streams: list[Any] = []

    def malloc_async(self, nbytes: int, stream: int) -> int:
        """Call cudaMallocAsync."""
        try:
            with self._cuda.Device(self.device):
                return int(self._runtime.mallocAsync(nbytes, stream))
        except self._runtime.CUDARuntimeError as error:
            if error.status == _OUT_OF_MEMORY:
                raise UpstreamExhausted from None
            raise

    def free_async(self, address: int, stream: int) -> None:
        """Call cudaFreeAsync."""
        with self._cuda.Device(self.device):
            self._runtime.freeAsync(address, stream)

    def keep_memory(self) -> None:
        """Set the attributes of the pool."""
        runtime = self._runtime
        for attribute in (
            runtime.cudaMemPoolReuseFollowEventDependencies,
            runtime.cudaMemPoolReuseAllowOpportunistic,
            runtime.cudaMemPoolReuseAllowInternalDependencies,
        ):
            runtime.memPoolSetAttribute(self._pool, attribute, 1)
        threshold = runtime.cudaMemPoolAttrReleaseThreshold
        runtime.memPoolSetAttribute(self._pool, threshold, UNLIMITED)

    def create_stream(self) -> int:
        """Make a stream that does not wait for the default one."""
        with self._cuda.Device(self.device):
            self._own_streams.append(self._cuda.Stream(non_blocking=True))
        return int(self._own_streams[-1].ptr)

    def record_event(self, stream: int) -> Any:
        """Record a fresh event without a time stamp."""
        with self._cuda.Device(self.device):
            event = self._cuda.Event(disable_timing=True)
            self._runtime.eventRecord(event.ptr, stream)
        return event

    def wait_event(self, stream: int, event: Any) -> None:
        """Call cudaStreamWaitEvent."""
        with self._cuda.Device(self.device):
            self._runtime.streamWaitEvent(stream, event.ptr)

    def destroy_event(self, event: Any) -> None:
        """Nothing: CuPy destroys an event with its object."""

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for a stream, or for the device."""
        with self._cuda.Device(self.device):
            if stream is None:
                self._runtime.deviceSynchronize()
            else:
                self._runtime.streamSynchronize(stream)

    def memory_info(self) -> tuple[int, int]:
        """Call cudaMemGetInfo."""
        with self._cuda.Device(self.device):
            free, total = self._runtime.memGetInfo()
        return free, total

    def usage(self) -> PoolUsage:
        """Ask the pool."""
        runtime = self._runtime
        attributes = (
            runtime.cudaMemPoolAttrReservedMemCurrent, runtime.cudaMemPoolAttrReservedMemHigh,
            runtime.cudaMemPoolAttrUsedMemCurrent, runtime.cudaMemPoolAttrUsedMemHigh,
        )  # fmt: skip
        return PoolUsage(*(int(runtime.memPoolGetAttribute(self._pool, a)) for a in attributes))

    def reset_peaks(self) -> None:
        """Set both peaks to 0, which makes them the present figures."""
        for attribute in (
            self._runtime.cudaMemPoolAttrReservedMemHigh, self._runtime.cudaMemPoolAttrUsedMemHigh,
        ):  # fmt: skip
            self._runtime.memPoolSetAttribute(self._pool, attribute, 0)

    def trim_pool(self, keep: int) -> None:
        """Call cudaMemPoolTrimTo."""
        self._runtime.memPoolTrimTo(self._pool, keep)
