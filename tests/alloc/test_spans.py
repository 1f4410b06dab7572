from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc.strategies import FreeSpans, Span

LENGTH = 24
CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, LENGTH - 1), st.integers(1, 6)))


def _runs(free: set[int], barriers: set[int]) -> list[Span]:
    """The maximal runs of free places, cut at barriers."""
    runs: list[Span] = []
    for place in sorted(free):
        if runs and sum(runs[-1]) == place and place not in barriers:
            runs[-1] = Span(runs[-1].address, runs[-1].size + 1)
        else:
            runs.append(Span(place, 1))
    return runs


@given(CHANGES, st.sets(st.integers(0, LENGTH)), st.integers(1, 8))
def test_spans_are_the_maximal_runs_of_free_bytes(
    changes: list[tuple[bool, int, int]], barriers: set[int], wanted: int
) -> None:
    spans, free = FreeSpans(barriers), set[int]()
    for adding, start, size in changes:
        places = set(range(start, start + size))
        if adding and not places & free and not (places - {start}) & barriers:
            free |= places
            assert spans.add(start, size) in _runs(free, barriers)
        elif not adding and spans.free_at(start, size):
            assert spans.carve(start, size) == Span(start, size)
            free -= places
        assert list(spans) == _runs(free, barriers)
    runs = _runs(free, barriers)
    assert len(spans) == len(runs)
    assert spans.largest == max((run.size for run in runs), default=0)
    fitting = [run for run in runs if run.size >= wanted]
    assert spans.first_fit(wanted) == (fitting[0].address if fitting else None)
    best = min(fitting, key=lambda run: (run.size, run.address), default=None)
    assert spans.best_fit(wanted) == (best.address if best else None)
    assert list(spans.descending()) == sorted(runs, key=lambda r: (r.size, r.address))[::-1]
    for place in range(LENGTH):
        around = [run for run in runs if run.address <= place < run.address + run.size]
        assert spans.around(place) == (around[0] if around else None)
        assert spans.free_at(place, wanted) == any(place + wanted <= sum(run) for run in around)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_barrier_keeps_neighbours_apart(order: tuple[int, int]) -> None:
    spans, parts = FreeSpans({100}), [Span(0, 100), Span(100, 50)]
    for place in order:
        assert spans.add(*parts[place]) == parts[place]
    assert list(spans) == parts
    spans.remove(100)
    spans.barriers.remove(100)
    assert spans.add(100, 50) == (0, 150)
