"""Nobody is inside an allocator while the process forks, so a child's copy of the tables is whole.

State
-----
The entrances that are alive, and those entered for the fork under way.

Invariants
----------
* An entrance that is taken is waited for with none held: a thread inside one may want another.
* What was queued at an entrance meanwhile is settled after the fork, in parent and child.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Entrance(Protocol):
    """What lets one thread at a time into an allocator."""

    def mine(self) -> bool:
        """Return whether the calling thread is inside."""
        ...

    def enter(self, blocking: bool = True) -> bool:
        """Go inside, waiting for other threads if `blocking`; return whether it was done."""
        ...

    def leave(self) -> None:
        """Go outside."""
        ...

    def leave_in_child(self) -> None:
        """Go outside in a child process, where the threads that waited do not exist."""
        ...

    def settle(self) -> None:
        """Do what was queued while somebody was inside."""
        ...


_living: weakref.WeakSet[Entrance] = weakref.WeakSet()
_held: list[Entrance] = []


def keep_whole(entrance: Entrance) -> None:
    """Have nobody inside `entrance` whenever the process forks."""
    _living.add(entrance)


def _before() -> None:
    while (taken := _enter_all()) is not None:
        if taken.enter():
            taken.leave()
            taken.settle()


def _enter_all() -> Entrance | None:
    """Enter every entrance but the caller's own; or enter none, and return one that is taken."""
    for entrance in list(_living):
        if entrance.mine():
            continue
        if not entrance.enter(blocking=False):
            _after_in_parent()
            return entrance
        _held.append(entrance)
    return None


def _after_in_parent() -> None:
    while _held:
        entrance = _held.pop()
        entrance.leave()
        entrance.settle()


def _after_in_child() -> None:
    while _held:
        entrance = _held.pop()
        entrance.leave_in_child()
        entrance.settle()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
