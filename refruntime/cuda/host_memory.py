"""Pinned host memory in figures: the part of ``torch.cuda.memory`` that is not about a GPU.

Invariants
----------
* Every figure is read from the process's pinned allocator; the names are PyTorch's.
* Without a GPU nothing is pinned: there are no figures, and a reset does nothing.
"""

from __future__ import annotations

from typing import Any

from refruntime.alloc.pinning import pinned
from refruntime.cuda.devices import is_available

__all__ = [
    "host_memory_stats", "host_memory_stats_as_nested_dict",
    "reset_accumulated_host_memory_stats", "reset_peak_host_memory_stats",
]  # fmt: skip


def host_memory_stats() -> dict[str, Any]:
    """Return all statistics of pinned memory; none without a GPU.

    ``allocations`` and ``allocated_bytes`` count what was taken from the driver,
    ``active_requests`` and ``active_bytes`` what is in use or waits for a stream, each with
    ``.current``, ``.peak``, ``.allocated`` and ``.freed``; ``num_host_alloc`` and ``num_host_free``
    count blocks got and given back; ``host_alloc_time`` and ``host_free_time`` are the driver's
    microseconds.
    """
    return dict(pinned().stats()) if is_available() else {}


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Return what `host_memory_stats` does, one dictionary a name."""
    return dict(pinned().nested_stats()) if is_available() else {}


def reset_accumulated_host_memory_stats() -> None:
    """Count what is allocated and freed from now on."""
    if is_available():
        pinned().reset_totals()


def reset_peak_host_memory_stats() -> None:
    """Make the present figures the peaks."""
    if is_available():
        pinned().reset_peaks()
