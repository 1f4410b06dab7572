"""The hot calls of an allocator while its history is recorded.

State
-----
None of its own: the trace is the allocator's.

Invariants
----------
* They do what the allocator's own calls do, and write it into the trace.
* What a compiled entry cannot do goes the allocator's long way.
* The stack of the caller is found in machine code; one that is new is entered by Python, once.
"""

from __future__ import annotations

from time import time_ns
from typing import Any

from refruntime.alloc import categories, codes, entries
from refruntime.alloc.native_stack import LEAST_HASH
from refruntime.alloc.queue import FREE


class RecordedCalls:
    """``malloc`` and ``free`` in the place of a caching allocator's own."""

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator
        self._trace = allocator.trace
        self._header = allocator.tables.address
        entries.recorded_take.compile()
        entries.recorded_give.compile()
        self._take = entries.recorded_take.entry
        self._give = entries.recorded_give.entry

    def malloc(self, nbytes: int, stream: int = 0, category: int = categories.DEFAULT) -> int:
        """Return the address of `nbytes` bytes."""
        try:
            # One call for both rounds: the place of the call is part of the stack.
            for _ in range(2):
                address = self._take(self._header, nbytes, stream, category, time_ns() // 1000, 0)
                if address > -LEAST_HASH:
                    break
                self._trace.enter_stack(-address)
        except (OverflowError, ValueError, TypeError):
            address = codes.INVALID
        if address > 0:
            return int(address)
        return int(self._allocator._malloc_slow(nbytes, stream, category))

    def free(self, address: int) -> None:
        """Give a block back to the cache."""
        for _ in range(2):
            code = self._give(self._header, address, time_ns() // 1000, 0)
            if code > -LEAST_HASH:
                break
            self._trace.enter_stack(-code)
        if code != codes.DONE:
            self._allocator._change_slow((FREE, address), code)
