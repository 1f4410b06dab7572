"""Strategies: how allocators of other runtimes would have served the same requests.

Each is a page over shared pieces: `pooled` (the books, and the face that replay needs), `spans`
(ordered free lists), `segments` (a cache of segments) and `heap` (growing through virtual memory).
Importing this package registers them all by name; ``docs/strategies.md`` says what each is, and
shows how to add one's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

# This import registers PyTorch's other backend, "cuda-malloc-async".
from refruntime.alloc import malloc_async
from refruntime.alloc.caching import CachingAllocator
from refruntime.alloc.spans import FreeSpans, Span
from refruntime.alloc.strategies.bfc import BestFitCoalescing
from refruntime.alloc.strategies.buddy import Buddy
from refruntime.alloc.strategies.cupy_pool import CupyPool
from refruntime.alloc.strategies.heap import Heap
from refruntime.alloc.strategies.planned import Planned, PlannedRounds
from refruntime.alloc.strategies.planning import Plan, plan_of, plan_of_rounds
from refruntime.alloc.strategies.pooled import Block, Pooled
from refruntime.alloc.strategies.rmm_arena import RmmArena
from refruntime.alloc.strategies.rmm_binning import RmmBinning
from refruntime.alloc.strategies.rmm_pool import RmmPool
from refruntime.alloc.strategies.segments import Segments
from refruntime.alloc.strategies.stitching import Stitching
from refruntime.alloc.strategies.tlsf import Tlsf
from refruntime.alloc.strategies.two_ended import TwoEnded
from refruntime.alloc.strategy import Strategy, register_strategy
from refruntime.alloc.upstream import Upstream

__all__ = [
    "FACTORIES", "BestFitCoalescing", "Block", "Buddy", "CupyPool", "FreeSpans", "Heap", "Plan",
    "Planned", "PlannedRounds", "Pooled", "RmmArena", "RmmBinning", "RmmPool", "Segments", "Span",
    "Stitching", "Tlsf", "TwoEnded", "plan_of", "plan_of_rounds",
]  # fmt: skip

FACTORIES: Final[dict[str, Callable[[Upstream], Strategy]]] = {
    "bfc": BestFitCoalescing,
    "buddy": Buddy,
    "cupy": CupyPool,
    "gmlake": Stitching,
    "gmlake-top-up": partial(Stitching, fragment_limit=2 << 20, top_up=True),
    "rmm-arena": RmmArena,
    "rmm-binning": RmmBinning,
    "rmm-pool": RmmPool,
    "stalloc": PlannedRounds,
    "stalloc-whole-run": Planned,
    "tlsf": Tlsf,
    "two-ended": TwoEnded,
}

for _name, _factory in FACTORIES.items():
    register_strategy(_name, _factory)
register_strategy(
    "caching-expandable", partial(CachingAllocator, settings="expandable_segments:True")
)
