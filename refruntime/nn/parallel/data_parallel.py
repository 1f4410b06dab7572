"""A module that splits its input over GPUs.

Invariants
----------
* With no GPU, or with one, the module itself is called, on the caller's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refruntime import _storage
from refruntime._device import Device
from refruntime.errors import DeviceError
from refruntime.nn.modules.module import Module


def _chosen(device_ids: Sequence[Any] | None) -> list[Device]:
    """Return the GPUs to use: those that are named, else all.

    Raises
    ------
    DeviceError
        If there are several.
    """
    ids = range(len(_storage.gpu_allocators)) if device_ids is None else device_ids
    devices = [Device("cuda", i) if isinstance(i, int) else Device(i) for i in ids]
    if len(devices) > 1 and _storage.gpu_allocators:
        raise DeviceError(
            "DataParallel",
            what="splitting a batch over several GPUs is not implemented",
            expected="one GPU",
            got=", ".join(str(device) for device in devices),
            remedy="pass device_ids=[0]",
        )
    return devices if _storage.gpu_allocators else []


class DataParallel(Module):
    """Call a module on the GPU that is named, or where it is when there is none.

    Parameters
    ----------
    module : Module
        What to call.
    device_ids : sequence of int or Device, optional
        The GPUs; default all.
    output_device : int or Device, optional
        Where results are gathered.
    dim : int
        The dimension along which inputs are split.
    """

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__()
        devices = _chosen(device_ids)
        self.dim = dim
        self.device_ids = [device.index for device in devices]
        self.output_device = output_device if devices else None
        self.module = module.to(devices[0]) if devices else module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module on the inputs, moved to its GPU."""
        if self.device_ids:
            inputs, kwargs = moved((inputs, kwargs), Device("cuda", self.device_ids[0]))
        return self.module(*inputs, **kwargs)


def moved(value: Any, device: Device) -> Any:
    """Return a structure of tuples, lists and dicts with its tensors on a device."""
    if hasattr(value, "meta"):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(part, device) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(moved(part, device) for part in value)
    return value


def data_parallel(
    module: Module, inputs: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Call a module as `DataParallel` would."""
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return DataParallel(module, device_ids, output_device, dim)(*arguments, **(module_kwargs or {}))
