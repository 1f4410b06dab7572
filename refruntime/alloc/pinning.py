"""The pinned host memory of the process: one allocator, made when it is first needed.

State
-----
The allocator, and where it will get memory from.

Invariants
----------
* There is one allocator for all GPUs: memory pinned once is pinned for each of them.
* Importing this module makes nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from refruntime.alloc.pinned import PinnedAllocator
from refruntime.alloc.pinned_upstream import HostPinnedUpstream, PinnedUpstream
from refruntime.alloc.settings import AllocatorSettings
from refruntime.errors import ArgumentValueError

_allocator: PinnedAllocator | None = None
_make_upstream: Callable[[], PinnedUpstream] = HostPinnedUpstream
_lock = threading.Lock()


def pinned() -> PinnedAllocator:
    """Return the process-wide allocator of pinned memory."""
    global _allocator
    with _lock:
        if _allocator is None:
            settings = AllocatorSettings.from_environment(os.environ)
            _allocator = PinnedAllocator(_make_upstream(), settings)
        return _allocator


def serve_from(make_upstream: Callable[[], PinnedUpstream]) -> None:
    """Say where pinned memory comes from; by default it is ordinary pages of this process.

    Whoever drives a real GPU names `CupyPinnedUpstream` here, before anything is pinned.

    Raises
    ------
    ArgumentValueError
        If memory has been pinned already.
    """
    global _make_upstream
    with _lock:
        if _allocator is not None:
            raise ArgumentValueError(
                "serve_from",
                expected="a process that has pinned nothing yet",
                got="an allocator in use",
                remedy="name the upstream before the first pin_memory()",
            )
        _make_upstream = make_upstream
