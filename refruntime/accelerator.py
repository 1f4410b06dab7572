"""torch.accelerator: the accelerator of this machine, of whatever kind: a CUDA GPU or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refruntime import cuda
from refruntime._device import Device
from refruntime.cuda import current_device as current_device_index
from refruntime.cuda import device_count, is_available, synchronize
from refruntime.cuda import set_device as set_device_index

if TYPE_CHECKING:
    from refruntime.alloc.compaction import Compaction

__all__ = [
    "compact", "current_accelerator", "current_device_index", "device_count", "is_available",
    "set_device_index", "synchronize",
]  # fmt: skip


def current_accelerator(check_available: bool = False) -> Device | None:
    """Return the accelerator as a device without an index, or None where there is none."""
    return Device("cuda") if cuda.is_available() else None


def compact(device: Any = None, *, request: int | None = None, dry_run: bool = False) -> Compaction:
    """Move tensors together; see `cuda.compact`. Without an accelerator: those of the CPU."""
    if device is None and not cuda.is_available():
        device = "cpu"
    return cuda.compact(device, request=request, dry_run=dry_run)
