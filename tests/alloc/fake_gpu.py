"""A GPU for tests: what the upstream uses of CuPy and of the CUDA driver, with a log of the calls.

The pool behaves like CuPy's: it keeps what is freed, cuts it for smaller requests, and gives back
to the driver only what was never cut.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


class OutOfMemoryError(MemoryError):
    pass


class CUDARuntimeError(RuntimeError):
    pass


class FakeGpu:
    """Devices of one size; `log` holds (device, stream, call, ...) as they were current."""

    def __init__(self, total: int = 64 << 20, count: int = 2) -> None:
        self.total = total
        self.count = count
        self.used = [0] * count
        self.log: list[tuple[Any, ...]] = []
        self.device = 0
        self.stream = 77
        self.limit = 0
        self.pending: set[int] = set()
        self.refuse: dict[str, int] = {}
        self.handles: dict[int, tuple[int, int]] = {}
        self.mapped: dict[int, int] = {}
        self._next = 1 << 40
        self.cupy = SimpleNamespace(cuda=self._cuda())
        self.driver = self._driver()

    def note(self, call: str, *arguments: Any) -> None:
        self.log.append((self.device, self.stream, call, *arguments))

    def calls(self) -> list[str]:
        return [entry[2] for entry in self.log]

    def address(self, nbytes: int) -> int:
        self._next += nbytes
        return self._next - nbytes

    def take(self, device: int, nbytes: int) -> bool:
        fits = self.used[device] + nbytes <= self.total
        self.used[device] += nbytes if fits else 0
        return fits

    # --- cupy.cuda -----------------------------------------------------------------------------

    def _cuda(self) -> SimpleNamespace:
        gpu = self

        @contextmanager
        def device_context(device: int) -> Iterator[None]:
            before, gpu.device = gpu.device, device
            yield
            gpu.device = before

        class NullStream:
            before: list[int] = []

            def __enter__(self) -> None:
                self.before.append(gpu.stream)
                gpu.stream = 0

            def __exit__(self, *exc: object) -> None:
                gpu.stream = self.before.pop()

        class Event:
            made = 0

            def __init__(self, *, block: bool, disable_timing: bool) -> None:
                assert disable_timing and not block
                Event.made += 1
                self.ptr = 1000 + Event.made
                self.device = gpu.device
                gpu.note("eventCreate", self.ptr)

            @property
            def done(self) -> bool:
                gpu.note("eventQuery", self.ptr)
                return self.ptr not in gpu.pending

            def synchronize(self) -> None:
                gpu.note("eventSynchronize", self.ptr)
                gpu.pending.discard(self.ptr)

        return SimpleNamespace(
            Device=device_context,
            Stream=SimpleNamespace(null=NullStream()),
            Event=Event,
            MemoryPool=lambda: FakePool(self),
            MemoryAsyncPool=lambda handles: FakeAsyncPool(self, handles),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                getDeviceCount=lambda: self.count,
                memGetInfo=lambda: (self.total - self.used[self.device], self.total),
                setDevice=lambda device: self.note("setDevice", device),
                eventRecord=lambda event, stream: self.note("eventRecord", event, stream),
                streamSynchronize=lambda stream: self.note("streamSynchronize", stream),
                deviceSynchronize=lambda: self.note("deviceSynchronize"),
                memcpyAsync=lambda *arguments: self.note("memcpyAsync", *arguments),
                memcpyDeviceToDevice=3,
            ),
        )

    # --- cuda.bindings.driver ------------------------------------------------------------------

    def _driver(self) -> SimpleNamespace:
        functions = {name[1:]: getattr(self, name) for name in dir(self) if name[:3] == "_cu"}
        del functions["cuda"]
        return SimpleNamespace(
            CUmemLocation=SimpleNamespace,
            CUmemAllocationProp=SimpleNamespace,
            CUmemAccessDesc=SimpleNamespace,
            CUmemLocationType=SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE="device"),
            CUmemAllocationType=SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED="pinned"),
            CUmemAccess_flags=SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE="readwrite"),
            CUdevice_attribute=SimpleNamespace(
                CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=102
            ),
            **functions,
        )

    def refused(self, call: str) -> int:
        """Return the status of a call: `refuse` says how many calls it takes to one that fails."""
        self.refuse[call] = self.refuse.get(call, 0) - 1
        return 999 if self.refuse[call] == 0 else 0

    def _cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def _cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:
        assert attribute == 102
        return 0, 1

    def _cuMemAddressReserve(self, size: int, *rest: int) -> tuple[int, int]:
        assert rest == (0, 0, 0)
        self.note("cuMemAddressReserve", size)
        return 0, self.address(size)

    def _cuMemAddressFree(self, address: int, size: int) -> tuple[int]:
        self.note("cuMemAddressFree", address, size)
        return (0,)

    def _cuMemCreate(self, size: int, properties: Any, flags: int) -> tuple[int, int | None]:
        self.note("cuMemCreate", size)
        assert (properties.type, properties.location.type, flags) == ("pinned", "device", 0)
        if not self.take(properties.location.id, size):
            return 2, None
        handle = len(self.log)
        self.handles[handle] = properties.location.id, size
        return 0, handle

    def _cuMemRelease(self, handle: int) -> tuple[int]:
        device, size = self.handles.pop(handle)
        self.note("cuMemRelease", size)
        self.used[device] -= size
        return (0,)

    def _cuMemMap(self, place: int, size: int, offset: int, handle: int, flags: int) -> tuple[int]:
        self.note("cuMemMap", place, size)
        assert (offset, flags, self.handles[handle][1]) == (0, 0, size)
        status = self.refused("cuMemMap")
        if not status:
            self.mapped[place] = size
        return (status,)

    def _cuMemSetAccess(self, place: int, size: int, access: list[Any], count: int) -> tuple[int]:
        self.note("cuMemSetAccess", place, size)
        assert (len(access), count, access[0].flags) == (1, 1, "readwrite")
        return (self.refused("cuMemSetAccess"),)

    def _cuMemUnmap(self, place: int, size: int) -> tuple[int]:
        self.note("cuMemUnmap", place, size)
        assert self.mapped.pop(place) == size
        return (0,)


class FakeMemory:
    """What CuPy's pools hand out: freed when it is dropped."""

    def __init__(self, pool: Any, ptr: int, nbytes: int) -> None:
        self.pool, self.ptr, self.nbytes = pool, ptr, nbytes

    def __del__(self) -> None:
        self.pool.free(self)


class FakePool:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.kept: list[tuple[int, int, bool]] = []
        self.cut: set[int] = set()

    def malloc(self, nbytes: int) -> FakeMemory:
        for place, (ptr, kept, _) in enumerate(self.kept):
            if kept >= nbytes:
                self.kept[place] = ptr + nbytes, kept - nbytes, True
                self.cut.add(ptr)
                return FakeMemory(self, ptr, nbytes)
        self.gpu.note("cudaMalloc", nbytes)
        if not self.gpu.take(self.gpu.device, nbytes):
            raise OutOfMemoryError
        return FakeMemory(self, self.gpu.address(nbytes), nbytes)

    def get_limit(self) -> int:
        return self.gpu.limit

    def free(self, memory: FakeMemory) -> None:
        self.kept.append((memory.ptr, memory.nbytes, memory.ptr in self.cut))

    def free_all_blocks(self) -> None:
        for ptr, nbytes, cut in self.kept:
            if not cut:
                self.gpu.note("cudaFree", ptr, nbytes)
                self.gpu.used[self.gpu.device] -= nbytes
        self.kept = [each for each in self.kept if each[2]]


class FakeAsyncPool:
    def __init__(self, gpu: FakeGpu, handles: str) -> None:
        warnings.warn("MemoryAsyncPool is experimental", FutureWarning, stacklevel=2)
        self.gpu = gpu
        self.waiting = 0
        gpu.note("MemoryAsyncPool", handles)

    def malloc(self, nbytes: int) -> FakeMemory:
        self.gpu.note("cudaMallocAsync", nbytes)
        if not self.gpu.take(self.gpu.device, nbytes):
            raise OutOfMemoryError
        return FakeMemory(self, self.gpu.address(nbytes), nbytes)

    def free(self, memory: FakeMemory) -> None:
        self.gpu.note("cudaFreeAsync", memory.ptr)
        self.waiting += memory.nbytes

    def free_all_blocks(self) -> None:
        self.gpu.note("trim")
        self.gpu.used[self.gpu.device] -= self.waiting
        self.waiting = 0
