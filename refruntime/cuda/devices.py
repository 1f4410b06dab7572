"""The GPUs that this process drives: how many, which one is current, what they are.

State
-----
The current device's index, a thread.

Invariants
----------
* A GPU exists for a program when an allocator serves it (`_storage.gpu_allocators`); what a driver
  or a package on the machine might offer does not count.
* Questions (`is_available`, `device_count`) never fail; using a GPU that is not there does.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from refruntime import _optional, _storage
from refruntime._device import Device
from refruntime.errors import DeviceError


class _Current(threading.local):
    def __init__(self) -> None:
        self.index = 0


_current = _Current()


def is_available() -> bool:
    """Whether this process drives a GPU."""
    return bool(_storage.gpu_allocators)


def device_count() -> int:
    """Return how many GPUs this process drives."""
    return len(_storage.gpu_allocators)


def is_initialized() -> bool:
    """Whether a GPU is in use."""
    return is_available()


def init() -> None:
    """Make sure that there is a GPU.

    Raises
    ------
    DeviceError
        If there is none.
    """
    require("init", None)


def require(op: str, device: Any) -> int:
    """Return the index of a GPU, the current one for None.

    Raises
    ------
    DeviceError
        If this process does not drive that GPU, or if `device` is no GPU.
    """
    index = index_of(op, device)
    if index < device_count():
        return index
    raise DeviceError(
        op,
        what="Found no NVIDIA driver for this device" if not is_available() else "",
        expected=f"one of {device_count()} GPUs",
        got=f"cuda:{index}",
        remedy="ask cuda.is_available() first, or use device='cpu'",
    )


def index_of(op: str, device: Any) -> int:
    """Return the index that a device, a text or a number names; the current one for None."""
    if device is None:
        return _current.index
    found = Device(device)
    if found.type != "cuda":
        raise DeviceError(
            op, expected="a GPU such as 'cuda:0'", got=str(found), remedy="pass a GPU or None"
        )
    return _current.index if found.index is None else found.index


def current_device() -> int:
    """Return the index of the GPU that this thread uses."""
    return require("current_device", None)


def set_device(device: Any) -> None:
    """Use a GPU for what this thread does from now on; a negative index changes nothing."""
    if isinstance(device, int) and device < 0:
        return
    _current.index = require("set_device", device)


class device:  # noqa: N801  torch's name
    """Use a GPU inside a ``with`` block; None or a negative index changes nothing."""

    def __init__(self, device: Any) -> None:
        negative = isinstance(device, int) and device < 0
        self.idx = None if device is None or negative else index_of("device", device)
        self._before = 0

    def __enter__(self) -> device:
        self._before = _current.index
        if self.idx is not None:
            set_device(self.idx)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        _current.index = self._before


class device_of(device):  # noqa: N801  torch's name
    """Use the GPU of a tensor inside a ``with`` block; a CPU tensor changes nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.is_cuda else None)


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What a GPU is: its name, compute capability, bytes of memory, multiprocessors."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Return what a GPU is."""
    index = require("get_device_properties", device)
    asked = _optional.cupy.cuda.runtime.getDeviceProperties(index)
    return DeviceProperties(
        name=asked["name"].decode(),
        major=asked["major"],
        minor=asked["minor"],
        total_memory=asked["totalGlobalMem"],
        multi_processor_count=asked["multiProcessorCount"],
    )


def get_device_name(device: Any = None) -> str:
    """Return the name of a GPU."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return the compute capability of a GPU, for example ``(8, 0)``."""
    found = get_device_properties(device)
    return found.major, found.minor


def get_arch_list() -> list[str]:
    """Return the architectures of kernels compiled ahead: none, for they compile when used."""
    return []


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the current GPU computes in bfloat16 (its kernels convert where it does not)."""
    return is_available() and (including_emulation or get_device_capability()[0] >= 8)


def synchronize(device: Any = None) -> None:
    """Wait until a GPU has done all its work."""
    index = require("synchronize", device)
    with _optional.cupy.cuda.Device(index):
        _optional.cupy.cuda.runtime.deviceSynchronize()


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether one GPU reads the memory of another."""
    one = require("can_device_access_peer", device)
    other = require("can_device_access_peer", peer_device)
    return bool(_optional.cupy.cuda.runtime.deviceCanAccessPeer(one, other))
