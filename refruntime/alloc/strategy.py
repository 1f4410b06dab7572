"""Strategies: what a trace of requests costs under each, without any memory.

State
-----
`STRATEGIES` maps names to factories; `register_strategy` adds one.

Invariants
----------
* A run sees requests (sizes, streams, lifetimes), never addresses of the recorded run.
* A request that fails is counted and goes missing; its free is skipped.
* The peaks are exact: they are taken after every request, of allocated and of reserved bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from refruntime.alloc import trace
from refruntime.alloc.caching import CachingAllocator
from refruntime.alloc.plain import PlainAllocator
from refruntime.alloc.trace import Trace, TraceEvent
from refruntime.alloc.upstream import Upstream, VirtualUpstream
from refruntime.errors import ArgumentValueError, OutOfMemoryError

DEFAULT_CAPACITY: Final = 1 << 46


class Request(NamedTuple):
    """One step: an alloc of `size` bytes under the name `id`, or the free of `id`."""

    action: str
    id: int
    size: int = 0
    stream: int = 0


class Strategy(Protocol):
    """What `run_strategy` needs of an allocator."""

    @property
    def allocated_bytes(self) -> int:
        """The bytes of blocks in use, as rounded."""

    @property
    def reserved_bytes(self) -> int:
        """The bytes taken from the upstream."""

    @property
    def retries(self) -> int:
        """How often the cache was released to serve a request."""

    @property
    def ooms(self) -> int:
        """How many requests failed."""

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Return an address, or raise OutOfMemoryError."""

    def free(self, address: int) -> None:
        """Take a block back."""


class Point(NamedTuple):
    """The state after a request, in bytes; `step` is the place of the request in the list."""

    step: int
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one strategy made of a list of requests.

    Attributes
    ----------
    strategy : str
        Its name.
    peak_allocated_bytes, peak_reserved_bytes : int
        The most bytes in blocks in use, and taken from the upstream.
    upstream_calls : int
        Reservations (failed ones included) and releases.
    ooms, retries : int
        Requests that failed; times that the cache was released to serve one.
    timeline : tuple of Point
        The state after each request.
    """

    strategy: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    upstream_calls: int
    ooms: int
    retries: int
    timeline: tuple[Point, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, without the timeline, for JSON."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "timeline"}


STRATEGIES: Final[dict[str, Callable[[Upstream], Strategy]]] = {}


def register_strategy(name: str, factory: Callable[[Upstream], Strategy]) -> None:
    """Make a strategy available to `run_strategy` under a name."""
    if name in STRATEGIES:
        raise ArgumentValueError("register_strategy", expected="a new name", got=repr(name))
    STRATEGIES[name] = factory


register_strategy("caching", CachingAllocator)
register_strategy("plain", PlainAllocator)


def requests_of(history: Trace | Iterable[TraceEvent]) -> list[Request]:
    """Return the requests of a recorded trace: live blocks first, then what was recorded.

    Frees of blocks that the trace does not know are left out.
    """
    events = [*history.initial, *history.events] if isinstance(history, Trace) else history
    requests: list[Request] = []
    names: dict[int, int] = {}
    for event in events:
        if event.action == trace.ALLOC:
            names[event.addr] = len(requests)
            requests.append(Request("alloc", len(requests), event.size, event.stream))
        elif event.action == trace.FREE_REQUESTED and event.addr in names:
            requests.append(Request("free", names.pop(event.addr)))
        elif event.action == trace.OOM:
            requests.append(Request("alloc", len(requests), event.size, event.stream))
    return requests


def run_strategy(
    history: Trace | Sequence[Request], strategy: str = "caching", capacity: int = DEFAULT_CAPACITY
) -> ReplayResult:
    """Serve requests by a strategy on a virtual device.

    Parameters
    ----------
    history : Trace or sequence of Request
        What was asked for.
    strategy : str
        A name in `STRATEGIES`.
    capacity : int
        Bytes of the virtual device.
    """
    if strategy not in STRATEGIES:
        # Those of other runtimes register themselves when they are imported: when one is wanted.
        from refruntime.alloc import strategies  # noqa: F401
    if strategy not in STRATEGIES:
        raise ArgumentValueError(
            "strategy", expected="one of " + ", ".join(sorted(STRATEGIES)), got=repr(strategy)
        )
    requests = requests_of(history) if isinstance(history, Trace) else history
    upstream = VirtualUpstream(capacity)
    allocator = STRATEGIES[strategy](upstream)
    prepare = getattr(allocator, "prepare", None)
    if prepare is not None:
        prepare(requests)
    timeline = _play(requests, allocator)
    return ReplayResult(
        strategy=strategy,
        peak_allocated_bytes=max((point.allocated for point in timeline), default=0),
        peak_reserved_bytes=max((point.reserved for point in timeline), default=0),
        upstream_calls=upstream.calls,
        ooms=allocator.ooms,
        retries=allocator.retries,
        timeline=tuple(timeline),
    )


def _play(requests: Iterable[Request], allocator: Strategy) -> list[Point]:
    addresses: dict[int, int] = {}
    timeline: list[Point] = []
    for step, request in enumerate(requests):
        if request.action == "alloc":
            try:
                addresses[request.id] = allocator.malloc(request.size, request.stream)
            except OutOfMemoryError:
                addresses.pop(request.id, None)
        elif request.id in addresses:
            allocator.free(addresses.pop(request.id))
        timeline.append(Point(step, allocator.allocated_bytes, allocator.reserved_bytes))
    return timeline
