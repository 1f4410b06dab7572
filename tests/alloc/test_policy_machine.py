"""Random programs over all that an allocator can do, with an upstream that fails at any call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from refruntime.alloc import CachingAllocator, UpstreamExhausted, VirtualUpstream, sizes
from refruntime.alloc import tables as t
from refruntime.alloc.checkpoints import PoolState
from refruntime.alloc.graphs import VirtualGraphs
from refruntime.alloc.private_pools import PoolId
from refruntime.alloc.rows import find
from refruntime.alloc.upstream.adaptors import CALLS, FailingAdaptor
from refruntime.errors import ArgumentValueError, OutOfMemoryError
from tests.alloc.conftest import NEVER
from tests.alloc.recount import Live, check, size_of

MIB = 1 << 20
CAPACITY = 120 * MIB
STREAMS = st.integers(0, 3)
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 4 * MIB),
    st.integers(1, 40 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB, 20 * MIB, 40 * MIB, CAPACITY // 2, CAPACITY]),
)
FIRST_SETTINGS = (
    "", "expandable_segments:True", "max_split_size_mb:20", "release_lock_on_cudamalloc:True",
    "garbage_collection_threshold:0.1,mend_gc_without_fraction:True",
    "expandable_segments:True,garbage_collection_threshold:0.1,mend_gc_without_fraction:True",
    "graph_capture_record_stream_reuse:True",
    "graph_capture_record_stream_reuse:True,expandable_segments:True",
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5",
    "throw_on_cudamalloc_oom:True,mend_rejection_releases_cache:True",
)  # fmt: skip
SETTINGS = st.lists(
    st.sampled_from([
        "expandable_segments:True", "expandable_segments:False", "max_split_size_mb:32",
        "garbage_collection_threshold:0.1", "roundup_power2_divisions:4",
        "release_lock_on_cudamalloc:True", "throw_on_cudamalloc_oom:True",
        "throw_on_cudamalloc_oom:False", "graph_capture_record_stream_reuse:True",
        "mend_search_after_sync:True", "mend_rejection_releases_cache:True",
        "large_segment_size_mb:32",
    ]),
    min_size=1, max_size=3,
)  # fmt: skip


class Trouble(Exception):  # noqa: N818  the word for it
    """What an upstream raises that has other trouble than a lack of memory."""


class Moody(FailingAdaptor):
    """Fails when it is told to."""

    def arm(self, calls: Collection[str], nth: int, error: type[Exception]) -> None:
        """Let the `nth` of these calls from now on fail."""
        self.nth, self.seen = nth, 0
        self._calls, self._error = frozenset(calls), error

    @property
    def armed(self) -> bool:
        return self.nth > self.seen

    def disarm(self) -> None:
        self.nth = 0


class AllocatorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.device = VirtualUpstream(CAPACITY, granularity=2 * MIB, manual_events=True)
        self.upstream = Moody(self.device, 0)
        self.stream = 0
        self.graphs = VirtualGraphs(lambda: self.stream)
        self.live: dict[int, Live] = {}
        self.pools: list[PoolId] = []
        self.open: list[PoolId] = []
        self.captures: list[tuple[PoolId, int]] = []
        self.ended: list[PoolId] = []
        self.points: list[tuple[PoolState, dict[int, Live]]] = []
        self.named = 0

    @initialize(compiled=st.booleans(), text=st.sampled_from(FIRST_SETTINGS))
    def begin(self, compiled: bool, text: str) -> None:
        self.allocator = CachingAllocator(
            self.upstream, settings=text, graphs=self.graphs, compile_after=NEVER
        )
        if compiled:
            self.allocator.compile()

    def attempt(self, call: Callable[..., Any], *args: Any) -> Any:
        """Make a call that the upstream may let fail."""
        try:
            return call(*args)
        except Trouble:
            return None

    # --- blocks -------------------------------------------------------------------------------

    @rule(
        requests=st.lists(st.tuples(SIZES, STREAMS), min_size=1, max_size=5),
        follow=st.booleans(),
        stays=st.lists(st.booleans(), min_size=5, max_size=5),
    )
    def malloc(self, requests: list[tuple[int, int]], follow: bool, stays: list[bool]) -> None:
        """Ask for some blocks, of which not all stay."""
        for (nbytes, stream), stay in zip(requests, stays):
            self.stream = stream if follow else self.stream
            address = self.ask(nbytes, stream)
            if address and not stay:
                del self.live[address]
                self.allocator.free(address)

    @rule(nbytes=SIZES, count=st.integers(2, 6), stream=STREAMS)
    def malloc_equal_ones(self, nbytes: int, count: int, stream: int) -> None:
        for _ in range(count):
            self.ask(nbytes, stream)

    def ask(self, nbytes: int, stream: int) -> int:
        """Ask for a block; return its address, or 0 if the request failed."""
        try:
            address = self.allocator.malloc(nbytes, stream)
        except Trouble:
            self.next_request_is_served()
        except OutOfMemoryError as error:
            if not self.upstream.nth and "Tried" in str(error):
                self.nothing_could_have_served(nbytes)
            self.next_request_is_served()
        else:
            self.remember(address, Live(nbytes, stream, 0))
            return address
        return 0

    def remember(self, address: int, block: Live) -> None:
        size = size_of(self.allocator, address)
        assert size >= block.nbytes
        for other in self.live:
            assert address + size <= other or other + size_of(self.allocator, other) <= address
        self.live[address] = block

    def nothing_could_have_served(self, nbytes: int) -> None:
        """Assert that the device, or the limit, is too full for what was asked."""
        header = self.allocator.tables.header
        size = sizes.round_size(header, nbytes)
        segment = sizes.segment_size(header, size)
        page = sizes.page_size(header, size > sizes.SMALL_SIZE)
        left = self.device.capacity - self.device.used - self.device.foreign
        limited = header[t.LIMIT] >= 0 and (
            self.allocator.reserved_bytes + segment > header[t.LIMIT]
        )
        needed = segment + 2 * page if header[t.EXPANDABLE] else segment
        assert limited or left < needed

    def next_request_is_served(self) -> None:
        """Assert that a block in use can be freed, and its place asked for again."""
        self.upstream.disarm()
        for address, block in list(self.live.items()):
            if self.is_served_again(address, block):
                del self.live[address]
                self.allocator.free(address)
                again = self.allocator.malloc(block.nbytes, block.stream)
                self.remember(again, block)
                return

    def is_served_again(self, address: int, block: Live) -> bool:
        """Whether, by the settings of now, the place of a block would serve the same request."""
        h, b = self.allocator.tables.header, self.allocator.tables.blocks
        k = find(h, b, address)
        size = sizes.round_size(h, block.nbytes)
        return (
            not self.open
            and not self.captures
            and h[t.MAX_SPLIT] == t.UNLIMITED
            and b[k + t.USES] == 0
            and b[k + t.SIZE] >= size
            and b[k + t.POOL] == sizes.pool_for(b, 0, size)
            and (b[k + t.EXPANDABLE_SEGMENT] != 0) <= h[t.EXPANDABLE]
        )

    @precondition(lambda self: self.live)
    @rule(places=st.lists(st.integers(0, 99), min_size=1, max_size=5))
    def free(self, places: list[int]) -> None:
        for place in places:
            if self.live:
                address = list(self.live)[place % len(self.live)]
                del self.live[address]
                self.attempt(self.allocator.free, address)

    @precondition(lambda self: self.live)
    @rule(step=st.integers(1, 3))
    def free_many(self, step: int) -> None:
        for address in list(self.live)[::step]:
            del self.live[address]
            self.attempt(self.allocator.free, address)

    @precondition(lambda self: self.live)
    @rule(places=st.lists(st.integers(0, 99), min_size=1, max_size=3), stream=STREAMS)
    def record_stream(self, places: list[int], stream: int) -> None:
        for place in places:
            self.allocator.record_stream(list(self.live)[place % len(self.live)], stream)

    @rule(stream=st.one_of(st.none(), STREAMS), n=st.one_of(st.none(), st.integers(1, 2)))
    def complete(self, stream: int | None, n: int | None) -> None:
        self.device.complete(stream, n)

    @rule()
    def empty_cache(self) -> None:
        self.attempt(self.allocator.empty_cache)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free_when_memory_is_short(self, data: st.DataObject) -> None:
        """Attach a callback that frees one block, once."""
        victim = data.draw(st.sampled_from(list(self.live)))

        def call_back() -> bool:
            if self.live.pop(victim, None) is None:
                return False
            self.allocator.free(victim)
            return True

        self.allocator.add_free_memory_callback(call_back)

    # --- settings, device ------------------------------------------------------------------------

    @rule(text=SETTINGS)
    def set_settings(self, text: list[str]) -> None:
        self.allocator.set_settings(",".join(text))

    @rule(
        fraction=st.sampled_from([0.3, 0.7, 1.0, 1.0]),
        foreign=st.sampled_from([0, 0, 60 * MIB, 2 * CAPACITY]),
    )
    def memory_gets_scarce(self, fraction: float, foreign: int) -> None:
        self.allocator.set_memory_fraction(fraction)
        self.device.foreign = foreign

    @rule(call=st.sampled_from(CALLS), nth=st.integers(1, 3), trouble=st.booleans())
    def upstream_will_fail(self, call: str, nth: int, trouble: bool) -> None:
        lacks = not trouble and call in ("reserve", "map", "reserve_addresses")
        self.upstream.arm([call], nth, UpstreamExhausted if lacks else Trouble)

    # --- pools ----------------------------------------------------------------------------------

    def new_id(self) -> PoolId:
        self.named += 1
        return (0, self.named) if self.named % 2 else (self.named - 1, 0)

    @rule(
        what=st.sampled_from(["new", "begin", "begin", "end", "delete"]),
        place=st.integers(0, 9), no_split=st.booleans(), use_on_oom=st.booleans(),
    )  # fmt: skip
    def change_pools(self, what: str, place: int, no_split: bool, use_on_oom: bool) -> None:
        shut = [pool for pool in self.pools if pool not in self.open]
        if what == "new" or not self.pools:
            self.new_pool(no_split, use_on_oom)
        elif what == "begin" and shut and len(self.open) < 3:
            self.open.append(shut[place % len(shut)])
            self.allocator.pools.begin(self.open[-1])
        elif what == "end" and self.open:
            pool = self.open.pop(place % len(self.open))
            self.allocator.pools.end(pool)
            self.allocator.pools.release(pool)
        elif what == "delete" and shut:
            pool = shut[place % len(shut)]
            self.pools.remove(pool)
            self.allocator.pools.release(pool)
            self.attempt(self.allocator.empty_cache, pool)

    def new_pool(self, no_split: bool, use_on_oom: bool) -> None:
        self.pools.append(self.new_id())
        self.allocator.pools.create(self.pools[-1], no_split=no_split, use_on_oom=use_on_oom)

    # --- captures -------------------------------------------------------------------------------

    @rule(
        what=st.sampled_from(["begin", "begin", "end", "work", "work", "drop"]),
        stream=STREAMS, on=STREAMS, place=st.integers(0, 9),
    )  # fmt: skip
    def change_captures(self, what: str, stream: int, on: int, place: int) -> None:
        if what == "begin" and len(self.captures) < 2 and not self.graphs.capture_of(stream):
            self.begin_capture(stream, place)
        elif what == "end" and self.captures:
            self.end_capture(place)
        elif what == "drop" and self.ended:
            self.allocator.pools.release(self.ended.pop(place % len(self.ended)))
        elif what == "work":
            self.graphs.wait(stream, on)
            self.graphs.add_node(stream)

    def begin_capture(self, stream: int, place: int) -> None:
        busy = [pool for pool, _ in self.captures]
        free = [pool for pool in self.ended if pool not in busy]
        pool = free[place] if place < len(free) else self.new_id()
        self.stream = stream
        number = self.graphs.begin(stream)
        matches = lambda each: self.graphs.capture_of(each) == number  # noqa: E731
        self.allocator.pools.begin(pool, matches, captures=True)
        self.captures.append((pool, stream))

    def end_capture(self, place: int) -> None:
        pool, self.stream = self.captures.pop(place % len(self.captures))
        self.graphs.end(self.stream)
        self.attempt(self.allocator.pools.end, pool)
        self.ended.append(pool)

    @precondition(lambda self: self.captures)
    @rule(nbytes=SIZES, on=STREAMS, place=st.integers(0, 1), joined=st.booleans())
    def use_inside_a_capture(self, nbytes: int, on: int, place: int, joined: bool) -> None:
        """Allocate, let another stream use the block, join it or not, free, allocate anew."""
        self.stream = home = self.captures[place % len(self.captures)][1]
        address = self.ask(nbytes, home)
        if not address:
            return
        self.allocator.record_stream(address, on)
        self.graphs.wait(on, home)
        self.graphs.add_node(on)
        if joined:
            self.graphs.wait(home, on)
        del self.live[address]
        self.attempt(self.allocator.free, address)
        if not joined:
            self.graphs.wait(home, on)
        self.ask(nbytes, home)

    # --- checkpoints ----------------------------------------------------------------------------

    def live_in(self, pool: PoolId) -> dict[int, Live]:
        segments = self.allocator.snapshot()["segments"]
        return {
            block["address"]: self.live[block["address"]]
            for segment in segments
            for block in segment["blocks"]
            if segment["segment_pool_id"] == pool and block["address"] in self.live
        }

    @precondition(lambda self: self.pools + self.ended)
    @rule(place=st.integers(0, 9))
    def checkpoint(self, place: int) -> None:
        pool = (self.pools + self.ended)[place % len(self.pools + self.ended)]
        state = self.attempt(self.allocator.pools.checkpoint, pool)
        if state is not None:
            live = self.live_in(pool)
            assert sorted(live) == sorted(state.live)
            self.points.append((state, live))

    @precondition(lambda self: self.points)
    @rule(place=st.integers(0, 9))
    def restore(self, place: int) -> None:
        state, live = self.points[place % len(self.points)]
        try:
            stale = self.live_in(state.pool)
            again = self.allocator.pools.restore(state, stale)
        except ArgumentValueError:
            return  # the invariants hold, so nothing was changed
        for address in stale:
            del self.live[address]
        for address in again:
            size = size_of(self.allocator, address)
            self.live[address] = live[address]._replace(nbytes=size)

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def tables_agree_with_a_recount(self) -> None:
        if hasattr(self, "allocator"):
            check(self.allocator, self.live)

    def teardown(self) -> None:
        """Let everything go: nothing may be left."""
        if not hasattr(self, "allocator"):
            return
        self.upstream.disarm()
        while self.captures:
            pool, self.stream = self.captures.pop()
            self.graphs.end(self.stream)
            self.allocator.pools.end(pool)
            self.ended.append(pool)
        for pool in self.open:
            self.allocator.pools.end(pool)
            self.allocator.pools.release(pool)
        for address in self.live:
            self.allocator.free(address)
        for pool in self.pools + self.ended:
            self.allocator.pools.release(pool)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.allocator.empty_cache()
        check(self.allocator, {})
        assert self.allocator.reserved_bytes == 0
        marks = self.allocator._outside.marks
        assert marks is not None and not marks._marked


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
