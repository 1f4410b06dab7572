from __future__ import annotations

import contextlib

from refruntime.alloc import CachingAllocator, VirtualUpstream, categories, timeline
from refruntime.alloc.tables import ENTRY_CONTEXT
from refruntime.alloc.trace import TraceEvent
from refruntime.errors import OutOfMemoryError
from tests.alloc.conftest import MakeAllocator

MIB = 1 << 20


def _brief(events: object) -> list[tuple[str, int, int]]:
    return [(event.action, event.size, event.category) for event in events]  # type: ignore[attr-defined]


def test_nothing_is_recorded_unless_asked(make: MakeAllocator) -> None:
    allocator = make()
    allocator.free(allocator.malloc(100))
    assert not allocator.trace.enabled and not allocator.trace.events


def test_every_kind_of_event_is_recorded_in_order(make: MakeAllocator) -> None:
    allocator = make(40)
    allocator.record()
    address = allocator.malloc(30 * MIB, 0, categories.ACTIVATION)
    allocator.tag(address, categories.SAVED)
    allocator.free(address)
    allocator.malloc(35 * MIB)
    with contextlib.suppress(OutOfMemoryError):
        allocator.malloc(20 * MIB, 0, categories.GRADIENT)
    assert _brief(allocator.trace.events) == [
        ("segment_alloc", 30 * MIB, categories.TEMPORARY),
        ("alloc", 30 * MIB, categories.ACTIVATION),
        ("tag", 30 * MIB, categories.SAVED),
        ("free_requested", 30 * MIB, categories.SAVED),
        ("free_completed", 30 * MIB, categories.SAVED),
        ("segment_free", 30 * MIB, categories.TEMPORARY),
        ("segment_alloc", 36 * MIB, categories.TEMPORARY),
        ("alloc", 35 * MIB, categories.TEMPORARY),
        ("oom", 20 * MIB, categories.GRADIENT),
    ]
    assert allocator.trace.events[-1].addr == 4 * MIB
    times = [event.time_us for event in allocator.trace.events]
    assert times == sorted(times) and times[0] > 1_600_000_000_000_000


def test_what_was_there_before_stands_in_initial(make: MakeAllocator) -> None:
    allocator = make()
    old = allocator.malloc(700, 0, categories.PARAMETER)
    allocator.record()
    allocator.free(old)
    assert _brief(allocator.trace.initial) == [
        ("segment_alloc", 2 * MIB, categories.TEMPORARY),
        ("alloc", 700, categories.PARAMETER),
    ]
    assert _brief(allocator.trace.events) == [
        ("free_requested", 700, categories.PARAMETER),
        ("free_completed", 700, categories.PARAMETER),
    ]


def test_recording_can_be_stopped_and_starts_anew(make: MakeAllocator) -> None:
    allocator = make()
    allocator.record()
    allocator.malloc(10)
    allocator.record(False)
    allocator.malloc(20)
    assert [event.size for event in allocator.trace.events] == [2 * MIB, 10]
    allocator.record()
    allocator.malloc(30)
    assert [event.size for event in allocator.trace.events] == [30]


def test_only_the_latest_entries_are_kept_if_asked(make: MakeAllocator) -> None:
    allocator = make()
    allocator.record(max_entries=2)
    for nbytes in (1, 2, 3):
        allocator.malloc(nbytes)
    assert [event.size for event in allocator.trace.events] == [2, 3]


def _user_function(allocator: CachingAllocator) -> int:
    return allocator.malloc(100)


def test_stacks_name_the_lines_that_asked(make: MakeAllocator) -> None:
    allocator = make()
    allocator.record(stacks=True)
    address = _user_function(allocator)
    (event,) = (event for event in allocator.trace.events if event.action == "alloc")
    file, line, name = event.frames[0]
    assert file == __file__ and name == "_user_function"
    assert line == _user_function.__code__.co_firstlineno + 1
    assert event.frames[1][2] == "test_stacks_name_the_lines_that_asked"
    (block,) = (
        block
        for segment in allocator.snapshot()["segments"]
        for block in segment["blocks"]
        if block["address"] == address
    )
    assert [frame["line"] for frame in block["frames"]] == [frame[1] for frame in event.frames]
    allocator.free(address)
    assert {e.frames[0][2] for e in allocator.trace.events if e.action.startswith("free")} == {
        "test_stacks_name_the_lines_that_asked"
    }


def test_recorded_and_unrecorded_runs_decide_alike(make: MakeAllocator) -> None:
    plain, recorded = make(100), make(100)
    recorded.record()
    for allocator in (plain, recorded):
        held = [allocator.malloc(i * 9001 + 1) for i in range(60)]
        for address in held[::2]:
            allocator.free(address)
    assert plain.stats() == recorded.stats()


def test_timeline_follows_categories_and_reserved_bytes() -> None:
    allocator = CachingAllocator(VirtualUpstream(1 << 40))
    kept = allocator.malloc(1000, 0, categories.PARAMETER)
    allocator.record()
    address = allocator.malloc(30 * MIB, 0, categories.ACTIVATION)
    allocator.tag(address, categories.SAVED)
    allocator.free(address)
    allocator.free(kept)
    allocator.empty_cache()
    samples = list(timeline([*allocator.trace.initial, *allocator.trace.events]))

    def pick(*names: int) -> list[tuple[int, ...]]:
        return [tuple(sample.by_category[name] for name in names) for sample in samples]

    big = 30 * MIB
    assert pick(categories.PARAMETER, categories.ACTIVATION, categories.SAVED) == [
        (0, 0, 0), (1000, 0, 0), (1000, 0, 0), (1000, big, 0), (1000, 0, big), (1000, 0, 0),
        (0, 0, 0), (0, 0, 0), (0, 0, 0),
    ]  # fmt: skip
    assert [sample.reserved // MIB for sample in samples] == [2, 2, 32, 32, 32, 32, 32, 2, 0]


def test_events_are_plain_tuples_with_names() -> None:
    event = TraceEvent("alloc", 1, 2, 3, 4, 5)
    assert event == ("alloc", 1, 2, 3, 4, 5, (), (0, 0))


def test_numbers_of_an_earlier_recording_have_no_frames(make: MakeAllocator) -> None:
    allocator = make()
    allocator.record(stacks=True)
    allocator.malloc(100)
    (old,) = {row[ENTRY_CONTEXT] for row in allocator.tables.trace_entries().tolist()}
    assert allocator.trace.frames(old)
    allocator.record(stacks=True)
    allocator.malloc(100)
    (new,) = {row[ENTRY_CONTEXT] for row in allocator.tables.trace_entries().tolist()}
    assert new > old and allocator.trace.frames(new)
    assert allocator.trace.frames(old) == allocator.trace.frames(0) == ()
