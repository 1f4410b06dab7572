"""The GPU's upstream over a fake CuPy and a fake driver: the order and arguments of its calls."""

from __future__ import annotations

import pytest

from refruntime import _optional
from refruntime.alloc import CachingAllocator
from refruntime.alloc.upstream import UpstreamExhausted
from refruntime.alloc.upstream.cupy import CupyUpstream
from refruntime.errors import ArgumentValueError, DeviceError, OutOfMemoryError
from tests.alloc.fake_gpu import FakeGpu, FakeMemory

MIB = 1 << 20
PAGE = 2 * MIB


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(_optional, "cupy", fake.cupy, raising=False)
    monkeypatch.setattr(_optional, "cuda_driver", fake.driver, raising=False)
    return fake


def test_spans_come_from_the_driver_on_the_null_stream_of_the_device(gpu: FakeGpu) -> None:
    source = CupyUpstream(1)
    address = source.reserve(20 * MIB, 5)
    assert gpu.log == [(1, 0, "cudaMalloc", 20 * MIB)]
    assert (source.used, source.capacity) == (20 * MIB, 64 * MIB)
    assert source.memory_info() == (44 * MIB, 64 * MIB)
    source.release(address, 20 * MIB)
    assert gpu.log[1:] == [(1, 0, "cudaFree", address, 20 * MIB)]
    assert (gpu.device, gpu.stream) == (0, 77), "what was current is current again"
    assert gpu.used == [0, 0] and source.used == 0


def test_the_pool_of_cupy_keeps_and_cuts_nothing(gpu: FakeGpu) -> None:
    source = CupyUpstream()
    source.release(source.reserve(20 * MIB, 0), 20 * MIB)
    small = source.reserve(2 * MIB, 0)
    assert gpu.calls() == ["cudaMalloc", "cudaFree", "cudaMalloc"]
    source.release(small, 2 * MIB)
    assert gpu.used == [0, 0]


def test_a_finalizer_that_reserves_inside_a_release_does_not_pin_its_span(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = CupyUpstream()
    big = source.reserve(20 * MIB, 0)
    inner: list[int] = []
    dropped = FakeMemory.__del__

    def drop(memory: FakeMemory) -> None:
        dropped(memory)
        if not inner:
            inner.append(source.reserve(2 * MIB, 0))

    monkeypatch.setattr(FakeMemory, "__del__", drop)
    source.release(big, 20 * MIB)
    assert gpu.used[0] == source.used == 2 * MIB
    source.release(inner[0], 2 * MIB)
    assert gpu.used[0] == source.used == 0


def test_the_limit_of_cupy_holds_for_spans_and_pages_together(gpu: FakeGpu) -> None:
    gpu.limit = 30 * MIB
    source = CupyUpstream()
    assert source.capacity == 30 * MIB and source.memory_info() == (64 * MIB, 64 * MIB)
    source.reserve(20 * MIB, 0)
    start = source.reserve_addresses(20 * MIB)
    with pytest.raises(UpstreamExhausted):
        source.map(start, 20 * MIB, PAGE)
    source.map(start, 10 * MIB, PAGE)
    with pytest.raises(UpstreamExhausted):
        source.reserve(1, 0)
    assert source.used == gpu.used[0] == 30 * MIB


def test_lack_of_memory_is_told_as_every_upstream_does(gpu: FakeGpu) -> None:
    source = CupyUpstream()
    with pytest.raises(UpstreamExhausted):
        source.reserve(100 * MIB, 0)
    assert source.used == 0 and (gpu.device, gpu.stream) == (0, 77)


@pytest.mark.parametrize("wrong", [(1, 0), (0, 1)])
def test_only_whole_spans_go_back(gpu: FakeGpu, wrong: tuple[int, int]) -> None:
    source = CupyUpstream()
    address = source.reserve(MIB, 0)
    with pytest.raises(ArgumentValueError, match="a reserved span, whole"):
        source.release(address + wrong[0], MIB + wrong[1])
    assert source.used == gpu.used[0] == MIB


def test_the_asynchronous_pool_gives_back_what_is_released(gpu: FakeGpu) -> None:
    source = CupyUpstream(asynchronous=True)
    address = source.reserve(20 * MIB, 5)
    source.release(address, 20 * MIB)
    assert [entry[1:] for entry in gpu.log] == [
        (77, "MemoryAsyncPool", "current"),
        (0, "cudaMallocAsync", 20 * MIB),
        (0, "cudaFreeAsync", address),
        (0, "trim"),
    ]
    assert gpu.used == [0, 0]
    with pytest.raises(UpstreamExhausted):
        source.reserve(100 * MIB, 0)


def test_pages_are_created_then_mapped_then_made_accessible(gpu: FakeGpu) -> None:
    source = CupyUpstream(1)
    start = source.reserve_addresses(72 * MIB)
    source.map(start + PAGE, 2 * PAGE, PAGE)
    assert source.used == gpu.used[1] == 2 * PAGE
    source.unmap(start + PAGE, 2 * PAGE, PAGE, 9)
    source.release_addresses(start, 72 * MIB)
    assert [entry[2:] for entry in gpu.log] == [
        ("setDevice", 1),
        ("cuMemAddressReserve", 72 * MIB),
        ("setDevice", 1),
        ("cuMemCreate", PAGE),
        ("cuMemCreate", PAGE),
        ("cuMemMap", start + PAGE, PAGE),
        ("cuMemMap", start + 2 * PAGE, PAGE),
        ("cuMemSetAccess", start + PAGE, 2 * PAGE),
        ("setDevice", 1),
        ("streamSynchronize", 9),
        ("cuMemUnmap", start + PAGE, PAGE),
        ("cuMemRelease", PAGE),
        ("cuMemUnmap", start + 2 * PAGE, PAGE),
        ("cuMemRelease", PAGE),
        ("setDevice", 1),
        ("cuMemAddressFree", start, 72 * MIB),
    ]
    assert {entry[0] for entry in gpu.log} == {1} and gpu.device == 0
    assert gpu.used == [0, 0] and not gpu.handles and not gpu.mapped


def test_a_map_without_memory_for_all_its_pages_leaves_none(gpu: FakeGpu) -> None:
    source = CupyUpstream()
    start = source.reserve_addresses(128 * MIB)
    gpu.take(0, 10 * MIB)  # another program's
    with pytest.raises(UpstreamExhausted):
        source.map(start, 60 * MIB, 20 * MIB)
    assert gpu.calls()[2:] == ["setDevice"] + ["cuMemCreate"] * 3 + ["cuMemRelease"] * 2
    assert gpu.used[0] == 10 * MIB and source.used == 0
    source.map(start, 40 * MIB, 20 * MIB)


@pytest.mark.parametrize(("call", "nth"), [("cuMemMap", 1), ("cuMemMap", 3), ("cuMemSetAccess", 1)])
def test_a_map_that_the_driver_refuses_leaves_nothing_behind(
    gpu: FakeGpu, call: str, nth: int
) -> None:
    source = CupyUpstream()
    start = source.reserve_addresses(128 * MIB)
    gpu.refuse[call] = nth
    with pytest.raises(DeviceError, match=f"{call}: the CUDA driver refused.*got 999"):
        source.map(start, 3 * PAGE, PAGE)
    assert gpu.used[0] == source.used == 0 and not gpu.handles and not gpu.mapped
    source.map(start, 3 * PAGE, PAGE)
    assert source.used == 3 * PAGE


def test_events_are_recorded_on_the_stream_and_used_again(gpu: FakeGpu) -> None:
    source = CupyUpstream(1)
    first = source.record_event(0x70)
    number = gpu.log[-1][3]
    gpu.pending.add(number)
    assert not source.query_event(first)
    source.wait_event(first)
    assert source.query_event(first)
    source.release_event(first)
    second = source.record_event(0x80)
    assert gpu.log[-1][2:] == ("eventRecord", number, 0x80)
    assert gpu.calls().count("eventCreate") == 1
    assert 0 != second != first
    with pytest.raises(ArgumentValueError, match="recorded and not given back"):
        source.query_event(first)


def test_streams_and_the_device_can_be_waited_for(gpu: FakeGpu) -> None:
    source = CupyUpstream(1)
    source.synchronize(0x70)
    source.synchronize()
    assert gpu.log == [(1, 77, "streamSynchronize", 0x70), (1, 77, "deviceSynchronize")]


def test_the_gpu_copies_on_the_stream(gpu: FakeGpu) -> None:
    CupyUpstream(1).copy(0x5000, 0x9000, 512, 0x70)
    assert gpu.log == [(1, 77, "memcpyAsync", 0x5000, 0x9000, 512, 3, 0x70)]


def test_virtual_memory_needs_the_package_that_reaches_the_driver(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CupyUpstream().supports_virtual_memory
    missing = _optional.Missing("not installed", "cuda-bindings", "cuda.bindings.driver")
    monkeypatch.setattr(_optional, "cuda_driver", missing, raising=False)
    assert not CupyUpstream().supports_virtual_memory


def test_a_gpu_that_is_not_there_is_refused(gpu: FakeGpu) -> None:
    with pytest.raises(DeviceError, match="CupyUpstream: expected a GPU below 2, got device 2"):
        CupyUpstream(2)


def test_a_machine_without_a_driver_is_told_so(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = gpu.cupy.cuda.runtime

    def count() -> int:
        raise runtime.CUDARuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(runtime, "getDeviceCount", count)
    with pytest.raises(DeviceError, match=r"InsufficientDriver.*VirtualUpstream"):
        CupyUpstream()


def test_a_caching_allocator_keeps_the_segments_of_a_gpu(gpu: FakeGpu) -> None:
    allocator = CachingAllocator(CupyUpstream(), device="cuda:0")
    first = allocator.malloc(3 * MIB, 0x70)
    allocator.free(first)
    assert allocator.malloc(2 * MIB, 0x70) == first
    assert gpu.calls() == ["cudaMalloc"]
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(100 * MIB)
    allocator.free(first)
    allocator.empty_cache()
    assert gpu.used == [0, 0]


def test_expandable_segments_grow_and_shrink_on_a_gpu(gpu: FakeGpu) -> None:
    allocator = CachingAllocator(CupyUpstream(), settings="expandable_segments:True")
    first, second = allocator.malloc(16 * MIB, 0x70), allocator.malloc(16 * MIB, 0x70)
    assert second == first + 16 * MIB and gpu.used[0] == 40 * MIB
    assert "cudaMalloc" not in gpu.calls()
    allocator.free(second)
    allocator.empty_cache()
    assert gpu.used[0] == 20 * MIB and ("streamSynchronize", 0x70) in [x[2:] for x in gpu.log]
    allocator.free(first)
    allocator.empty_cache()
    assert gpu.used[0] == 0 and not gpu.mapped and not gpu.handles


def test_deferred_frees_ask_events_of_the_gpu(gpu: FakeGpu) -> None:
    allocator = CachingAllocator(CupyUpstream(), device="cuda:0")
    first = allocator.malloc(3 * MIB)
    allocator.record_stream(first, 0x70)
    gpu.pending.add(1001)
    allocator.free(first)
    second = allocator.malloc(3 * MIB)
    assert second != first
    gpu.pending.clear()
    assert allocator.malloc(3 * MIB) == first
    assert [entry[3:] for entry in gpu.log if entry[2] == "eventRecord"] == [(1001, 0x70)]


def test_the_fake_has_no_name_that_cupy_and_the_driver_lack() -> None:
    cuda = pytest.importorskip("cupy").cuda
    driver = pytest.importorskip("cuda.bindings.driver")
    fake = FakeGpu(count=1)
    for real, made in [(cuda, fake.cupy.cuda), (driver, fake.driver)]:
        assert _names(made) <= set(dir(real))
    assert _names(fake.cupy.cuda.runtime) <= set(dir(cuda.runtime))
    assert {"done", "synchronize"} <= set(dir(cuda.Event)) and "~Event.ptr" in cuda.Event.__doc__
    for pool in (cuda.MemoryPool, cuda.MemoryAsyncPool):
        assert {"malloc", "free_all_blocks"} <= set(dir(pool))
    for name in ("CUmemLocationType", "CUmemAllocationType", "CUmemAccess_flags"):
        assert _names(getattr(fake.driver, name)) <= set(dir(getattr(driver, name)))
    assert driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY == 2


def _names(made: object) -> set[str]:
    return {name for name in vars(made) if not name.startswith("_")}


def test_without_a_gpu_the_real_cupy_says_what_is_missing() -> None:
    cupy = pytest.importorskip("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        with pytest.raises(DeviceError, match="an NVIDIA GPU with its driver"):
            CupyUpstream()
    else:
        pytest.skip("there is a driver")
