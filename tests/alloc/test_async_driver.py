from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from refruntime import _optional
from refruntime.alloc.async_driver import UNLIMITED, CupyAsyncDriver, PoolUsage, VirtualAsyncDriver
from refruntime.alloc.malloc_async import MallocAsyncAllocator
from refruntime.alloc.stream_ordered import CHUNK
from refruntime.alloc.upstream import VirtualUpstream
from refruntime.alloc.virtual_streams import Timeline
from refruntime.errors import OutOfMemoryError


def test_kept_memory_outlasts_a_wait() -> None:
    driver = VirtualAsyncDriver(VirtualUpstream(1 << 30))
    driver.free_async(driver.malloc_async(10, 0), 0)
    driver.keep_memory()
    driver.synchronize()
    assert driver.usage() == PoolUsage(CHUNK, CHUNK, 0, 10)
    driver.reset_peaks()
    driver.trim_pool(0)
    assert driver.usage() == PoolUsage(0, CHUNK, 0, 0)


def test_own_streams_are_no_stream_of_the_program() -> None:
    driver = VirtualAsyncDriver(VirtualUpstream(1 << 30))
    first, second = driver.create_stream(), driver.create_stream()
    assert first != second and min(first, second) > 1 << 40


def test_a_wait_for_an_event_orders_the_streams() -> None:
    driver = VirtualAsyncDriver(VirtualUpstream(1 << 30), Timeline(manual=True))
    mark = driver.timeline.submit(1)
    event = driver.record_event(1)
    driver.wait_event(2, event)
    driver.destroy_event(event)
    assert driver.timeline.ordered(2, mark)


def test_the_device_tells_what_is_left() -> None:
    driver = VirtualAsyncDriver(VirtualUpstream(3 * CHUNK))
    driver.malloc_async(1, 0)
    assert driver.memory_info() == (2 * CHUNK, 3 * CHUNK)


class FakeRuntime:
    """The calls of CuPy's runtime module that the driver needs."""

    cudaMemPoolReuseFollowEventDependencies = 1  # noqa: N815  CUDA's name, and so below
    cudaMemPoolReuseAllowOpportunistic = 2  # noqa: N815
    cudaMemPoolReuseAllowInternalDependencies = 3  # noqa: N815
    cudaMemPoolAttrReleaseThreshold = 4  # noqa: N815
    cudaMemPoolAttrReservedMemCurrent = 5  # noqa: N815
    cudaMemPoolAttrReservedMemHigh = 6  # noqa: N815
    cudaMemPoolAttrUsedMemCurrent = 7  # noqa: N815
    cudaMemPoolAttrUsedMemHigh = 8  # noqa: N815

    class CUDARuntimeError(RuntimeError):
        def __init__(self, status: int) -> None:
            super().__init__(status)
            self.status = status

    def __init__(self) -> None:
        self.device = 0
        self.calls: list[tuple[Any, ...]] = []
        self.attributes = {5: 500, 6: 600, 7: 70, 8: 80}
        self.fails_with = 0

    def _on_device(self, *call: Any) -> None:
        assert self.device == 3, "a call that depends on the current device"
        self.calls.append(call)

    def deviceGetDefaultMemPool(self, device: int) -> str:
        return f"pool of {device}"

    def memPoolSetAttribute(self, pool: str, attribute: int, value: int) -> None:
        assert pool == "pool of 3"
        self.attributes[attribute] = value

    def memPoolGetAttribute(self, pool: str, attribute: int) -> int:
        assert pool == "pool of 3"
        return self.attributes[attribute]

    def memPoolTrimTo(self, pool: str, size: int) -> None:
        self.calls.append(("trim", pool, size))

    def mallocAsync(self, size: int, stream: int) -> int:
        self._on_device("malloc", size, stream)
        if self.fails_with:
            raise self.CUDARuntimeError(self.fails_with)
        return 1 << 40

    def freeAsync(self, address: int, stream: int) -> None:
        self._on_device("free", address, stream)

    def memGetInfo(self) -> tuple[int, int]:
        self._on_device("info")
        return 1 << 20, 1 << 30

    def eventRecord(self, event: str, stream: int) -> None:
        self._on_device("record", event, stream)

    def streamWaitEvent(self, stream: int, event: str) -> None:
        self._on_device("wait", stream, event)

    def streamSynchronize(self, stream: int) -> None:
        self._on_device("sync", stream)

    def deviceSynchronize(self) -> None:
        self._on_device("sync")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()

    @contextmanager
    def device(number: int) -> Iterator[None]:
        before, fake.device = fake.device, number
        yield
        fake.device = before

    def event(disable_timing: bool) -> SimpleNamespace:
        assert disable_timing
        return SimpleNamespace(ptr="event")

    def stream(non_blocking: bool) -> SimpleNamespace:
        assert non_blocking
        return SimpleNamespace(ptr=0x99)

    cuda = SimpleNamespace(runtime=fake, Device=device, Event=event, Stream=stream)
    monkeypatch.setattr(_optional, "cupy", SimpleNamespace(cuda=cuda), raising=False)
    return fake


def test_cupy_allocates_on_its_device(runtime: FakeRuntime) -> None:
    allocator = MallocAsyncAllocator(CupyAsyncDriver(3))
    address = allocator.malloc(1000, 0x11)
    allocator.record_stream(address, 0x22)
    allocator.free(address)
    assert runtime.calls == [
        ("malloc", 1000, 0x11),
        ("record", "event", 0x11), ("wait", 0x99, "event"),
        ("record", "event", 0x22), ("wait", 0x99, "event"),
        ("free", 1 << 40, 0x99),
    ]  # fmt: skip
    assert {key: runtime.attributes[key] for key in (1, 2, 3, 4)} == {
        1: 1, 2: 1, 3: 1, 4: UNLIMITED,
    }  # fmt: skip


def test_cupy_tells_the_figures_of_the_pool(runtime: FakeRuntime) -> None:
    driver = CupyAsyncDriver(3)
    assert driver.usage() == PoolUsage(500, 600, 70, 80)
    driver.reset_peaks()
    assert (runtime.attributes[6], runtime.attributes[8]) == (0, 0)
    driver.trim_pool(7)
    driver.synchronize()
    assert runtime.calls == [("trim", "pool of 3", 7), ("sync",)]


def test_cupy_lack_of_memory_is_told_from_other_errors(runtime: FakeRuntime) -> None:
    allocator = MallocAsyncAllocator(CupyAsyncDriver(3), index=3)
    runtime.fails_with = 2
    with pytest.raises(OutOfMemoryError, match="Allocation on device 3 would exceed"):
        allocator.malloc(1000, 0x11)
    assert [call[0] for call in runtime.calls] == ["malloc", "sync", "malloc", "info"]
    runtime.fails_with = 700
    with pytest.raises(FakeRuntime.CUDARuntimeError):
        allocator.malloc(1000)
