"""torch.cuda without a GPU, and its memory figures over a GPU that is an address space."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime import _storage
from refruntime.alloc import CachingAllocator, VirtualUpstream
from refruntime.errors import DeviceError

MIB = 1 << 20


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose allocator serves addresses only."""
    allocator = CachingAllocator(VirtualUpstream(64 * MIB), device="cuda:0")
    monkeypatch.setattr(_storage, "gpu_allocators", [allocator])
    return allocator


def test_questions_are_answered_without_a_gpu():
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0
    assert not torch.cuda.is_bf16_supported()
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved() == 0
    assert torch.cuda.memory_stats() == {}
    assert torch.accelerator.current_accelerator() is None
    assert not torch.accelerator.is_available()


def test_what_needs_no_gpu_does_nothing():
    torch.cuda.manual_seed_all(1)
    torch.cuda.manual_seed(1)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.get_rng_state_all() == []
    with torch.cuda.device(-1):
        torch.cuda.set_device(-1)


@pytest.mark.parametrize(
    "act",
    [torch.cuda.synchronize, torch.cuda.current_device, torch.cuda.get_device_name,
     torch.cuda.init, lambda: torch.cuda.FloatTensor(2), lambda: torch.zeros(2).cuda()],
)  # fmt: skip
def test_using_a_gpu_that_is_not_there_is_refused(act):
    with pytest.raises(DeviceError):
        act()


def test_memory_figures_come_from_the_allocator(gpu):
    assert torch.cuda.is_available()
    address = gpu.malloc(3 * MIB)
    assert torch.cuda.memory_allocated() == 3 * MIB
    assert torch.cuda.memory_reserved("cuda:0") >= 3 * MIB
    gpu.free(address)
    assert torch.cuda.memory_allocated(0) == 0
    assert torch.cuda.max_memory_allocated() == 3 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info() == (64 * MIB, 64 * MIB)
    assert "Allocated memory" in torch.cuda.memory_summary()


def test_the_current_device_is_put_back(gpu):
    with torch.cuda.device(0):
        assert torch.cuda.current_device() == 0
    with pytest.raises(DeviceError, match="cuda:1"):
        torch.cuda.set_device(1)
    with pytest.raises(DeviceError):
        torch.cuda.memory_allocated("cpu")


def test_seeding_reaches_the_generators_of_gpus(gpu):
    torch.cuda.manual_seed_all(5)
    assert torch.cuda.initial_seed() == 5
    state = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(6)
    torch.cuda.set_rng_state(state)
    assert torch.cuda.initial_seed() == 5


def test_old_types_belong_to_their_device():
    assert issubclass(torch.cuda.FloatTensor, torch.FloatTensor)
    assert isinstance(torch.zeros(1), torch.FloatTensor)
    assert not isinstance(torch.zeros(1), torch.cuda.FloatTensor)
