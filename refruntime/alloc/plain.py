"""The strategy of having none: every request is a span of the upstream.

State
-----
The size of each block in use.

Invariants
----------
* Reserved and allocated bytes are equal; each malloc and each free is one call to the upstream.
"""

from __future__ import annotations

from refruntime.alloc import sizes
from refruntime.alloc.oom import Shortage
from refruntime.alloc.upstream import Upstream, UpstreamExhausted
from refruntime.errors import ArgumentValueError


class PlainAllocator:
    """Passes requests on, rounded to 512 bytes: what a cache is measured against."""

    def __init__(self, upstream: Upstream, *, device: str = "CPU") -> None:
        self.upstream = upstream
        self.device = device
        self.allocated_bytes = 0
        self.retries = 0
        self.ooms = 0
        self._sizes: dict[int, int] = {}

    @property
    def reserved_bytes(self) -> int:
        """The bytes taken from the upstream."""
        return self.allocated_bytes

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Return the address of `nbytes` bytes; raises OutOfMemoryError."""
        if nbytes == 0:
            return 0
        size = sizes.round_up(max(nbytes, 1), sizes.MIN_BLOCK)
        try:
            address = self.upstream.reserve(size, stream)
        except UpstreamExhausted:
            self.ooms += 1
            raise self._shortage(size).error() from None
        self._sizes[address] = size
        self.allocated_bytes += size
        return address

    def free(self, address: int) -> None:
        """Give a block back to the upstream; address 0 is ignored."""
        if address == 0:
            return
        if address not in self._sizes:
            raise ArgumentValueError(
                "free", expected="the address of a block in use", got=f"{address:#x}"
            )
        size = self._sizes.pop(address)
        self.upstream.release(address, size)
        self.allocated_bytes -= size

    def _shortage(self, size: int) -> Shortage:
        capacity, used = self.upstream.capacity, self.upstream.used
        return Shortage(
            self.device, size, capacity, capacity - used, self.allocated_bytes, self.reserved_bytes
        )
