"""Free spans in order of address and of size, with neighbours joined: what most strategies share.

State
-----
`FreeSpans` keeps the start of each free span in order, its size, and (size, start) in order.

Invariants
----------
* Spans do not overlap, and no two of them touch, except at a barrier.
* A barrier is an address at which spans are never joined: where the upstream gave a new one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """A range of bytes: where it starts, and how many they are."""

    address: int
    size: int


class FreeSpans:
    """The free spans of one pool.

    Every change costs a binary search and a move of two lists; a search by size or by address is
    a binary search.

    Parameters
    ----------
    barriers : set of int, optional
        The addresses at which spans are never joined. The caller may go on changing the set.
    """

    def __init__(self, barriers: set[int] | None = None) -> None:
        self.barriers: set[int] = set() if barriers is None else barriers
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Span]:
        """Yield the spans in order of address; the list may change meanwhile."""
        return iter([Span(start, self._sizes[start]) for start in self._starts])

    @property
    def largest(self) -> int:
        """The size of the largest span; 0 if there is none."""
        return self._by_size[-1][0] if self._by_size else 0

    def descending(self) -> Iterator[Span]:
        """Yield the spans from the largest to the smallest; the list must not change meanwhile."""
        return (Span(start, size) for size, start in reversed(self._by_size))

    def add(self, address: int, size: int) -> Span:
        """Add a span, joined with its free neighbours; return the whole."""
        place = bisect_left(self._starts, address)
        end = address + size
        if end in self._sizes and end not in self.barriers:
            size += self.remove(end).size
        if place and address not in self.barriers:
            left = self._starts[place - 1]
            if left + self._sizes[left] == address:
                size += self.remove(left).size
                address = left
                place -= 1
        self._starts.insert(place, address)
        self._sizes[address] = size
        insort(self._by_size, (size, address))
        return Span(address, size)

    def remove(self, address: int) -> Span:
        """Remove the span that starts here, and return it."""
        size = self._sizes.pop(address)
        del self._starts[bisect_left(self._starts, address)]
        del self._by_size[bisect_left(self._by_size, (size, address))]
        return Span(address, size)

    def best_fit(self, size: int) -> int | None:
        """Return the start of the smallest span that holds `size`; of equal ones, the lowest."""
        place = bisect_left(self._by_size, (size, 0))
        return self._by_size[place][1] if place < len(self._by_size) else None

    def first_fit(self, size: int) -> int | None:
        """Return the start of the lowest span that holds `size`."""
        if size > self.largest:
            return None
        sizes = self._sizes
        return next(start for start in self._starts if sizes[start] >= size)

    def around(self, address: int) -> Span | None:
        """Return the span that holds this address."""
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        start = self._starts[place]
        size = self._sizes[start]
        return Span(start, size) if address < start + size else None

    def free_at(self, address: int, size: int) -> bool:
        """Whether all bytes of a range are free and in one span."""
        span = self.around(address)
        return span is not None and address + size <= span.address + span.size

    def carve(self, address: int, size: int) -> Span:
        """Take a range that is free (see `free_at`); what is left of its span stays free."""
        span = self.around(address)
        assert span is not None, f"{address:#x} is not free"
        self.remove(span.address)
        if address > span.address:
            self._put(span.address, address - span.address)
        rest = span.address + span.size - address - size
        if rest:
            self._put(address + size, rest)
        return Span(address, size)

    def _put(self, address: int, size: int) -> None:
        """Add a span that has no free neighbour."""
        insort(self._starts, address)
        self._sizes[address] = size
        insort(self._by_size, (size, address))
