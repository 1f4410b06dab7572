"""torch.cuda: GPUs, their memory and their random streams.

Importing it loads no driver and no package: what needs a GPU asks for it when it is called.
"""

from __future__ import annotations

from refruntime import _legacy
from refruntime.cuda import amp, host_memory, memory, random
from refruntime.cuda.devices import (
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from refruntime.cuda.host_memory import *  # noqa: F403  the list of names stands there
from refruntime.cuda.memory import *  # noqa: F403  the list of names stands there
from refruntime.cuda.random import *  # noqa: F403  the list of names stands there

BFloat16Tensor = _legacy.on_device(_legacy.BFloat16Tensor, "cuda")
BoolTensor = _legacy.on_device(_legacy.BoolTensor, "cuda")
ByteTensor = _legacy.on_device(_legacy.ByteTensor, "cuda")
CharTensor = _legacy.on_device(_legacy.CharTensor, "cuda")
DoubleTensor = _legacy.on_device(_legacy.DoubleTensor, "cuda")
FloatTensor = _legacy.on_device(_legacy.FloatTensor, "cuda")
HalfTensor = _legacy.on_device(_legacy.HalfTensor, "cuda")
IntTensor = _legacy.on_device(_legacy.IntTensor, "cuda")
LongTensor = _legacy.on_device(_legacy.LongTensor, "cuda")
ShortTensor = _legacy.on_device(_legacy.ShortTensor, "cuda")

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor",
    "HalfTensor", "IntTensor", "LongTensor", "ShortTensor", "amp",
    "can_device_access_peer",
    "current_device", "device", "device_count", "device_of", "get_arch_list",
    "get_device_capability", "get_device_name", "get_device_properties", "init", "is_available",
    "is_bf16_supported", "is_initialized", "memory", "random", "set_device", "synchronize",
]  # fmt: skip
__all__ += host_memory.__all__
__all__ += memory.__all__
__all__ += random.__all__
