"""The turnstile: calls of an allocator one at a time, and what comes in between queued for after.

State
-----
A lock that knows its owner, and a queue of actions.

Invariants
----------
* At most one thread is inside. A thread that is inside never waits for itself.
* An action handed to `soon` runs at once if nobody is inside, else right after whoever is; actions
  run in the order in which they came. The garbage collector may therefore call `soon` at any time.
* An action that raises tells whoever handed it in, if they are still there, else
  ``threading.excepthook``; it never disturbs the call that happened to run it.
* No other thread is inside while the process forks (see `forks`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refruntime.alloc import forks


@dataclass(slots=True)
class _Action:
    """Something to be done, and what came of it."""

    function: Callable[..., None]
    arguments: tuple[Any, ...]
    error: Exception | None = None
    abandoned: bool = False

    def run(self) -> None:
        try:
            self.function(*self.arguments)
        except Exception as error:
            self.error = error
            # Whoever handed it in first leaves, then looks: so at least one of both sees it.
            if self.abandoned:
                _report(error)

    def leave(self) -> None:
        """Go on without waiting for it; raise what it has raised."""
        self.abandoned = True
        if self.error is not None:
            raise self.error


def _report(error: Exception) -> None:
    thread = threading.current_thread()
    threading.excepthook(
        threading.ExceptHookArgs([type(error), error, error.__traceback__, thread])
    )


class Turnstile:
    """Use as a context manager for a call; hand to `soon` what may come at any time."""

    def __init__(self) -> None:
        self._queue: deque[_Action] = deque()
        self._reset()
        forks.keep_whole(self)

    def _reset(self) -> None:
        # Re-entrant, because it knows its owner from the moment it is taken; a finalizer may run
        # right after that. No thread ever takes it twice.
        self._lock = threading.RLock()

    def mine(self) -> bool:
        """Return whether the calling thread is inside."""
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def enter(self, blocking: bool = True) -> bool:
        """Go inside, waiting for other threads if `blocking`; return whether it was done."""
        return not self.mine() and self._lock.acquire(blocking)

    def leave(self) -> None:
        """Go outside."""
        self._lock.release()

    def leave_in_child(self) -> None:
        """Go outside after a fork, whose other threads may have left the lock in any state."""
        self._reset()

    def __enter__(self) -> None:
        if not self.enter():
            raise RuntimeError("the allocator is in the middle of a call on this thread")

    def __exit__(self, *exc_info: object) -> None:
        self.leave()
        self.settle()

    def soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run `function` as a call of its own: now, or when the call in progress has ended."""
        if not self._queue and self.enter(blocking=False):
            try:
                function(*arguments)
            finally:
                self.__exit__()
            return
        action = _Action(function, arguments)
        self._queue.append(action)
        self.settle()
        action.leave()

    def settle(self) -> None:
        """Run what is queued, unless somebody is inside, who will do it when leaving."""
        # Asked again after each release: what was queued while we were inside is ours to run.
        while self._queue and self.enter(blocking=False):
            try:
                self._run_queue()
            finally:
                self.leave()

    def _run_queue(self) -> None:
        while self._queue:
            self._queue.popleft().run()
