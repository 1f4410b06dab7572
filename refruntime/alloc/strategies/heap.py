"""A growing heap: one range of addresses, with pages mapped behind its beginning and its end.

State
-----
The range, and how much of it is mapped from its start upward and from its end downward.

Invariants
----------
* The mapped parts are whole pages of 2 MiB, do not overlap, and only grow.
* A request to grow maps all of the missing pages, or none.

Strategies that were written for one given piece of memory (buddy, TLSF, two-ended) run over this,
so that what they reserve is what they reach. It needs an upstream with virtual memory.
"""

from __future__ import annotations

from typing import Final

from refruntime.alloc.upstream import Upstream, UpstreamExhausted
from refruntime.errors import ArgumentValueError

PAGE: Final = 2 << 20


class Heap:
    """Addresses for everything that the upstream can ever give.

    Parameters
    ----------
    upstream : Upstream
        Where pages come from.
    nbytes : int, optional
        The length of the range; by default the upstream's capacity, in whole pages.

    Attributes
    ----------
    start, end : int
        The range.
    """

    def __init__(self, upstream: Upstream, nbytes: int | None = None) -> None:
        if not upstream.supports_virtual_memory:
            raise ArgumentValueError(
                "Heap",
                expected="an upstream with virtual memory",
                got=type(upstream).__name__,
                remedy="use a strategy that takes segments, such as bfc",
            )
        self._upstream = upstream
        length = upstream.capacity if nbytes is None else nbytes
        length = max(-(-length // PAGE), 1) * PAGE
        self.start = upstream.reserve_addresses(length)
        self.end = self.start + length
        self._low = self.start
        self._high = self.end

    @property
    def mapped(self) -> int:
        """The bytes that the heap holds."""
        return self._low - self.start + self.end - self._high

    def reach_up(self, address: int) -> bool:
        """Map all pages from the start up to an address; return whether they are mapped."""
        missing = -(-(address - self._low) // PAGE) * PAGE
        if missing <= 0:
            return True
        if self._low + missing > self._high or not self._map(self._low, missing):
            return False
        self._low += missing
        return True

    def reach_down(self, address: int) -> bool:
        """Map all pages from an address up to the end; return whether they are mapped."""
        missing = -(-(self._high - address) // PAGE) * PAGE
        if missing <= 0:
            return True
        if self._high - missing < self._low or not self._map(self._high - missing, missing):
            return False
        self._high -= missing
        return True

    def _map(self, address: int, nbytes: int) -> bool:
        try:
            self._upstream.map(address, nbytes, PAGE)
        except UpstreamExhausted:
            return False
        return True
