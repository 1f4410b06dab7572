"""A device that exists only as an address space: for replay, planning, tests and the virtual GPU.

State
-----
The spans given out, the ranges and pages, the marks of its streams, a clock.

Invariants
----------
* `used` counts in units of `granularity`; `used + foreign` never passes `capacity` by a call.
* A call that fails costs time and is logged, and changes nothing else.
* A request for memory that fails asks `memory_info` at once, as PyTorch 2.14.1 does for its warning
  (for a page: while the pages made before it are still held). The caller need not ask again.
"""

from __future__ import annotations

from typing import Any

from refruntime.alloc.upstream.events import VirtualEvents
from refruntime.alloc.upstream.models import (
    DEFAULT_BASE,
    AddressModel,
    BumpAddresses,
    CallLog,
    LatencyModel,
)
from refruntime.alloc.upstream.protocol import UpstreamExhausted
from refruntime.alloc.upstream.spans import AddressRanges, check_span
from refruntime.errors import ArgumentValueError


class VirtualUpstream:
    """A device of so many bytes, whose driver is modelled.

    Parameters
    ----------
    capacity : int
        Bytes that can be given out at once; may be changed at any time.
    base : int
        The first address, for the default of `addresses`.
    addresses : AddressModel, optional
        Where spans and ranges lie. By default each lies above all before (`BumpAddresses`), with no
        memory behind it; with `LazyHostPages` the addresses can be read and written.
    latency : LatencyModel, optional
        What each driver call costs, for example `DriverLatency`; by default nothing.
    granularity : int
        The unit in which the device counts spans, in bytes.
    manual_events : bool
        Whether the work of streams is done only when `complete`, a wait or a synchronisation says
        so; by default it is done at once.
    log : CallLog, optional
        Where to write every driver call.

    Attributes
    ----------
    used, foreign : int
        Bytes given out, and bytes that others hold on the device (may be set).
    calls : int
        Calls that change what is given out, failed ones included.
    clock_ns : int
        Nanoseconds spent in the driver.
    """

    supports_virtual_memory = True

    def __init__(
        self,
        capacity: int,
        *,
        base: int = DEFAULT_BASE,
        addresses: AddressModel | None = None,
        latency: LatencyModel | None = None,
        granularity: int = 1,
        manual_events: bool = False,
        log: CallLog | None = None,
    ) -> None:
        self.capacity = capacity
        self.used = 0
        self.foreign = 0
        self.calls = 0
        self.clock_ns = 0
        self._log = log
        self.granularity = granularity
        self._addresses = BumpAddresses(base) if addresses is None else addresses
        self._latency = latency
        self._watched = latency is not None or log is not None
        self._spans: dict[int, int] = {}
        self._ranges = AddressRanges()
        self._events = VirtualEvents(manual_events)
        self._failures = 0

    # --- spans --------------------------------------------------------------------------------

    def reserve(self, nbytes: int, stream: int) -> int:
        """Return the address of a fresh span."""
        self.calls += 1
        counted = self._counted(nbytes)
        try:
            address = self._take(nbytes, counted)
        except UpstreamExhausted:
            self._driver("malloc", nbytes, None, nbytes, "oom")
            self.memory_info()
            raise
        self._spans[address] = nbytes
        if self._watched:
            self._driver("malloc", nbytes, self._new_segment(address), nbytes)
        return address

    def release(self, address: int, nbytes: int) -> None:
        """Take a span back."""
        self.calls += 1
        check_span(self._spans, address, nbytes)
        del self._spans[address]
        self._addresses.give(address, nbytes)
        counted = self._counted(nbytes)
        self.used -= counted
        if self._watched:
            self._driver("free", nbytes, self._segment(address), nbytes)

    def memory_info(self) -> tuple[int, int]:
        """Return the bytes that nobody holds, and the capacity."""
        free = max(self.capacity - self.used - self.foreign, 0)
        self._driver("mem_get_info", 0, free, self.capacity)
        return free, self.capacity

    # --- virtual memory -----------------------------------------------------------------------

    def reserve_addresses(self, nbytes: int) -> int:
        """Return the start of a range of addresses."""
        try:
            address = self._addresses.take(nbytes)
        except OSError:
            raise UpstreamExhausted from None
        self._ranges.add(address, nbytes)
        self._driver("reserve", nbytes, self._new_segment(address), nbytes)
        return address

    def release_addresses(self, address: int, nbytes: int) -> None:
        """Take a range back."""
        self._ranges.check_remove(address, nbytes)
        self._addresses.give(address, nbytes)
        self._ranges.remove(address)
        self._driver("addr_free", nbytes, self._segment(address), nbytes)

    def map(self, address: int, nbytes: int, page: int) -> None:
        """Create pages one by one, then map them and make them accessible."""
        self.calls += 1
        self._ranges.check_map(address, nbytes, page)
        self._create(nbytes // page, page)
        try:
            self._addresses.commit(address, nbytes)
        except OSError:
            self._destroy(nbytes // page, page)
            raise UpstreamExhausted from None
        except BaseException:
            self._destroy(nbytes // page, page)
            raise
        self._ranges.note_mapped(address, nbytes, page)
        start = self._ranges.start_of("map", address, nbytes)
        for place in range(address, address + nbytes, page):
            self._driver("map", page, self._segment(start), place - start, page)
        self._driver("set_access", nbytes, self._segment(start), address - start, nbytes)

    def unmap(self, address: int, nbytes: int, page: int, stream: int) -> None:
        """Wait for the stream, then unmap and destroy page by page."""
        self.calls += 1
        self._ranges.check_unmap(address, nbytes, page)
        self.synchronize(stream)
        self._addresses.decommit(address, nbytes)
        self._ranges.note_unmapped(address, nbytes, page)
        start = self._ranges.start_of("unmap", address, nbytes)
        for place in range(address, address + nbytes, page):
            self._driver("unmap", page, self._segment(start), place - start, page)
            self._destroy(1, page)

    def _create(self, count: int, page: int) -> None:
        """Create all pages, or none."""
        for made in range(count):
            try:
                self._claim(page)
            except UpstreamExhausted:
                self._driver("create", page, page, "oom")
                self.memory_info()
                self._destroy(made, page)
                raise
            self._driver("create", page, page)

    def _destroy(self, count: int, page: int) -> None:
        for _ in range(count):
            self.used -= page
            self._driver("release", page, page)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy what stands at addresses, if anything does."""
        self._addresses.copy(target, source, nbytes)
        self._driver("memcpy", nbytes, target, source, nbytes, stream)

    # --- streams ------------------------------------------------------------------------------

    @property
    def manual_events(self) -> bool:
        """Whether the work of streams waits for `complete`; may be set."""
        return self._events.manual

    @manual_events.setter
    def manual_events(self, manual: bool) -> None:
        self._events.manual = manual

    def complete(self, stream: int | None = None, n: int | None = None) -> None:
        """Let a stream (by default all) get past its oldest `n` events (by default all)."""
        self._events.complete(stream, n)

    def record_event(self, stream: int) -> int:
        """Mark the end of what the stream was given; return the name of the mark."""
        number, new = self._events.take()
        if new:
            self._driver("event_create", 0, number)
        self._driver("event_record", 0, number, stream)
        return self._events.record(number, stream)

    def query_event(self, event: int) -> bool:
        """Whether the stream has passed the mark."""
        mark = self._events.mark(event)
        done = self._events.done(mark)
        self._driver("event_query", 0, mark.number, "ready" if done else "not_ready")
        return done

    def wait_event(self, event: int) -> None:
        """Let the stream pass the mark."""
        mark = self._events.mark(event)
        self._events.wait(mark)
        self._driver("event_sync", 0, mark.number)

    def release_event(self, event: int) -> None:
        """Take an event back: the last one that came back is recorded first."""
        self._events.give_back(event)

    def synchronize(self, stream: int | None = None) -> None:
        """Let a stream, or all, pass all marks."""
        self._events.complete(stream)
        if stream is None:
            self._driver("device_sync", 0)
        else:
            self._driver("stream_sync", 0, stream)

    # --- faults, and the model ----------------------------------------------------------------

    def fail_next(self, n: int = 1) -> None:
        """Let the next `n` requests for memory (spans, or single pages) fail."""
        if n < 0:
            raise ArgumentValueError("fail_next", expected="0 failures or more", got=n)
        self._failures = n

    def _claim(self, counted: int) -> None:
        """Count bytes as used, if there are so many."""
        if self._failures:
            self._failures -= 1
            raise UpstreamExhausted
        # Claimed before it is checked: of two threads that want the last bytes, not both get them.
        self.used += counted
        if self.used + self.foreign > self.capacity:
            self.used -= counted
            raise UpstreamExhausted

    def _counted(self, nbytes: int) -> int:
        return -(-nbytes // self.granularity) * self.granularity

    def _take(self, nbytes: int, counted: int) -> int:
        """Claim bytes, and find addresses for them."""
        self._claim(counted)
        try:
            return self._place(nbytes)
        except OSError:
            self.used -= counted
            raise UpstreamExhausted from None
        except BaseException:
            self.used -= counted
            raise

    def _place(self, nbytes: int) -> int:
        address = self._addresses.take(nbytes)
        try:
            self._addresses.commit(address, nbytes)
        except BaseException:
            self._addresses.give(address, nbytes)
            raise
        return address

    def _new_segment(self, address: int) -> int:
        return self._log.new_segment(address) if self._log is not None else 0

    def _segment(self, address: int) -> int:
        return self._log.number(address) if self._log is not None else 0

    def _driver(self, call: str, nbytes: int, *fields: Any) -> None:
        """Spend the time of a driver call, and log it."""
        if self._latency is not None:
            spent = self._latency(call, nbytes)
            self.clock_ns += spent
        if self._log is not None:
            self._log.write(call, *fields)
