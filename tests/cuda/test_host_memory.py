"""Pinned tensors and their figures, over a GPU that is only said to be there."""

from __future__ import annotations

from typing import Any

import pytest

import refruntime as torch
from refruntime import _storage
from refruntime.alloc import pinning
from refruntime.errors import DeviceError


class Addresses:
    """The allocator of a GPU whose memory nobody touches."""

    def malloc(self, nbytes: int, stream: int, category: int) -> int:
        return 1 << 40

    def free(self, address: int) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU to pin for, and a process that has pinned nothing."""
    monkeypatch.setattr(_storage, "gpu_allocators", [Addresses()])
    monkeypatch.setattr(pinning, "_allocator", None)


def test_nothing_is_pinned_without_a_gpu() -> None:
    tensor = torch.arange(3)
    assert tensor.pin_memory() is tensor
    assert not tensor.is_pinned()
    assert torch.cuda.host_memory_stats() == {}
    assert torch.cuda.host_memory_stats_as_nested_dict() == {}
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()


def test_pinning_copies_once(gpu: None) -> None:
    tensor = torch.arange(10)
    pinned = tensor.pin_memory()
    assert pinned.is_pinned()
    assert not tensor.is_pinned()
    assert pinned.pin_memory() is pinned
    assert pinned[3:].is_pinned()
    assert torch.equal(pinned, tensor)
    pinned[0] = 5
    assert tensor[0] == 0


@pytest.mark.parametrize(
    "tensor", [torch.zeros(0), torch.ones(3, 4).t(), torch.ones(2, 1).expand(2, 5), torch.tensor(7)]
)
def test_any_layout_can_be_pinned(gpu: None, tensor: Any) -> None:
    pinned = tensor.pin_memory()
    assert pinned.is_pinned()
    assert pinned.shape == tensor.shape
    assert torch.equal(pinned, tensor)


def test_only_cpu_tensors_can_be_pinned(gpu: None) -> None:
    with pytest.raises(DeviceError, match="cannot pin a tensor on cuda:0"):
        torch.empty(2, device="cuda:0").pin_memory()


def test_gradients_flow_through_a_pinned_copy(gpu: None) -> None:
    leaf = torch.ones(3, requires_grad=True)
    (leaf.pin_memory() * 2).sum().backward()
    assert leaf.grad.tolist() == [2, 2, 2]


def test_figures_follow_pinned_tensors(gpu: None) -> None:
    pinned = torch.zeros(100, dtype=torch.uint8).pin_memory()
    stats = torch.cuda.host_memory_stats()
    assert (stats["active_bytes.current"], stats["active_requests.current"]) == (128, 1)
    assert list(stats) == sorted(stats)
    del pinned
    nested = torch.cuda.host_memory_stats_as_nested_dict()
    assert nested["active_bytes"] == {"allocated": 128, "current": 0, "freed": 128, "peak": 128}
    assert nested["allocated_bytes"]["current"] == 128
    assert nested["host_alloc_time"]["count"] == nested["num_host_alloc"] == 1


def test_figures_start_anew(gpu: None) -> None:
    torch.zeros(100, dtype=torch.uint8).pin_memory()
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()
    stats = torch.cuda.host_memory_stats()
    assert (stats["active_bytes.peak"], stats["active_bytes.allocated"]) == (0, 0)
    assert (stats["allocated_bytes.peak"], stats["num_host_alloc"]) == (128, 0)


def test_freed_memory_is_pinned_again(gpu: None) -> None:
    first = torch.zeros(100).pin_memory()
    address = first.data_ptr()
    del first
    assert torch.ones(128).pin_memory().data_ptr() == address
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == 1
