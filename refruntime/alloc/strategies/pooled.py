"""What every strategy has in common: the face that replay needs, the books, and failing well.

State
-----
`Pooled` knows each block in use, the bytes in use and reserved, and the counts of replay.

Invariants
----------
* A strategy supplies three rules: how a size is rounded, how a block is taken, how it is given
  back. It may add a fourth: what to release when a block cannot be had.
* `reserved_bytes` changes only with the upstream; a failed malloc changes nothing but the counts
  and the cache that was released for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from refruntime.alloc.oom import Shortage
from refruntime.alloc.spans import Span
from refruntime.alloc.upstream import Upstream, UpstreamExhausted
from refruntime.errors import ArgumentValueError


class Block(NamedTuple):
    """A block in use: its bytes, and the stream it was allocated on."""

    address: int
    size: int
    stream: int


class Pooled(ABC):
    """A strategy in terms of `take`, `give` and `trim`.

    Parameters
    ----------
    upstream : Upstream
        Where memory comes from.
    device : str
        The name in error texts.
    """

    #: Sizes, and the distances between blocks, are multiples of this many bytes.
    ALIGNMENT: ClassVar[int] = 512

    def __init__(self, upstream: Upstream, *, device: str = "GPU") -> None:
        self.upstream = upstream
        self.device = device
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.retries = 0
        self.ooms = 0
        self.blocks: dict[int, Block] = {}

    # --- the rules of a strategy --------------------------------------------------------------

    def rounded(self, nbytes: int) -> int:
        """Return the size that is looked for: the next multiple of `ALIGNMENT`."""
        return -(-nbytes // self.ALIGNMENT) * self.ALIGNMENT

    @abstractmethod
    def take(self, size: int, stream: int) -> Span | None:
        """Return a block of at least `size` bytes, or None if there is none to be had."""

    @abstractmethod
    def give(self, block: Block) -> None:
        """Take a block back."""

    def trim(self, size: int) -> bool:
        """Give cached memory back, for a request of `size` bytes; return whether there was any."""
        return False

    # --- the face -----------------------------------------------------------------------------

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Return the address of `nbytes` bytes (0 for none), to be used on `stream`.

        Raises
        ------
        OutOfMemoryError
            If neither the pool nor the upstream can serve it, also after trimming.
        ArgumentValueError
            If the size is negative.
        """
        if nbytes <= 0:
            return _nothing(nbytes)
        size = self.rounded(nbytes)
        span = self.take(size, stream)
        if span is None and self.trim(size):
            self.retries += 1
            span = self.take(size, stream)
        if span is None:
            self.ooms += 1
            raise self._shortage(size).error()
        self.blocks[span.address] = Block(span.address, span.size, stream)
        self.allocated_bytes += span.size
        return span.address

    def free(self, address: int) -> None:
        """Take a block back; address 0 is ignored.

        Raises
        ------
        ArgumentValueError
            If no block in use has this address.
        """
        if address == 0:
            return
        block = self.blocks.pop(address, None)
        if block is None:
            raise ArgumentValueError(
                "free", expected="the address of a block in use", got=f"{address:#x}"
            )
        self.allocated_bytes -= block.size
        self.give(block)

    # --- the upstream, with the books kept ----------------------------------------------------

    def reserve(self, nbytes: int, stream: int) -> int | None:
        """Return the address of a fresh span of the upstream, or None if it has none."""
        try:
            address = self.upstream.reserve(nbytes, stream)
        except UpstreamExhausted:
            return None
        self.reserved_bytes += nbytes
        return address

    def release(self, span: Span) -> None:
        """Give a span back to the upstream."""
        self.upstream.release(span.address, span.size)
        self.reserved_bytes -= span.size

    def _shortage(self, size: int) -> Shortage:
        capacity, used = self.upstream.capacity, self.upstream.used
        return Shortage(
            self.device, size, capacity, capacity - used, self.allocated_bytes, self.reserved_bytes
        )


def _nothing(nbytes: int) -> int:
    if nbytes < 0:
        raise ArgumentValueError("malloc", expected="a size of 0 or more bytes", got=nbytes)
    return 0
