"""Requests that fail: the error for the user, and the observers who hear of it first.

State
-----
The observers, in the order in which they were attached.

Invariants
----------
* Observers run outside of the allocator's guard, on the thread whose request failed, before the
  error is raised; what they raise is raised instead.
"""

from __future__ import annotations

from collections.abc import Callable

from refruntime.alloc.codes import REJECTED
from refruntime.alloc.oom import Shortage, rejection
from refruntime.alloc.private_pools import free_in_private_pools
from refruntime.alloc.statistics import current_of
from refruntime.alloc.tables import (
    ALLOCATED_BYTES,
    FAILED_FREE,
    FAILED_SIZE,
    RESERVED_BYTES,
    Tables,
)
from refruntime.errors import OutOfMemoryError

# device, bytes tried, limit or capacity, bytes free
OomObserver = Callable[[str, int, int, int], object]
# device, bytes tried, bytes reserved, capacity
RejectionObserver = Callable[[str, int, int, int], object]


class Failures:
    """Reports the failed requests of one allocator."""

    def __init__(self, device: str, tables: Tables) -> None:
        self.oom_observers: list[OomObserver] = []
        self.rejection_observers: list[RejectionObserver] = []
        self._device = device
        self._tables = tables

    def report(
        self, code: int, nbytes: int, limit: int, capacity: int
    ) -> Callable[[], OutOfMemoryError]:
        """Return what tells the observers, and returns the error, outside of the guard.

        The figures are those of now.

        Parameters
        ----------
        code : int
            Of `codes`: why the request failed.
        nbytes : int
            What was asked for.
        limit, capacity : int
            Bytes that may be reserved, or -1, and those of the device.
        """
        header = self._tables.header
        tried, reserved = header[FAILED_SIZE], current_of(header, RESERVED_BYTES)
        if code == REJECTED:
            return lambda: self._reject(nbytes, tried, reserved, capacity)
        shortage = Shortage(
            self._device,
            tried,
            capacity,
            header[FAILED_FREE],
            current_of(header, ALLOCATED_BYTES),
            reserved,
            limit,
            free_in_private_pools(self._tables),
        )
        return lambda: self._fail(shortage)

    def _reject(self, nbytes: int, tried: int, reserved: int, capacity: int) -> OutOfMemoryError:
        for observer in list(self.rejection_observers):
            observer(self._device, tried, reserved, capacity)
        return rejection(self._device, nbytes)

    def _fail(self, shortage: Shortage) -> OutOfMemoryError:
        bound = shortage.limit if shortage.limit >= 0 else shortage.capacity
        for observer in list(self.oom_observers):
            observer(self._device, shortage.tried, bound, shortage.free)
        return shortage.error()
