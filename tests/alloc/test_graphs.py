from __future__ import annotations

import pytest

from refruntime.alloc.graphs import NO_STREAM, Marks, VirtualGraphs
from refruntime.errors import ArgumentValueError


def test_a_thread_is_capturing_if_its_current_stream_is() -> None:
    current = 0
    graphs = VirtualGraphs(lambda: current)
    number = graphs.begin(3)
    assert not graphs.capturing()
    current = 3
    assert graphs.capturing()
    assert graphs.capture_of(3) == number and graphs.capture_of(0) == 0
    graphs.end(3)
    assert not graphs.capturing()


def test_streams_that_wait_for_a_captured_one_join_until_the_capture_ends() -> None:
    graphs = VirtualGraphs(lambda: 0)
    number = graphs.begin(1)
    graphs.wait(2, on=1)
    graphs.wait(1, on=5)
    other = graphs.begin(4)
    graphs.wait(2, on=4)
    assert [graphs.capture_of(k) for k in (1, 2, 4, 5)] == [number, number, other, 0]
    graphs.end(2)
    assert [graphs.capture_of(k) for k in (1, 2, 4)] == [0, 0, other]


def test_a_capture_begins_and_ends_once() -> None:
    graphs = VirtualGraphs(lambda: 0)
    graphs.begin(1)
    with pytest.raises(ArgumentValueError, match="not captured"):
        graphs.begin(1)
    graphs.end(1)
    with pytest.raises(ArgumentValueError, match="is captured"):
        graphs.end(1)


def test_work_comes_after_all_that_its_stream_waited_for() -> None:
    graphs = VirtualGraphs(lambda: 0)
    graphs.begin(1)
    graphs.add_node(1)
    (first,) = graphs.ends(1)
    graphs.wait(2, on=1)
    graphs.add_node(2)
    graphs.wait(1, on=2)
    assert list(graphs.ends(1)) == [first, *graphs.ends(2)]
    graphs.add_node(1)
    (last,) = graphs.ends(1)
    assert list(graphs.before(last)) == [first, *graphs.ends(2)]
    graphs.add_node(7)
    assert list(graphs.ends(7)) == []


def test_marks_are_passed_once_the_stream_waits_for_them() -> None:
    graphs = VirtualGraphs(lambda: 0)
    marks = Marks(graphs)
    graphs.begin(1)
    assert marks.add(10, 2) == NO_STREAM
    assert marks.add(10, 1) == 0
    graphs.wait(2, on=1)
    graphs.add_node(2)
    assert marks.add(10, 2) == 1
    graphs.add_node(1)
    assert not marks.come_before(10, 1)
    graphs.wait(1, on=2)
    assert marks.come_before(10, 1)
    graphs.add_node(1)
    assert marks.come_before(10, 1)
    marks.forget(10)
    marks.forget(10)
