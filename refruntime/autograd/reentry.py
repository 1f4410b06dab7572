"""Backward calls inside of backward calls, however deep.

State
-----
For each thread the innermost call that it runs (``nest.task``, which knows its depth). A thread
that continues a deep nest takes it over.

Invariants
----------
* A nested call that starts deep in the Python stack runs on a fresh thread, whose stack is empty,
  while the thread that called it waits: so a nest of calls never meets the recursion limit.
* The grad mode of the caller holds on the fresh thread; values in the user's own thread-local
  variables do not. An exception comes back with the traceback of both threads.
* An interrupt of the waiting caller ends the nested call before its next node.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

from refruntime.autograd.modes import state


class _Nest(threading.local):
    # The innermost call of this thread.
    task: Any = None
    # The threads on which the calls around this one were continued; shared by all of them.
    threads: list[threading.Thread] | None = None


nest = _Nest()


def is_deep() -> bool:
    """Whether the Python stack of this thread has used up a third of the recursion limit."""
    try:
        sys._getframe(sys.getrecursionlimit() // 3)
    except ValueError:
        return False
    return True


class _Continuation:
    """One call on a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self.context = (state.grad, state.inference, nest.task)
        self.threads = nest.threads if nest.threads is not None else []
        self.thread = threading.Thread(
            target=self._run, name=f"refruntime-nested-{nest.task.depth + 1}", daemon=True
        )

    def _run(self) -> None:
        state.grad, state.inference, nest.task = self.context
        nest.threads = self.threads
        try:
            self.result = self.call()
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Start the thread and wait for its end; pass interrupts on to the innermost one."""
        self.threads.append(self.thread)
        self.thread.start()
        interrupted = False
        while self.thread.is_alive():
            try:
                self.thread.join(PATIENCE)
            except KeyboardInterrupt:
                interrupted = True
            if interrupted:
                _interrupt(self.threads[-1])
        self.threads.remove(self.thread)
        if interrupted and self.error is None:
            raise KeyboardInterrupt


# Seconds after which a waiting thread looks up: a signal that another thread was woken by does not
# end its wait, and a thread that was interrupted may need to be interrupted again.
PATIENCE = 0.2


def _interrupt(thread: threading.Thread) -> None:
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(KeyboardInterrupt))


def on_another_thread(call: Callable[[], Any]) -> Any:
    """Run a function on a fresh thread and wait for it; return or raise what it does."""
    work = _Continuation(call)
    work.wait()
    if work.error is not None:
        try:
            raise work.error
        finally:
            # The traceback holds this frame, which holds the error: a cycle.
            del work
    return work.result
