"""Upstreams over upstreams: limits, counters, logs, owners and faults, one on top of the other.

They follow RMM's adaptors in what they do and in what they call it, for all that an upstream can
give: a page that is mapped or unmapped counts like a span.

State
-----
Each holds the upstream below it and its own books.

Invariants
----------
* An adaptor changes no address, no size and no order of what passes through it.
* `_before` may refuse a call before anything has happened. The other hooks follow what has
  happened, and never raise.
* Books are exact while calls come from one thread at a time. An allocator sees to that, unless it
  is told to release its lock around reservations.
"""

from __future__ import annotations

import datetime
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from refruntime.alloc.upstream.protocol import Upstream, UpstreamExhausted
from refruntime.errors import ArgumentValueError

CALLS: Final = (
    "reserve", "release", "memory_info", "reserve_addresses", "release_addresses", "map", "unmap",
    "copy", "record_event", "query_event", "wait_event", "release_event", "synchronize",
)  # fmt: skip


class Adaptor:
    """Passes every call on; subclasses say what else happens.

    Parameters
    ----------
    upstream : Upstream
        What it stands on.
    """

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream

    def _before(self, call: str, nbytes: int) -> None:
        """Raise, if this call must not go through."""

    def _took(self, address: int, nbytes: int, stream: int) -> None:
        """Note that a span or a page was given out."""

    def _gave(self, address: int, nbytes: int) -> None:
        """Note that a span or a page was taken back."""

    def _failed(self, nbytes: int, stream: int) -> None:
        """Note that the upstream raised when it was asked for a span or for pages."""

    @property
    def capacity(self) -> int:
        """The most bytes that can be given out at once."""
        return self.upstream.capacity

    @property
    def used(self) -> int:
        """The bytes given out now."""
        return self.upstream.used

    @property
    def supports_virtual_memory(self) -> bool:
        """Whether ranges of addresses can be reserved and mapped."""
        return self.upstream.supports_virtual_memory

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total bytes of the device."""
        self._before("memory_info", 0)
        return self.upstream.memory_info()

    def reserve(self, nbytes: int, stream: int) -> int:
        """Return the address of a fresh span."""
        self._before("reserve", nbytes)
        try:
            address = self.upstream.reserve(nbytes, stream)
        except Exception:
            self._failed(nbytes, stream)
            raise
        self._took(address, nbytes, stream)
        return address

    def release(self, address: int, nbytes: int) -> None:
        """Take a span back."""
        self._before("release", nbytes)
        self.upstream.release(address, nbytes)
        self._gave(address, nbytes)

    def reserve_addresses(self, nbytes: int) -> int:
        """Return the start of a range of addresses."""
        self._before("reserve_addresses", nbytes)
        return self.upstream.reserve_addresses(nbytes)

    def release_addresses(self, address: int, nbytes: int) -> None:
        """Take a range back."""
        self._before("release_addresses", nbytes)
        self.upstream.release_addresses(address, nbytes)

    def map(self, address: int, nbytes: int, page: int) -> None:
        """Put pages behind addresses."""
        self._before("map", nbytes)
        try:
            self.upstream.map(address, nbytes, page)
        except Exception:
            self._failed(nbytes, 0)
            raise
        for place in range(address, address + nbytes, page):
            self._took(place, page, 0)

    def unmap(self, address: int, nbytes: int, page: int, stream: int) -> None:
        """Take pages away from addresses."""
        self._before("unmap", nbytes)
        self.upstream.unmap(address, nbytes, page, stream)
        for place in range(address, address + nbytes, page):
            self._gave(place, page)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes from one place to another."""
        self._before("copy", nbytes)
        self.upstream.copy(target, source, nbytes, stream)

    def record_event(self, stream: int) -> int:
        """Mark the end of what a stream was given."""
        self._before("record_event", 0)
        return self.upstream.record_event(stream)

    def query_event(self, event: int) -> bool:
        """Whether the work before a mark is done."""
        self._before("query_event", 0)
        return self.upstream.query_event(event)

    def wait_event(self, event: int) -> None:
        """Block until the work before a mark is done."""
        self._before("wait_event", 0)
        self.upstream.wait_event(event)

    def release_event(self, event: int) -> None:
        """Take an event back."""
        self._before("release_event", 0)
        self.upstream.release_event(event)

    def synchronize(self, stream: int | None = None) -> None:
        """Block until the work of a stream, or of all, is done."""
        self._before("synchronize", 0)
        self.upstream.synchronize(stream)


class LimitingAdaptor(Adaptor):
    """Gives out at most so many bytes, of an upstream that may have more and serve others.

    Parameters
    ----------
    upstream : Upstream
        What it stands on.
    limit : int
        Bytes that may be out at once through this adaptor.
    """

    def __init__(self, upstream: Upstream, limit: int) -> None:
        super().__init__(upstream)
        if limit < 0:
            raise ArgumentValueError("LimitingAdaptor", expected="0 bytes or more", got=limit)
        self.limit = limit
        self._used = 0

    @property
    def capacity(self) -> int:
        """The limit, or what the upstream has, if that is less."""
        return min(self.limit, self.upstream.capacity)

    @property
    def used(self) -> int:
        """The bytes given out through this adaptor."""
        return self._used

    def memory_info(self) -> tuple[int, int]:
        """Return what the device has, cut to the limit."""
        free, total = super().memory_info()
        return min(free, max(self.limit - self._used, 0)), min(total, self.limit)

    def _before(self, call: str, nbytes: int) -> None:
        if call not in ("reserve", "map"):
            return
        # Claimed before it is checked: of two threads that want the last bytes, not both get them.
        self._used += nbytes
        if self._used > self.limit:
            self._used -= nbytes
            raise UpstreamExhausted

    def _failed(self, nbytes: int, stream: int) -> None:
        self._used -= nbytes

    def _gave(self, address: int, nbytes: int) -> None:
        self._used -= nbytes


@dataclass(slots=True)
class Statistics:
    """What passed through an adaptor.

    Attributes
    ----------
    current_bytes, current_spans : int
        Given out less taken back, since the counters began; below zero if more came back.
    peak_bytes, peak_spans : int
        The highest of these.
    total_bytes, total_spans : int
        Given out, ever.
    failures : int
        Requests that raised.
    """

    current_bytes: int = 0
    peak_bytes: int = 0
    total_bytes: int = 0
    current_spans: int = 0
    peak_spans: int = 0
    total_spans: int = 0
    failures: int = 0

    def take(self, nbytes: int) -> None:
        """Count a span or a page that was given out."""
        self.add(Statistics(nbytes, nbytes, nbytes, 1, 1, 1))

    def give(self, nbytes: int) -> None:
        """Count a span or a page that was taken back."""
        self.current_bytes -= nbytes
        self.current_spans -= 1

    def add(self, later: Statistics) -> None:
        """Count what happened while other counters were on top of these."""
        self.peak_bytes = max(self.peak_bytes, self.current_bytes + later.peak_bytes)
        self.peak_spans = max(self.peak_spans, self.current_spans + later.peak_spans)
        self.current_bytes += later.current_bytes
        self.current_spans += later.current_spans
        self.total_bytes += later.total_bytes
        self.total_spans += later.total_spans
        self.failures += later.failures


class StatisticsAdaptor(Adaptor):
    """Counts, in scopes that can be nested; a scope that ends is added to the one around it.

    Examples
    --------
    >>> source = StatisticsAdaptor(upstream)
    >>> with source.scope() as step:
    ...     train()
    >>> step.peak_bytes
    """

    def __init__(self, upstream: Upstream) -> None:
        super().__init__(upstream)
        self._scopes = [Statistics()]

    @property
    def statistics(self) -> Statistics:
        """The counters of the innermost scope, which go on counting."""
        return self._scopes[-1]

    def push(self) -> Statistics:
        """Begin a scope: its counters start at zero."""
        self._scopes.append(Statistics())
        return self._scopes[-1]

    def pop(self) -> Statistics:
        """End the innermost scope; return its counters."""
        if len(self._scopes) == 1:
            raise ArgumentValueError(
                "StatisticsAdaptor.pop",
                expected="a scope that was pushed",
                got="the outermost counters, which never end",
            )
        ended = self._scopes.pop()
        self._scopes[-1].add(ended)
        return ended

    @contextmanager
    def scope(self) -> Iterator[Statistics]:
        """Count what happens inside the ``with`` apart."""
        try:
            yield self.push()
        finally:
            self.pop()

    def _took(self, address: int, nbytes: int, stream: int) -> None:
        self._scopes[-1].take(nbytes)

    def _gave(self, address: int, nbytes: int) -> None:
        self._scopes[-1].give(nbytes)

    def _failed(self, nbytes: int, stream: int) -> None:
        self._scopes[-1].failures += 1


class LoggingAdaptor(Adaptor):
    """Writes a line of CSV for each span and page, in the format of RMM's logs.

    Columns are ``Thread,Time,Action,Pointer,Size,Stream``; actions are ``allocate``, ``free`` and
    ``allocate failure``. The stream of a free is that of its allocation; pages have stream 0.

    Parameters
    ----------
    upstream : Upstream
        What it stands on.
    file : path or text file
        Where to write; a path is overwritten, and closed by `close`.
    flush : bool
        Write each line at once.

    Notes
    -----
    A log that cannot be written any more is given up with a warning; memory goes on.
    """

    def __init__(
        self, upstream: Upstream, file: str | os.PathLike[str] | TextIO, *, flush: bool = False
    ) -> None:
        super().__init__(upstream)
        self._owned = isinstance(file, (str, os.PathLike))
        self._file: TextIO | None = (
            Path(file).open("w")  # noqa: SIM115  it is open until `close`
            if isinstance(file, (str, os.PathLike))
            else file
        )
        self._flush = flush
        self._streams: dict[int, int] = {}
        self._write("Thread,Time,Action,Pointer,Size,Stream")

    def flush(self) -> None:
        """Write out what is buffered."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """End the log; memory goes on."""
        self.flush()
        if self._owned and self._file is not None:
            self._file.close()
        self._file = None

    def _took(self, address: int, nbytes: int, stream: int) -> None:
        self._streams[address] = stream
        self._row("allocate", address, nbytes, stream)

    def _gave(self, address: int, nbytes: int) -> None:
        self._row("free", address, nbytes, self._streams.pop(address, 0))

    def _failed(self, nbytes: int, stream: int) -> None:
        self._row("allocate failure", 0, nbytes, stream)

    def _row(self, action: str, address: int, nbytes: int, stream: int) -> None:
        time = datetime.datetime.now().time().isoformat(timespec="microseconds")
        where = f"{stream:#x}" if stream else "0"
        self._write(f"{threading.get_native_id()},{time},{action},{address:#x},{nbytes},{where}")

    def _write(self, line: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line + "\n")
            if self._flush:
                self._file.flush()
        except (OSError, ValueError) as error:
            self._file = None
            warnings.warn(f"LoggingAdaptor gives its log up: {error}", RuntimeWarning, stacklevel=4)


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A span or page that is out, and the Python frames that asked for it, the caller last."""

    address: int
    nbytes: int
    stream: int
    stack: traceback.StackSummary


class TrackingAdaptor(Adaptor):
    """Knows what is out, and who asked for it.

    Parameters
    ----------
    upstream : Upstream
        What it stands on.
    depth : int
        Frames to keep of each stack, the innermost; 0 keeps none.
    """

    def __init__(self, upstream: Upstream, *, depth: int = 32) -> None:
        super().__init__(upstream)
        self._depth = depth
        self._out: dict[int, Outstanding] = {}

    def outstanding(self) -> list[Outstanding]:
        """Return what is out, the oldest first."""
        return list(self._out.values())

    def report(self) -> str:
        """Return a text of what is out, with its stacks; empty if nothing is."""
        return "\n".join(
            f"{each.nbytes} bytes at {each.address:#x}, stream {each.stream}\n"
            + "".join(each.stack.format())
            for each in self.outstanding()
        )

    def _took(self, address: int, nbytes: int, stream: int) -> None:
        self._out[address] = Outstanding(address, nbytes, stream, self._stack())

    def _gave(self, address: int, nbytes: int) -> None:
        self._out.pop(address, None)

    def _stack(self) -> traceback.StackSummary:
        # Past this method, the hook, and the call of the adaptor.
        frames = traceback.walk_stack(sys._getframe(3))
        stack = traceback.StackSummary.extract(frames, limit=self._depth, lookup_lines=False)
        stack.reverse()
        return stack


class FailingAdaptor(Adaptor):
    """Lets chosen calls fail, before they reach the upstream.

    Parameters
    ----------
    upstream : Upstream
        What it stands on.
    nth : int
        Which of the chosen calls fails, from 1; 0 lets none fail, and only counts.
    calls : collection of str
        The kinds that count, names of `CALLS`.
    error : callable
        Makes what is raised: an exception class, or a function without arguments.
    times : int
        How many calls in a row fail.

    Attributes
    ----------
    seen : int
        Chosen calls so far.

    Examples
    --------
    Every call of a run can be made to fail in turn:

    >>> for nth in itertools.count(1):
    ...     source = FailingAdaptor(VirtualUpstream(capacity), nth)
    ...     run(source)
    ...     if source.seen < nth:
    ...         break
    """

    def __init__(
        self,
        upstream: Upstream,
        nth: int,
        *,
        calls: Collection[str] = ("reserve", "map"),
        error: Callable[[], BaseException] = UpstreamExhausted,
        times: int = 1,
    ) -> None:
        super().__init__(upstream)
        unknown = set(calls) - set(CALLS)
        if unknown:
            raise ArgumentValueError(
                "FailingAdaptor",
                expected="names of calls: " + ", ".join(CALLS),
                got=", ".join(sorted(unknown)),
            )
        self.nth = nth
        self.times = times
        self.seen = 0
        self._calls = frozenset(calls)
        self._error = error

    def _before(self, call: str, nbytes: int) -> None:
        if call not in self._calls:
            return
        self.seen += 1
        if self.nth and self.nth <= self.seen < self.nth + self.times:
            raise self._error()
