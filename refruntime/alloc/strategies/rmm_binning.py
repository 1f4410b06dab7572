"""RMM's binning: blocks of a few fixed sizes for small requests, a pool for the rest.

State
-----
For each bin the free blocks in order of their release.

Invariants
----------
* A request goes to the smallest bin that holds it and takes a whole block of it; a request larger
  than the largest bin goes to the pool.
* A bin takes memory from the pool 128 blocks at a time, the first time at the start, gives the
  block that has been free longest first, and never gives memory back.

Source: RMM 26.08 (`binning_memory_resource_impl.cpp`, `fixed_size_memory_resource_impl.cpp`,
`fixed_size_free_list.hpp`); the bins of 256 KiB to 4 MiB are those of its replay benchmark. A bin
keeps a list for each stream and takes from the others before it grows, as the pool does; since all
its blocks are equal, only the order of reuse is lost by keeping one list.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from refruntime.alloc.spans import Span
from refruntime.alloc.strategies.pooled import Block
from refruntime.alloc.strategies.rmm_pool import RmmPool
from refruntime.alloc.upstream import Upstream

BLOCKS_AT_ONCE: Final = 128


class RmmBinning(RmmPool):
    """`rmm.mr.BinningMemoryResource` over a `PoolMemoryResource`.

    Parameters
    ----------
    upstream : Upstream
        Where the pool grows from.
    smallest, largest : int
        The exponents of the bins: there is one of each power of two between, both included.
    """

    def __init__(
        self, upstream: Upstream, *, smallest: int = 18, largest: int = 22, device: str = "GPU"
    ) -> None:
        super().__init__(upstream, device=device)
        self._bins: dict[int, deque[int]] = {
            1 << exponent: deque() for exponent in range(smallest, largest + 1)
        }
        for bin_size in self._bins:
            self._refill(bin_size, 0)

    def take(self, size: int, stream: int) -> Span | None:
        """Take a block of the smallest bin that holds the request, else one of the pool."""
        bin_size = self._bin_of(size)
        if bin_size is None:
            return super().take(size, stream)
        free = self._bins[bin_size]
        if not free and not self._refill(bin_size, stream):
            return None
        return Span(free.popleft(), bin_size)

    def give(self, block: Block) -> None:
        """Put the block at the end of its bin, or back into the pool."""
        # A block of the pool is larger than every bin, so its size tells where it came from.
        free = self._bins.get(block.size)
        if free is None:
            super().give(block)
        else:
            free.append(block.address)

    def _bin_of(self, size: int) -> int | None:
        return next((bin_size for bin_size in self._bins if size <= bin_size), None)

    def _refill(self, bin_size: int, stream: int) -> bool:
        chunk = super().take(bin_size * BLOCKS_AT_ONCE, stream)
        if chunk is None:
            return False
        self._bins[bin_size].extend(range(chunk.address, chunk.address + chunk.size, bin_size))
        return True
