"""Best fit with coalescing, as XLA and TensorFlow do it: regions that double, chunks kept whole.

State
-----
The free chunks, the regions that the upstream gave, and the size of the next region.

Invariants
----------
* The smallest chunk that fits is taken, of equal ones the lowest. It is cut only if it is twice the
  request or exceeds it by 128 MiB; otherwise it is given whole, and counts whole. (The original
  keeps bins by powers of two and scans upward: the same choice, since a bin holds one range of
  sizes in order.)
* Regions start at 2 MiB and double with each one, or until they hold the request; a region that
  cannot be had is shrunk by tenths, down to the request. Chunks of two regions are never joined.
* When nothing fits and nothing can be had, all wholly free regions are given back, if that and
  what the upstream has left could hold the request.

Source: XLA (`xla/tsl/framework/bfc_allocator.cc`), with `allow_growth` and `garbage_collection`.
Without growth it reserves everything at the start; `region_bytes` does that.
"""

from __future__ import annotations

from typing import Final

from refruntime.alloc.spans import Span
from refruntime.alloc.strategies.pooled import Block, Pooled
from refruntime.alloc.strategies.segments import Segments
from refruntime.alloc.upstream import Upstream

FIRST_REGION: Final = 2 << 20
MAX_WASTE: Final = 128 << 20


class BestFitCoalescing(Pooled):
    """`tsl::BFCAllocator`.

    Parameters
    ----------
    upstream : Upstream
        Where regions come from.
    region_bytes : int
        The size of the first region.
    """

    ALIGNMENT = 256

    def __init__(
        self, upstream: Upstream, *, region_bytes: int = FIRST_REGION, device: str = "GPU"
    ) -> None:
        super().__init__(upstream, device=device)
        self._regions = Segments(self.reserve, self.release)
        self._free = self._regions.spans(0)
        self._next_region = region_bytes

    def take(self, size: int, stream: int) -> Span | None:
        """Find a chunk, after a new region if need be; keep it whole unless that wastes much."""
        address = self._free.best_fit(size)
        if address is None:
            address = self._extend(size)
        if address is None:
            return None
        chunk = self._free.remove(address)
        if chunk.size < 2 * size and chunk.size - size < MAX_WASTE:
            return chunk
        self._free.add(address + size, chunk.size - size)
        return Span(address, size)

    def give(self, block: Block) -> None:
        """Join the chunk with its free neighbours of the same region."""
        self._free.add(block.address, block.size)

    def trim(self, size: int) -> bool:
        """Give wholly free regions back, if that can help (the original's garbage collection)."""
        idle = sum(span.size for _, span in self._regions.idle())
        if size > self._left() + idle:
            return False
        return bool(self._regions.release_idle())

    def _left(self) -> int:
        left = self.upstream.capacity - self.upstream.used
        return left // self.ALIGNMENT * self.ALIGNMENT

    def _extend(self, size: int) -> int | None:
        """Add a region that holds `size` bytes; return its address."""
        left = self._left()
        if size > left:
            return None
        doubled = size > self._next_region
        while size > self._next_region:
            self._next_region *= 2
        nbytes = min(self._next_region, left)
        while not self._regions.grow(nbytes, 0):
            nbytes = min(self.rounded(nbytes * 9 // 10), nbytes - self.ALIGNMENT)
            if nbytes < size:
                return None
        if not doubled:
            self._next_region *= 2
        return self._free.best_fit(size)
