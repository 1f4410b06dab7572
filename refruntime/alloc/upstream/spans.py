"""The books of an upstream: which spans are out, which addresses are kept, which pages are mapped.

State
-----
`AddressRanges` holds the ranges (start -> bytes, and the starts in order) and the mapped pages
(address -> bytes).

Invariants
----------
* Ranges do not overlap; every page lies inside one range, and pages do not overlap.
* A check raises before anything is changed.
"""

from __future__ import annotations

import bisect

from refruntime.errors import ArgumentValueError


def check_span(spans: dict[int, int], address: int, nbytes: int, op: str = "release") -> None:
    """Refuse to take back what is not a whole span of these."""
    if spans.get(address) != nbytes:
        raise ArgumentValueError(
            op,
            expected="a reserved span, whole",
            got=f"{nbytes} bytes at {address:#x} (reserved there: {spans.get(address, 0)})",
        )


class AddressRanges:
    """Ranges of addresses, and the pages that stand behind some of them."""

    def __init__(self) -> None:
        self.pages: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._starts: list[int] = []

    @property
    def mapped(self) -> int:
        """The bytes of all mapped pages."""
        return sum(self.pages.values())

    def add(self, address: int, nbytes: int) -> None:
        """Note a range."""
        self._sizes[address] = nbytes
        bisect.insort(self._starts, address)

    def check_remove(self, address: int, nbytes: int) -> None:
        """Refuse to give up what is not a whole range, or has pages."""
        check_span(self._sizes, address, nbytes, "release_addresses")
        pages = sum(address <= page < address + nbytes for page in self.pages)
        if pages:
            raise ArgumentValueError(
                "release_addresses",
                expected="a range without pages",
                got=f"{pages} mapped pages in {nbytes} bytes at {address:#x}",
                remedy="unmap them first",
            )

    def remove(self, address: int) -> None:
        """Forget a range."""
        del self._sizes[address]
        self._starts.remove(address)

    def start_of(self, op: str, address: int, nbytes: int) -> int:
        """Return the start of the range in which all these addresses lie."""
        place = bisect.bisect_right(self._starts, address) - 1
        start = self._starts[place] if place >= 0 else 0
        if place < 0 or address + nbytes > start + self._sizes[start]:
            raise ArgumentValueError(
                op,
                expected="addresses of one reserved range",
                got=f"{nbytes} bytes at {address:#x}",
            )
        return start

    def check_map(self, address: int, nbytes: int, page: int) -> None:
        """Refuse to map part of a page, or what is mapped already."""
        wanted = self._places("map", address, nbytes, page)
        if any(place in self.pages for place in wanted):
            raise ArgumentValueError(
                "map",
                expected="addresses without pages",
                got=f"{nbytes} bytes at {address:#x}, some of them mapped",
            )

    def check_unmap(self, address: int, nbytes: int, page: int) -> None:
        """Refuse to unmap what was not mapped in pages of this size."""
        wanted = self._places("unmap", address, nbytes, page)
        if any(self.pages.get(place) != page for place in wanted):
            raise ArgumentValueError(
                "unmap",
                expected=f"mapped pages of {page} bytes",
                got=f"{nbytes} bytes at {address:#x}, some of them not mapped so",
            )

    def note_mapped(self, address: int, nbytes: int, page: int) -> None:
        """Note the pages behind these addresses."""
        self.pages.update(dict.fromkeys(range(address, address + nbytes, page), page))

    def note_unmapped(self, address: int, nbytes: int, page: int) -> None:
        """Forget the pages behind these addresses."""
        for place in range(address, address + nbytes, page):
            del self.pages[place]

    def _places(self, op: str, address: int, nbytes: int, page: int) -> range:
        """Return where the pages of a request begin, counted from the start of their range."""
        start = self.start_of(op, address, nbytes)
        if page <= 0 or nbytes <= 0 or nbytes % page or (address - start) % page:
            raise ArgumentValueError(
                op,
                expected=f"whole pages of {page} bytes from the start of the range",
                got=f"{nbytes} bytes at offset {address - start}",
            )
        return range(address, address + nbytes, page)
