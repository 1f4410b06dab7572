"""Two ends: what lives long grows up from the bottom, what lives briefly down from the top.

State
-----
The holes of each end, the gap between them; which mallocs of a run live long, if it is known; and
for each size how long its last block lived.

Invariants
----------
* Long-lived blocks lie below the gap, short-lived ones above it; neither end fills the holes of the
  other, so one cannot break up the other. Only a request that would fail borrows from the other.
* A request takes the smallest hole of its end that fits, else a piece of the gap; a hole that
  touches the gap becomes part of it.
* The end is chosen by the life of the block: as the prepared run has it; beyond that run, as long
  as the last freed block of its size lived, or for ever if none was freed yet.

Source: XLA's spatial partitioning (`xla/tsl/framework/bfc_allocator.cc`), where the caller names
the end; here `prepare` names it for every malloc of a run, and the guess by size is ours. XLA
leaves holes whole that exceed the request by little, and never borrows; here every remainder is
cut off. It needs an upstream with virtual memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refruntime.alloc.spans import FreeSpans, Span
from refruntime.alloc.strategies.heap import Heap
from refruntime.alloc.strategies.planning import lives_of
from refruntime.alloc.strategies.pooled import Block, Pooled
from refruntime.alloc.strategy import Request
from refruntime.alloc.upstream import Upstream


class TwoEnded(Pooled):
    """Two best-fit pools that share one gap.

    Parameters
    ----------
    upstream : Upstream
        Where pages come from.
    horizon : int
        The life, in requests, from which a block counts as long-lived.
    """

    def __init__(self, upstream: Upstream, *, horizon: int = 5000, device: str = "GPU") -> None:
        super().__init__(upstream, device=device)
        self.horizon = horizon
        self._heap = Heap(upstream)
        self._low_top, self._high_bottom = self._heap.start, self._heap.end
        self._low, self._high = FreeSpans(), FreeSpans()
        self._clock = 0
        self._born: dict[int, int] = {}
        self._lives: dict[int, int] = {}
        self._known: Iterator[bool] = iter(())

    def prepare(self, requests: Sequence[Request]) -> None:
        """Learn how long each block of a run lives."""
        lives = lives_of(requests, self.ALIGNMENT)
        self._known = iter((lives.ends - lives.starts >= self.horizon).tolist())

    def take(self, size: int, stream: int) -> Span | None:
        """Take a hole at the end of the block's kind, else a piece of the gap."""
        self._clock += 1
        guess = self._lives.get(size, self.horizon) >= self.horizon
        long_lived = next(self._known, guess)
        found = self._take_low(size) if long_lived else self._take_high(size)
        if found is None:
            found = self._take_high(size) if long_lived else self._take_low(size)
        if found is not None:
            self._born[found.address] = self._clock
            self.reserved_bytes = self._heap.mapped
        return found

    def give(self, block: Block) -> None:
        """Remember how long the block lived; make it a hole, or part of the gap."""
        self._clock += 1
        self._lives[block.size] = self._clock - self._born.pop(block.address)
        if block.address < self._low_top:
            hole = self._low.add(block.address, block.size)
            if hole.address + hole.size == self._low_top:
                self._low_top = self._low.remove(hole.address).address
        else:
            hole = self._high.add(block.address, block.size)
            if hole.address == self._high_bottom:
                self._high_bottom += self._high.remove(hole.address).size

    def _take_low(self, size: int) -> Span | None:
        address = self._low.best_fit(size)
        if address is not None:
            return self._low.carve(address, size)
        top = self._low_top + size
        if top > self._high_bottom or not self._heap.reach_up(top):
            return None
        self._low_top = top
        return Span(top - size, size)

    def _take_high(self, size: int) -> Span | None:
        address = self._high.best_fit(size)
        if address is not None:
            # The lower part of the hole stays: blocks of this end are cut from above.
            hole = self._high.around(address)
            assert hole is not None, "a hole that was found is there"
            return self._high.carve(address + hole.size - size, size)
        bottom = self._high_bottom - size
        if bottom < self._low_top or not self._heap.reach_down(bottom):
            return None
        self._high_bottom = bottom
        return Span(bottom, size)
