"""Facts of STAlloc: `StaticAllocator.hpp` with `STALLOC_STATIC_FALLBACK=1`."""

from __future__ import annotations

from hypothesis import given

from refruntime.alloc.strategies import Plan, Planned, Pooled
from refruntime.alloc.strategies.layout import Uses
from refruntime.alloc.strategies.planned import PlannedRounds
from refruntime.alloc.strategies.planning import lives_of
from refruntime.alloc.strategy import Request, run_strategy
from tests.alloc.strategies.ledger import MIB, Ledger
from tests.alloc.strategies.test_planning import STEPS, requests_from, training_run

PLAN = Plan(sizes=(1024, 512, 512), offsets=(0, 1024, 0), total=1536)


def serve(pool: Pooled, requests: list[Request]) -> int:
    """Carry requests out; return the most bytes that were reserved."""
    addresses: dict[int, int] = {}
    peak = 0
    for request in requests:
        if request.action == "alloc":
            addresses[request.id] = pool.malloc(request.size)
        else:
            pool.free(addresses.pop(request.id))
        peak = max(peak, pool.reserved_bytes)
    return peak


@given(STEPS)
def test_the_run_that_was_planned_is_served_from_the_arena_alone(
    steps: list[tuple[int, int]],
) -> None:
    requests = requests_from(steps)
    upstream = Ledger(1 << 30)
    pool = Planned(upstream)
    pool.prepare(requests)
    assert serve(pool, requests) == pool.plan.total
    assert (pool.mismatches, upstream.calls) == (0, 1)


def test_mallocs_get_their_offsets_in_order() -> None:
    pool = Planned(Ledger(64 * MIB), plan=PLAN)
    first, second = pool.malloc(1000), pool.malloc(512)
    assert second - first == 1024
    pool.free(first)
    assert pool.malloc(1) == first
    assert (pool.mismatches, pool.reserved_bytes) == (0, 1536)


def test_another_size_is_served_dynamically_and_the_plan_moves_on() -> None:
    pool = Planned(Ledger(64 * MIB), plan=PLAN)
    first = pool.malloc(1024)
    other = pool.malloc(2048)
    assert pool.mismatches == 1
    assert pool.reserved_bytes == 1536 + 2 * MIB, "PyTorch's small segment"
    pool.free(first)
    assert pool.malloc(512) == first
    pool.free(other)
    assert pool.mismatches == 1


def test_a_smaller_size_than_planned_is_a_mismatch_too() -> None:
    pool = Planned(Ledger(64 * MIB), plan=PLAN)
    pool.malloc(512)
    assert (pool.mismatches, pool.reserved_bytes) == (1, 1536 + 2 * MIB)


def test_a_place_in_use_is_not_given_twice() -> None:
    pool = Planned(Ledger(64 * MIB), plan=PLAN)
    addresses = [pool.malloc(size) for size in PLAN.sizes]
    assert pool.mismatches == 1
    assert len(set(addresses)) == 3
    for address in addresses:
        pool.free(address)
    assert pool.allocated_bytes == 0


def test_after_its_last_malloc_the_plan_begins_anew_where_it_repeats() -> None:
    pool = Planned(Ledger(64 * MIB), plan=PLAN._replace(repeat_from=1))
    first, kept = pool.malloc(1024), pool.malloc(512)
    pool.free(first)
    pool.free(kept)
    pool.free(pool.malloc(512))
    assert [pool.malloc(512), pool.malloc(512)] == [kept, first]
    assert pool.mismatches == 0


def test_beyond_a_plan_that_does_not_repeat_all_is_dynamic() -> None:
    pool = Planned(Ledger(64 * MIB), plan=PLAN)
    for size in (*PLAN.sizes, 512, 512):
        pool.free(pool.malloc(size))
    assert pool.mismatches == 2


def test_without_a_plan_or_the_room_for_it_all_is_dynamic() -> None:
    for plan in (None, PLAN._replace(total=65 * MIB)):
        pool = Planned(Ledger(64 * MIB), plan=plan)
        pool.free(pool.malloc(1024))
        assert (pool.mismatches, pool.ooms, pool.reserved_bytes) == (1, 0, 2 * MIB)


def test_rounds_of_a_training_run_are_served_from_the_arena_alone() -> None:
    requests = training_run(20)
    upstream = Ledger(1 << 30)
    pool = PlannedRounds(upstream)
    pool.prepare(requests)
    assert serve(pool, requests) == pool.plan.total
    assert (pool.mismatches, upstream.calls) == (0, 1)
    lives = lives_of(requests)
    assert pool.plan.total == Uses.once(lives.starts, lives.ends).peak(lives.sizes)


def test_a_run_without_rounds_is_dynamic() -> None:
    pool = PlannedRounds(Ledger(1 << 30))
    requests = [Request("alloc", n, 700 * n + 1) for n in range(50)]
    pool.prepare(requests)
    serve(pool, requests)
    assert pool.mismatches == 50


def test_a_replay_prepares_the_plan() -> None:
    requests = training_run(20)
    for name in ("stalloc", "stalloc-whole-run"):
        result = run_strategy(requests, name)
        assert result.upstream_calls == 1
        assert result.peak_reserved_bytes == result.peak_allocated_bytes
