"""The steps of a pinned allocator, for the ``host_traces`` of a snapshot.

State
-----
The newest entries, and how many to keep.

Invariants
----------
* Entries are as PyTorch writes them without stacks: sizes are those of blocks, streams are 0.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from refruntime.alloc.pinned_blocks import PoolId


class Step(NamedTuple):
    """One step: what was done, to which block, in which pool, when."""

    action: str
    address: int
    size: int
    pool: PoolId
    microseconds: int

    def entry(self) -> dict[str, Any]:
        """Return it as an entry of ``host_traces``."""
        return {
            "action": self.action, "addr": self.address, "size": self.size, "stream": 0,
            "time_us": self.microseconds, "compile_context": "", "user_metadata": "",
            "pool_id": self.pool,
        }  # fmt: skip


class PinnedHistory:
    """An observer of a `PinnedAllocator` that keeps its newest steps.

    Parameters
    ----------
    max_entries : int, optional
        How many; by default all.
    """

    def __init__(self, max_entries: int | None = None) -> None:
        self._steps: deque[Step] = deque(maxlen=max_entries)

    def __call__(self, action: str, address: int, size: int, pool: PoolId) -> None:
        """Keep a step."""
        self._steps.append(Step(action, address, size, pool, time.time_ns() // 1000))

    def clear(self) -> None:
        """Forget all steps."""
        self._steps.clear()

    def entries(self) -> list[dict[str, Any]]:
        """Return the steps as ``host_traces`` of a snapshot, oldest first."""
        return [step.entry() for step in list(self._steps)]
