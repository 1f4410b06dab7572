"""Device memory: where it comes from, how it is kept and given out, and what can be seen of it.

State
-----
One caching allocator for the CPU tensors of the process, made when it is first needed.

Invariants
----------
* Every owned byte of a CPU tensor comes from `host()`.
* Importing this package reserves nothing and compiles nothing.
"""

from __future__ import annotations

import atexit
import threading

from refruntime.alloc import categories
from refruntime.alloc.caching import CachingAllocator
from refruntime.alloc.graphs import VirtualGraphs
from refruntime.alloc.plain import PlainAllocator
from refruntime.alloc.snapshot import dump
from refruntime.alloc.strategy import (
    Point,
    ReplayResult,
    Request,
    Strategy,
    register_strategy,
    requests_of,
    run_strategy,
)
from refruntime.alloc.summary import summary_table
from refruntime.alloc.trace import Sample, Trace, TraceEvent, timeline
from refruntime.alloc.uncached import UncachedAllocator
from refruntime.alloc.upstream import HostUpstream, Upstream, UpstreamExhausted, VirtualUpstream

__all__ = [
    "CachingAllocator", "HostUpstream", "PlainAllocator", "Point", "ReplayResult", "Request",
    "Sample", "Strategy", "Trace", "TraceEvent", "UncachedAllocator", "Upstream",
    "UpstreamExhausted", "VirtualGraphs", "VirtualUpstream", "categories", "dump", "host",
    "register_strategy", "requests_of", "run_strategy", "summary_table", "timeline",
]  # fmt: skip

_host: CachingAllocator | None = None
_host_lock = threading.Lock()


def host() -> CachingAllocator:
    """Return the process-wide allocator of CPU tensors."""
    return _host if _host is not None else _make_host()


def _make_host() -> CachingAllocator:
    global _host
    with _host_lock:
        if _host is None:
            _host = CachingAllocator(HostUpstream(), device="CPU")
            atexit.register(_host.retire)
        return _host
