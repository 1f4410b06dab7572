"""Upstreams: where an allocator gets whole segments from, and where it gives them back.

``protocol`` says what an upstream is. ``host`` is the memory of this machine, ``virtual`` a device
that exists only as an address space (made of what stands in ``models`` and ``events``), ``cupy`` a
GPU. ``adaptors`` are upstreams over upstreams: limits, counters, logs, faults. ``spans`` and
``pages`` are what they share. The last two kinds are imported by those who use them.
"""

from __future__ import annotations

from refruntime.alloc.upstream.host import HostUpstream, host_capacity
from refruntime.alloc.upstream.models import (
    AddressModel,
    BumpAddresses,
    CallLog,
    DriverLatency,
    FirstFitAddresses,
    LatencyModel,
)
from refruntime.alloc.upstream.pages import HUGE_PAGE, LazyHostPages
from refruntime.alloc.upstream.protocol import Upstream, UpstreamExhausted
from refruntime.alloc.upstream.virtual import VirtualUpstream

__all__ = [
    "HUGE_PAGE", "AddressModel", "BumpAddresses", "CallLog", "DriverLatency", "FirstFitAddresses",
    "HostUpstream", "LatencyModel", "LazyHostPages", "Upstream", "UpstreamExhausted",
    "VirtualUpstream", "host_capacity",
]  # fmt: skip
