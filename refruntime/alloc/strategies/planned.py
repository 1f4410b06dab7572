"""Plan, then serve, after STAlloc: offsets from a profile of the run, the rest served dynamically.

State
-----
The plan and the number of the next malloc in it; the arena it is laid out in, and what is free
there; a caching allocator for everything that the plan does not foresee.

Invariants
----------
* The n-th malloc gets the n-th offset of the plan if it asks for the size that the plan has there
  and those bytes are free; any other malloc goes to the caching allocator. Either way the plan
  moves on by one; after its last malloc it begins anew where it repeats.
* The arena is reserved whole with the first malloc. A plan that the upstream cannot hold, or that
  nobody made, serves nothing.

Source: STAlloc (Huang et al., EuroSys 2026, arXiv 2507.16274; first named STWeaver) and its code
(infinigence/STAlloc): `StaticAllocator.hpp` with `STALLOC_STATIC_FALLBACK=1`, which checks that
the place is free. Its synthesizer groups tensors by phases of a pipeline; the plan here is made by
`planning`. Its reuse of the plan's gaps for expert layers needs module names, and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from refruntime.alloc.caching import CachingAllocator
from refruntime.alloc.spans import FreeSpans, Span
from refruntime.alloc.strategies.planning import Plan, plan_of, plan_of_rounds
from refruntime.alloc.strategies.pooled import Block, Pooled
from refruntime.alloc.strategy import Request
from refruntime.alloc.upstream import Upstream
from refruntime.errors import OutOfMemoryError

_NO_PLAN = Plan((), (), 0)


class Planned(Pooled):
    """STAlloc's allocator.

    Parameters
    ----------
    upstream : Upstream
        Where the arena and the segments of the caching allocator come from.
    plan : Plan, optional
        Where blocks go; `prepare` makes one from a list of requests.
    """

    def __init__(
        self, upstream: Upstream, *, plan: Plan | None = None, device: str = "GPU"
    ) -> None:
        super().__init__(upstream, device=device)
        self.plan = _NO_PLAN if plan is None else plan
        self.mismatches = 0
        self._next = 0
        self._arena: Span | None = None
        self._free = FreeSpans()
        self._dynamic = CachingAllocator(upstream, device=device)

    def prepare(self, requests: Sequence[Request]) -> None:
        """Plan a run that is known as a whole."""
        self.plan = plan_of(requests)

    def take(self, size: int, stream: int) -> Span | None:
        """Take the planned place, else ask the caching allocator."""
        address = self._planned(size)
        if address is not None:
            return self._free.carve(address, size)
        self.mismatches += 1
        try:
            address = self._dynamic.malloc(size, stream)
        except OutOfMemoryError:
            return None
        finally:
            self._count()
        return Span(address, size)

    def give(self, block: Block) -> None:
        """Give the block back to where it came from."""
        arena = self._arena
        if arena and arena.address <= block.address < arena.address + arena.size:
            self._free.add(block.address, block.size)
        else:
            self._dynamic.free(block.address)
            self._count()

    def _planned(self, size: int) -> int | None:
        """Return the planned address of this malloc, and move on in the plan."""
        plan, place = self.plan, self._next
        if place == len(plan.sizes):
            if plan.repeat_from is None:
                return None
            place = plan.repeat_from
        self._next = place + 1
        if self._arena is None and not self._reserve_arena():
            return None
        assert self._arena is not None
        address = self._arena.address + plan.offsets[place]
        if plan.sizes[place] != size or plan.offsets[place] < 0:
            return None
        return address if self._free.free_at(address, size) else None

    def _reserve_arena(self) -> bool:
        address = self.reserve(self.plan.total, 0) if self.plan.total else None
        if address is None:
            self.plan = _NO_PLAN
            return False
        self._arena = self._free.add(address, self.plan.total)
        return True

    def _count(self) -> None:
        """Take over the figures of the caching allocator."""
        arena = self._arena.size if self._arena else 0
        self.reserved_bytes = arena + self._dynamic.reserved_bytes
        self.retries = self._dynamic.retries


class PlannedRounds(Planned):
    """The same, with only the first rounds of a repetitive run known beforehand."""

    def prepare(self, requests: Sequence[Request]) -> None:
        """Plan the run's beginning and its round; without a round, everything is dynamic."""
        self.plan = plan_of_rounds(requests) or _NO_PLAN
