from __future__ import annotations

import gc
import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from refruntime.alloc.pinned import PinnedAllocator, page_shares, rounded_size
from refruntime.alloc.pinned_blocks import bucket_of
from refruntime.alloc.pinned_upstream import VirtualPinnedUpstream
from refruntime.alloc.settings import AllocatorSettings
from refruntime.alloc.virtual_streams import Timeline
from refruntime.errors import ArgumentValueError, OutOfMemoryError
from tests.alloc.pinned_player import Player, free_by_free, manual

KIB, MIB = 1 << 10, 1 << 20
DATA = Path(__file__).parent / "data" / "pinned" / "scenarios.json.gz"
SCENARIOS: dict[str, Any] = json.loads(gzip.decompress(DATA.read_bytes()))


# --- against the recordings of PyTorch's own allocator


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_decision_of_the_recordings(name: str) -> None:
    recorded = SCENARIOS[name]
    player = Player(recorded["conf"])
    owners: dict[int, int] = {}
    pairs = zip(recorded["events"], recorded["results"], strict=True)
    for number, (event, expected) in enumerate(pairs):
        got = player.step(event)
        for call in expected["log"]:
            if call[0] == "event_record":
                owners[call[1]] = player.frees
        assert free_by_free(got.pop("log"), {}) == free_by_free(expected.pop("log"), owners), number
        assert got == expected, (number, event)
    assert {key: value for key, value in player.allocator.stats().items() if "time" not in key} == (
        recorded["stats"]
    )
    assert player.trace == recorded["trace"]
    assert snapshot(player) == recorded["segments"]


def snapshot(player: Player) -> list[Any]:
    found = []
    for segment in player.allocator.segments():
        number, offset = player.place(segment.pop("address")) or [-1, -1]
        for block in segment["blocks"]:
            del block["address"]
        found.append([number, offset, json.loads(json.dumps(segment))])
    return sorted(found, key=lambda entry: entry[:2])


def test_keys_are_those_of_torch() -> None:
    keys = set(PinnedAllocator(manual()).stats())
    assert {key for key in keys if "time" not in key} == set(SCENARIOS["rounding"]["stats"])
    times = {
        f"{call}_time.{figure}"
        for call in ("host_alloc", "host_free")
        for figure in ("avg", "count", "max", "min", "total")
    }
    assert {key for key in keys if "time" in key} == times


# --- single behaviours


@pytest.mark.parametrize(("size", "block"), [(1, 1), (2, 2), (3, 4), (513, 1024), (MIB, MIB)])
def test_sizes_are_powers_of_two(size: int, block: int) -> None:
    assert rounded_size(size, AllocatorSettings()) == block


@pytest.mark.parametrize("limit", ["pinned_max_round_threshold", "pinned_max_cached_size"])
def test_sizes_above_a_limit_are_left_as_they_are(limit: str) -> None:
    settings = replace(AllocatorSettings(), **{limit: MIB})
    sizes = [MIB - 1, MIB, MIB + 1, 3 * MIB]
    assert [rounded_size(size, settings) for size in sizes] == [MIB, MIB, MIB + 1, 3 * MIB]


@pytest.mark.parametrize(
    ("size", "bucket"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1 << 40, 40)]
)
def test_bucket_is_the_power_of_two_above(size: int, bucket: int) -> None:
    assert bucket_of(size) == bucket


def test_a_block_of_the_same_bucket_that_is_too_small_is_never_given() -> None:
    allocator = PinnedAllocator(
        manual(), replace(AllocatorSettings(), pinned_max_round_threshold=1)
    )
    small = allocator.malloc(150)
    allocator.free(small)
    large = allocator.malloc(200)
    assert (large != small, allocator.size_of(large)) == (True, 200)
    assert allocator.malloc(140) == small


def test_no_bytes_are_no_block() -> None:
    upstream = manual()
    allocator = PinnedAllocator(upstream)
    assert allocator.malloc(0) == 0
    allocator.free(0)
    assert not upstream.log


@pytest.mark.parametrize("call", ["free", "size_of"])
def test_an_address_that_is_not_in_use_is_refused(call: str) -> None:
    allocator = PinnedAllocator(manual())
    address = allocator.malloc(8)
    for wrong in (address + 1, 12345):
        with pytest.raises(ArgumentValueError, match="address of a block in use"):
            getattr(allocator, call)(wrong)
    allocator.free(address)
    with pytest.raises(ArgumentValueError, match="address of a block in use"):
        getattr(allocator, call)(address)
    assert allocator.stats()["active_requests.current"] == 0


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ArgumentValueError, match="at least 0 bytes, got -1"):
        PinnedAllocator(manual()).malloc(-1)


def test_events_are_only_for_our_blocks_in_use() -> None:
    allocator = PinnedAllocator(manual())
    assert not allocator.record_event(4096, 1)
    address = allocator.malloc(8)
    assert allocator.record_event(address, 1)
    allocator.free(address)
    with pytest.raises(ArgumentValueError, match="record_event"):
        allocator.record_event(address, 1)


def test_out_of_memory_tells_the_figures_and_changes_nothing() -> None:
    allocator = PinnedAllocator(manual(10 * KIB))
    allocator.free(allocator.malloc(4 * KIB))
    kept = allocator.malloc(2 * KIB)
    before = allocator.stats()
    with pytest.raises(
        OutOfMemoryError, match=r"allocate 8.00 KiB.* 2.00 KiB is in use.* 4.00 KiB"
    ):
        allocator.malloc(8 * KIB)
    assert allocator.stats() == before
    allocator.free(kept)


def test_mended_allocator_releases_its_cache_before_it_fails() -> None:
    allocator = PinnedAllocator(manual(10 * KIB), mended=True)
    allocator.free(allocator.malloc(4 * KIB))
    allocator.malloc(8 * KIB)
    assert allocator.stats()["allocated_bytes.current"] == 8 * KIB
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(8 * KIB)


@pytest.mark.parametrize("mended", [False, True])
def test_only_the_mended_allocator_keeps_pieces_of_the_reserved_segment(mended: bool) -> None:
    settings = replace(AllocatorSettings(), pinned_reserve_segment_size=64 * KIB)
    allocator = PinnedAllocator(manual(), settings, mended=mended)
    first = allocator.malloc(8 * KIB)
    allocator.free(first)
    allocator.empty_cache()
    again = allocator.malloc(8 * KIB)
    assert (again == first) is mended
    assert again - first in (0, 8 * KIB)


def test_later_changes_of_the_reserve_do_nothing() -> None:
    upstream = manual()
    allocator = PinnedAllocator(upstream)
    allocator.malloc(8)
    allocator.settings = replace(allocator.settings, pinned_reserve_segment_size=MIB)
    allocator.malloc(8)
    assert upstream.log == [("reserve_host", 8), ("reserve_host", 8)]


def test_reserve_that_failed_is_tried_again() -> None:
    upstream = manual(MIB - 1)
    settings = replace(AllocatorSettings(), pinned_reserve_segment_size=MIB)
    allocator = PinnedAllocator(upstream, settings)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(8)
    upstream._spans.capacity = 2 * MIB
    allocator.malloc(8)
    assert upstream.used == MIB


def test_registered_pages_are_touched_by_several_threads_then_locked() -> None:
    upstream = manual()
    settings = replace(
        AllocatorSettings(), pinned_use_cuda_host_register=True, pinned_num_register_threads=4
    )
    allocator = PinnedAllocator(upstream, settings)
    address = allocator.malloc(64 * KIB)
    calls = [call[0] for call in upstream.log]
    assert calls == ["reserve_pages", *["touch_pages"] * 4, "register"]
    touched = sorted(call[1:] for call in upstream.log if call[0] == "touch_pages")
    assert touched == [(address + n * 16 * KIB, 16 * KIB) for n in range(4)]
    allocator.free(address)
    allocator.empty_cache()
    assert [call[0] for call in upstream.log[-2:]] == ["unregister", "release_pages"]
    assert upstream.used == 0


def test_few_pages_are_touched_by_the_caller() -> None:
    upstream = manual()
    settings = replace(
        AllocatorSettings(), pinned_use_cuda_host_register=True, pinned_num_register_threads=4
    )
    PinnedAllocator(upstream, settings).malloc(8 * KIB)
    assert [call[0] for call in upstream.log] == ["reserve_pages", "touch_pages", "register"]


@pytest.mark.parametrize(("size", "threads"), [(100, 3), (4096 * 7 + 1, 4), (8, 8)])
def test_shares_cover_a_span_once(size: int, threads: int) -> None:
    shares = page_shares(size, threads)
    assert len(shares) == threads
    assert [start for start, _ in shares] == [0, *(end for _, end in shares[:-1])]
    assert shares[-1][1] == size


def test_a_block_remembers_how_it_was_got_when_the_setting_changes() -> None:
    upstream = manual()
    allocator = PinnedAllocator(upstream)
    locked = allocator.malloc(8)
    allocator.settings = replace(allocator.settings, pinned_use_cuda_host_register=True)
    registered = allocator.malloc(8)
    upstream.log.clear()
    allocator.free(locked)
    allocator.free(registered)
    allocator.empty_cache()
    assert [call[0] for call in upstream.log] == ["release_host", "unregister", "release_pages"]


# --- pools of graphs


def test_pools_are_begun_ended_and_released_in_order() -> None:
    allocator = PinnedAllocator(manual())
    with pytest.raises(ArgumentValueError, match="end_allocate_to_pool"):
        allocator.end_allocate_to_pool((1, 0))
    with pytest.raises(ArgumentValueError, match="release_pool"):
        allocator.release_pool((1, 0))
    allocator.begin_allocate_to_pool((1, 0), lambda stream: True)
    with pytest.raises(ArgumentValueError, match="begin_allocate_to_pool"):
        allocator.begin_allocate_to_pool((1, 0), lambda stream: True)
    allocator.end_allocate_to_pool((1, 0))
    allocator.release_pool((1, 0))
    with pytest.raises(ArgumentValueError, match="release_pool"):
        allocator.release_pool((1, 0))


def test_pool_with_a_block_in_use_outlives_its_graph() -> None:
    upstream = manual()
    allocator = PinnedAllocator(upstream)
    allocator.begin_allocate_to_pool((1, 0), lambda stream: True)
    address = allocator.malloc(64)
    allocator.end_allocate_to_pool((1, 0))
    allocator.release_pool((1, 0))
    allocator.empty_cache()
    assert upstream.used == 64
    allocator.free(address)
    assert allocator.malloc(64) != address
    allocator.empty_cache()
    assert upstream.used == 64
    assert not allocator._graph_pools


# --- finalizers, threads, fork


def test_finalizer_in_the_middle_of_a_call_may_free_and_allocate() -> None:
    class Reentrant(VirtualPinnedUpstream):
        def query_event(self, event: Any) -> bool:
            while hooks:
                hooks.pop()()
            return super().query_event(event)

    hooks: list[Callable[[], None]] = []
    upstream = Reentrant(1 << 30, Timeline(manual=True))
    allocator = PinnedAllocator(upstream)
    kept, waiting = allocator.malloc(64), allocator.malloc(32)
    allocator.record_event(waiting, 1)
    allocator.free(waiting)
    inner: list[int] = []
    hooks.append(lambda: allocator.free(kept))
    hooks.append(lambda: inner.append(allocator.malloc(64)))
    fresh = allocator.malloc(64)
    assert len({kept, inner[0], fresh}) == 3
    assert allocator.malloc(64) == kept
    assert allocator.stats()["active_requests.current"] == 4


def test_garbage_collector_frees_at_any_time() -> None:
    allocator = PinnedAllocator(manual())

    class Owner:
        def __init__(self) -> None:
            self.address = allocator.malloc(100)
            self.me = self

        def __del__(self) -> None:
            allocator.free(self.address)

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Owner()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert allocator.stats()["active_requests.current"] == 0


def test_threads_share_an_allocator() -> None:
    upstream = VirtualPinnedUpstream()
    allocator = PinnedAllocator(upstream)
    owners: dict[int, int] = {}
    errors: list[str] = []

    def work(me: int) -> None:
        mine: list[int] = []
        for step in range(300):
            address = allocator.malloc(1 << (step * (me + 3) % 9))
            if owners.setdefault(address, me) != me:
                errors.append(f"{address} is in use twice")
            mine.append(address)
            if step % 3:
                gone = mine.pop(step * 7 % len(mine))
                allocator.record_event(gone, me)
                del owners[gone]
                allocator.free(gone)
        for address in mine:
            del owners[address]
            allocator.free(address)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    allocator.empty_cache()
    assert (upstream.used, allocator.stats()["allocations.current"]) == (0, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_of_a_fork_goes_on_with_its_copy() -> None:
    allocator = PinnedAllocator(manual())
    held, release = threading.Event(), threading.Event()

    def occupy() -> None:
        with allocator._turnstile:
            held.set()
            release.wait(10)

    address = allocator.malloc(100)
    thread = threading.Thread(target=occupy)
    thread.start()
    held.wait(10)
    threading.Timer(0.01, release.set).start()
    child = os.fork()
    if child == 0:
        allocator.free(address)
        os._exit(0 if allocator.malloc(100) == address else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
    allocator.free(address)
    assert allocator.malloc(100) == address


@pytest.fixture
def watched() -> Iterator[tuple[PinnedAllocator, VirtualPinnedUpstream, list[str]]]:
    """An allocator with a background thread, and the names of the threads that query events."""
    askers: list[str] = []

    class Watched(VirtualPinnedUpstream):
        def query_event(self, event: Any) -> bool:
            askers.append(threading.current_thread().name)
            answer = super().query_event(event)
            if answer:
                answered.set()
            return answer

    answered = threading.Event()
    upstream = Watched(1 << 30, Timeline(manual=True))
    settings = replace(AllocatorSettings(), pinned_use_background_threads=True)
    allocator = PinnedAllocator(upstream, settings)
    upstream.answered = answered  # type: ignore[attr-defined]
    yield allocator, upstream, askers
    sweeper = allocator._sweeper
    del allocator
    gc.collect()
    assert sweeper is not None


def test_background_thread_looks_at_events_instead_of_requests(watched: Any) -> None:
    allocator, upstream, askers = watched
    address = allocator.malloc(64)
    allocator.record_event(address, 1)
    allocator.free(address)
    assert allocator.malloc(64) != address
    upstream.timeline.complete()
    assert upstream.answered.wait(10)
    with allocator._turnstile:
        pass
    assert set(askers) == {"pinned-events"}
    assert allocator.malloc(64) == address


def test_background_thread_ends_with_its_allocator() -> None:
    settings = replace(AllocatorSettings(), pinned_use_background_threads=True)
    allocator = PinnedAllocator(manual(), settings)
    allocator.malloc(64)
    sweeper = allocator._sweeper
    assert sweeper is not None and sweeper.is_alive()
    del allocator
    gc.collect()
    sweeper.join(10)
    assert not sweeper.is_alive()
