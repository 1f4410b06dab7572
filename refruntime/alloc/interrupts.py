"""Ctrl-C waits until tables are whole: an interrupt between two steps of the core would tear them.

State
-----
Whether an interrupt has arrived that is still to be raised.

Invariants
----------
* Only Python's own handler is replaced, only in the main thread, and it is put back.
* An interrupt is raised as soon as the core is left, never lost.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

_pending = False


def _note(number: int, frame: FrameType | None) -> None:
    global _pending
    _pending = True


def hold() -> bool:
    """Let Ctrl-C wait; return whether it now does because of this call."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, _note)
    except ValueError:
        # The main thread of a subinterpreter has no handlers of its own.
        return False
    return True


def let_go() -> None:
    """End what `hold` began; raise the interrupt that has arrived meanwhile."""
    global _pending
    if signal.getsignal(signal.SIGINT) is _note:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _pending:
        _pending = False
        raise KeyboardInterrupt
