"""A virtual upstream that remembers what is reserved, and what strategies must keep to."""

from __future__ import annotations

from collections.abc import Callable

from refruntime.alloc.strategies import Pooled, Span, Stitching
from refruntime.alloc.strategies.heap import PAGE
from refruntime.alloc.strategy import Strategy
from refruntime.alloc.upstream import AddressModel, VirtualUpstream

KIB, MIB = 1 << 10, 1 << 20


class Ledger(VirtualUpstream):
    """Knows every reserved span, every range, and what is mapped, in steps of 2 MiB."""

    def __init__(self, capacity: int, addresses: AddressModel | None = None) -> None:
        super().__init__(capacity, addresses=addresses)
        self.spans: dict[int, int] = {}
        self.pages: set[int] = set()
        self.ranges: set[int] = set()

    def reserve(self, nbytes: int, stream: int) -> int:
        address = super().reserve(nbytes, stream)
        self.spans[address] = nbytes
        return address

    def release(self, address: int, nbytes: int) -> None:
        super().release(address, nbytes)
        del self.spans[address]

    def reserve_addresses(self, nbytes: int) -> int:
        address = super().reserve_addresses(nbytes)
        self.ranges.add(address)
        return address

    def release_addresses(self, address: int, nbytes: int) -> None:
        super().release_addresses(address, nbytes)
        self.ranges.remove(address)

    def map(self, address: int, nbytes: int, page: int) -> None:
        super().map(address, nbytes, page)
        self.pages.update(range(address, address + nbytes, PAGE))

    def unmap(self, address: int, nbytes: int, page: int, stream: int) -> None:
        super().unmap(address, nbytes, page, stream)
        self.pages.difference_update(range(address, address + nbytes, PAGE))

    def backs(self, span: Span) -> bool:
        """Whether memory stands behind every byte of a span."""
        address, size = span
        if any(a <= address and address + size <= a + n for a, n in self.spans.items()):
            return True
        first = address // PAGE * PAGE
        return all(page in self.pages for page in range(first, address + size, PAGE))


def memory_of(pool: Strategy, address: int, nbytes: int) -> list[Span]:
    """Return where the bytes of a block in use really are; `nbytes` were asked for."""
    if isinstance(pool, Stitching) and address in pool._held:
        return pool._held[address][1]
    if isinstance(pool, Pooled):
        return [Span(address, pool.blocks[address].size)]
    return [Span(address, nbytes)]


Build = Callable[[Ledger], Strategy]
