"""torch.cuda.memory over a GPU that is an address space."""

from __future__ import annotations

import pickle
import shutil
import subprocess

import pytest

import refruntime as torch
from refruntime import _storage
from refruntime.alloc import CachingAllocator, VirtualUpstream
from refruntime.errors import ArgumentValueError, OutOfMemoryError

MIB = 1 << 20


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose allocator serves addresses only."""
    allocator = CachingAllocator(VirtualUpstream(200 * MIB), device="cuda:0")
    monkeypatch.setattr(_storage, "gpu_allocators", [allocator])
    return allocator


def test_the_names_are_pytorchs():
    names = set(torch.cuda.memory.__all__) | set(torch.cuda.host_memory.__all__)
    assert {
        "memory_allocated", "max_memory_reserved", "memory_stats", "memory_stats_as_nested_dict",
        "memory_summary", "memory_snapshot", "empty_cache", "set_per_process_memory_fraction",
        "get_per_process_memory_fraction", "reset_peak_memory_stats", "mem_get_info", "MemPool",
        "use_mem_pool", "CUDAPluggableAllocator", "caching_allocator_alloc",
        "caching_allocator_delete", "list_gpu_processes", "get_allocator_backend",
        "host_memory_stats",
    } <= names  # fmt: skip
    assert all(hasattr(torch.cuda, name) for name in names)
    assert callable(torch.cuda.memory._record_memory_history)
    assert callable(torch.cuda.memory._dump_snapshot)


def test_statistics_nest_by_the_parts_of_their_names(gpu):
    gpu.malloc(1000)
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == 1024
    assert nested["num_ooms"] == 0
    flat = torch.cuda.memory_stats()
    assert nested["segment"]["small_pool"]["peak"] == flat["segment.small_pool.peak"]


def test_a_fraction_limits_what_is_reserved(gpu):
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    with pytest.raises(OutOfMemoryError):
        gpu.malloc(120 * MIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert gpu.malloc(120 * MIB)
    with pytest.raises(TypeError):
        torch.cuda.set_per_process_memory_fraction(1)
    with pytest.raises(ArgumentValueError):
        torch.cuda.set_per_process_memory_fraction(1.5)


def test_raw_memory_is_served_and_given_back(gpu):
    address = torch.cuda.caching_allocator_alloc(3 * MIB)
    assert torch.cuda.memory_allocated() == 3 * MIB
    torch.cuda.caching_allocator_delete(address)
    torch.cuda.caching_allocator_delete(0)
    assert torch.cuda.memory_allocated() == 0
    with pytest.raises(ArgumentValueError):
        torch.cuda.caching_allocator_delete(address)


def test_history_is_recorded_dumped_and_stopped(gpu, tmp_path):
    torch.cuda.memory._record_memory_history(max_entries=100)
    address = gpu.malloc(3 * MIB, 7)
    gpu.free(address)
    path = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(path)
    snapshot = pickle.loads(path.read_bytes())
    (trace,) = snapshot["device_traces"]
    assert [entry["action"] for entry in trace] == [
        "segment_alloc", "alloc", "free_requested", "free_completed",
    ]  # fmt: skip
    assert trace[1]["frames"][0]["name"] == "test_history_is_recorded_dumped_and_stopped"
    assert {"segments", "allocator_settings", "host_segments", "host_traces"} <= set(snapshot)
    assert snapshot["segments"][0]["device"] == 0
    torch.cuda.memory._record_memory_history(skip_actions=["free_requested"])
    gpu.free(gpu.malloc(3 * MIB, 7))
    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    assert [entry["action"] for entry in trace] == ["alloc", "free_completed"]
    torch.cuda.memory._record_memory_history(None)
    before = torch.cuda.memory._snapshot()["device_traces"]
    gpu.malloc(5)
    assert torch.cuda.memory._snapshot()["device_traces"] == before
    with pytest.raises(ArgumentValueError, match="enabled"):
        torch.cuda.memory._record_memory_history("everything")


def test_only_the_latest_entries_are_kept(gpu):
    torch.cuda.memory._record_memory_history(max_entries=3)
    for size in range(1, 9):
        gpu.malloc(size)
    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    assert [entry["size"] for entry in trace] == [6, 7, 8]


def test_a_pool_keeps_its_memory_apart_and_gives_it_back(gpu):
    outside = gpu.malloc(30 * MIB)
    gpu.free(outside)
    pool = torch.cuda.MemPool()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        inside = gpu.malloc(30 * MIB)
    assert inside != outside and gpu.malloc(30 * MIB) == outside
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id
    assert torch.cuda.memory_snapshot(pool.id) == [segment | {"device": 0}]
    gpu.free(inside)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 60 * MIB
    del pool
    assert torch.cuda.memory_reserved() == 30 * MIB


def test_pools_that_help_out_and_pools_that_do_not_split(gpu):
    helper = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(helper):
        gpu.free(gpu.malloc(120 * MIB))
    gpu.malloc(70 * MIB)
    assert gpu.malloc(100 * MIB)
    whole = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(whole):
        before = torch.cuda.memory_allocated()
        gpu.malloc(1 * MIB)
        assert torch.cuda.memory_allocated() - before == 2 * MIB


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_pool_takes_its_segments_from_a_librarys_functions(gpu, tmp_path):
    source, library = tmp_path / "mine.cpp", tmp_path / "mine.so"
    source.write_text("""
        #include <cstddef>
        #include <sys/types.h>
        static int held = 0;
        extern "C" void *take(ssize_t size, int device, void *stream) {
            held++;
            return size > (64 << 20) ? nullptr : reinterpret_cast<void *>(0x7000000000 + held);
        }
        extern "C" void give(void *p, ssize_t size, int device, void *stream) { held -= 100; }
        extern "C" int count() { return held; }
    """)
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library], check=True)
    mine = torch.cuda.CUDAPluggableAllocator(library, "take", "give")
    pool = torch.cuda.MemPool(mine.allocator())
    with torch.cuda.use_mem_pool(pool):
        address = gpu.malloc(20 * MIB)
        assert address == 0x7000000001
        with pytest.raises(OutOfMemoryError):
            gpu.malloc(100 * MIB)
    gpu.free(address)
    del pool
    assert mine.used == 0 and torch.cuda.memory_reserved() == 0


@pytest.mark.skipif(torch._optional.pynvml.installed(), reason="pynvml is installed")
def test_processes_need_pynvml(gpu):
    assert "pynvml" in torch.cuda.list_gpu_processes()


def test_recording_without_a_gpu_says_that_it_does_nothing():
    with pytest.warns(UserWarning, match="no GPU is in use"):
        torch.cuda.memory._record_memory_history()
    torch.cuda.memory._record_memory_history(None)
