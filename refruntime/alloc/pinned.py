"""The caching allocator of pinned host memory: PyTorch 2.14.1's policy.

Sizes are rounded up to a power of two (unless above a threshold), a free block is reused whole, and
a block that a stream has used comes back when an event recorded at its free has been reached.

State
-----
All blocks by address; the default pool and one for each graph (`pinned_blocks`); the captures under
way; the reserved segment, once it was asked for; a thread that looks at events, if that is wanted.

Invariants
----------
* Blocks never overlap, and none is given out that is smaller than the request.
* A block with an event that was not reached is not given out and not released.
* Tables change inside the turnstile only. Reserving, which can take seconds, is done outside; frees
  of any thread, also by the garbage collector in the middle of a call, are queued at worst.
* A failed call of the upstream loses nothing: the block stays where it was.
* ``bytes reserved == bytes in use + waiting + free``, block by block.

Source: the header ``ATen/core/CachingHostAllocator.h`` of 2.14.1, and the recordings in
``tests/alloc/data/pinned``.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final

from refruntime.alloc.host_statistics import HostStatistics
from refruntime.alloc.oom import format_size
from refruntime.alloc.pinned_blocks import (
    DEFAULT_POOL,
    Block,
    BlockPool,
    Origin,
    PoolId,
    ReservedSegment,
)
from refruntime.alloc.pinned_upstream import PAGE, PinnedUpstream
from refruntime.alloc.settings import AllocatorSettings
from refruntime.alloc.turnstile import Turnstile
from refruntime.alloc.upstream import UpstreamExhausted
from refruntime.errors import ArgumentValueError, OutOfMemoryError

SWEEP_SECONDS: Final = 100e-6

# Called with an action of PyTorch's traces, the block's address and size, and the pool's id.
Observer = Callable[[str, int, int, PoolId], None]


class PinnedAllocator:
    """Gives out pinned host memory and caches what comes back.

    Parameters
    ----------
    upstream : PinnedUpstream
        Where memory comes from and how streams are watched.
    settings : AllocatorSettings, optional
        Those whose names start with ``pinned_`` matter. May be replaced at any time by setting the
        attribute.
    mended : bool
        Whether to do better than PyTorch in two places: when the upstream has no memory, release
        the cache and ask again before failing; and keep free pieces of the reserved segment in the
        cache when it is emptied, since they cannot be returned and would be lost.
    observer : callable, optional
        Told each step: ``observer(action, address, size, pool id)`` with the actions of PyTorch's
        host traces (``segment_alloc``, ``alloc``, ``free_requested``, ``free_completed``,
        ``segment_free``). It is called in the middle of a call and must not raise.
    """

    def __init__(
        self, upstream: PinnedUpstream, settings: AllocatorSettings | None = None, *,
        mended: bool = False, observer: Observer | None = None,
    ) -> None:  # fmt: skip
        self.upstream = upstream
        self.settings = AllocatorSettings() if settings is None else settings
        self.mended = mended
        self.observer = observer
        self._statistics = HostStatistics()
        self._turnstile = Turnstile()
        self._blocks: dict[int, Block] = {}
        self._in_use: dict[int, Block] = {}
        self._default = BlockPool()
        self._graph_pools: dict[PoolId, BlockPool] = {}
        self._captures: list[tuple[PoolId, Callable[[int], bool]]] = []
        self._segment: ReservedSegment | None = None
        self._segment_decided = False
        self._sweeper: Sweeper | None = None

    # --- requests

    def malloc(self, nbytes: int) -> int:
        """Return the address of `nbytes` pinned bytes; 0 for none.

        Raises
        ------
        OutOfMemoryError
            If the upstream has no memory; cached blocks of other sizes are released and the
            upstream asked again only if the allocator is `mended`.
        """
        if nbytes < 0:
            raise ArgumentValueError("malloc", expected="at least 0 bytes", got=str(nbytes))
        if nbytes == 0:
            return 0
        size = rounded_size(nbytes, self.settings)
        pool = self._pool_of_this_thread()
        # A finalizer may ask in the middle of a call on this thread; it gets a fresh block.
        block = None if self._turnstile.mine() else self._take_cached(size, pool)
        if block is None:
            block = self._make_block(size, pool)
        block.captured = self._is_capturing()
        self._in_use[block.address] = block
        self._tell("alloc", block)
        return block.address

    def free(self, address: int) -> None:
        """Take a block back; 0 is ignored.

        If streams were recorded, the block can be reused when their present work is done.
        """
        if address == 0:
            return
        # One step, so that of two threads that free the same block one gets the error.
        block = self._in_use.pop(address, None)
        if block is None:
            raise _not_in_use("free", address)
        self._tell("free_requested", block)
        self._turnstile.soon(self._take_back, block)

    def record_event(self, address: int, stream: int) -> bool:
        """Say that work submitted to `stream` uses a block; return whether the block is ours."""
        if address not in self._blocks:
            return False
        self._block_in_use("record_event", address).streams[stream] = None
        return True

    def size_of(self, address: int) -> int:
        """Return the bytes of the block in use at `address`, at least what was asked for."""
        return self._block_in_use("size_of", address).size

    def empty_cache(self) -> None:
        """Give every free block back to the upstream, smaller powers of two first."""
        with self._turnstile:
            self._process_events(self._default)
            self._release_free_blocks(self._default)
            for pool in [pool for pool in self._graph_pools.values() if not pool.owners]:
                self._process_events(pool)
                self._release_free_blocks(pool)
                if not pool.blocks:
                    del self._graph_pools[pool.id]

    def _block_in_use(self, op: str, address: int) -> Block:
        block = self._in_use.get(address)
        if block is None:
            raise _not_in_use(op, address)
        return block

    def _tell(self, action: str, block: Block) -> None:
        if self.observer is not None:
            self.observer(action, block.address, block.size, block.pool.id)

    # --- the cache

    def _take_cached(self, size: int, pool: BlockPool) -> Block | None:
        swept = self.settings.pinned_use_background_threads and pool is self._default
        with self._turnstile:
            if not swept:
                self._process_events(pool)
            block = pool.take(size)
            if block is not None:
                self._statistics.block_taken(block.bucket, block.size)
        if block is None and swept:
            self._start_sweeper()
        return block

    def _process_events(self, pool: BlockPool) -> None:
        """Cache the blocks whose events were reached: oldest first, up to the first that was not.

        An event that was not reached hides younger ones of other streams behind it.
        """
        while pool.events:
            event, block = pool.events[0]
            if not self.upstream.query_event(event):
                return
            pool.events.popleft()
            block.waiting -= 1
            if not block.waiting:
                self._cache(block)

    def _take_back(self, block: Block) -> None:
        try:
            self._wait_or_cache(block)
        except Exception as error:
            if not self.settings.pinned_free_catch_all:
                raise
            warnings.warn(f"error while pinned memory was freed: {error}", stacklevel=2)

    def _wait_or_cache(self, block: Block) -> None:
        streams = list(block.streams)
        if not streams:
            self._cache(block)
            return
        if block.captured:
            # A graph replays the use of the block: it waits for events that nobody records.
            block.waiting += len(streams)
            return
        try:
            events = [self.upstream.record_event(stream) for stream in streams]
        except Exception:
            self._in_use[block.address] = block
            raise
        block.streams.clear()
        block.waiting += len(events)
        block.pool.events.extend((event, block) for event in events)
        if self._sweeper is not None:
            self._sweeper.wake()

    def _cache(self, block: Block) -> None:
        self._tell("free_completed", block)
        block.pool.free[block.bucket].append(block)
        self._statistics.block_cached(block.bucket, block.size)
        if block.size > self.settings.pinned_max_cached_size:
            self._release(block)

    def _release_free_blocks(self, pool: BlockPool) -> None:
        for bucket in sorted(pool.free):
            for block in list(pool.free[bucket]):
                if not (self.mended and block.origin is Origin.RESERVED):
                    self._release(block)

    def _release(self, block: Block) -> None:
        """Give a free block back to the upstream; it stays free if that fails."""
        started = time.perf_counter_ns()
        if block.origin is Origin.LOCKED:
            self.upstream.release_host(block.address, block.size)
        elif block.origin is Origin.REGISTERED:
            self._release_registered(block)
        if block.origin is not Origin.RESERVED:
            self._statistics.free_time.add((time.perf_counter_ns() - started) // 1000)
        block.pool.free[block.bucket].remove(block)
        block.pool.blocks -= 1
        del self._blocks[block.address]
        self._statistics.block_gone(block.size)
        self._tell("segment_free", block)

    def _release_registered(self, block: Block) -> None:
        self.upstream.unregister(block.address, block.size)
        self.upstream.release_pages(block.address, block.size)

    # --- new blocks

    def _make_block(self, size: int, pool: BlockPool) -> Block:
        address, origin = self._reserve(size)
        block = Block(address, size, origin, pool)
        self._blocks[address] = block
        self._turnstile.soon(self._count_block, block)
        self._tell("segment_alloc", block)
        return block

    def _count_block(self, block: Block) -> None:
        block.pool.blocks += 1
        self._statistics.block_made(block.bucket, block.size)

    def _reserve(self, size: int) -> tuple[int, Origin]:
        try:
            return self._reserve_once(size)
        except UpstreamExhausted:
            if not self.mended or self._turnstile.mine():
                raise self._shortage(size) from None
        self.empty_cache()
        try:
            return self._reserve_once(size)
        except UpstreamExhausted:
            raise self._shortage(size) from None

    def _reserve_once(self, size: int) -> tuple[int, Origin]:
        piece = None if self._turnstile.mine() else self._take_from_segment(size)
        return (piece, Origin.RESERVED) if piece is not None else self._ask_upstream(size)

    def _take_from_segment(self, size: int) -> int | None:
        with self._turnstile:
            if not self._segment_decided:
                # Decided once, at the first block: later changes of the setting do nothing.
                reserve = self.settings.pinned_reserve_segment_size
                if reserve:
                    self._segment = ReservedSegment(self._ask_upstream(reserve)[0], reserve)
                self._segment_decided = True
            return self._segment.take(size) if self._segment is not None else None

    def _ask_upstream(self, size: int) -> tuple[int, Origin]:
        started = time.perf_counter_ns()
        if self.settings.pinned_use_cuda_host_register:
            address, origin = self._reserve_registered(size), Origin.REGISTERED
        else:
            address, origin = self.upstream.reserve_host(size), Origin.LOCKED
        elapsed = (time.perf_counter_ns() - started) // 1000
        self._turnstile.soon(self._statistics.alloc_time.add, elapsed)
        return address, origin

    def _reserve_registered(self, size: int) -> int:
        address = self.upstream.reserve_pages(size)
        try:
            self._touch_pages(address, size)
            self.upstream.register(address, size)
        except BaseException:
            self.upstream.release_pages(address, size)
            raise
        return address

    def _touch_pages(self, address: int, size: int) -> None:
        """Have every page there before it is locked; several threads share a large span."""
        threads = self.settings.pinned_num_register_threads
        if threads == 1 or size < PAGE * threads:
            self.upstream.touch_pages(address, size)
            return
        # Imported here: only this setting needs it.
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            parts = [
                pool.submit(self.upstream.touch_pages, address + start, end - start)
                for start, end in page_shares(size, threads)
            ]
        for part in parts:
            part.result()

    def _shortage(self, size: int) -> OutOfMemoryError:
        reserved = self._statistics.allocated_bytes.current
        active = sum(counter.current for counter in list(self._statistics.bytes.values()))
        return OutOfMemoryError(
            "malloc",
            what=(
                f"Pinned host memory exhausted. Tried to allocate {format_size(size)}. "
                f"{format_size(active)} is in use or waiting for a stream, and "
                f"{format_size(reserved - active)} is cached in blocks of other sizes"
            ),
            remedy="drop pinned tensors, empty the cache of pinned memory, or pin smaller pieces",
        )

    # --- pools of graphs

    def begin_allocate_to_pool(self, pool_id: PoolId, applies: Callable[[int], bool]) -> None:
        """Serve requests on streams for which `applies` is true from a pool, until its end."""
        with self._turnstile:
            if pool_id == DEFAULT_POOL or any(pool_id == begun for begun, _ in self._captures):
                raise ArgumentValueError(
                    "begin_allocate_to_pool",
                    expected="a pool that is not allocated to now", got=str(pool_id),
                )  # fmt: skip
            pool = self._graph_pools.setdefault(pool_id, BlockPool(pool_id, owners=0))
            pool.owners += 1
            self._captures = [*self._captures, (pool_id, applies)]

    def end_allocate_to_pool(self, pool_id: PoolId) -> None:
        """Serve requests from the default pool again."""
        with self._turnstile:
            kept = [capture for capture in self._captures if capture[0] != pool_id]
            if len(kept) == len(self._captures):
                raise ArgumentValueError(
                    "end_allocate_to_pool", expected="a pool that is allocated to", got=str(pool_id)
                )
            self._captures = kept

    def release_pool(self, pool_id: PoolId) -> None:
        """Drop one owner of a pool; without owners its free blocks go when the cache is emptied."""
        with self._turnstile:
            pool = self._graph_pools.get(pool_id)
            if pool is None or not pool.owners:
                raise ArgumentValueError(
                    "release_pool", expected="a pool that has owners", got=str(pool_id)
                )
            pool.owners -= 1

    def _pool_of_this_thread(self) -> BlockPool:
        if self._captures:
            stream = self.upstream.current_stream()
            for pool_id, applies in self._captures:
                if applies(stream):
                    return self._graph_pools[pool_id]
        return self._default

    def _is_capturing(self) -> bool:
        if not self._captures:
            return False
        return self.upstream.is_capturing(self.upstream.current_stream())

    # --- what can be seen

    def stats(self) -> dict[str, int]:
        """Return the statistics under the keys of ``torch.cuda.host_memory_stats``."""
        with self._turnstile:
            return self._statistics.flat()

    def nested_stats(self) -> dict[str, dict[str, int] | int]:
        """Return the statistics as ``torch.cuda.host_memory_stats_as_nested_dict`` does."""
        with self._turnstile:
            return self._statistics.nested()

    def reset_peaks(self) -> None:
        """Make the present figures the peaks."""
        with self._turnstile:
            self._statistics.reset_peaks()

    def reset_totals(self) -> None:
        """Count what is allocated and freed from now on."""
        with self._turnstile:
            self._statistics.reset_totals()

    def segments(self) -> list[dict[str, Any]]:
        """Return each block as an entry of a snapshot's ``host_segments``, by address."""
        with self._turnstile:
            blocks = sorted(self._blocks.values(), key=lambda block: block.address)
            return [block.entry(block.address in self._in_use) for block in blocks]

    # --- the thread that looks at events

    def _start_sweeper(self) -> None:
        with self._turnstile:
            if self._sweeper is None or not self._sweeper.is_alive():
                self._sweeper = Sweeper(self)
                self._sweeper.start()

    def _sweep(self) -> bool:
        """Look at the events once; return whether any are left."""
        with self._turnstile:
            self._process_events(self._default)
            return bool(self._default.events)


class Sweeper(threading.Thread):
    """Looks at an allocator's events every 100 us while there are any, until it is collected."""

    def __init__(self, allocator: PinnedAllocator) -> None:
        super().__init__(name="pinned-events", daemon=True)
        self._wakeup = threading.Event()
        self._wakeup.set()
        wakeup = self._wakeup
        self._allocator = weakref.ref(allocator, lambda _: wakeup.set())

    def wake(self) -> None:
        """Say that there are events."""
        self._wakeup.set()

    def run(self) -> None:
        """Sweep until the allocator is gone."""
        while self._wakeup.wait():
            # Cleared before the look, so that events that come during it are looked at again.
            self._wakeup.clear()
            allocator = self._allocator()
            if allocator is None:
                return
            if allocator._sweep():
                self._wakeup.set()
            del allocator
            time.sleep(SWEEP_SECONDS)


def _not_in_use(op: str, address: int) -> ArgumentValueError:
    return ArgumentValueError(op, expected="the address of a block in use", got=f"{address:#x}")


def rounded_size(nbytes: int, settings: AllocatorSettings) -> int:
    """Return the next power of two, or `nbytes` itself above one of the two limits."""
    if nbytes > min(settings.pinned_max_round_threshold, settings.pinned_max_cached_size):
        return nbytes
    return 1 << (nbytes - 1).bit_length()


def page_shares(size: int, threads: int) -> list[tuple[int, int]]:
    """Return the start and end of each thread's share of a span."""
    starts = [size * number // threads for number in range(threads)]
    return list(zip(starts, [*starts[1:], size]))
