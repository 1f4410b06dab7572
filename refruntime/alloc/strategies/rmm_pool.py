"""RMM's pool: best fit over an ever growing pool, with a free list for each stream.

State
-----
The free spans of each stream.

Invariants
----------
* A freed block goes to the list of the stream that frees it (replay: the one it was allocated on).
* A request is looked for in the stream's own list, then in those of the others (which costs a wait
  for an event), then in its own with those of the others moved into it, one after another; only
  then does the pool grow. What is left of a block stays in the list the block came from.
* The pool grows by its own size or the request, whichever is larger; with a limit, by half of what
  is left to it. A growth that fails is halved, down to the request. Nothing is ever given back.

Source: RMM 26.08 (`pool_memory_resource_impl.cpp`, `stream_ordered_memory_resource.hpp`,
`coalescing_free_list.hpp`). An event is older the earlier its stream was first seen.
"""

from __future__ import annotations

from refruntime.alloc.spans import FreeSpans, Span
from refruntime.alloc.strategies.pooled import Block, Pooled
from refruntime.alloc.upstream import Upstream


class RmmPool(Pooled):
    """`rmm.mr.PoolMemoryResource`.

    Parameters
    ----------
    upstream : Upstream
        Where the pool grows from.
    initial_bytes : int
        What it reserves at the start.
    maximum_bytes : int, optional
        Its limit.
    """

    ALIGNMENT = 256

    def __init__(
        self,
        upstream: Upstream,
        *,
        initial_bytes: int = 0,
        maximum_bytes: int | None = None,
        device: str = "GPU",
    ) -> None:
        super().__init__(upstream, device=device)
        self.maximum_bytes = maximum_bytes
        self.stream_waits = 0
        self._lists: dict[int, FreeSpans] = {}
        self._heads: set[int] = set()
        if initial_bytes:
            self._grow(initial_bytes, initial_bytes, self._list(0), 0)

    def take(self, size: int, stream: int) -> Span | None:
        """Search the stream's list, those of the others, those merged; then grow."""
        own = self._list(stream)
        found = self._cut(own, size) or self._borrow(size, own) or self._merge(size, own, stream)
        if found is None and self._grow(self._size_to_grow(size), size, own, stream):
            found = self._cut(own, size)
        return found

    def give(self, block: Block) -> None:
        """Join the block with its free neighbours in the list of its stream."""
        self._list(block.stream).add(block.address, block.size)

    def _list(self, stream: int) -> FreeSpans:
        if stream not in self._lists:
            self._lists[stream] = FreeSpans(self._heads)
        return self._lists[stream]

    def _cut(self, spans: FreeSpans, size: int) -> Span | None:
        address = spans.best_fit(size)
        return None if address is None else spans.carve(address, size)

    def _borrow(self, size: int, own: FreeSpans) -> Span | None:
        for other in self._lists.values():
            if other is not own and (found := self._cut(other, size)):
                self.stream_waits += 1
                return found
        return None

    def _merge(self, size: int, own: FreeSpans, stream: int) -> Span | None:
        for other in [name for name in self._lists if name != stream]:
            self.stream_waits += 1
            for span in self._lists.pop(other):
                own.add(*span)
            if found := self._cut(own, size):
                return found
        return None

    def _size_to_grow(self, size: int) -> int:
        if self.maximum_bytes is None:
            return max(size, self.reserved_bytes)
        left = self.rounded(self.maximum_bytes - self.reserved_bytes)
        return max(size, left // 2) if size <= left else 0

    def _grow(self, target: int, least: int, own: FreeSpans, stream: int) -> bool:
        """Reserve `target` bytes, or half of it and so on, but not fewer than `least`."""
        while target >= least:
            address = self.reserve(target, stream)
            if address is not None:
                self._heads.add(address)
                own.add(address, target)
                return True
            if target == least:
                break
            target = max(least, target // 2)
        return False
