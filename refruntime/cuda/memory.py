"""GPU memory in figures: what PyTorch calls ``torch.cuda.memory``.

Invariants
----------
* Every figure is read from the caching allocator of the GPU; the names of the statistics are
  PyTorch's.
* Without a GPU the figures are zero and emptying the cache does nothing, as in PyTorch before a
  GPU is first used.
"""

from __future__ import annotations

from typing import Any

from refruntime import _storage
from refruntime.cuda.devices import index_of, is_available, require
from refruntime.errors import OutOfMemoryError

__all__ = [
    "OutOfMemoryError", "empty_cache", "max_memory_allocated", "max_memory_cached",
    "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_cached", "memory_reserved",
    "memory_snapshot", "memory_stats", "memory_summary", "reset_accumulated_memory_stats",
    "reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_memory_stats",
]  # fmt: skip


def _allocator(op: str, device: Any) -> Any:
    return _storage.gpu_allocators[require(op, device)]


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Return all statistics of a GPU's allocator; none without a GPU."""
    index_of("memory_stats", device)
    if not is_available():
        return {}
    stats: dict[str, Any] = _allocator("memory_stats", device).stats()
    return stats


def _figure(name: str, device: Any) -> int:
    return int(memory_stats(device).get(name, 0))


def memory_allocated(device: Any = None) -> int:
    """Return the bytes that tensors occupy now."""
    return _figure("allocated_bytes.all.current", device)


def max_memory_allocated(device: Any = None) -> int:
    """Return the most bytes that tensors have occupied since the last reset."""
    return _figure("allocated_bytes.all.peak", device)


def memory_reserved(device: Any = None) -> int:
    """Return the bytes that the allocator holds, in use or cached."""
    return _figure("reserved_bytes.all.current", device)


def max_memory_reserved(device: Any = None) -> int:
    """Return the most bytes that the allocator has held since the last reset."""
    return _figure("reserved_bytes.all.peak", device)


memory_cached = memory_reserved
max_memory_cached = max_memory_reserved


def empty_cache() -> None:
    """Give all unused memory back to the driver."""
    for allocator in _storage.gpu_allocators:
        allocator.empty_cache()


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks begin again from what is in use now."""
    if is_available():
        _allocator("reset_peak_memory_stats", device).reset_peak_stats()


reset_max_memory_allocated = reset_peak_memory_stats
reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Let the totals begin again from zero."""
    if is_available():
        _allocator("reset_accumulated_memory_stats", device).reset_accumulated_stats()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the statistics as a text table."""
    return str(_allocator("memory_summary", device).summary())


def memory_snapshot(device: Any = None) -> list[dict[str, Any]]:
    """Return every segment and block of a GPU's allocator."""
    if not is_available():
        return []
    segments: list[dict[str, Any]] = _allocator("memory_snapshot", device).snapshot()["segments"]
    return segments


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the bytes that are free on a GPU and the bytes that it has."""
    upstream = _allocator("mem_get_info", device).upstream
    return upstream.capacity - upstream.used, upstream.capacity
