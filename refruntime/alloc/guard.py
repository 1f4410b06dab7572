"""The guard: exclusive use of an allocator's tables by interpreted code, and fork.

State
-----
A lock, and the gate word in the header that compiled entries look at.

Invariants
----------
* While a thread is inside, the gate is closed: compiled entries touch nothing and send their
  callers the slow way, which waits for the guard or queues the change.
* The guard is not re-entrant; `mine` tells whether the calling thread is inside.
* What was queued meanwhile is settled after the guard is left, by whoever left it.
* Ctrl-C waits until the guard is left, so it never finds half-changed tables.
* No thread is inside while the process forks (see `forks`).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any, Protocol

from refruntime.alloc import forks, interrupts
from refruntime.alloc.tables import BUSY, GATE, Tables


class Guarded(Protocol):
    """What a guard needs of the allocator that it belongs to."""

    tables: Tables
    queue: deque[Any]

    def settle(self) -> Any:
        """Carry out what was queued, unless a call in progress will."""


class Guard:
    """Use as a context manager, or enter and leave."""

    def __init__(self, owner: Guarded) -> None:
        self._owner = weakref.ref(owner)
        self._header = owner.tables.header
        self._queue = owner.queue
        self._reset()
        forks.keep_whole(self)

    def _reset(self) -> None:
        # Re-entrant, because it knows its owner from the moment it is taken; a finalizer may run
        # right after that. The guard itself is never entered twice.
        self._lock = threading.RLock()
        self._holds_interrupts = False

    def mine(self) -> bool:
        """Return whether the calling thread is inside."""
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def enter(self, blocking: bool = True) -> bool:
        """Close the gate, waiting for other threads if `blocking`; return whether it was done."""
        if self.mine():
            return False
        held = interrupts.hold()
        if not self._lock.acquire(blocking):
            if held:
                interrupts.let_go()
            return False
        self._holds_interrupts = held
        self._header[GATE] |= BUSY
        return True

    def leave(self) -> None:
        """Open the gate; raise KeyboardInterrupt if one has arrived meanwhile."""
        held, self._holds_interrupts = self._holds_interrupts, False
        self._header[GATE] &= ~BUSY
        self._lock.release()
        if held:
            interrupts.let_go()

    def leave_in_child(self) -> None:
        """Open the gate after a fork, whose other threads may have left the lock in any state."""
        held = self._holds_interrupts
        self._header[GATE] &= ~BUSY
        self._reset()
        if held:
            interrupts.let_go()

    def settle(self) -> None:
        """Have the owner carry out what was queued."""
        owner = self._owner()
        if self._queue and owner is not None:
            owner.settle()

    def __enter__(self) -> None:
        if not self.enter():
            raise RuntimeError("the allocator is in the middle of a call on this thread")

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.leave()
        finally:
            self.settle()
