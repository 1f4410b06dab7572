"""What a virtual device is made of: where its addresses lie, what its driver costs, what it logs.

Sources
-------
The two rules of placing segments are those of the stand-in driver that recorded the decisions of
PyTorch's allocator; the costs are named at `DriverLatency`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from refruntime.alloc.upstream.pages import HUGE_PAGE

DEFAULT_BASE: Final = 1 << 32
MIB: Final = 1 << 20


class AddressModel(Protocol):
    """Places spans and ranges in an address space."""

    def take(self, nbytes: int) -> int:
        """Return the start of free addresses, aligned to 2 MiB; OSError if there are none."""

    def give(self, address: int, nbytes: int) -> None:
        """Take addresses back."""

    def commit(self, address: int, nbytes: int) -> None:
        """Let memory stand behind addresses that were taken; OSError if there is none."""

    def decommit(self, address: int, nbytes: int) -> None:
        """Take the memory away."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy what stands at addresses, if anything does."""


class _ShapeOnly:
    """Addresses that no memory ever stands behind."""

    def commit(self, address: int, nbytes: int) -> None:
        """Do nothing."""

    def decommit(self, address: int, nbytes: int) -> None:
        """Do nothing."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Do nothing: there are no contents."""


class BumpAddresses(_ShapeOnly):
    """Always above everything before: no two spans of a run share an address."""

    def __init__(self, base: int = DEFAULT_BASE) -> None:
        self._next = base

    def take(self, nbytes: int) -> int:
        """Return the next address."""
        size = _aligned(nbytes)
        # Nothing is called in between, so that two threads cannot be given one address.
        address = self._next
        self._next = address + size
        return address

    def give(self, address: int, nbytes: int) -> None:
        """Do nothing: addresses are not used again."""


class FirstFitAddresses(_ShapeOnly):
    """The lowest gap that is large enough; for one thread at a time."""

    def __init__(self, base: int = DEFAULT_BASE) -> None:
        self._base = base
        self._taken: list[tuple[int, int]] = []

    def take(self, nbytes: int) -> int:
        """Return the start of the lowest gap of this size."""
        size, address = _aligned(nbytes), self._base
        for start, end in self._taken:
            if start - address >= size:
                break
            address = end
        bisect.insort(self._taken, (address, address + size))
        return address

    def give(self, address: int, nbytes: int) -> None:
        """Make a gap."""
        self._taken.remove((address, address + _aligned(nbytes)))


def _aligned(nbytes: int) -> int:
    return max(-(-nbytes // HUGE_PAGE), 1) * HUGE_PAGE


# What a driver call costs: its name, as in `CallLog`, and its bytes -> nanoseconds.
LatencyModel = Callable[[str, int], int]


# Nanoseconds of a call, and nanoseconds more a MiB.
_DRIVER_COSTS: Final = {
    "malloc": (179_000, 15_950), "free": (179_000, 15_950),
    "create": (50_000, 0), "map": (10_000, 0), "set_access": (10_000, 0), "unmap": (30_000, 0),
    "release": (10_000, 0), "reserve": (10_000, 0), "addr_free": (10_000, 0),
    "event_create": (1_000, 0), "event_record": (1_000, 0), "event_query": (1_000, 0),
    "event_sync": (1_000, 0), "stream_sync": (5_000, 0), "device_sync": (10_000, 0),
    "mem_get_info": (10_000, 0),
}  # fmt: skip


class DriverLatency:
    """A cost that grows with the size of the call: ``fixed + slope * MiB`` nanoseconds.

    Parameters
    ----------
    costs : mapping, optional
        Name of a call -> (fixed, slope); a call that is missing costs nothing.

    Notes
    -----
    The defaults tell orders of magnitude; measure your card before you trust a total. cudaMalloc
    follows the two points that the benchmark rtj1/cuda-mempool gives, 180 us for 64 KiB and 1.2 ms
    for 64 MiB. cudaFree has no published figure; it synchronises, and is taken to be as dear.
    A page costs the same at any size: PyTorch's source notes that mapping ten pages of 2 MiB takes
    ten times as long as one of 20 MiB. The microseconds of pages, events and waits are assumptions.
    """

    def __init__(self, costs: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.costs = _DRIVER_COSTS if costs is None else costs

    def __call__(self, call: str, nbytes: int) -> int:
        """Return the nanoseconds of one call."""
        fixed, slope = self.costs.get(call, (0, 0))
        return fixed + slope * nbytes // MIB


class CallLog:
    """The driver calls of a virtual device, in the form of the recorded decisions of PyTorch's.

    Attributes
    ----------
    entries : list of list
        One a call: the step, the name, then what it was about. Spans and ranges go by number, in
        the order in which the driver gave them out. The names: ``malloc`` number bytes (or None
        bytes "oom"), ``free`` number bytes, ``reserve`` and ``addr_free`` number bytes, ``create``
        bytes ("oom"), ``release`` bytes, ``map``, ``unmap`` and ``set_access`` number offset bytes,
        ``event_create`` event, ``event_record`` event stream, ``event_query`` event
        "ready"/"not_ready", ``event_sync`` event, ``stream_sync`` stream, ``device_sync``,
        ``mem_get_info`` free total.
    step : int
        The step that is under way; whoever drives the device sets it.
    """

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []
        self.step = 0
        self._numbers: dict[int, int] = {}
        self._count = 0

    def write(self, call: str, *fields: Any) -> None:
        """Add an entry."""
        self.entries.append([self.step, call, *fields])

    def new_segment(self, address: int) -> int:
        """Number what the driver gives out at an address."""
        number = self._numbers[address] = self._count
        self._count += 1
        return number

    def number(self, address: int) -> int:
        """Return the number of the span or range that starts at an address."""
        return self._numbers[address]
