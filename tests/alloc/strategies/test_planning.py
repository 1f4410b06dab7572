from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc.strategies import plan_of, plan_of_rounds
from refruntime.alloc.strategies.layout import UNPLANNED, Uses, pack
from refruntime.alloc.strategies.planning import Lives, Round, lives_of, repeated_round
from refruntime.alloc.strategy import Request

STEPS = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 30)), min_size=1, max_size=60)


def requests_from(steps: list[tuple[int, int]]) -> list[Request]:
    """Each step allocates; now and then it frees a block, chosen by its second number."""
    requests: list[Request] = []
    live: list[int] = []
    for name, (size, choice) in enumerate(steps):
        requests.append(Request("alloc", name, size))
        live.append(name)
        if choice < len(live):
            requests.append(Request("free", live.pop(choice)))
    return requests


@given(STEPS)
def test_blocks_of_a_plan_that_live_at_once_do_not_overlap(steps: list[tuple[int, int]]) -> None:
    requests = requests_from(steps)
    plan, lives = plan_of(requests), lives_of(requests)
    blocks = list(zip(plan.offsets, plan.sizes, lives.starts, lives.ends, strict=True))
    for n, (offset, size, start, end) in enumerate(blocks):
        assert offset % 512 == 0 <= offset <= plan.total - size
        for other, length, born, died in blocks[:n]:
            if born < end and start < died:
                assert offset + size <= other or other + length <= offset
    assert plan.total >= Uses.once(lives.starts, lives.ends).peak(lives.sizes)


def test_lives_are_in_steps_and_sizes_are_rounded() -> None:
    requests = [
        Request("alloc", 7, 513),
        Request("alloc", 8, 0),
        Request("free", 9),
        Request("alloc", 9, 1),
        Request("free", 7),
        Request("free", 8),
    ]
    lives = lives_of(requests)
    assert lives.sizes.tolist() == [1024, 512]
    assert lives.starts.tolist() == [0, 3]
    assert lives.ends[0] == 4
    assert lives.ends[1] > len(requests)


def test_residents_lie_at_the_bottom_and_brief_blocks_share_what_is_above() -> None:
    sizes = np.array([512, 2048, 1024, 2048, 512])
    uses = Uses.once(np.array([0, 1, 2, 5, 7]), np.array([9, 4, 3, 6, 9]))
    offsets, total = pack(sizes, np.array([True, False, False, False, True]), uses)
    assert offsets.tolist() == [0, 1024, 3072, 1024, 512]
    assert total == 4096


def test_blocks_of_a_round_are_used_again_a_round_later() -> None:
    uses = Uses.once(np.array([0, 4, 6]), np.array([9, 5, 8])).repeated(np.array([1, 2]), 10)
    assert uses.starts.tolist() == [0, 4, 6, 14, 16]
    assert uses.ends.tolist() == [9, 5, 8, 15, 18]
    assert uses.owners.tolist() == [0, 1, 2, 1, 2]
    assert uses.peak(np.array([1, 2, 4])) == 5


def test_blocks_without_a_use_stay_unplanned() -> None:
    sizes = np.array([512, 1024])
    uses = Uses.once(np.array([0, 0]), np.array([1, 1])).without(np.array([0]))
    offsets, total = pack(sizes, np.array([True, False]), uses)
    assert offsets.tolist() == [UNPLANNED, 0]
    assert total == 1024


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.lists(st.integers(4, 9), max_size=5),
    st.integers(24, 30),
)
def test_round_is_the_shortest_that_repeats_and_begins_where_it_first_does(
    cycle: list[int], head: list[int], times: int
) -> None:
    sizes = head + cycle * times
    shortest = next(n for n in range(1, 7) if (cycle * times)[n:] == (cycle * times)[:-n])
    assert repeated_round(_brief_lives(sizes)) == Round(len(head), shortest)


def test_equal_sizes_with_other_lives_are_not_alike() -> None:
    lives = _brief_lives([512] * 40)
    assert repeated_round(lives) == Round(0, 1)
    lives.ends[1::2] += 3
    assert repeated_round(lives) == Round(0, 2)


def test_a_run_that_never_repeats_has_no_round() -> None:
    assert repeated_round(_brief_lives(list(range(100)))) is None
    assert repeated_round(_brief_lives([])) is None
    assert plan_of_rounds([Request("alloc", n, n * 512 + 1) for n in range(100)]) is None


def _brief_lives(sizes: list[int]) -> Lives:
    """Blocks of these sizes, one after another."""
    starts = np.arange(1, len(sizes) + 1) * 2
    return Lives(np.array(sizes, np.int64), starts, starts + 1)


def training_run(rounds: int) -> list[Request]:
    """Weights; then rounds with activations, a momentum made once, and a loss kept for a round."""
    requests = [Request("alloc", n, 4096 + 512 * n) for n in range(4)]
    for step in range(rounds):
        base = 100 * (step + 1)
        requests += [Request("alloc", base + n, 1024 * (n + 1)) for n in range(6)]
        requests += [Request("alloc", base + 50, 512)]
        if step:
            requests += [Request("free", base - 50)]
        requests += [Request("free", base + n) for n in reversed(range(6))]
        if step == 0:
            requests += [Request("alloc", base + 60, 8192)]
    return requests


def test_a_plan_of_rounds_knows_the_beginning_and_the_round_only() -> None:
    plan = plan_of_rounds(training_run(20))
    assert plan is not None
    assert plan.repeat_from is not None
    assert UNPLANNED not in plan.offsets
    assert len(plan.sizes) <= 4 + 1 + 4 * 7


@given(STEPS, st.integers(1, 4))
def test_rounds_of_a_plan_do_not_overlap_in_time(
    steps: list[tuple[int, int]], weights: int
) -> None:
    requests = [Request("alloc", -n - 1, 512 * (9000 + n)) for n in range(weights)]
    one = requests_from(steps)
    alive = {r.id for r in one if r.action == "alloc"} - {r.id for r in one if r.action == "free"}
    one += [Request("free", name) for name in sorted(alive)]
    for step in range(24):
        requests += [r._replace(id=r.id + 1000 * step) for r in one]
    plan = plan_of_rounds(requests)
    assert plan is not None
    assert plan.repeat_from is not None
    places: dict[int, tuple[int, int]] = {}
    place = 0
    for request in requests:
        if request.action == "free":
            del places[request.id]
            continue
        if place == len(plan.sizes):
            place = plan.repeat_from
        offset, size = plan.offsets[place], plan.sizes[place]
        place += 1
        assert size >= request.size
        assert offset != UNPLANNED
        assert all(offset + size <= o or o + s <= offset for o, s in places.values())
        places[request.id] = offset, size
