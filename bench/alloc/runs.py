"""Recorded training runs, served by a strategy on a virtual device.

A run is an event list as the recorder writes it, gzipped JSON lines: ``{"op": "alloc", "id": ...,
"size": ..., "stream": ...}``, ``free``, ``record_stream``; a first line ``config`` is skipped.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from refruntime.alloc.strategies import RmmArena
from refruntime.alloc.strategy import Request, Strategy
from refruntime.alloc.upstream import Upstream, VirtualUpstream
from refruntime.errors import OutOfMemoryError

CAPACITY = 80 << 30
MIB = 1 << 20
SUFFIX = ".jsonl.gz"

Factory = Callable[[Upstream], Strategy]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a strategy made of a run, apart from time: the same on every machine.

    Attributes
    ----------
    peak_reserved : int
        Bytes.
    upstream_calls : int
        Reservations, releases and maps, failed ones included.
    ooms, retries : int
        Requests that failed; times that the cache was released to serve one.
    chunks_stitched : int
        2 MiB chunks that were mapped once more, under stitched addresses.
    unplanned : int
        Requests that a plan did not serve.
    """

    peak_reserved: int
    upstream_calls: int
    ooms: int
    retries: int
    chunks_stitched: int = 0
    unplanned: int = 0

    def record(self) -> dict[str, int]:
        """Return the figures that say something."""
        kept = ("peak_reserved", "upstream_calls")
        return {name: n for name, n in asdict(self).items() if n or name in kept}


def traces_of(directory: Path) -> dict[str, Path]:
    """Return the event lists of a directory by name."""
    files = sorted(directory.glob(f"*{SUFFIX}"))
    return {file.name.removesuffix(SUFFIX): file for file in files}


def requests_of(file: Path) -> list[Request]:
    """Return the requests of an event list."""
    return list(_requests(file))


def _requests(file: Path) -> Iterator[Request]:
    with gzip.open(file, "rt") as lines:
        for line in lines:
            event = json.loads(line)
            if event["op"] in ("alloc", "free", "record_stream"):
                size, stream = event.get("size", 0), event.get("stream", 0)
                yield Request(event["op"], event["id"], size, stream)


def peak_live(requests: Sequence[Request]) -> int:
    """Return the most bytes in use at once, each block rounded to 512: what nobody can go below."""
    sizes: dict[int, int] = {}
    live = peak = 0
    for request in requests:
        if request.action == "alloc":
            sizes[request.id] = -(-request.size // 512) * 512
            live += sizes[request.id]
            peak = max(peak, live)
        elif request.action == "free":
            live -= sizes.pop(request.id, 0)
    return peak


def figures_of(requests: Sequence[Request], factory: Factory) -> Figures:
    """Serve a run and count. An arena that cannot grow gets the size that the run needs."""
    if factory is RmmArena:
        factory = partial(RmmArena, arena_bytes=_arena_for(requests))
    allocator, upstream = _prepared(requests, factory)
    peak = _play(requests, allocator)
    ranges = getattr(allocator, "ranges", None)
    return Figures(
        peak,
        upstream.calls,
        allocator.ooms,
        allocator.retries,
        ranges.chunks_mapped if ranges is not None else 0,
        getattr(allocator, "mismatches", 0),
    )


def seconds_of(requests: Sequence[Request], factory: Factory, rounds: int = 3) -> float:
    """Return the processor time of serving a run, planning left out: the least of some rounds."""
    times = []
    for _ in range(rounds):
        allocator, _ = _prepared(requests, factory)
        start = time.process_time()
        _play(requests, allocator)
        times.append(time.process_time() - start)
    return min(times)


def _arena_for(requests: Sequence[Request]) -> int:
    """Return the size of the smallest arena that serves a run, to a MiB or two."""
    arena = RmmArena(VirtualUpstream(CAPACITY), arena_bytes=CAPACITY)
    _play(requests, arena)
    return min(-(-arena.high_water // MIB) * MIB + MIB, CAPACITY)


def _prepared(requests: Sequence[Request], factory: Factory) -> tuple[Strategy, VirtualUpstream]:
    upstream = VirtualUpstream(CAPACITY)
    allocator: Any = factory(upstream)
    if hasattr(allocator, "prepare"):
        allocator.prepare(requests)
    return allocator, upstream


def _play(requests: Sequence[Request], allocator: Any) -> int:
    """Carry out requests; return the most bytes reserved. A failed one goes missing."""
    addresses: dict[int, int] = {}
    record_stream = getattr(allocator, "record_stream", None)
    peak = 0
    for action, name, size, stream in requests:
        if action == "alloc":
            try:
                addresses[name] = allocator.malloc(size, stream)
            except OutOfMemoryError:
                continue
            peak = max(peak, allocator.reserved_bytes)
        elif name not in addresses:
            continue
        elif action == "free":
            allocator.free(addresses.pop(name))
        elif record_stream is not None:
            record_stream(addresses[name], stream)
    return peak
