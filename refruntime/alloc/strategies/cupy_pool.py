"""CuPy's memory pool: a best-fit cache for each stream, cut to the byte that was asked for.

State
-----
The chunks that the upstream gave, with what is free in them for each stream (its arena).

Invariants
----------
* The upstream is asked for exactly the rounded request: there are no segments of a fixed size and
  no classes of sizes. A remainder of any size is cut off.
* A free block returns to the stream it was allocated on, and serves only that stream.
* When the upstream is exhausted, every span that is free as a whole is given back, of all streams.

Source: CuPy 15 (`cupy/cuda/memory.pyx`, `SingleDeviceMemoryPool`; `memory.rst` of its user guide).
CuPy breaks ties between equal free chunks by the address of a host object; here the lowest device
address is taken.
"""

from __future__ import annotations

from refruntime.alloc.spans import Span
from refruntime.alloc.strategies.pooled import Block, Pooled
from refruntime.alloc.strategies.segments import Segments
from refruntime.alloc.upstream import Upstream


class CupyPool(Pooled):
    """`cupy.cuda.MemoryPool` of one device."""

    def __init__(self, upstream: Upstream, *, device: str = "GPU") -> None:
        super().__init__(upstream, device=device)
        self._arenas = Segments(self.reserve, self.release)

    def take(self, size: int, stream: int) -> Span | None:
        """Cut the smallest chunk of the stream that fits, else ask for one of this very size."""
        return self._arenas.cut_or_grow(size, stream, size)

    def give(self, block: Block) -> None:
        """Join the block with its free neighbours in the arena of its stream."""
        self._arenas.spans(block.stream).add(block.address, block.size)

    def trim(self, size: int) -> bool:
        """Release the chunks that no block in use is cut from (`free_all_blocks`)."""
        return bool(self._arenas.release_idle())
