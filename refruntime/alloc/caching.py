"""The caching allocator: the core's Python shell, which talks to the upstream and to users.

State
-----
The tables of the core, an upstream, a trace, and a queue of frees and tags that could not be
carried out at once. The first calls run the core interpreted; after `config.alloc_compile_after`
of them the three hot entries (malloc, free, tag) are compiled.

Invariants
----------
* A compiled entry is atomic under the interpreter lock and needs no other. Everything else runs
  inside the guard, which keeps compiled entries and other threads out.
* While a call is inside the guard, mallocs of other threads wait, and frees and tags of any thread
  are queued; the queue is drained when the guard is left. So a free that the garbage collector
  makes in the middle of a call never finds half-changed tables.
* A malloc made in the middle of a call on the same thread (by a finalizer) gets a segment of its
  own, which the core adopts when the queue is drained.
* A failed malloc leaves blocks and statistics as they were, apart from the cache that was released
  for it and the counts of retries and failures.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from refruntime.alloc import categories, core, entries, machine, statistics, trace
from refruntime.alloc.guard import Guard
from refruntime.alloc.oom import Shortage, absurd_request
from refruntime.alloc.snapshot import history_before, snapshot_of
from refruntime.alloc.summary import summary_table
from refruntime.alloc.tables import (
    ALLOCATED_BYTES,
    GATE,
    NUM_ALLOC_RETRIES,
    NUM_OOMS,
    OUTSIDE_ADDRESS,
    OUTSIDE_SIZE,
    OUTSIDE_STREAM,
    PHASE,
    RECORDING,
    REQUEST_CATEGORY,
    REQUEST_SIZE,
    RESERVED_BYTES,
    Tables,
)
from refruntime.alloc.trace import Trace
from refruntime.alloc.upstream import Upstream, UpstreamExhausted
from refruntime.config import config
from refruntime.errors import ArgumentValueError

# What a queued entry asks for.
_FREE: Final = 0
_TAG: Final = 1
_ADOPT: Final = 2
_Queued = tuple[int, ...]

_NEVER: Final = 1 << 62


def _not_compiled(*args: int) -> int:
    """Stand in for a compiled entry: always sends the caller the slow way."""
    return core.GATED


def _ignore(address: int) -> None:
    """Free nothing."""


class CachingAllocator:
    """Serves spans of bytes from segments that it keeps, with PyTorch's policy.

    Parameters
    ----------
    upstream : Upstream
        Where segments come from.
    device : str
        The name in error texts and tables.
    compile_after : int, optional
        Calls before the core is compiled; by default `config.alloc_compile_after`.
    """

    def __init__(
        self, upstream: Upstream, *, device: str = "CPU", compile_after: int | None = None
    ) -> None:
        self.upstream = upstream
        self.device = device
        self.trace = Trace()
        self.tables = Tables()
        self._header = self.tables.address
        self._take: Callable[..., int] = _not_compiled
        self._give: Callable[..., int] = _not_compiled
        self._retag: Callable[..., int] = _not_compiled
        self._cold_calls = config.alloc_compile_after if compile_after is None else compile_after
        self.queue: deque[_Queued] = deque()
        self._guard = Guard(self)
        self._baseline = statistics.Baseline()
        if compile_after is None and entries.fast_retag.compiled:
            self.compile()

    # --- the hot calls ------------------------------------------------------------------------

    def malloc(self, nbytes: int, stream: int = 0, category: int = categories.DEFAULT) -> int:
        """Return the address of `nbytes` bytes (0 for 0 bytes), to be used on `stream`.

        Raises
        ------
        OutOfMemoryError
            If neither the cache nor the upstream can serve it, also after releasing the cache.
        ArgumentValueError
            If the size is negative or the category unknown.
        """
        try:
            address = self._take(self._header, nbytes, stream, category)
        except OverflowError:
            # More than a machine word holds: the slow way knows what to say.
            address = core.INVALID
        return address if address > 0 else self._malloc_slow(nbytes, stream, category)

    def free(self, address: int) -> None:
        """Give a block back to the cache; address 0 is ignored.

        Raises
        ------
        ArgumentValueError
            If no block in use has this address.
        """
        code = self._give(self._header, address)
        if code != core.DONE:
            self._change_slow((_FREE, address), code)

    def retire(self) -> None:
        """Ignore what is freed from now on: the process ends, and its memory with it."""
        # Tensors that live to the end are freed while modules are taken apart.
        self.free = _ignore  # type: ignore[method-assign]

    def tag(self, address: int, category: int) -> None:
        """Say what a block is for from now on; address 0 is ignored.

        Raises
        ------
        ArgumentValueError
            If no block in use has this address, or the category is unknown.
        """
        code = self._retag(self._header, address, category)
        if code != core.DONE:
            self._change_slow((_TAG, address, category), code)

    # --- the rest of the face -----------------------------------------------------------------

    @property
    def allocated_bytes(self) -> int:
        """The bytes of blocks in use, as rounded."""
        return statistics.current(self.tables.header, ALLOCATED_BYTES)

    @property
    def reserved_bytes(self) -> int:
        """The bytes of segments held."""
        return statistics.current(self.tables.header, RESERVED_BYTES)

    @property
    def retries(self) -> int:
        """How often the cache was released to serve a request, ever."""
        return int(self.tables.header[NUM_ALLOC_RETRIES])

    @property
    def ooms(self) -> int:
        """How many requests failed, ever."""
        return int(self.tables.header[NUM_OOMS])

    @property
    def compiled(self) -> bool:
        """Whether the hot calls run compiled."""
        return self._take is not _not_compiled

    def compile(self) -> None:
        """Compile the hot calls now, instead of after the first few hundred (not in pure mode)."""
        if config.pure or self.compiled:
            return
        for entry in (entries.fast_take, entries.fast_give, entries.fast_retag):
            entry.compile()
        self._take = entries.fast_take.entry
        self._give = entries.fast_give.entry
        self._retag = entries.fast_retag.entry

    def empty_cache(self) -> None:
        """Give every segment that holds no block in use back to the upstream."""
        if self._guard.mine():
            return
        with self._guard:
            tables = self.tables
            self._run(machine.begin_emptying(tables.header, tables.blocks))

    def stats(self) -> dict[str, int]:
        """Return all statistics under the keys of ``torch.cuda.memory_stats``."""
        self.settle()
        return statistics.memory_stats(self.tables.header, self._baseline)

    def category_bytes(self) -> dict[str, int]:
        """Return the bytes in use (as asked for) of each category, by name."""
        self.settle()
        return statistics.category_bytes(self.tables.header)

    def attribution(self) -> dict[str, int]:
        """Return every reserved byte by what it is for; see `statistics.attribution`."""
        self.settle()
        return statistics.attribution(self.tables.header)

    def reset_peak_stats(self) -> None:
        """Make every peak the current value."""
        with self._guard:
            statistics.reset_peaks(self.tables.header)

    def reset_accumulated_stats(self) -> None:
        """Start the totals (allocated, freed, retries, failures) anew."""
        with self._guard:
            self._baseline.move(self.tables.header)

    def record(
        self, enabled: bool = True, *, stacks: bool = False, max_entries: int | None = None
    ) -> None:
        """Start the event trace anew, or stop it; see `Trace`.

        Parameters
        ----------
        enabled : bool
            Start or stop.
        stacks : bool
            Keep the Python frames of each allocation (a few microseconds each).
        max_entries : int, optional
            Keep only so many events, the latest.
        """
        with self._guard:
            header = self.tables.header
            if enabled:
                self.trace.start(history_before(self.tables), stacks, max_entries)
                header[GATE] |= RECORDING
            else:
                self.trace.stop()
                header[GATE] &= ~RECORDING

    def snapshot(self) -> dict[str, Any]:
        """Return segments, blocks and trace in the form of ``torch.cuda.memory_snapshot`` files."""
        with self._guard:
            return snapshot_of(self.tables, self.trace)

    def summary(self) -> str:
        """Return a table of the statistics."""
        return summary_table(self.stats(), self.device)

    # --- the slow way -------------------------------------------------------------------------

    def _malloc_slow(self, nbytes: int, stream: int, category: int) -> int:
        _check_request(self.device, nbytes, category)
        if nbytes == 0:
            return 0
        if self._guard.mine():
            return self._malloc_inside(nbytes, stream, category)
        self._warm_up()
        with self._guard:
            return self._serve(nbytes, stream, category)

    def _warm_up(self) -> None:
        if not self.compiled:
            self._cold_calls -= 1
            if self._cold_calls < 0:
                # A finalizer may allocate while the compiler runs: it must not start it again.
                self._cold_calls = _NEVER
                self.compile()

    def _serve(self, nbytes: int, stream: int, category: int) -> int:
        """Serve a request inside the guard."""
        code = self._call(entries.held_take, core.take, nbytes, stream, category)
        if code == core.MISS:
            header = self.tables.header
            code = self._run(machine.begin(header, nbytes, stream, category))
        if code == core.OUT_OF_MEMORY:
            raise self._shortage(int(self.tables.header[OUTSIDE_SIZE])).error()
        if self.trace.enabled:
            self.trace.add_alloc(code, nbytes, stream, category)
        return code

    def _call(self, entry: Any, rule: Any, *args: int) -> int:
        """Run a rule of the core inside the guard, compiled where that pays: while recording."""
        if self.compiled and self.trace.enabled:
            code = entry(self._header, *args)
        else:
            code = rule(self.tables.header, self.tables.blocks, self.tables.index, *args)
        if code == core.ROWS_NEEDED:
            self.tables.grow()
            return self._call(entry, rule, *args)
        return int(code)

    def _run(self, code: int) -> int:
        """Carry out what the core asks of the outside until it is done; return its last word."""
        tables, span = self.tables, 0
        try:
            while code in (core.RESERVE, core.RELEASE, core.ROWS_NEEDED):
                if code == core.RESERVE:
                    span = self._reserve()
                elif code == core.RELEASE:
                    self._release()
                else:
                    tables.grow()
                code = machine.resume(tables.header, tables.blocks, tables.index, span)
        except BaseException:
            if span and tables.header[PHASE] != machine.IDLE:
                self.upstream.release(span, int(tables.header[OUTSIDE_SIZE]))
            machine.abandon(tables.header, tables.blocks)
            raise
        return code

    def _reserve(self) -> int:
        header = self.tables.header
        size, stream = header[OUTSIDE_SIZE], header[OUTSIDE_STREAM]
        try:
            address = self.upstream.reserve(size, stream)
        except UpstreamExhausted:
            return 0
        if self.trace.enabled:
            self.trace.add(trace.SEGMENT_ALLOC, address, size, stream, header[REQUEST_CATEGORY])
        return address

    def _release(self) -> None:
        header = self.tables.header
        address, size = header[OUTSIDE_ADDRESS], header[OUTSIDE_SIZE]
        self.upstream.release(address, size)
        if self.trace.enabled:
            stream = header[OUTSIDE_STREAM]
            self.trace.add(trace.SEGMENT_FREE, address, size, stream, categories.DEFAULT)

    def _malloc_inside(self, nbytes: int, stream: int, category: int) -> int:
        """Serve a malloc made in the middle of a call on this thread: past the core, for now."""
        size = core.segment_size(core.round_size(nbytes))
        try:
            address = self.upstream.reserve(size, stream)
        except UpstreamExhausted:
            raise self._shortage(size).error() from None
        self.queue.append((_ADOPT, address, nbytes, stream, category))
        return address

    def _shortage(self, tried: int) -> Shortage:
        free = self.upstream.capacity - self.upstream.used
        if self.trace.enabled:
            header = self.tables.header
            stream, category = header[OUTSIDE_STREAM], header[REQUEST_CATEGORY]
            self.trace.add(trace.OOM, free, header[REQUEST_SIZE], stream, category)
        return Shortage(
            self.device, tried, self.upstream.capacity, free, self.allocated_bytes,
            self.reserved_bytes,
        )  # fmt: skip

    # --- the queue ----------------------------------------------------------------------------

    def _change_slow(self, change: _Queued, code: int) -> None:
        if change[1] == 0:
            return
        if change[0] == _TAG:
            categories.name(change[2])
        if code == core.UNKNOWN:
            raise _stray(change)
        self.queue.append(change)
        if self.settle(change):
            raise _stray(change)

    def settle(self, own: _Queued | None = None) -> bool:
        """Carry out queued frees and tags, unless a call in progress will.

        Returns whether the queued change `own` named no block in use.
        """
        strays: list[_Queued] = []
        while self.queue and self._guard.enter(blocking=False):
            try:
                strays += self._drain()
            finally:
                self._guard.leave()
        _warn_of(stray for stray in strays if stray is not own)
        return any(stray is own for stray in strays)

    def _drain(self) -> list[_Queued]:
        """Empty the queue, inside the guard; return what named no block in use."""
        strays = []
        while self.queue:
            change = self.queue.popleft()
            if self._apply(change) == core.UNKNOWN:
                strays.append(change)
        return strays

    def _apply(self, change: _Queued) -> int:
        kind, address, *rest = change
        if kind == _ADOPT:
            return self._adopt(address, *rest)
        if kind == _FREE:
            if self.trace.enabled:
                self.trace.add_free(address)
            return self._call(entries.held_give, core.give, address)
        if self.trace.enabled:
            self.trace.add_tag(address, *rest)
        tables = self.tables
        return int(core.retag(tables.header, tables.blocks, tables.index, address, *rest))

    def _adopt(self, address: int, nbytes: int, stream: int, category: int) -> int:
        if self.trace.enabled:
            size = core.segment_size(core.round_size(nbytes))
            self.trace.add(trace.SEGMENT_ALLOC, address, size, stream, category)
            self.trace.add_alloc(address, nbytes, stream, category)
        tables = self.tables
        request = address, nbytes, stream, category
        while core.adopt(tables.header, tables.blocks, tables.index, *request) == core.ROWS_NEEDED:
            tables.grow()
        return core.DONE


def _warn_of(strays: Iterable[_Queued]) -> None:
    """Report queued changes that named no block in use, where their callers cannot be told."""
    for stray in strays:
        warnings.warn(str(_stray(stray)), RuntimeWarning, stacklevel=4)


def _stray(change: _Queued) -> ArgumentValueError:
    name = "tag" if change[0] == _TAG else "free"
    return ArgumentValueError(
        name,
        expected="the address of a block in use",
        got=f"{change[1]:#x}",
        remedy="each block is freed once, by whoever asked for it",
    )


def _check_request(device: str, nbytes: int, category: int) -> None:
    if nbytes < 0:
        raise ArgumentValueError("malloc", expected="a size of 0 bytes or more", got=nbytes)
    if nbytes > core.MAX_REQUEST:
        raise absurd_request(device, nbytes)
    categories.name(category)
