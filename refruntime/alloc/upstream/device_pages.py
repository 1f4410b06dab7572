"""Pages of GPU memory behind ranges of addresses, through the driver's virtual-memory calls.

State
-----
The handle of the memory behind each page, by address.

Invariants
----------
* A page is one handle, created for it and released after it is unmapped.
* A map that fails at any point leaves no page mapped and no handle alive.
* Lack of memory raises `UpstreamExhausted`; what else the driver refuses raises `DeviceError`.
* The context of the device must be current; see `CupyUpstream`.
"""

from __future__ import annotations

from typing import Any, Final

from refruntime import _optional
from refruntime.alloc.upstream.protocol import UpstreamExhausted
from refruntime.errors import DeviceError

_SUCCESS: Final = 0
_OUT_OF_MEMORY: Final = 2


class DevicePages:
    """Address ranges and pages of one GPU.

    Parameters
    ----------
    device : int
        Its index.
    """

    def __init__(self, device: int) -> None:
        self._handles: dict[int, Any] = {}
        driver = _optional.cuda_driver
        location = driver.CUmemLocation()
        location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = device
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location = location
        self._access = driver.CUmemAccessDesc()
        self._access.location = location
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE

    def take(self, nbytes: int) -> int:
        """Return the start of a fresh range of addresses."""
        return int(_call("cuMemAddressReserve", nbytes, 0, 0, 0))

    def give(self, address: int, nbytes: int) -> None:
        """Give a range back."""
        _call("cuMemAddressFree", address, nbytes)

    def map(self, address: int, nbytes: int, page: int) -> None:
        """Create pages, map them, and make them readable and writable: all, or none."""
        places = range(address, address + nbytes, page)
        handles = self._create(len(places), page)
        mapped = 0
        try:
            for place, handle in zip(places, handles):
                _call("cuMemMap", place, page, 0, handle, 0)
                mapped += 1
            _call("cuMemSetAccess", address, nbytes, [self._access], 1)
        except BaseException:
            for place in places[:mapped]:
                _call("cuMemUnmap", place, page)
            _release(handles)
            raise
        self._handles.update(zip(places, handles))

    def unmap(self, address: int, page: int) -> None:
        """Unmap one page, and release its memory."""
        _call("cuMemUnmap", address, page)
        _call("cuMemRelease", self._handles.pop(address))

    def _create(self, count: int, page: int) -> list[Any]:
        handles: list[Any] = []
        try:
            for _ in range(count):
                handles.append(_call("cuMemCreate", page, self._properties, 0))
        except BaseException:
            _release(handles)
            raise
        return handles


def supported(device: int) -> bool:
    """Whether a GPU has virtual memory, and the package that reaches it is installed."""
    if not _optional.cuda_driver:
        return False
    attributes = _optional.cuda_driver.CUdevice_attribute
    wanted = attributes.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    return bool(_call("cuDeviceGetAttribute", wanted, _call("cuDeviceGet", device)))


def _release(handles: list[Any]) -> None:
    for handle in handles:
        _call("cuMemRelease", handle)


def _call(name: str, *arguments: Any) -> Any:
    """Call the driver; return what it gives besides its status."""
    status, *values = getattr(_optional.cuda_driver, name)(*arguments)
    if int(status) == _OUT_OF_MEMORY:
        raise UpstreamExhausted
    if int(status) != _SUCCESS:
        raise DeviceError(
            name,
            what="the CUDA driver refused",
            expected="CUDA_SUCCESS",
            got=getattr(status, "name", str(status)),
        )
    return values[0] if values else None
