"""The faces for CuPy and Numba, with the real packages, over host pages in the place of a GPU."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from refruntime import _optional
from refruntime.alloc import CachingAllocator, categories, interop
from refruntime.alloc.interop import cupy as cupy_face
from refruntime.alloc.interop import numba as numba_face
from refruntime.alloc.upstream import LazyHostPages, VirtualUpstream
from refruntime.errors import ArgumentTypeError, ArgumentValueError, DeviceError, OutOfMemoryError
from tests.alloc.fake_gpu import FakeGpu

MIB = 1 << 20


@pytest.fixture
def device() -> VirtualUpstream:
    return VirtualUpstream(64 * MIB, addresses=LazyHostPages())


@pytest.fixture
def allocator(device: VirtualUpstream) -> CachingAllocator:
    return CachingAllocator(device)


# --- the allocators of GPUs ----------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(_optional, "cupy", fake.cupy, raising=False)
    monkeypatch.setattr(_optional, "cuda_driver", fake.driver, raising=False)
    monkeypatch.setattr(interop, "_gpus", {})
    return fake


def test_each_gpu_has_one_allocator_in_the_process(gpu: FakeGpu) -> None:
    found: list[CachingAllocator] = []
    threads = [
        threading.Thread(target=lambda: found.append(interop.gpu_allocator(1))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len({id(one) for one in found}) == 1
    assert interop.gpu_allocator(0) is not found[0]
    assert found[0].device == "cuda:1" and found[0].upstream.capacity == gpu.total


def test_a_gpu_that_is_not_there_has_none(gpu: FakeGpu) -> None:
    with pytest.raises(DeviceError):
        interop.gpu_allocator(7)
    assert interop._gpus == {}


def test_a_face_prefers_the_allocators_that_it_was_given(
    gpu: FakeGpu, allocator: CachingAllocator
) -> None:
    assert interop.choose({1: allocator}, 1) is allocator
    assert interop.choose({1: allocator}, 0) is interop.gpu_allocator(0)
    assert interop.choose(None, 0) is interop.gpu_allocator(0)


def test_importing_the_faces_loads_no_gpu_package() -> None:
    program = """
import sys
import refruntime.alloc.interop.cupy, refruntime.alloc.interop.numba
import refruntime.alloc.upstream.cupy, refruntime.alloc.upstream.adaptors
print([name for name in ("cupy", "numba.cuda", "cuda.bindings") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "[]"


# --- CuPy ----------------------------------------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The real CuPy; only the current device and stream, which need a driver, are set here."""
    real = pytest.importorskip("cupy")
    monkeypatch.setattr(cupy_face, "current", lambda cuda: (0, 0x70))
    before = real.cuda.get_allocator()
    yield real
    real.cuda.set_allocator(before)


def view(array: Any) -> np.ndarray:
    """Look at the bytes of a CuPy array, which lie on the host here."""
    memory = (ctypes.c_char * array.nbytes).from_address(array.data.ptr)
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def test_arrays_of_cupy_are_blocks_of_ours(cupy: Any, allocator: CachingAllocator) -> None:
    with cupy_face.using({0: allocator}, category=categories.PARAMETER):
        array = cupy.ndarray((1000, 300), "f4")
    view(array)[:] = 7
    assert allocator.category_bytes()["parameter"] == 1_200_000
    (block,) = [
        block
        for segment in allocator.snapshot()["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert block["address"] == array.data.ptr and array.data.device_id == 0
    assert [segment["stream"] for segment in allocator.snapshot()["segments"]] == [0x70]


def test_a_block_is_freed_with_the_last_view_of_it(cupy: Any, allocator: CachingAllocator) -> None:
    with cupy_face.using({0: allocator}):
        array = cupy.ndarray(1 << 20, "u1")
    part = array[10:20]
    del array
    assert allocator.allocated_bytes == MIB
    address = part.data.mem.ptr
    del part
    gc.collect()
    assert allocator.allocated_bytes == 0
    with cupy_face.using({0: allocator}):
        assert cupy.ndarray(1 << 20, "u1").data.ptr == address


def test_no_bytes_cost_nothing(cupy: Any, allocator: CachingAllocator) -> None:
    with cupy_face.using({0: allocator}):
        empty = cupy.ndarray((0, 5), "f8")
    cupy_face.record_stream(empty, SimpleNamespace(ptr=5))
    assert empty.data.ptr == 0 and allocator.reserved_bytes == 0


def test_the_allocator_before_is_put_back(cupy: Any, allocator: CachingAllocator) -> None:
    before = cupy.cuda.get_allocator()
    with pytest.raises(OutOfMemoryError), cupy_face.using({0: allocator}):
        allocator.malloc(100 * MIB)
    assert cupy.cuda.get_allocator() is before
    assert cupy_face.install({0: allocator}) is before
    assert cupy.ndarray(3, "f4").nbytes == 12 and allocator.reserved_bytes > 0
    cupy.cuda.set_allocator(before)


def test_other_threads_take_their_memory_from_it_too(
    cupy: Any, allocator: CachingAllocator
) -> None:
    made: list[Any] = []
    with cupy_face.using({0: allocator}):
        thread = threading.Thread(target=lambda: made.append(cupy.ndarray(MIB, "u1")))
        thread.start()
        thread.join()
    assert allocator.allocated_bytes == MIB


def test_lack_of_memory_is_the_error_that_cupy_programs_catch(
    cupy: Any, allocator: CachingAllocator
) -> None:
    with cupy_face.using({0: allocator}):
        kept = cupy.ndarray(20 * MIB, "u1")
        with pytest.raises(MemoryError, match="Out of memory allocating 104,857,600") as caught:
            cupy.ndarray(100 * MIB, "u1")
    assert isinstance(caught.value, cupy.cuda.memory.OutOfMemoryError)
    assert isinstance(caught.value.__cause__, OutOfMemoryError)
    assert kept.nbytes == 20 * MIB and allocator.ooms == 1


def test_memory_used_on_another_stream_waits_for_it(
    cupy: Any, allocator: CachingAllocator, device: VirtualUpstream
) -> None:
    device.manual_events = True
    with cupy_face.using({0: allocator}):
        array = cupy.ndarray(MIB, "u1")
        address = array.data.ptr
        cupy_face.record_stream(array[500:], SimpleNamespace(ptr=0x80))
        del array
        assert cupy.ndarray(MIB, "u1").data.ptr != address
        device.complete(0x80)
        assert cupy.ndarray(MIB, "u1").data.ptr == address


def test_memory_of_others_cannot_be_recorded(cupy: Any) -> None:
    foreign = cupy.cuda.UnownedMemory(4096, 16, None, 0)
    array = cupy.ndarray(4, "f4", memptr=cupy.cuda.MemoryPointer(foreign, 0))
    with pytest.raises(ArgumentTypeError, match="got memory of type UnownedMemory"):
        cupy_face.record_stream(array, SimpleNamespace(ptr=0))


def test_an_unknown_category_is_refused_before_anything_is_installed(cupy: Any) -> None:
    before = cupy.cuda.get_allocator()
    with pytest.raises(ArgumentValueError, match="category"):
        cupy_face.install(category=99)
    assert cupy.cuda.get_allocator() is before


def test_current_device_and_stream_are_those_of_cupy() -> None:
    stream = SimpleNamespace(ptr=0x99)
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: 3), get_current_stream=lambda: stream
    )
    assert cupy_face.current(cuda) == (3, 0x99)


def test_without_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = _optional.Missing("No module named cupy", "'refruntime[cuda13]'", "cupy")
    monkeypatch.setattr(_optional, "cupy", missing, raising=False)
    with pytest.raises(ImportError, match=r"pip install 'refruntime\[cuda13\]'"):
        cupy_face.install()


# --- Numba ---------------------------------------------------------------------------------------


class Context:
    """What a memory manager sees of Numba's context."""

    device = SimpleNamespace(id=0)


@pytest.fixture
def numba_cuda() -> Any:
    cuda = pytest.importorskip("numba.cuda")
    if not hasattr(cuda, "HostOnlyCUDAMemoryManager"):
        pytest.skip("the simulator has no memory managers")
    return cuda


@pytest.fixture
def manager(numba_cuda: Any, allocator: CachingAllocator) -> Any:
    return numba_face.memory_manager({0: allocator})(context=Context())


def test_the_plugin_fulfils_numbas_interface(numba_cuda: Any) -> None:
    plugin = numba_face._numba_memory_manager
    assert issubclass(plugin, numba_cuda.BaseCUDAMemoryManager)
    assert not plugin.__abstractmethods__
    assert plugin(context=None).interface_version == 1
    assert numba_face._numba_memory_manager is plugin
    with pytest.raises(AttributeError, match="has no attribute '_something'"):
        _ = numba_face._something


def test_numba_finds_the_plugin_by_the_name_of_the_module() -> None:
    pytest.importorskip("numba.cuda")
    program = """
from numba.cuda.cudadrv import driver
driver._ensure_memory_manager()
print(driver._memory_manager.__mro__[1].__name__, driver._memory_manager.__module__)
"""
    module = "refruntime.alloc.interop.numba"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_CUDA_MEMORY_MANAGER": module},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.split() == ["DevicePlugin", module]


def test_memory_of_numba_is_a_block_until_its_pointer_goes(
    manager: Any, allocator: CachingAllocator
) -> None:
    manager.initialize()
    memory = manager.memalloc(3 * MIB)
    address = memory.device_pointer_value
    ctypes.memset(address, 5, 3 * MIB)
    assert allocator.allocated_bytes == 3 * MIB and memory.size == 3 * MIB
    assert manager.get_memory_info() == (44 * MIB, 64 * MIB)
    view = memory.view(MIB)
    assert view.device_pointer_value == address + MIB
    del memory
    gc.collect()
    assert allocator.allocated_bytes == 3 * MIB
    del view
    gc.collect()
    assert allocator.allocated_bytes == 0


def test_freed_memory_waits_for_all_streams(manager: Any, device: VirtualUpstream) -> None:
    device.manual_events = True
    memory = manager.memalloc(10)
    address = memory.device_pointer_value
    memory.free()
    assert manager.memalloc(10).device_pointer_value != address
    device.complete(numba_face.LEGACY_STREAM)
    assert manager.memalloc(10).device_pointer_value == address
    with pytest.raises(RuntimeError, match="Freeing dead memory"):
        memory.free()


def test_memory_that_the_garbage_collector_frees_inside_a_call_is_not_lost(
    manager: Any, allocator: CachingAllocator, device: VirtualUpstream, monkeypatch: Any
) -> None:
    garbage = [manager.memalloc(3 * MIB)]
    reserve = device.reserve

    def collecting(nbytes: int, stream: int) -> int:
        garbage.clear()
        return reserve(nbytes, stream)

    monkeypatch.setattr(device, "reserve", collecting)
    kept = manager.memalloc(30 * MIB)
    assert allocator.allocated_bytes == kept.size == 30 * MIB


def test_even_no_bytes_have_an_address(manager: Any) -> None:
    memory = manager.memalloc(0)
    assert memory.device_pointer_value != 0 and memory.size == 0


def test_lack_of_memory_is_the_error_that_numba_programs_catch(
    manager: Any, allocator: CachingAllocator
) -> None:
    driver = pytest.importorskip("numba.cuda.cudadrv.driver")
    with pytest.raises(driver.CudaAPIError, match="out of memory") as caught:
        manager.memalloc(100 * MIB)
    assert caught.value.code == 2 and isinstance(caught.value.__cause__, OutOfMemoryError)
    assert allocator.ooms == 1


def test_a_reset_gives_unused_segments_back(manager: Any, allocator: CachingAllocator) -> None:
    manager.reset()
    kept, dropped = manager.memalloc(3 * MIB), manager.memalloc(30 * MIB)
    dropped.free()
    assert allocator.reserved_bytes == 50 * MIB
    manager.reset()
    assert allocator.reserved_bytes == 20 * MIB and kept.size == 3 * MIB


def test_a_reset_makes_no_allocator(numba_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "_gpus", {})
    numba_face.memory_manager()(context=Context()).reset()
    assert interop._gpus == {}


def test_the_simulator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_optional, "numba_cuda", SimpleNamespace(), raising=False)
    with pytest.raises(DeviceError, match="simulator"):
        numba_face.memory_manager()
