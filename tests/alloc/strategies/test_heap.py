from __future__ import annotations

from refruntime.alloc.strategies import Heap
from refruntime.alloc.strategies.heap import PAGE
from tests.alloc.strategies.ledger import Ledger


def test_grows_by_whole_pages_from_both_ends() -> None:
    upstream = Ledger(8 * PAGE)
    heap = Heap(upstream)
    assert heap.end - heap.start == 8 * PAGE
    assert heap.reach_up(heap.start + 1)
    assert heap.mapped == upstream.used == PAGE
    assert heap.reach_up(heap.start + PAGE)
    assert heap.reach_down(heap.end - PAGE - 1)
    assert heap.mapped == upstream.used == 3 * PAGE
    assert upstream.pages == {heap.start, heap.end - PAGE, heap.end - 2 * PAGE}


def test_ends_never_cross() -> None:
    heap = Heap(Ledger(4 * PAGE))
    assert heap.reach_up(heap.start + 3 * PAGE)
    assert not heap.reach_down(heap.end - 2 * PAGE)
    assert heap.reach_down(heap.end - PAGE)
    assert not heap.reach_up(heap.end)
    assert heap.mapped == 4 * PAGE


def test_growth_that_fails_maps_nothing() -> None:
    upstream = Ledger(4 * PAGE)
    heap = Heap(upstream, 64 * PAGE)
    assert heap.reach_up(heap.start + 2 * PAGE)
    assert not heap.reach_up(heap.start + 5 * PAGE)
    assert not heap.reach_down(heap.end - 3 * PAGE)
    assert (heap.mapped, upstream.used) == (2 * PAGE, 2 * PAGE)


def test_capacity_is_covered_to_its_last_byte() -> None:
    heap = Heap(Ledger(PAGE + 1))
    assert heap.end - heap.start == 2 * PAGE
