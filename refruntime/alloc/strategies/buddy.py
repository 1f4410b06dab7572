"""The binary buddy system: blocks of powers of two, each born of the halving of a larger one.

State
-----
The free blocks of each power of two, in order of address.

Invariants
----------
* A block of 2^k bytes lies at a multiple of 2^k from the heap's start. Its buddy is the block whose
  offset differs in bit k alone; two free buddies are joined at once.
* A request is rounded up to a power of two (512 bytes at least), so up to half of a block is waste.
* The lowest free block of the smallest power that fits is halved until it has the right size; the
  lower half is kept.

Source: Knuth, The Art of Computer Programming, volume 1, section 2.5, algorithms R and S; the
choice of the lowest block is ours (Knuth takes any).
"""

from __future__ import annotations

from bisect import bisect_left, insort

from refruntime.alloc.spans import Span
from refruntime.alloc.strategies.heap import Heap
from refruntime.alloc.strategies.pooled import Block, Pooled
from refruntime.alloc.upstream import Upstream


class Buddy(Pooled):
    """A buddy system over a growing heap."""

    def __init__(self, upstream: Upstream, *, device: str = "GPU") -> None:
        super().__init__(upstream, device=device)
        top = (max(upstream.capacity, self.ALIGNMENT) - 1).bit_length()
        self._heap = Heap(upstream, 1 << top)
        # Offsets from the start of the heap, by the power of two of the block.
        self._free: list[list[int]] = [[] for _ in range(top + 1)]
        self._free[top].append(0)

    def rounded(self, nbytes: int) -> int:
        """Return the next power of two."""
        return max(1 << (nbytes - 1).bit_length(), self.ALIGNMENT)

    def take(self, size: int, stream: int) -> Span | None:
        """Halve the lowest of the smallest blocks that fit."""
        order = size.bit_length() - 1
        for found in range(order, len(self._free)):
            if self._free[found]:
                address = self._heap.start + self._free[found][0]
                if self._heap.reach_up(address + size):
                    self.reserved_bytes = self._heap.mapped
                    self._halve(found, order)
                    return Span(address, size)
        return None

    def _halve(self, found: int, order: int) -> None:
        """Take the lowest block of `found`, and leave its upper halves down to `order`."""
        offset = self._free[found].pop(0)
        for k in range(order, found):
            insort(self._free[k], offset + (1 << k))

    def give(self, block: Block) -> None:
        """Join the block with its buddy as long as that is free."""
        offset, order = block.address - self._heap.start, block.size.bit_length() - 1
        while order + 1 < len(self._free):
            row, buddy = self._free[order], offset ^ (1 << order)
            place = bisect_left(row, buddy)
            if place == len(row) or row[place] != buddy:
                break
            del row[place]
            offset, order = min(offset, buddy), order + 1
        insort(self._free[order], offset)
