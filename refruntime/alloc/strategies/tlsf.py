"""TLSF, two-level segregated fit: a good fit in constant time.

State
-----
The free blocks by class, and two bitmaps of the classes that have some; free blocks by start and
by end, for the joining of neighbours; where the heap ends.

Invariants
----------
* The first level of a class is the power of two of the size, the second one of 32 equal steps
  within it; sizes below 16 KiB (32 units of 512 bytes) form one first level with exact steps.
* A free block stands in the class of its size; a request is looked for from the first class in
  which every block fits. So a block of the request's own class may be passed over.
* The block freed last is taken first; a block is cut whenever anything is left of it; neighbours
  are joined at once.
* When no class has a block, the heap grows, from its last block if that is free.

Source: Masmano, Ripoll, Crespo and Real, "TLSF: a new dynamic memory allocator for real-time
systems" (ECRTS 2004); mattconte/tlsf 3.1 for 32 steps and the last-in first-out lists. The unit is
512 bytes for its 8, because a GPU block holds no header; the growing heap stands for its pool.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from refruntime.alloc.spans import Span
from refruntime.alloc.strategies.heap import Heap
from refruntime.alloc.strategies.pooled import Block, Pooled
from refruntime.alloc.upstream import Upstream

STEP_BITS: Final = 5
UNIT_BITS: Final = 9
SMALL: Final = 1 << (STEP_BITS + UNIT_BITS)


def class_of(size: int) -> int:
    """Return the class of a block: first level * 32 + second level; classes rise with sizes."""
    if size < SMALL:
        return size >> UNIT_BITS
    level = size.bit_length() - 1
    step = (size >> (level - STEP_BITS)) - (1 << STEP_BITS)
    return ((level - STEP_BITS - UNIT_BITS + 1) << STEP_BITS) + step


def class_for(size: int) -> int:
    """Return the first class in which every block holds `size` bytes."""
    if size >= SMALL:
        size += (1 << (size.bit_length() - 1 - STEP_BITS)) - 1
    return class_of(size)


class Tlsf(Pooled):
    """Two-level segregated fit over a growing heap."""

    def __init__(self, upstream: Upstream, *, device: str = "GPU") -> None:
        super().__init__(upstream, device=device)
        self._heap = Heap(upstream)
        self._top = self._heap.start
        # One bitmap over all classes: Python's integers are as long as they need be.
        self._bitmap = 0
        self._classes: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._sizes: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def take(self, size: int, stream: int) -> Span | None:
        """Take the newest block of the first class that surely fits, else grow."""
        fitting = self._bitmap >> (first := class_for(size))
        if not fitting:
            return self._grow(size)
        lowest = first + (fitting & -fitting).bit_length() - 1
        address = next(reversed(self._classes[lowest]))
        rest = self._remove(address) - size
        if rest:
            self._insert(address + size, rest)
        return Span(address, size)

    def give(self, block: Block) -> None:
        """Join the block with its free neighbours."""
        address, size = block.address, block.size
        if address + size in self._sizes:
            size += self._remove(address + size)
        if address in self._ends:
            before = self._ends[address]
            size += self._remove(before)
            address = before
        self._insert(address, size)

    def _grow(self, size: int) -> Span | None:
        """Place a block at the end of the heap, over its last free block if there is one."""
        address = self._ends.get(self._top, self._top)
        end = address + size
        if not self._heap.reach_up(end):
            return None
        self.reserved_bytes = self._heap.mapped
        if address < self._top:
            self._remove(address)
        if end < self._top:
            self._insert(end, self._top - end)
        self._top = max(self._top, end)
        return Span(address, size)

    def _insert(self, address: int, size: int) -> None:
        self._sizes[address] = size
        self._ends[address + size] = address
        self._classes[class_of(size)][address] = None
        self._bitmap |= 1 << class_of(size)

    def _remove(self, address: int) -> int:
        size = self._sizes.pop(address)
        del self._ends[address + size]
        row = self._classes[class_of(size)]
        del row[address]
        if not row:
            self._bitmap ^= 1 << class_of(size)
        return size
