"""What an allocator needs from the outside: the protocol of every upstream.

Invariants
----------
* `used` is the sum of the spans given out and the pages mapped, and never passes `capacity`.
* A span is released whole, once, at the address and size at which it was reserved.
* A failed `reserve` or `map` changes nothing and raises `UpstreamExhausted`; it never raises
  anything else for lack of memory.
* The name of an event is never 0. It is valid until `release_event`, which is called once.
"""

from __future__ import annotations

from typing import Protocol


class UpstreamExhausted(Exception):  # noqa: N818  it tells a state, not a mistake
    """The upstream cannot give a span of this size now."""


class Upstream(Protocol):
    """Where an allocator gets whole segments from, and where it gives them back.

    Streams are integers: the handles of a GPU's streams, 0 for the default one.
    """

    @property
    def capacity(self) -> int:
        """The most bytes that can be given out at once."""

    @property
    def used(self) -> int:
        """The bytes given out now: spans and mapped pages."""

    def memory_info(self) -> tuple[int, int]:
        """Return the bytes that are free on the device and those that it has, as it says itself."""

    # --- spans --------------------------------------------------------------------------------

    def reserve(self, nbytes: int, stream: int) -> int:
        """Return the address of a fresh span, or raise `UpstreamExhausted`."""

    def release(self, address: int, nbytes: int) -> None:
        """Take a span back."""

    # --- virtual memory -----------------------------------------------------------------------

    @property
    def supports_virtual_memory(self) -> bool:
        """Whether the five methods below work."""

    def reserve_addresses(self, nbytes: int) -> int:
        """Return the start of a range of addresses that no memory stands behind yet.

        Raises `UpstreamExhausted` if there are no such addresses left.
        """

    def release_addresses(self, address: int, nbytes: int) -> None:
        """Take a whole range back; no page of it may be mapped."""

    def map(self, address: int, nbytes: int, page: int) -> None:
        """Put new pages of `page` bytes behind ``[address, address + nbytes)``.

        All or nothing: if one page cannot be had, none is mapped, and it raises
        `UpstreamExhausted`.
        """

    def unmap(self, address: int, nbytes: int, page: int, stream: int) -> None:
        """Wait for the stream, then take the pages from behind these addresses back."""

    # --- contents -----------------------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes between two places without overlap, after the work that the stream has now."""

    # --- streams ------------------------------------------------------------------------------

    def record_event(self, stream: int) -> int:
        """Mark the end of the work that the stream has now; return the name of the mark."""

    def query_event(self, event: int) -> bool:
        """Whether the work before the mark is done."""

    def wait_event(self, event: int) -> None:
        """Block until the work before the mark is done."""

    def release_event(self, event: int) -> None:
        """Take an event back, so that it can be recorded again."""

    def synchronize(self, stream: int | None = None) -> None:
        """Block until the work of a stream, or of all, is done."""
