from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc import CachingAllocator
from refruntime.alloc.upstream import CallLog, Upstream, UpstreamExhausted, VirtualUpstream
from refruntime.alloc.upstream.adaptors import (
    CALLS,
    Adaptor,
    FailingAdaptor,
    LimitingAdaptor,
    LoggingAdaptor,
    Statistics,
    StatisticsAdaptor,
    TrackingAdaptor,
)
from refruntime.errors import ArgumentValueError, OutOfMemoryError
from tests.alloc.recount import Live, check

MIB = 1 << 20
PAGE = 2 * MIB

ADAPTORS: dict[str, Callable[[Upstream], Adaptor]] = {
    "none": Adaptor,
    "limiting": lambda below: LimitingAdaptor(below, 1 << 40),
    "statistics": StatisticsAdaptor,
    "logging": lambda below: LoggingAdaptor(below, io.StringIO()),
    "tracking": TrackingAdaptor,
    "failing": lambda below: FailingAdaptor(below, 0, calls=CALLS),
    "two": lambda below: TrackingAdaptor(StatisticsAdaptor(below)),
}


def everything(source: Upstream) -> list[Any]:
    """Make every call of the protocol, and return all answers."""
    answers: list[Any] = [source.capacity, source.supports_virtual_memory]
    span, start = source.reserve(4 * MIB, 3), source.reserve_addresses(16 * MIB)
    source.map(start + PAGE, 3 * PAGE, PAGE)
    with pytest.raises(UpstreamExhausted):
        source.reserve(100 * MIB, 0)
    with pytest.raises(UpstreamExhausted):
        source.map(start + 4 * PAGE, 4 * PAGE, PAGE)
    answers += [span, start, source.used, source.memory_info()]
    source.copy(span + 4096, span, 512, 3)
    event = source.record_event(3)
    answers.append(source.query_event(event))
    source.synchronize(3)
    answers.append(source.query_event(event))
    source.wait_event(event)
    source.release_event(event)
    source.record_event(1)
    source.synchronize()
    source.unmap(start + 2 * PAGE, PAGE, PAGE, 3)
    source.unmap(start + PAGE, PAGE, PAGE, 3)
    source.unmap(start + 3 * PAGE, PAGE, PAGE, 3)
    source.release_addresses(start, 16 * MIB)
    source.release(span, 4 * MIB)
    return [*answers, source.used]


def device() -> tuple[VirtualUpstream, CallLog]:
    log = CallLog()
    return VirtualUpstream(16 * MIB, manual_events=True, log=log), log


@pytest.mark.parametrize("name", ADAPTORS)
def test_an_adaptor_passes_everything_on(name: str) -> None:
    plain, expected = device()
    below, log = device()
    adaptor = ADAPTORS[name](below)
    capacity = adaptor.capacity
    assert everything(adaptor) == [capacity, *everything(plain)[1:]] and capacity == 16 * MIB
    assert log.entries == expected.entries


def test_the_calls_that_can_fail_are_those_of_the_protocol() -> None:
    methods = {
        name
        for name, value in vars(Upstream).items()
        if callable(value) and not name.startswith("_")
    }
    assert methods == set(CALLS)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
@pytest.mark.parametrize("name", ADAPTORS)
def test_a_caching_allocator_works_over_any_of_them(name: str, settings: str) -> None:
    allocator = CachingAllocator(ADAPTORS[name](VirtualUpstream(64 * MIB)), settings=settings)
    addresses = [allocator.malloc(nbytes) for nbytes in (100, 3 * MIB, 30 * MIB)]
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(60 * MIB)
    for address in addresses:
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.upstream.used == 0


# --- limiting ------------------------------------------------------------------------------------


def test_a_limit_counts_spans_and_pages_of_its_own_only() -> None:
    below = VirtualUpstream(100 * MIB)
    below.reserve(50 * MIB, 0)
    source = LimitingAdaptor(below, 20 * MIB)
    span, start = source.reserve(10 * MIB, 0), source.reserve_addresses(100 * MIB)
    source.map(start, 8 * MIB, PAGE)
    assert (source.used, source.capacity, below.used) == (18 * MIB, 20 * MIB, 68 * MIB)
    assert source.memory_info() == (2 * MIB, 20 * MIB)
    calls = below.calls
    with pytest.raises(UpstreamExhausted):
        source.reserve(3 * MIB, 0)
    with pytest.raises(UpstreamExhausted):
        source.map(start + 8 * MIB, 4 * MIB, PAGE)
    assert below.calls == calls, "what the limit refuses does not reach the upstream"
    source.release(span, 10 * MIB)
    source.map(start + 8 * MIB, 12 * MIB, PAGE)
    assert source.memory_info() == (0, 20 * MIB)


def test_a_request_that_fails_below_leaves_the_limit_as_it_was() -> None:
    source = LimitingAdaptor(VirtualUpstream(10 * MIB), 20 * MIB)
    assert source.capacity == 10 * MIB
    with pytest.raises(UpstreamExhausted):
        source.reserve(15 * MIB, 0)
    with pytest.raises(ArgumentValueError):
        source.release(0, MIB)
    assert source.used == 0
    with pytest.raises(ArgumentValueError, match="LimitingAdaptor: expected 0 bytes or more"):
        LimitingAdaptor(source, -1)


# --- statistics ----------------------------------------------------------------------------------


def test_counters_tell_current_peak_and_total() -> None:
    source = StatisticsAdaptor(VirtualUpstream(20 * MIB))
    first, start = source.reserve(6 * MIB, 0), source.reserve_addresses(20 * MIB)
    source.map(start, 8 * MIB, PAGE)
    source.unmap(start, 2 * MIB, PAGE, 0)
    source.release(first, 6 * MIB)
    with pytest.raises(UpstreamExhausted):
        source.reserve(60 * MIB, 0)
    assert source.statistics == Statistics(
        current_bytes=6 * MIB, peak_bytes=14 * MIB, total_bytes=14 * MIB,
        current_spans=3, peak_spans=5, total_spans=5, failures=1,
    )  # fmt: skip


def test_a_scope_counts_apart_and_is_added_to_the_one_around_it() -> None:
    source = StatisticsAdaptor(VirtualUpstream(100 * MIB))
    outer = source.reserve(10 * MIB, 0)
    with source.scope() as step:
        inner = source.reserve(5 * MIB, 0)
        source.release(outer, 10 * MIB)
        source.release(inner, 5 * MIB)
    assert (step.current_bytes, step.peak_bytes, step.total_bytes) == (-10 * MIB, 5 * MIB, 5 * MIB)
    assert (step.current_spans, step.peak_spans, step.total_spans) == (-1, 1, 1)
    assert source.statistics == Statistics(0, 15 * MIB, 15 * MIB, 0, 2, 2)


def test_a_scope_ends_also_when_its_body_raises() -> None:
    source = StatisticsAdaptor(VirtualUpstream(MIB))
    with pytest.raises(UpstreamExhausted), source.scope() as step:
        source.reserve(2 * MIB, 0)
    assert step.failures == source.statistics.failures == 1
    with pytest.raises(ArgumentValueError, match="a scope that was pushed"):
        source.pop()


@given(
    st.lists(
        st.one_of(st.integers(1, 20), st.sampled_from(["free", "push", "pop", "fail"])),
        max_size=60,
    )
)
def test_scopes_never_change_what_is_counted_in_all(steps: list[int | str]) -> None:
    scoped, flat = (StatisticsAdaptor(VirtualUpstream(100)) for _ in range(2))
    live: list[tuple[int, int]] = []
    depth = 0
    for step in steps:
        if step == "push":
            scoped.push()
            depth += 1
        elif step == "pop":
            if depth:
                scoped.pop()
            depth = max(depth - 1, 0)
        elif step == "free":
            for source in (scoped, flat) if live else ():
                source.release(*live[0])
            live = live[1:]
        else:
            nbytes = step if isinstance(step, int) else 1000
            try:
                addresses = {source.reserve(nbytes, 0) for source in (scoped, flat)}
            except UpstreamExhausted:
                with pytest.raises(UpstreamExhausted):
                    flat.reserve(nbytes, 0)
            else:
                live.append((*addresses, nbytes))
    while depth:
        scoped.pop()
        depth -= 1
    assert scoped.statistics == flat.statistics
    assert scoped.statistics.current_bytes == sum(nbytes for _, nbytes in live)


# --- logging -------------------------------------------------------------------------------------


def test_the_log_is_rmm_csv_of_spans_and_pages(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    below = VirtualUpstream(20 * MIB, base=PAGE)
    source = LoggingAdaptor(below, path)
    span = source.reserve(3 * MIB, 0x7F)
    with pytest.raises(UpstreamExhausted):
        source.reserve(99 * MIB, 0)
    start = source.reserve_addresses(8 * PAGE)
    source.map(start, 2 * PAGE, PAGE)
    source.unmap(start + PAGE, PAGE, PAGE, 5)
    source.release(span, 3 * MIB)
    source.close()
    source.release(source.reserve(MIB, 0), MIB)
    lines = path.read_text().splitlines()
    assert lines[0] == "Thread,Time,Action,Pointer,Size,Stream"
    rows = list(csv.DictReader(lines))
    assert {row["Thread"] for row in rows} == {str(threading.get_native_id())}
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d\.\d{6}", row["Time"]) for row in rows)
    assert [tuple(row.values())[2:] for row in rows] == [
        ("allocate", hex(span), str(3 * MIB), "0x7f"),
        ("allocate failure", "0x0", str(99 * MIB), "0"),
        ("allocate", hex(start), str(PAGE), "0"),
        ("allocate", hex(start + PAGE), str(PAGE), "0"),
        ("free", hex(start + PAGE), str(PAGE), "0"),
        ("free", hex(span), str(3 * MIB), "0x7f"),
    ]


def test_a_log_can_go_to_an_open_file_and_be_flushed_line_by_line(tmp_path: Path) -> None:
    with (tmp_path / "log.csv").open("w") as file:
        source = LoggingAdaptor(VirtualUpstream(MIB), file, flush=True)
        source.reserve(5, 0)
        assert (tmp_path / "log.csv").read_text().count("\n") == 2
        source.close()
        assert not file.closed


def test_a_log_that_breaks_does_not_take_memory_with_it() -> None:
    file = io.StringIO()
    source = LoggingAdaptor(VirtualUpstream(MIB), file)
    file.close()
    with pytest.warns(RuntimeWarning, match="gives its log up: I/O operation on closed file"):
        address = source.reserve(5, 0)
    source.release(address, 5)
    source.flush()
    source.close()
    assert source.used == 0


# --- tracking ------------------------------------------------------------------------------------


def wanted(source: Upstream) -> int:
    return source.reserve(5 * MIB, 9)


def test_what_is_out_names_the_code_that_asked_for_it() -> None:
    source = TrackingAdaptor(VirtualUpstream(64 * MIB))
    address = wanted(source)
    source.release(source.reserve(MIB, 0), MIB)
    start = source.reserve_addresses(8 * PAGE)
    source.map(start, 2 * PAGE, PAGE)
    source.unmap(start, PAGE, PAGE, 0)
    span, page = source.outstanding()
    assert (span.address, span.nbytes, span.stream) == (address, 5 * MIB, 9)
    assert (page.address, page.nbytes) == (start + PAGE, PAGE)
    assert [frame.name for frame in span.stack][-2:] == [
        "test_what_is_out_names_the_code_that_asked_for_it", "wanted",
    ]  # fmt: skip
    assert page.stack[-1].line == "source.map(start, 2 * PAGE, PAGE)"
    report = source.report()
    assert f"{5 * MIB} bytes at {address:#x}, stream 9" in report
    assert "return source.reserve(5 * MIB, 9)" in report
    source.release(address, 5 * MIB)
    source.unmap(start + PAGE, PAGE, PAGE, 0)
    assert source.report() == "" and source.outstanding() == []


@pytest.mark.parametrize("depth", [0, 1])
def test_stacks_are_as_deep_as_asked(depth: int) -> None:
    source = TrackingAdaptor(VirtualUpstream(64 * MIB), depth=depth)
    wanted(source)
    assert [frame.name for frame in source.outstanding()[0].stack] == ["wanted"][:depth]


# --- faults --------------------------------------------------------------------------------------


def test_the_nth_chosen_call_fails_and_does_nothing() -> None:
    below = VirtualUpstream(64 * MIB)
    source = FailingAdaptor(below, 2, calls=["reserve"], times=2)
    start = source.reserve_addresses(8 * PAGE)
    source.reserve(MIB, 0)
    source.map(start, PAGE, PAGE)
    for _ in range(2):
        with pytest.raises(UpstreamExhausted):
            source.reserve(MIB, 0)
    assert below.used == MIB + PAGE
    source.reserve(MIB, 0)
    assert source.seen == 4


@pytest.mark.parametrize("call", CALLS)
def test_every_call_can_fail_with_any_exception(call: str) -> None:
    source = FailingAdaptor(device()[0], 1, calls=[call], error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        everything(source)
    assert source.seen == 1


def test_errors_are_made_anew_for_each_failure() -> None:
    made: list[OSError] = []

    def error() -> OSError:
        made.append(OSError(len(made)))
        return made[-1]

    source = FailingAdaptor(VirtualUpstream(MIB), 1, error=error, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match=r"\d"):
            source.reserve(1, 0)
    assert len({id(one) for one in made}) == 2


def test_unknown_calls_are_refused() -> None:
    with pytest.raises(ArgumentValueError, match="got allocate, free"):
        FailingAdaptor(VirtualUpstream(MIB), 1, calls=["free", "allocate", "map"])


class FaultError(Exception):
    """What a driver may raise at any time."""


# Names of blocks, sizes in MiB, streams. The device has 64 MiB.
STEPS: list[tuple[Any, ...]] = [
    ("alloc", "a", 3, 0), ("alloc", "b", 0.001, 1), ("alloc", "c", 30, 0), ("use", "a", 5),
    ("use", "c", 5), ("use", "c", 6), ("free", "a"), ("alloc", "d", 2, 0), ("free", "c"),
    ("alloc", "e", 12, 0), ("alloc", "f", 40, 1), ("complete",), ("alloc", "g", 25, 0),
    ("free", "d"), ("free", "e"), ("empty",), ("alloc", "h", 50, 0), ("alloc", "i", 1, 2),
    ("free", "b"), ("free", "g"), ("free", "h"), ("empty",), ("alloc", "j", 16, 0),
]  # fmt: skip


def step(
    allocator: CachingAllocator, below: VirtualUpstream, live: dict[str, tuple[int, Live]], *do: Any
) -> None:
    """Do a step; what is freed is gone, whatever the driver raises."""
    op, name, *numbers = *do, None
    if op == "alloc":
        nbytes, stream = int(numbers[0] * MIB), numbers[1]
        live[name] = allocator.malloc(nbytes, stream), Live(nbytes, stream, 0)
    elif op == "use" and name in live:
        allocator.record_stream(live[name][0], numbers[0])
    elif op == "free" and name in live:
        allocator.free(live.pop(name)[0])
    elif op == "empty":
        allocator.empty_cache()
    elif op == "complete":
        below.complete()


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
@pytest.mark.parametrize(
    ("call", "error"),
    [("reserve", UpstreamExhausted), ("map", UpstreamExhausted)]
    + [(call, FaultError) for call in CALLS],
)
def test_a_caching_allocator_survives_a_failure_at_any_call(
    call: str, error: type[Exception], settings: str
) -> None:
    for nth in itertools.count(1):
        below = VirtualUpstream(64 * MIB, manual_events=True)
        source = FailingAdaptor(below, nth, calls=[call], error=error)
        allocator = CachingAllocator(source, settings=settings)
        live: dict[str, tuple[int, Live]] = {}
        for do in STEPS:
            with contextlib.suppress(FaultError, OutOfMemoryError):
                step(allocator, below, live, *do)
            check(allocator, dict(live.values()))
        for name in list(live):
            with contextlib.suppress(FaultError):
                allocator.free(live.pop(name)[0])
        below.complete()
        # The failures are over: what fits is served, and all can be given back.
        source.nth = 0
        allocator.free(allocator.malloc(40 * MIB))
        allocator.empty_cache()
        assert source.used == allocator.allocated_bytes == 0
        if source.seen < nth:
            break
