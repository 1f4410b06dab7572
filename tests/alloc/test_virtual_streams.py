from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc.virtual_streams import Mark, Timeline


def test_work_is_done_at_once_unless_told_otherwise() -> None:
    timeline = Timeline()
    assert timeline.reached(timeline.submit(1))
    assert not Timeline(manual=True).reached(Mark(1, 1))


def test_pieces_are_done_oldest_first() -> None:
    timeline = Timeline(manual=True)
    marks = [timeline.submit(1) for _ in range(3)]
    timeline.complete(1, 2)
    assert [timeline.reached(mark) for mark in marks] == [True, True, False]
    timeline.complete(1, 5)
    assert timeline.reached(marks[2])


def test_a_stream_is_ordered_behind_its_own_work_and_what_it_waits_for() -> None:
    timeline = Timeline(manual=True)
    before = timeline.submit(1)
    event = timeline.record(1)
    after = timeline.submit(1)
    assert timeline.ordered(1, after)
    assert not timeline.ordered(2, before)
    timeline.wait(2, event)
    assert timeline.ordered(2, before)
    assert not timeline.ordered(2, after)


def test_order_passes_on_from_stream_to_stream() -> None:
    timeline = Timeline(manual=True)
    mark = timeline.submit(1)
    timeline.wait(2, timeline.record(1))
    timeline.wait(3, timeline.record(2))
    assert timeline.ordered(3, mark)


def test_a_wait_for_an_older_event_forgets_nothing() -> None:
    timeline = Timeline(manual=True)
    old, mark = timeline.record(1), timeline.submit(1)
    timeline.wait(2, timeline.record(1))
    timeline.wait(2, old)
    assert timeline.ordered(2, mark)


def test_work_that_is_done_has_done_what_it_waited_for() -> None:
    timeline = Timeline(manual=True)
    first = timeline.submit(1)
    timeline.wait(2, timeline.record(1))
    before_wait = timeline.submit(3)
    timeline.wait(3, timeline.record(2))
    timeline.complete(3, 1)
    assert timeline.reached(before_wait)
    assert not timeline.reached(first)
    timeline.submit(3)
    timeline.complete(3)
    assert timeline.reached(first)


def test_waiting_for_a_mark_orders_behind_what_was_before_it_and_no_more() -> None:
    timeline = Timeline(manual=True)
    early = timeline.submit(1)
    timeline.wait(2, timeline.record(1))
    mark = timeline.submit(2)
    late = timeline.submit(1)
    timeline.wait(2, timeline.record(1))
    timeline.wait_mark(3, mark)
    assert timeline.ordered(3, mark)
    assert timeline.ordered(3, early)
    assert not timeline.ordered(3, late)


def test_a_wait_is_work_itself() -> None:
    timeline = Timeline(manual=True)
    mark = timeline.submit(1)
    timeline.wait(2, timeline.record(1))
    timeline.complete(2)
    assert timeline.reached(mark)


def test_a_stream_does_not_wait_for_itself() -> None:
    timeline = Timeline(manual=True)
    timeline.wait(1, timeline.record(1))
    mark = timeline.submit(1)
    timeline.complete(1)
    assert timeline.reached(mark)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "join", "complete"]), st.integers(0, 3), st.integers(0, 3)
    ),
    max_size=40,
)


@given(STEPS)
def test_ordered_work_is_never_done_before_what_it_is_behind(
    steps: list[tuple[str, int, int]],
) -> None:
    timeline = Timeline(manual=True)
    marks: list[Mark] = []
    behind: list[tuple[Mark, Mark]] = []
    for step, stream, other in steps:
        if step == "submit":
            earlier = [mark for mark in marks if timeline.ordered(stream, mark)]
            marks.append(timeline.submit(stream))
            behind += [(marks[-1], mark) for mark in earlier]
        elif step == "join":
            timeline.wait(stream, timeline.record(other))
        else:
            timeline.complete(stream, other)
        for later, mark in behind:
            assert timeline.reached(mark) or not timeline.reached(later)
