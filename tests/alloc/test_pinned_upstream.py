from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from refruntime import _optional
from refruntime.alloc.pinned import PinnedAllocator
from refruntime.alloc.pinned_upstream import CupyPinnedUpstream, HostPinnedUpstream
from refruntime.alloc.settings import AllocatorSettings
from refruntime.errors import OutOfMemoryError

KIB, MIB = 1 << 10, 1 << 20


def test_host_pages_hold_what_is_written() -> None:
    upstream = HostPinnedUpstream(1 << 30)
    for register in (False, True):
        settings = replace(
            AllocatorSettings(), pinned_use_cuda_host_register=register,
            pinned_num_register_threads=2,
        )  # fmt: skip
        allocator = PinnedAllocator(upstream, settings)
        address = allocator.malloc(3 * MIB)
        ctypes.memset(address, 7, 3 * MIB)
        assert ctypes.string_at(address + 3 * MIB - 1, 1) == b"\x07"
        allocator.record_event(address, 0)
        allocator.free(address)
        assert allocator.malloc(4 * MIB) == address
        allocator.free(address)
        allocator.empty_cache()
        assert upstream.used == 0
    assert not upstream.is_capturing(upstream.current_stream())


def test_host_pages_run_out() -> None:
    with pytest.raises(OutOfMemoryError, match="Pinned host memory exhausted"):
        PinnedAllocator(HostPinnedUpstream(KIB)).malloc(2 * KIB)


class FakeRuntime:
    """The calls of CuPy's runtime module that pinning needs, over host memory of our own."""

    hostAllocDefault = 0  # noqa: N815  CuPy's name

    class CUDARuntimeError(RuntimeError):
        def __init__(self, status: int) -> None:
            super().__init__(status)
            self.status = status

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails_with = 0
        self.capturing = False

    def _call(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fails_with:
            raise self.CUDARuntimeError(self.fails_with)

    def hostAlloc(self, nbytes: int, flags: int) -> int:
        self._call("hostAlloc", nbytes, flags)
        return 1 << 20

    def freeHost(self, address: int) -> None:
        self._call("freeHost", address)

    def hostRegister(self, address: int, nbytes: int, flags: int) -> None:
        self._call("hostRegister", nbytes, flags)

    def hostUnregister(self, address: int) -> None:
        self._call("hostUnregister")

    def eventRecord(self, event: FakeEvent, stream: int) -> None:
        event.stream = stream

    def streamIsCapturing(self, stream: int) -> bool:
        return self.capturing


class FakeEvent:
    reached = False
    stream: int | None = None

    def __init__(self, disable_timing: bool) -> None:
        assert disable_timing

    @property
    def ptr(self) -> FakeEvent:
        return self

    @property
    def done(self) -> bool:
        return self.reached


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    cuda = SimpleNamespace(
        runtime=fake, Event=FakeEvent,
        get_current_stream=lambda: SimpleNamespace(ptr=0),
    )  # fmt: skip
    monkeypatch.setattr(_optional, "cupy", SimpleNamespace(cuda=cuda), raising=False)
    return fake


def test_cupy_locks_and_frees(runtime: FakeRuntime) -> None:
    allocator = PinnedAllocator(CupyPinnedUpstream())
    allocator.free(allocator.malloc(1000))
    allocator.empty_cache()
    assert runtime.calls == [("hostAlloc", 1024, 0), ("freeHost", 1 << 20)]


def test_cupy_registers_pages(runtime: FakeRuntime) -> None:
    settings = replace(AllocatorSettings(), pinned_use_cuda_host_register=True)
    allocator = PinnedAllocator(CupyPinnedUpstream(), settings)
    allocator.free(allocator.malloc(1000))
    allocator.empty_cache()
    assert runtime.calls == [("hostRegister", 1024, 0), ("hostUnregister",)]


@pytest.mark.parametrize("register", [False, True])
def test_cupy_lack_of_memory_is_told_from_other_errors(
    runtime: FakeRuntime, register: bool
) -> None:
    settings = replace(AllocatorSettings(), pinned_use_cuda_host_register=register)
    allocator = PinnedAllocator(CupyPinnedUpstream(), settings)
    runtime.fails_with = 2
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(1000)
    runtime.fails_with = 999
    with pytest.raises(FakeRuntime.CUDARuntimeError):
        allocator.malloc(1000)
    assert allocator.stats()["allocations.current"] == 0


def test_cupy_events_are_asked_except_in_a_capture(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = PinnedAllocator(CupyPinnedUpstream())
    address = allocator.malloc(8)
    allocator.record_event(address, 0x77)
    allocator.free(address)
    event = allocator._default.events[0][0]
    assert event.stream == 0x77
    monkeypatch.setattr(FakeEvent, "reached", True)
    runtime.capturing = True
    allocator.empty_cache()
    assert ("freeHost", address) not in runtime.calls
    runtime.capturing = False
    allocator.empty_cache()
    assert runtime.calls[-1] == ("freeHost", address)
