from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc import CachingAllocator
from refruntime.alloc.upstream import (
    HUGE_PAGE,
    BumpAddresses,
    CallLog,
    DriverLatency,
    FirstFitAddresses,
    HostUpstream,
    LazyHostPages,
    UpstreamExhausted,
    VirtualUpstream,
    host,
    host_capacity,
    pages,
)
from refruntime.config import config
from refruntime.errors import ArgumentValueError, DeviceError

MIB = 1 << 20
PAGE = 2 * MIB
Source = VirtualUpstream | HostUpstream


def first_fit(capacity: int) -> VirtualUpstream:
    return VirtualUpstream(capacity, addresses=FirstFitAddresses())


def backed(capacity: int) -> VirtualUpstream:
    return VirtualUpstream(capacity, addresses=LazyHostPages())


KINDS: dict[str, Callable[[int], Source]] = {
    "virtual": VirtualUpstream, "first_fit": first_fit, "backed": backed, "host": HostUpstream,
}  # fmt: skip


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest) -> Source:
    if sys.platform == "win32" and request.param == "backed":
        pytest.skip("lazy pages come from a Unix C library")
    return KINDS[request.param](64 * MIB)


def test_used_counts_what_is_given_out(source: Source) -> None:
    first, second = source.reserve(2 * MIB, 0), source.reserve(20 * MIB, 1)
    assert source.used == 22 * MIB
    source.release(first, 2 * MIB)
    assert source.used == 20 * MIB
    source.release(second, 20 * MIB)
    assert source.used == 0


def test_spans_are_aligned_and_apart(source: Source) -> None:
    spans = sorted(source.reserve(nbytes, 0) for nbytes in (2 * MIB, 5 * MIB + 4096, 4 * MIB))
    assert all(address % HUGE_PAGE == 0 for address in spans)
    assert all(after - before >= 2 * MIB for before, after in itertools.pairwise(spans))
    assert len(set(spans)) == 3


def test_capacity_is_never_passed(source: Source) -> None:
    address = source.reserve(60 * MIB, 0)
    with pytest.raises(UpstreamExhausted):
        source.reserve(6 * MIB, 0)
    assert source.used == 60 * MIB
    source.release(address, 60 * MIB)
    source.release(source.reserve(64 * MIB, 0), 64 * MIB)


@pytest.mark.parametrize("kind", ["virtual", "backed", "host"])
def test_threads_never_share_a_span(kind: str) -> None:
    source = KINDS[kind](8 * MIB)
    seen: list[int] = []

    def work() -> None:
        for _ in range(100):
            try:
                address = source.reserve(2 * MIB, 0)
            except UpstreamExhausted:
                continue
            assert address not in seen
            seen.append(address)
            # Of the host, threads may take a span more than it wants to give.
            assert len(seen) <= 4 or kind == "host"
            seen.remove(address)
            source.release(address, 2 * MIB)

    threads = [threading.Thread(target=work) for _ in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert source.used == 0 and seen == []
    source.release(source.reserve(8 * MIB, 0), 8 * MIB)


@pytest.mark.parametrize("wrong", ["address", "size", "twice"])
def test_only_whole_reserved_spans_are_taken_back(source: Source, wrong: str) -> None:
    address, nbytes = source.reserve(4 * MIB, 0), 4 * MIB
    if wrong == "twice":
        source.release(address, nbytes)
    used = source.used
    with pytest.raises(ArgumentValueError, match="release: expected a reserved span, whole"):
        source.release(address + (wrong == "address"), nbytes - (wrong == "size"))
    assert source.used == used


def test_virtual_addresses_rise_and_are_never_given_twice() -> None:
    source = VirtualUpstream(64 * MIB)
    seen = []
    for _ in range(5):
        seen.append(source.reserve(3 * MIB, 0))
        source.release(seen[-1], 3 * MIB)
    assert seen == sorted(set(seen))
    assert source.calls == 10


@pytest.mark.parametrize("kind", ["host", "backed"])
@pytest.mark.parametrize("nbytes", [4096, 2 * MIB, 10 * MIB])
def test_host_pages_are_zero_and_writable_to_the_last_byte(kind: str, nbytes: int) -> None:
    source = KINDS[kind](64 * MIB)
    address = source.reserve(nbytes, 0)
    assert ctypes.string_at(address, nbytes) == bytes(nbytes)
    ctypes.memset(address, 255, nbytes)
    assert ctypes.string_at(address + nbytes - 1, 1) == b"\xff"
    source.release(address, nbytes)


@pytest.mark.parametrize("kind", ["host", "backed"])
def test_released_host_pages_go_back_to_the_system(kind: str) -> None:
    source = KINDS[kind](64 * MIB)
    address = source.reserve(32 * MIB, 0)
    with_span = _mapped_bytes()
    source.release(address, 32 * MIB)
    assert with_span - _mapped_bytes() >= 32 * MIB


def _mapped_bytes() -> int:
    return _statm(0)


def _resident_bytes() -> int:
    return _statm(1)


def _statm(field: int) -> int:
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not tell the size of a process")
    return int(Path("/proc/self/statm").read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE")


def test_host_refuses_what_the_system_cannot_map() -> None:
    with pytest.raises(UpstreamExhausted):
        HostUpstream(1 << 62).reserve(1 << 61, 0)


def test_host_refuses_large_spans_beyond_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"MemAvailable": 30 * MIB, "MemTotal": 1 << 40}
    monkeypatch.setattr(host, "_meminfo", report.__getitem__)
    source = HostUpstream(1 << 40)
    with pytest.raises(UpstreamExhausted):
        source.reserve(32 * MIB, 0)
    assert source.used == 0
    source.release(source.reserve(20 * MIB, 0), 20 * MIB)


def test_host_capacity_is_a_share_of_the_lowest_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "_CGROUPS", tmp_path)
    monkeypatch.setattr(host, "_meminfo", {"MemTotal": 64 << 30}.__getitem__)
    with config.patch(host_capacity_share=0.5):
        assert host_capacity() == 32 << 30
        (tmp_path / "memory.max").write_text("max\n")
        assert host_capacity() == 32 << 30
        (tmp_path / "memory.max").write_text(f"{8 << 30}\n")
        assert host_capacity() == 4 << 30
        (tmp_path / "memory").mkdir()
        (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{2 << 30}\n")
        assert host_capacity() == 1 << 30


def test_own_control_group_and_those_above_it_are_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = tmp_path / "work.slice" / "job"
    inner.mkdir(parents=True)
    read = host._read
    groups = {Path("/proc/self/cgroup"): "0::/work.slice/job\n"}
    monkeypatch.setattr(host, "_CGROUPS", tmp_path)
    monkeypatch.setattr(host, "_read", lambda path: groups.get(path) or read(path))
    (inner / "memory.max").write_text("700\n")
    (inner.parent / "memory.max").write_text("900\n")
    assert sorted(host._cgroup_limits()) == [700, 900]


def test_host_tells_what_it_can_still_give(monkeypatch: pytest.MonkeyPatch) -> None:
    available = {"MemAvailable": 1 << 40}
    monkeypatch.setattr(host, "_meminfo", available.__getitem__)
    source = HostUpstream(64 * MIB)
    address = source.reserve(MIB, 0)
    assert source.memory_info() == (63 * MIB, 64 * MIB)
    available["MemAvailable"] = 5 * MIB
    assert source.memory_info() == (5 * MIB, 64 * MIB)
    source.release(address, MIB)


# --- virtual memory ------------------------------------------------------------------------------


@pytest.fixture
def paged(source: Source) -> Source:
    if not source.supports_virtual_memory:
        pytest.skip("no virtual memory on this system")
    return source


def test_addresses_alone_cost_nothing_and_pages_are_counted(paged: Source) -> None:
    start = paged.reserve_addresses(1 << 40)
    assert start % HUGE_PAGE == 0 and paged.used == 0
    paged.map(start + 10 * PAGE, 3 * PAGE, PAGE)
    assert paged.used == 3 * PAGE
    paged.unmap(start + 11 * PAGE, PAGE, PAGE, 0)
    assert paged.used == 2 * PAGE
    paged.unmap(start + 10 * PAGE, PAGE, PAGE, 0)
    paged.unmap(start + 12 * PAGE, PAGE, PAGE, 0)
    paged.release_addresses(start, 1 << 40)
    assert paged.used == 0


def test_spans_and_pages_share_the_capacity(paged: Source) -> None:
    span, start = paged.reserve(40 * MIB, 0), paged.reserve_addresses(64 * MIB)
    paged.map(start, 20 * MIB, PAGE)
    with pytest.raises(UpstreamExhausted):
        paged.reserve(6 * MIB, 0)
    with pytest.raises(UpstreamExhausted):
        paged.map(start + 20 * MIB, 6 * MIB, PAGE)
    assert paged.used == 60 * MIB
    paged.release(span, 40 * MIB)
    paged.map(start + 20 * MIB, 44 * MIB, PAGE)
    assert paged.used == 64 * MIB


def test_a_map_that_fails_leaves_nothing_mapped(paged: Source) -> None:
    start = paged.reserve_addresses(128 * MIB)
    with pytest.raises(UpstreamExhausted):
        paged.map(start, 66 * MIB, PAGE)
    assert paged.used == 0
    paged.map(start, 64 * MIB, PAGE)


@pytest.mark.parametrize(
    ("offset", "nbytes", "page"),
    [
        (-PAGE, PAGE, PAGE),  # before the range
        (7 * PAGE, 2 * PAGE, PAGE),  # past its end
        (0, 3 * MIB, PAGE),  # half a page
        (MIB, PAGE, PAGE),  # between two pages
        (0, 0, PAGE),
        (PAGE, 2 * PAGE, PAGE),  # mapped already
        (0, PAGE, 0),
    ],
)
def test_map_refuses_what_are_not_free_pages_of_one_range(
    paged: Source, offset: int, nbytes: int, page: int
) -> None:
    start = paged.reserve_addresses(8 * PAGE)
    paged.map(start + 2 * PAGE, PAGE, PAGE)
    with pytest.raises(ArgumentValueError, match="map: expected"):
        paged.map(start + offset, nbytes, page)
    assert paged.used == PAGE


def test_unmap_refuses_what_is_not_mapped_in_such_pages(paged: Source) -> None:
    start = paged.reserve_addresses(80 * MIB)
    paged.map(start, 20 * MIB, 20 * MIB)
    for offset, nbytes, page in [(0, PAGE, PAGE), (20 * MIB, 20 * MIB, 20 * MIB)]:
        with pytest.raises(ArgumentValueError, match="unmap: expected mapped pages"):
            paged.unmap(start + offset, nbytes, page, 0)
    assert paged.used == 20 * MIB


def test_a_range_goes_back_whole_and_empty(paged: Source) -> None:
    start = paged.reserve_addresses(8 * PAGE)
    paged.map(start, PAGE, PAGE)
    with pytest.raises(ArgumentValueError, match=r"without pages.*unmap them first"):
        paged.release_addresses(start, 8 * PAGE)
    paged.unmap(start, PAGE, PAGE, 0)
    with pytest.raises(ArgumentValueError, match="release_addresses: expected a reserved span"):
        paged.release_addresses(start, 4 * PAGE)
    paged.release_addresses(start, 8 * PAGE)
    with pytest.raises(ArgumentValueError, match="addresses of one reserved range"):
        paged.map(start, PAGE, PAGE)


@pytest.mark.parametrize("kind", ["host", "backed"])
def test_mapped_pages_are_zero_writable_and_forget_when_unmapped(kind: str) -> None:
    source = KINDS[kind](64 * MIB)
    if not source.supports_virtual_memory:
        pytest.skip("no virtual memory on this system")
    start = source.reserve_addresses(64 * MIB)
    source.map(start + PAGE, 2 * PAGE, PAGE)
    ctypes.memset(start + PAGE, 7, 2 * PAGE)
    source.unmap(start + PAGE, PAGE, PAGE, 0)
    source.map(start + PAGE, PAGE, PAGE)
    assert ctypes.string_at(start + PAGE, PAGE) == bytes(PAGE)
    assert ctypes.string_at(start + 2 * PAGE, PAGE) == b"\x07" * PAGE
    source.unmap(start + PAGE, 2 * PAGE, PAGE, 0)
    source.release_addresses(start, 64 * MIB)


@pytest.mark.parametrize("kind", ["host", "backed"])
def test_bytes_are_copied_from_place_to_place(kind: str) -> None:
    source = KINDS[kind](64 * MIB)
    span = source.reserve(2 * MIB, 0)
    ctypes.memset(span, 7, 600)
    source.copy(span + 5000, span, 512, 0)
    assert ctypes.string_at(span + 5000, 600) == b"\x07" * 512 + bytes(88)
    source.release(span, 2 * MIB)


def test_addresses_without_memory_are_copied_in_the_log_alone() -> None:
    log = CallLog()
    source = VirtualUpstream(64 * MIB, log=log)
    span = source.reserve(2 * MIB, 0)
    source.copy(span + 5000, span, 512, 3)
    assert log.entries[-1] == [log.step, "memcpy", span + 5000, span, 512, 3]


@pytest.mark.parametrize("kind", ["host", "backed"])
def test_expandable_segments_of_a_caching_allocator_hold_data(kind: str) -> None:
    source = KINDS[kind](64 * MIB)
    if not source.supports_virtual_memory:
        pytest.skip("no virtual memory on this system")
    allocator = CachingAllocator(source, settings="expandable_segments:True")
    first, second = allocator.malloc(16 * MIB), allocator.malloc(16 * MIB)
    assert second == first + 16 * MIB and source.used == 40 * MIB
    ctypes.memset(first, 1, 32 * MIB)
    allocator.free(second)
    allocator.empty_cache()
    assert source.used == 20 * MIB
    assert ctypes.string_at(first, 16 * MIB) == b"\x01" * (16 * MIB)
    allocator.free(first)
    allocator.empty_cache()
    assert source.used == 0


def test_untouched_pages_of_a_huge_device_cost_nothing() -> None:
    if sys.platform == "win32":
        pytest.skip("lazy pages come from a Unix C library")
    source = backed(1 << 42)
    resident = _resident_bytes()
    address = source.reserve(1 << 41, 0)
    ctypes.memset(address + (1 << 40), 1, 4096)
    assert _resident_bytes() - resident < 64 * MIB
    source.release(address, 1 << 41)


def test_host_pages_of_a_system_without_them_are_refused_plainly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "SUPPORTED", False)
    with pytest.raises(DeviceError, match="host pages: expected a Unix system"):
        backed(64 * MIB).reserve(MIB, 0)


def test_host_ranges_end_where_the_addresses_end() -> None:
    source = HostUpstream(64 * MIB)
    if not source.supports_virtual_memory:
        pytest.skip("no virtual memory on this system")
    for nbytes in (1 << 60, 1 << 70):
        with pytest.raises(UpstreamExhausted):
            source.reserve_addresses(nbytes)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 15), st.integers(1, 16), st.integers(0, 2)),
        max_size=40,
    )
)
def test_pages_follow_a_plain_model(steps: list[tuple[bool, int, int, int]]) -> None:
    """Any order of maps, unmaps and faults leaves exactly the pages that a set would hold."""
    source = VirtualUpstream(10 * PAGE)
    start, mapped = source.reserve_addresses(16 * PAGE), set[int]()
    for wants_map, first, count, failures in steps:
        run = set(range(first, first + count))
        source.fail_next(failures if wants_map else 0)
        fits = max(run) < 16 and (run.isdisjoint(mapped) if wants_map else run <= mapped)
        room = not failures and len(mapped) + count <= 10
        try:
            if wants_map:
                source.map(start + first * PAGE, count * PAGE, PAGE)
                mapped |= run
            else:
                source.unmap(start + first * PAGE, count * PAGE, PAGE, 0)
                mapped -= run
        except ArgumentValueError:
            assert not fits
        except UpstreamExhausted:
            assert fits and not room
        else:
            assert fits and (room or not wants_map)
        assert source.used == len(mapped) * PAGE


# --- streams -------------------------------------------------------------------------------------


def test_events_are_done_at_once_by_default(source: Source) -> None:
    event = source.record_event(3)
    assert event != 0 and source.query_event(event)
    source.wait_event(event)
    source.release_event(event)
    source.synchronize(3)
    source.synchronize()


def test_a_stream_passes_its_marks_in_order() -> None:
    source = VirtualUpstream(MIB, manual_events=True)
    first, second, other = source.record_event(1), source.record_event(1), source.record_event(2)

    def done() -> list[bool]:
        return [source.query_event(event) for event in (first, second, other)]

    assert done() == [False, False, False]
    source.complete(1, n=1)
    assert done() == [True, False, False]
    source.complete(1, n=5)
    assert done() == [True, True, False]
    source.complete()
    assert done() == [True, True, True]


def test_waiting_for_a_mark_lets_the_stream_pass_what_was_before() -> None:
    source = VirtualUpstream(MIB, manual_events=True)
    first, second, third = (source.record_event(1) for _ in range(3))
    source.wait_event(second)
    assert source.query_event(first) and not source.query_event(third)


@pytest.mark.parametrize("stream", [1, None])
def test_synchronising_lets_streams_pass_everything(stream: int | None) -> None:
    source = VirtualUpstream(MIB, manual_events=True)
    event, other = source.record_event(1), source.record_event(2)
    source.synchronize(stream)
    assert source.query_event(event) and source.query_event(other) is (stream is None)


def test_unmapping_waits_for_the_stream() -> None:
    source = VirtualUpstream(64 * MIB, manual_events=True)
    start, event = source.reserve_addresses(PAGE), source.record_event(4)
    source.map(start, PAGE, PAGE)
    assert not source.query_event(event)
    source.unmap(start, PAGE, PAGE, 4)
    assert source.query_event(event)


def test_events_can_be_switched_to_manual_and_back() -> None:
    source = VirtualUpstream(MIB)
    source.manual_events = True
    waiting = source.record_event(0)
    assert not source.query_event(waiting)
    source.manual_events = False
    # Work that is done at once is done after all that came before it.
    assert source.query_event(source.record_event(0)) and source.query_event(waiting)


def test_an_event_given_back_is_unknown_until_it_is_recorded_again() -> None:
    source = VirtualUpstream(MIB)
    event = source.record_event(0)
    source.release_event(event)
    with pytest.raises(ArgumentValueError, match="recorded and not given back"):
        source.query_event(event)
    with pytest.raises(ArgumentValueError, match=f"got {event}"):
        source.release_event(event)
    assert source.query_event(source.record_event(0))


# --- the virtual device's models -----------------------------------------------------------------


def test_first_fit_reuses_the_lowest_gap_that_is_large_enough() -> None:
    addresses = FirstFitAddresses(base=0)
    places = [addresses.take(nbytes) // MIB for nbytes in (4 * MIB, 2 * MIB + 1, 2 * MIB, MIB)]
    assert places == [0, 4, 8, 10]
    addresses.give(8 * MIB, 2 * MIB)
    addresses.give(0, 4 * MIB)
    assert [addresses.take(nbytes) // MIB for nbytes in (6 * MIB, MIB, 2 * MIB, 1)] == [12, 0, 2, 8]


@given(
    st.sampled_from([FirstFitAddresses, BumpAddresses]),
    st.lists(st.tuples(st.booleans(), st.integers(1, 5 * PAGE)), max_size=40),
)
def test_addresses_of_live_spans_never_overlap(
    model: type[FirstFitAddresses | BumpAddresses], steps: list[tuple[bool, int]]
) -> None:
    addresses, live = model(), list[tuple[int, int]]()
    for takes, number in steps:
        if takes or not live:
            live.append((addresses.take(number), number))
        else:
            addresses.give(*live.pop(number % len(live)))
        spans = sorted((address, address + nbytes) for address, nbytes in live)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert all(address % HUGE_PAGE == 0 for address, _ in live)


class Refusing(FirstFitAddresses):
    """Addresses of a system that refuses memory when it is asked the `nth` time."""

    def __init__(self, nth: int, error: type[BaseException]) -> None:
        super().__init__(base=0)
        self.left, self.error = nth, error

    def commit(self, address: int, nbytes: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


@pytest.mark.parametrize(
    ("error", "told"), [(OSError, UpstreamExhausted), (KeyboardInterrupt, KeyboardInterrupt)]
)
def test_memory_that_the_system_refuses_is_not_counted(
    error: type[BaseException], told: type[BaseException]
) -> None:
    source = VirtualUpstream(64 * MIB, addresses=Refusing(2, error))
    source.reserve(PAGE, 0)
    with pytest.raises(told):
        source.reserve(PAGE, 0)
    assert source.used == PAGE and source.reserve(PAGE, 0) == PAGE
    source = VirtualUpstream(64 * MIB, addresses=Refusing(1, error))
    start = source.reserve_addresses(8 * PAGE)
    with pytest.raises(told):
        source.map(start, 2 * PAGE, PAGE)
    assert source.used == 0
    source.map(start, 2 * PAGE, PAGE)
    assert source.used == 2 * PAGE


def test_bump_addresses_start_at_the_base_and_are_aligned() -> None:
    addresses = BumpAddresses(base=10 * PAGE)
    assert [addresses.take(nbytes) // PAGE for nbytes in (1, PAGE + 1, PAGE)] == [10, 11, 13]


def test_memory_of_others_leaves_less_room() -> None:
    source = VirtualUpstream(64 * MIB)
    source.foreign = 60 * MIB
    with pytest.raises(UpstreamExhausted):
        source.reserve(6 * MIB, 0)
    source.reserve(3 * MIB, 0)
    assert source.memory_info() == (MIB, 64 * MIB)
    source.capacity = 32 * MIB
    assert source.memory_info() == (0, 32 * MIB)


def test_spans_count_in_units_of_the_device() -> None:
    source = VirtualUpstream(8 * MIB, granularity=2 * MIB)
    address = source.reserve(3 * MIB, 0)
    assert source.used == 4 * MIB
    source.release(address, 3 * MIB)
    assert source.used == 0


def test_the_next_calls_fail_when_told_to() -> None:
    source = VirtualUpstream(64 * MIB)
    start = source.reserve_addresses(64 * MIB)
    source.fail_next(2)
    with pytest.raises(UpstreamExhausted):
        source.reserve(MIB, 0)
    with pytest.raises(UpstreamExhausted):
        source.map(start, 4 * PAGE, PAGE)
    source.map(start, 4 * PAGE, PAGE)
    assert source.used == 4 * PAGE
    with pytest.raises(ArgumentValueError, match="0 failures or more"):
        source.fail_next(-1)


def test_time_in_the_driver_is_added_up_by_the_model() -> None:
    seen: list[tuple[str, int]] = []

    def latency(call: str, nbytes: int) -> int:
        seen.append((call, nbytes))
        return 1 + nbytes // MIB

    source = VirtualUpstream(64 * MIB, latency=latency)
    source.release(source.reserve(8 * MIB, 0), 8 * MIB)
    start = source.reserve_addresses(8 * MIB)
    source.map(start, 4 * MIB, PAGE)
    with pytest.raises(UpstreamExhausted):
        source.reserve(64 * MIB, 0)
    assert seen == [
        ("malloc", 8 * MIB), ("free", 8 * MIB), ("reserve", 8 * MIB), ("create", PAGE),
        ("create", PAGE), ("map", PAGE), ("map", PAGE), ("set_access", 4 * MIB),
        ("malloc", 64 * MIB), ("mem_get_info", 0),
    ]  # fmt: skip
    assert source.clock_ns == 9 + 9 + 9 + 3 + 3 + 3 + 3 + 5 + 65 + 1


def test_the_default_costs_follow_their_sources() -> None:
    cost = DriverLatency()
    assert cost("malloc", 64 << 10) == pytest.approx(180_000, rel=0.01)
    assert cost("malloc", 64 * MIB) == pytest.approx(1_200_000, rel=0.01)
    page = ("create", "map", "set_access")
    assert sum(cost(call, 2 * MIB) for call in page) == sum(cost(call, 20 * MIB) for call in page)
    assert cost("a call of another driver", MIB) == 0
    assert VirtualUpstream(MIB).clock_ns == 0


def test_driver_calls_are_logged_in_the_words_of_the_recordings() -> None:
    log = CallLog()
    source = VirtualUpstream(100 * MIB, manual_events=True, granularity=PAGE, log=log)
    span = source.reserve(20 * MIB, 0)
    start = source.reserve_addresses(240 * MIB)
    log.step = 1
    source.map(start + 20 * MIB, 40 * MIB, 20 * MIB)
    log.step = 2
    with pytest.raises(UpstreamExhausted):
        source.map(start + 60 * MIB, 60 * MIB, 20 * MIB)
    log.step = 3
    event = source.record_event(1)
    source.query_event(event)
    source.wait_event(event)
    source.release_event(event)
    source.record_event(2)
    log.step = 4
    source.unmap(start + 20 * MIB, 40 * MIB, 20 * MIB, 7)
    source.release_addresses(start, 240 * MIB)
    source.release(span, 20 * MIB)
    log.step = -1
    with pytest.raises(UpstreamExhausted):
        source.reserve(200 * MIB, 0)
    source.synchronize()
    assert log.entries == _logged(100 * MIB, 20 * MIB)


def _logged(total: int, page: int) -> list[list[Any]]:
    return [
        [0, "malloc", 0, page],
        [0, "reserve", 1, 240 * MIB],
        [1, "create", page],
        [1, "create", page],
        [1, "map", 1, page, page],
        [1, "map", 1, 2 * page, page],
        [1, "set_access", 1, page, 2 * page],
        [2, "create", page],
        [2, "create", page],
        [2, "create", page, "oom"],
        [2, "mem_get_info", 0, total],
        [2, "release", page],
        [2, "release", page],
        [3, "event_create", 1],
        [3, "event_record", 1, 1],
        [3, "event_query", 1, "not_ready"],
        [3, "event_sync", 1],
        [3, "event_record", 1, 2],
        [4, "stream_sync", 7],
        [4, "unmap", 1, page, page],
        [4, "release", page],
        [4, "unmap", 1, 2 * page, page],
        [4, "release", page],
        [4, "addr_free", 1, 240 * MIB],
        [4, "free", 0, page],
        [-1, "malloc", None, 200 * MIB, "oom"],
        [-1, "mem_get_info", total, total],
        [-1, "device_sync"],
    ]
