"""PyTorch's backend over cudaMallocAsync: what it does on top of the driver's pool.

State
-----
The blocks in use, with the streams that have used them; the frees put off until a capture is over;
the bytes in use and their limit; the stream on which blocks of several streams are freed.

Invariants
----------
* Blocks are freed on the stream they were allocated on or, if other streams used them, on a stream
  that waits for all of those.
* While a capture is under way, blocks from before it are not freed: the first request after it is
  when they are.
* The limit counts what was asked for, not what the pool has reserved.

Source: recordings of PyTorch 2.14.1 (``tests/alloc/data/async``). Unlike older versions it waits
for the stream and asks once more before it gives up.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Final

from refruntime.alloc.async_driver import UNLIMITED, AsyncDriver, PoolUsage, VirtualAsyncDriver
from refruntime.alloc.oom import absurd_request, format_size
from refruntime.alloc.strategy import register_strategy
from refruntime.alloc.turnstile import Turnstile
from refruntime.alloc.upstream import Upstream, UpstreamExhausted
from refruntime.errors import ArgumentValueError, DeviceError, OutOfMemoryError

ABSURD: Final = 1 << 60

# The keys of the statistics that the native backend has.
UNKNOWN_FIGURES: Final = (
    *(
        f"{name}.{pool}.{figure}"
        for name in (
            "active", "active_bytes", "allocated_bytes", "allocation", "inactive_split",
            "inactive_split_bytes", "requested_bytes", "reserved_bytes", "segment",
        )
        for pool in ("all", "large_pool", "small_pool")
        for figure in ("allocated", "current", "freed", "peak")
    ),
    *(
        f"oversize_{name}.{figure}"
        for name in ("allocations", "segments")
        for figure in ("allocated", "current", "freed", "peak")
    ),
    "max_split_size", "num_alloc_retries", "num_device_alloc", "num_device_free",
    "num_oom_rejections", "num_ooms", "num_sync_all_streams",
)  # fmt: skip

REFUSED: Final = {
    "snapshot": "the driver's pool does not tell its blocks",
    "record_history": "the driver's pool does not tell its steps",
    "attach_out_of_memory_observer": "the driver decides when memory is out",
    "attach_trace_tracker": "the driver's pool does not tell its steps",
    "share_handle": "memory of this pool cannot be shared between processes",
    "checkpoint_state": "a pool of the driver cannot be put back into an earlier state",
    "create_or_retain_pool": "memory pools of a program need the native backend",
}


@dataclass(slots=True, eq=False)
class Block:
    """A block in use: where, for which stream, and which others have used it."""

    address: int
    nbytes: int
    stream: int
    captured: bool
    used_on: dict[int, None] = field(default_factory=dict)


class MallocAsyncAllocator:
    """Serves tensors from the driver's stream-ordered pool, one device's.

    Parameters
    ----------
    driver : AsyncDriver
        The device.
    index : int
        Its number, for texts.

    Attributes
    ----------
    retries, ooms : int
        Requests for which the stream was waited for, and requests that failed.
    """

    def __init__(self, driver: AsyncDriver, *, index: int = 0) -> None:
        self.driver = driver
        self.index = index
        self.retries = 0
        self.ooms = 0
        self._turnstile = Turnstile()
        self._blocks: dict[int, Block] = {}
        self._put_off: list[Block] = []
        self._requested = 0
        self._limit = UNLIMITED
        self._joining_stream: int | None = None
        self._capturing = False
        self._warned_of_put_off = False
        self._capture_free_streams: dict[int, None] = {}

    @property
    def allocated_bytes(self) -> int:
        """The bytes that the pool counts as used."""
        return self.driver.usage().used

    @property
    def reserved_bytes(self) -> int:
        """The bytes that the pool has taken from the device."""
        return self.driver.usage().reserved

    # --- requests

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Return the address of `nbytes` bytes for later work of `stream`; 0 for none.

        Raises
        ------
        OutOfMemoryError
            If the driver has no memory also after the stream was waited for, or if the request
            would pass the memory fraction.
        """
        if nbytes < 0:
            raise ArgumentValueError("malloc", expected="at least 0 bytes", got=str(nbytes))
        if nbytes >= ABSURD:
            raise absurd_request("CUDA", nbytes)
        if nbytes == 0:
            return 0
        with self._turnstile:
            if not self._capturing:
                self._free_put_off()
            self._prepare()
            address = self._ask(nbytes, stream)
            self._blocks[address] = Block(address, nbytes, stream, self._capturing)
            self._requested += nbytes
        return address

    def _ask(self, nbytes: int, stream: int) -> int:
        if self._requested + nbytes > self._limit:
            raise self._shortage(nbytes)
        try:
            return self.driver.malloc_async(nbytes, stream)
        except UpstreamExhausted:
            self.retries += 1
            self.driver.synchronize(stream)
        try:
            return self.driver.malloc_async(nbytes, stream)
        except UpstreamExhausted:
            raise self._shortage(nbytes) from None

    def free(self, address: int) -> None:
        """Take a block back behind the work of all streams that used it; 0 is ignored."""
        if address == 0:
            return
        # One step, so that of two threads that free the same block one gets the error.
        block = self._blocks.pop(address, None)
        if block is None:
            raise _not_in_use("free", address)
        self._turnstile.soon(self._take_back, block)

    def record_stream(self, address: int, stream: int) -> None:
        """Say that work submitted to `stream` uses a block; 0 is ignored."""
        if address == 0:
            return
        block = self._block("record_stream", address)
        if stream == block.stream:
            warnings.warn(
                "record_stream with the stream of the allocation has no effect", stacklevel=2
            )
            return
        block.used_on[stream] = None

    def base_allocation(self, address: int) -> tuple[int, int]:
        """Return the address and the bytes asked for of the block that starts here."""
        return address, self._block("base_allocation", address).nbytes

    def _block(self, op: str, address: int) -> Block:
        block = self._blocks.get(address)
        if block is None:
            raise _not_in_use(op, address)
        return block

    def _take_back(self, block: Block) -> None:
        if self._capturing and not block.captured:
            self._warn_of_put_off(block)
            self._put_off.append(block)
            return
        if block.captured and not self._capturing:
            warnings.warn(
                f"memory of a graph is freed outside of its capture, at {block.address:#x}: "
                "the graph still writes there, but nothing can read it any more",
                stacklevel=2,
            )
        try:
            self._free(block)
        except Exception:
            self._blocks[block.address] = block
            raise

    def _warn_of_put_off(self, block: Block) -> None:
        if not self._warned_of_put_off:
            self._warned_of_put_off = True
            warnings.warn(
                f"memory from before a capture is freed during it, at {block.address:#x}: it is "
                "kept until after the capture; if the graph uses it, replays corrupt memory",
                stacklevel=2,
            )

    def _free(self, block: Block) -> None:
        stream = self._joined(block) if block.used_on else block.stream
        self.driver.free_async(block.address, stream)
        if self._capturing:
            self._capture_free_streams[stream] = None
        self._requested -= block.nbytes

    def _joined(self, block: Block) -> int:
        """Return the stream of our own, behind the work of all streams that used the block."""
        joining = self._prepare()
        for stream in (block.stream, *block.used_on):
            self._make_wait(joining, stream)
        return joining

    def _make_wait(self, later: int, earlier: int) -> None:
        event = self.driver.record_event(earlier)
        self.driver.wait_event(later, event)
        self.driver.destroy_event(event)

    def _free_put_off(self) -> None:
        while self._put_off:
            self._free(self._put_off[0])
            del self._put_off[0]

    def _prepare(self) -> int:
        """Set the pool up before its first use; return the stream of our own."""
        if self._joining_stream is None:
            self.driver.keep_memory()
            self._joining_stream = self.driver.create_stream()
        return self._joining_stream

    # --- limits and figures

    def set_memory_fraction(self, fraction: float) -> None:
        """Let programs ask for no more than a share of the device, between 0 and 1."""
        if not 0 <= fraction <= 1:
            raise ArgumentValueError(
                "set_memory_fraction", expected="a share between 0 and 1", got=str(fraction)
            )
        with self._turnstile:
            self._prepare()
            self._limit = int(fraction * self.driver.memory_info()[1])

    def empty_cache(self) -> None:
        """Wait for the device, then release all that is free."""
        with self._turnstile:
            if self._joining_stream is not None:
                self.driver.synchronize()
                self.driver.trim_pool(0)

    def largest_request(self, stream: int = 0) -> int:
        """Return a size that can be had now, found by halving from all that is free."""
        with self._turnstile:
            self._prepare()
            guess = min(self.driver.memory_info()[0], self._limit - self._requested)
            while guess:
                try:
                    address = self.driver.malloc_async(guess, stream)
                except UpstreamExhausted:
                    guess >>= 1
                    continue
                self.driver.free_async(address, stream)
                break
        return guess

    def stats(self) -> dict[str, int]:
        """Return what the pool tells, under the keys of ``torch.cuda.memory_stats``.

        ``allocated`` and ``active`` are the pool's used bytes; all else is unknown, and 0.
        """
        usage = self.driver.usage() if self._joining_stream is not None else PoolUsage(0, 0, 0, 0)
        known = {
            "allocated_bytes": (usage.used, usage.used_high),
            "active_bytes": (usage.used, usage.used_high),
            "reserved_bytes": (usage.reserved, usage.reserved_high),
        }
        found = dict.fromkeys(UNKNOWN_FIGURES, 0)
        for name, (current, peak) in known.items():
            found[f"{name}.all.current"] = current
            found[f"{name}.all.peak"] = peak
        return dict(sorted(found.items()))

    def reset_peaks(self) -> None:
        """Make the present figures of the pool the highest."""
        self.driver.reset_peaks()

    def refuse(self, feature: str) -> DeviceError:
        """Return the error for a feature (a key of `REFUSED`) that this backend cannot have."""
        return DeviceError(
            feature,
            what=f"cudaMallocAsync does not support {feature}",
            expected="the native backend",
            got=REFUSED[feature],
            remedy="leave backend:cudaMallocAsync out of the allocator settings",
        )

    def _shortage(self, nbytes: int) -> OutOfMemoryError:
        self.ooms += 1
        free, total = self.driver.memory_info()
        rows = (
            ("Currently allocated     : ", self._requested),
            ("Requested               : ", nbytes),
            ("Device limit            : ", total),
            ("Free (according to CUDA): ", free),
            (
                "PyTorch limit (set by user-supplied memory fraction)\n                        : ",
                self._limit,
            ),
        )
        title = f"Allocation on device {self.index} would exceed allowed memory. (out of memory)"
        text = "".join(f"\n{label}{format_size(size)}" for label, size in rows)
        return OutOfMemoryError("malloc", what=title + text)

    # --- captures

    def begin_capture(self) -> None:
        """Say that work is put into a graph from now on."""
        with self._turnstile:
            if self._capturing:
                raise ArgumentValueError(
                    "begin_capture", expected="one capture at a time", got="a second one"
                )
            self._capturing = True

    def end_capture(self, stream: int) -> None:
        """Say that the capture is over; `stream` waits for all streams that it was freed on."""
        with self._turnstile:
            if not self._capturing:
                raise ArgumentValueError("end_capture", expected="a capture under way", got="none")
            for freed_on in self._capture_free_streams:
                self._make_wait(stream, freed_on)
            self._capture_free_streams.clear()
            self._capturing = False


def _not_in_use(op: str, address: int) -> ArgumentValueError:
    return ArgumentValueError(op, expected="the address of a block in use", got=f"{address:#x}")


def over(upstream: Upstream) -> MallocAsyncAllocator:
    """Return the backend over the modelled pool of a virtual device: the strategy for replay."""
    return MallocAsyncAllocator(VirtualAsyncDriver(upstream))


register_strategy("cuda-malloc-async", over)
