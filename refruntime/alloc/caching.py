"""The caching allocator: the core's Python shell, which talks to the upstream and to users.

State
-----
The tables of the core, who answers its questions, the settings, the private pools, a trace, and a
queue of frees and tags that could not be carried out at once. The first calls run the core
interpreted; after `config.alloc_compile_after` of them the hot entries (malloc, free, tag) are
compiled. What needs the upstream always runs interpreted.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from refruntime.alloc import categories, codes, entries, events, policy, release, sizes, statistics
from refruntime.alloc.asking import CALL_WORDS, BeginAnew, Callback, UpstreamOutside
from refruntime.alloc.blocks import hand_out, retag
from refruntime.alloc.configuration import Configuration
from refruntime.alloc.failures import Failures, OomObserver, RejectionObserver
from refruntime.alloc.graphs import GraphOrder
from refruntime.alloc.guard import Guard
from refruntime.alloc.native_stack import is_trusted
from refruntime.alloc.oom import check_request, check_stream
from refruntime.alloc.private_pools import PoolId, PrivatePools
from refruntime.alloc.queue import ADOPT, FREE, TAG, Change, stray, warn_of
from refruntime.alloc.readings import Readings
from refruntime.alloc.recording import RecordedCalls
from refruntime.alloc.rows import enter_index, find, leave_index
from refruntime.alloc.segments import add_segment
from refruntime.alloc.settings import AllocatorSettings, AllocatorSettingsError
from refruntime.alloc.tables import (
    ADDRESS,
    AGEING,
    CALLBACKS,
    CAPTURING,
    CONTEXT,
    DEFERRED,
    EXPANDABLE,
    FAILED_FREE,
    FAILED_SIZE,
    GATE,
    GC_THRESHOLD,
    NOW,
    STATE,
    Tables,
)
from refruntime.alloc.trace import Trace, now_us
from refruntime.alloc.upstream import Upstream, UpstreamExhausted
from refruntime.config import config
from refruntime.errors import ArgumentValueError, OutOfMemoryError

_NEVER: Final = 1 << 62

Report = Callable[[], OutOfMemoryError]


def _not_compiled(*args: int) -> int:
    """Stand in for a compiled entry: always sends the caller the slow way."""
    return codes.GATED


def _ignore(address: int) -> None:
    """Free nothing."""


class CachingAllocator(Readings):
    """Serves spans of bytes from segments that it keeps, with PyTorch's policy.

    Parameters
    ----------
    upstream : Upstream
        Where segments come from.
    device : str
        The name in error texts and tables.
    compile_after : int, optional
        Calls before the core is compiled; by default `config.alloc_compile_after`.
    settings : AllocatorSettings or str, optional
        The settings to begin with, or their text.
    graphs : GraphOrder, optional
        Who knows which streams are captured. Without it, every call that is made while a capture is
        under way counts as made inside it.

    Attributes
    ----------
    pools : PrivatePools
        Memory kept apart for graphs and for the user's own pools.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        device: str = "CPU",
        compile_after: int | None = None,
        settings: AllocatorSettings | str | None = None,
        graphs: GraphOrder | None = None,
    ) -> None:
        self.upstream = upstream
        self.device = device
        self.tables = Tables()
        self.trace = Trace(self.tables)
        self._header = self.tables.address
        self._take: Callable[..., int] = _not_compiled
        self._give: Callable[..., int] = _not_compiled
        self._retag: Callable[..., int] = _not_compiled
        self._cold_calls = config.alloc_compile_after if compile_after is None else compile_after
        self.queue: deque[Change] = deque()
        self._guard = Guard(self)
        self._outside = UpstreamOutside(upstream, self.tables, self._guard, graphs)
        self._outside.drain = self._drain_inside
        self.pools = PrivatePools(
            self.tables, self._guard, self._outside, self._enter_core, graphs
        )  # fmt: skip
        self._baseline = statistics.Baseline()
        self._failures = Failures(device, self.tables)
        self._configure(Configuration.first(settings, upstream.capacity))
        self._first_settings = self.settings
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
        except (OverflowError, ValueError, TypeError):
            # No number, or more than a machine word holds: the slow way knows what to say.
            address = codes.INVALID
        return address if address > 0 else self._malloc_slow(nbytes, stream, category)

    def free(self, address: int) -> None:
        """Give a block back to the cache; address 0 is ignored.

        If other streams used it (`record_stream`), it comes back when they are done with it.

        Raises
        ------
        ArgumentValueError
            If no block in use has this address.
        """
        code = self._give(self._header, address)
        if code != codes.DONE:
            self._change_slow((FREE, address), code)

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
        if code != codes.DONE:
            self._change_slow((TAG, address, category), code)

    # --- the rest of the face -----------------------------------------------------------------

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
        self._bind_calls()

    def _bind_calls(self) -> None:
        """While history is recorded, put calls that write it in the place of the hot ones."""
        own = self.__dict__
        if own.get("free") is _ignore:
            return
        own.pop("malloc", None)
        own.pop("free", None)
        if self.trace.enabled and self.compiled and (not self.trace.stacks or is_trusted()):
            calls = RecordedCalls(self)
            own["malloc"], own["free"] = calls.malloc, calls.free

    def record_stream(self, address: int, stream: int) -> None:
        """Say that work on `stream` uses a block, so that its free waits for that work.

        Raises
        ------
        ArgumentValueError
            If no block in use has this address.
        """
        check_stream("record_stream", stream)
        if address == 0:
            return
        with self._guard:
            self._enter_core()
            header, blocks = self.tables.header, self.tables.blocks
            k = find(header, blocks, address)
            if k == 0:
                raise ArgumentValueError(
                    "record_stream", expected="the address of a block in use", got=f"{address:#x}"
                )
            events.record_use(header, blocks, k, stream)

    def empty_cache(self, pool: PoolId | None = None) -> None:
        """Give every segment, or page, that holds no block in use back to the upstream.

        With `pool`: only those of this private pool, and only if nobody needs the pool any more.
        """
        if self._guard.mine():
            return
        with self._guard:
            self._enter_core()
            header, blocks = self.tables.header, self.tables.blocks
            if pool is None:
                release.release_cached(header, blocks, self._outside)
            else:
                release.release_pool_cache(header, blocks, self._outside, self.pools.row_of(pool))

    @contextmanager
    def exclusive(self) -> Iterator[tuple[Tables, UpstreamOutside]]:
        """Keep other calls out, with room for one call of the core; for `placement`."""
        with self._guard:
            self._enter_core()
            yield self.tables, self._outside

    # --- settings -----------------------------------------------------------------------------

    def set_settings(self, text: str) -> None:
        """Change settings, as ``PYTORCH_ALLOC_CONF`` gives them.

        Raises
        ------
        AllocatorSettingsError
            If the text breaks a rule; what stands before the fault holds from then on.
        """
        try:
            settings = self.settings.updated(text)
        except AllocatorSettingsError as error:
            self._apply_settings(error.kept)
            raise
        self._apply_settings(settings)

    def _apply_settings(self, settings: AllocatorSettings) -> None:
        now = self._configuration
        with self._guard:
            self._configure(Configuration(settings, now.device_bytes, now.limit))

    @property
    def memory_fraction(self) -> float:
        """The share of the device's memory that may be reserved."""
        configuration = self._configuration
        return configuration.limit / configuration.device_bytes if configuration.limit >= 0 else 1.0

    def set_memory_fraction(self, fraction: float) -> None:
        """Reserve at most this share, 0 to 1, of the device's memory."""
        if not 0 <= fraction <= 1:
            raise ArgumentValueError(
                "set_memory_fraction", expected="a share from 0 to 1", got=repr(fraction)
            )
        with self._guard:
            self._configure(self._configuration.with_fraction(fraction, self.upstream.capacity))

    def _configure(self, configuration: Configuration) -> None:
        self._configuration = configuration
        header = self.tables.header
        configuration.write(header)
        mapped = bool(header[EXPANDABLE])
        header[EXPANDABLE] = mapped and self.upstream.supports_virtual_memory
        self._outside.unlocked = configuration.settings.release_lock_on_cudamalloc
        ageing = AGEING if header[GC_THRESHOLD] > 0 else 0
        header[GATE] = header[GATE] & ~AGEING | ageing
        if mapped and not header[EXPANDABLE]:
            warnings.warn(
                f"expandable_segments is ignored: {self.device} can't map memory", stacklevel=4
            )

    # --- callbacks and observers ---------------------------------------------------------------

    def add_free_memory_callback(self, callback: Callback) -> None:
        """Call `callback` when the cache can't serve a request; it returns whether it freed any."""
        with self._guard:
            self._outside.callbacks.append(callback)
            self.tables.header[CALLBACKS] = 1

    def attach_oom_observer(self, observer: OomObserver) -> None:
        """Call ``observer(device, tried, limit or capacity, free)`` before an error is raised."""
        self._failures.oom_observers.append(observer)

    def attach_rejection_observer(self, observer: RejectionObserver) -> None:
        """Call ``observer(device, tried, reserved, capacity)`` when a request is refused unasked.

        That is what `throw_on_cudamalloc_oom` does.
        """
        self._failures.rejection_observers.append(observer)

    # --- the slow way -------------------------------------------------------------------------

    def _malloc_slow(self, nbytes: int, stream: int, category: int) -> int:
        if self.trace.enabled and self.compiled and 0 < nbytes <= sizes.MAX_REQUEST:
            address = entries.recorded_take.entry(
                self._header, nbytes, stream, category, now_us(), self.trace.context(2)
            )
            if address > 0:
                return int(address)
        nbytes, stream, category = check_request(self.device, nbytes, stream, category)
        if nbytes == 0:
            return 0
        if self._guard.mine():
            return self._malloc_inside(nbytes, stream, category)
        self._warm_up()
        served: int | Report = 0
        try:
            with self._guard:
                served = self._serve(nbytes, stream, category)
        except KeyboardInterrupt:
            # It came while the request was served: nobody will ever learn the address.
            if isinstance(served, int):
                self.free(served)
            raise
        if isinstance(served, int):
            return served
        raise served()

    def _warm_up(self) -> None:
        if not self.compiled:
            self._cold_calls -= 1
            if self._cold_calls < 0:
                # A finalizer may allocate while the compiler runs: it must not start it again.
                self._cold_calls = _NEVER
                self.compile()

    def _serve(self, nbytes: int, stream: int, category: int) -> int | Report:
        """Serve a request inside the guard; return its address, or what reports its failure."""
        try:
            k = self._allocate(nbytes, stream, category)
            while k is None:
                k = self._allocate(nbytes, stream, category)
        finally:
            self._outside.end_request()
        header, blocks = self.tables.header, self.tables.blocks
        if k <= 0:
            return self._report(k, nbytes)
        enter_index(header, blocks, k)
        return int(blocks[k + ADDRESS])

    def _allocate(self, nbytes: int, stream: int, category: int) -> int | None:
        """Run the policy; None if it has to begin anew."""
        self._enter_core()
        tables, owner = self.tables, self.pools.row_for(stream)
        try:
            return int(
                policy.allocate(
                    tables.header, tables.blocks, self._outside, nbytes, stream, category, owner
                )
            )
        except BeginAnew:
            return None

    def _enter_core(self) -> None:
        """Prepare the tables for any one call of the interpreted core."""
        self.tables.make_room()
        header = self.tables.header
        header[CAPTURING] = self.pools.in_capture()
        if self.trace.enabled:
            header[NOW], header[CONTEXT] = now_us(), self.trace.context()

    def _malloc_inside(self, nbytes: int, stream: int, category: int) -> int:
        """Serve a malloc made in the middle of a call on this thread: past the core, for now."""
        header = self.tables.header
        size = sizes.segment_size(header, sizes.round_size(header, nbytes))
        try:
            address = self.upstream.reserve(size, stream)
        except UpstreamExhausted:
            header[FAILED_SIZE], header[FAILED_FREE] = size, self.upstream.memory_info()[0]
            raise self._report(codes.OUT_OF_MEMORY, nbytes)() from None
        self.queue.append((ADOPT, address, nbytes, stream, category))
        return address

    def _report(self, code: int, nbytes: int) -> Report:
        now = self._configuration
        return self._failures.report(code, nbytes, now.limit, now.device_bytes)

    # --- the queue ----------------------------------------------------------------------------

    def _change_slow(self, change: Change, code: int) -> None:
        if change[1] == 0:
            return
        if change[0] == TAG:
            categories.name(change[2])
        if code == codes.UNKNOWN:
            raise stray(change)
        if change[0] == FREE and self.trace.enabled and self.compiled:
            code = entries.recorded_give.entry(
                self._header, change[1], now_us(), self.trace.context(2)
            )
            if code == codes.DONE:
                return
        if change[0] == FREE:
            change = *change, int(self.pools.in_capture())
        self.queue.append(change)
        if self.settle(change):
            raise stray(change)

    def settle(self, own: Change | None = None) -> bool:
        """Carry out queued frees and tags, unless a call in progress will.

        Returns whether the queued change `own` named no block in use.
        """
        strays: list[Change] = []
        while self.queue and self._guard.enter(blocking=False):
            try:
                strays += self._drain()
            finally:
                self._guard.leave()
        warn_of(change for change in strays if change is not own)
        return any(change is own for change in strays)

    def _drain(self) -> list[Change]:
        """Empty the queue, inside the guard; return what named no block in use."""
        strays = []
        while self.queue:
            change = self.queue.popleft()
            if self._apply(change) == codes.UNKNOWN:
                strays.append(change)
        return strays

    def _drain_inside(self) -> None:
        """Carry out what a callback has queued, in the middle of a call."""
        words = self.tables.header
        kept = [words[word] for word in CALL_WORDS]
        warn_of(self._drain())
        for word, value in zip(CALL_WORDS, kept):
            words[word] = value

    def _apply(self, change: Change) -> int:
        kind, address, *rest = change
        self._enter_core()
        if kind == ADOPT:
            return self._adopt(address, *rest)
        if kind == FREE:
            return self._release(address, *rest)
        return int(retag(self.tables.header, self.tables.blocks, address, *rest))

    def _release(self, address: int, captured: int) -> int:
        """Free a block inside the guard; `captured`: the free came from inside a capture."""
        header, blocks = self.tables.header, self.tables.blocks
        k = find(header, blocks, address)
        if k == 0:
            return codes.UNKNOWN
        header[CAPTURING] = captured
        leave_index(header, blocks, k)
        try:
            policy.release(header, blocks, self._outside, k)
        except BaseException:
            if blocks[k + STATE] == DEFERRED:
                # Not every stream's event could be recorded: the next request tries again.
                events.defer(header, blocks, k, False)
            raise
        return codes.DONE

    def _adopt(self, address: int, nbytes: int, stream: int, category: int) -> int:
        header, blocks = self.tables.header, self.tables.blocks
        size = sizes.round_size(header, nbytes)
        pool = sizes.pool_for(blocks, 0, size)
        whole = add_segment(
            header, blocks, pool, stream, address, sizes.segment_size(header, size)
        )  # fmt: skip
        cut = sizes.should_split(header, blocks, whole, size, False)
        enter_index(header, blocks, hand_out(header, blocks, whole, size, nbytes, category, cut))
        return codes.DONE
