"""What the lab report derives: lifetimes, segments, totals, free spans equal the plain truth."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_inputs import MIB, STACKS, alloc, event, events_of, free, input_of, simulate

from refruntime.errors import ArgumentValueError
from refruntime.viz.lab import lines, moments
from refruntime.viz.lab.analysis import Analysis, analyse
from refruntime.viz.lab.inputs import ACTIONS, Events, ReportInput, StrategyRun, action_code

SEEDS = st.integers(0, 1 << 32)
LENGTHS = st.integers(1, 150)
SMALL = st.integers(0, 5)


def holes(analysis: Analysis, moment: int) -> moments.Hole:
    segments = (analysis.pieces, analysis.units)
    return moments.holes_at(moment, analysis.blocks, analysis.block_unit, segments)


def lives(analysis: Analysis) -> list[tuple[int, int, int]]:
    blocks = analysis.blocks
    return list(zip(blocks.address.tolist(), blocks.begin.tolist(), blocks.end.tolist()))


# ------------------------------------------------------------------------------------ invariants


@settings(max_examples=25, deadline=None)
@given(SEEDS, LENGTHS, st.floats(0, 0.5))
def test_totals_and_free_spans_equal_the_truth_at_every_moment(seed, events, share):
    run = simulate(seed, events)
    start = int(share * len(run.rows))
    analysis = analyse(run.input(start))
    for moment, truth in enumerate(run.truths[start:]):
        assert analysis.totals.allocated[moment] == truth.allocated
        assert analysis.totals.reserved[moment] == truth.reserved
        found = holes(analysis, moment)
        assert (found.total, found.count) == (sum(truth.holes), len(truth.holes))
        assert found.largest == max(truth.holes, default=0)
        there = analysis.blocks.address[moments.alive(analysis.blocks, moment)]
        assert sorted(there.tolist()) == truth.live


@settings(max_examples=25, deadline=None)
@given(SEEDS, LENGTHS, st.floats(0, 0.5))
def test_lost_events_leave_lifetimes_that_make_sense(seed, events, loss):
    rng = random.Random(seed)
    rows = [row for row in simulate(seed, events).rows if rng.random() >= loss]
    analysis = analyse(input_of(rows))
    blocks = analysis.blocks
    assert (blocks.begin < blocks.end).all()
    assert (blocks.begin <= blocks.requested).all() and (blocks.requested <= blocks.end).all()
    assert (np.diff(blocks.begin) >= 0).all()
    last: dict[int, int] = {}
    for address, begin, end in sorted(lives(analysis)):
        assert begin >= last.get(address, 0)
        last[address] = end


@settings(max_examples=25, deadline=None)
@given(SEEDS, LENGTHS)
def test_units_that_are_there_together_do_not_overlap_on_the_map(seed, events):
    analysis = analyse(simulate(seed, events).input())
    pieces, units = analysis.pieces, analysis.units
    for moment in range(analysis.moments):
        rows = moments.alive(pieces, moment)
        unit = pieces.unit[rows]
        start = units.place[unit] + pieces.address[rows] - units.address[unit]
        order = np.argsort(start)
        assert (start[order][1:] >= (start + pieces.size[rows])[order][:-1]).all()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), SMALL, SMALL), max_size=40))
def test_any_order_of_events_is_taken(steps):
    rows = [event(action, 1024 * place, 512 * size, 0) for action, place, size in steps]
    analysis = analyse(input_of(rows))
    assert len(analysis.totals.allocated) == len(rows) + 1
    assert (analysis.pieces.begin < analysis.pieces.end).all()


# -------------------------------------------------------------------------------------- lifetimes


def test_a_free_without_an_alloc_was_there_from_the_start_and_its_stack_is_not_the_allocators():
    rows = [("free_completed", 512, 512, 0, 0, 1, 2), alloc(512, stack=1)]
    analysis = analyse(input_of(rows))
    assert lives(analysis) == [(512, 0, 1), (512, 2, 3)]
    assert analysis.blocks.stack.tolist() == [-1, 1]


def test_an_alloc_where_a_block_is_in_use_ends_that_block():
    analysis = analyse(input_of([alloc(512), alloc(512), free(512)]))
    assert lives(analysis) == [(512, 1, 2), (512, 2, 3)]


def test_a_second_free_of_one_address_changes_nothing():
    analysis = analyse(input_of([alloc(512), free(512), free(512)]))
    assert lives(analysis) == [(512, 1, 2)]


def test_requests_end_blocks_where_completions_were_not_recorded():
    analysis = analyse(input_of([alloc(512), event("free_requested", 512), alloc(512)]))
    assert lives(analysis) == [(512, 1, 2), (512, 3, 4)]


def test_a_request_after_reuse_of_the_address_belongs_to_the_later_block():
    rows = [alloc(512), free(512), alloc(512), event("free_requested", 512), alloc(1024), free(512)]
    blocks = analyse(input_of(rows)).blocks
    assert blocks.requested.tolist() == [2, 4, 7]
    assert blocks.end.tolist() == [2, 6, 7]


def test_leading_events_are_the_state_before():
    rows = [event("segment_alloc", 0, 2 * MIB), alloc(0), alloc(512), free(0)]
    analysis = analyse(input_of(rows, start=2))
    assert analysis.moments == 3
    assert analysis.totals.allocated.tolist() == [512, 1024, 512]
    assert analysis.totals.reserved.tolist() == [2 * MIB] * 3


def test_tags_apply_to_the_block_that_is_there():
    rows = [alloc(512), event("tag", 512, category=2), free(512), event("tag", 512, category=1),
            alloc(512), event("tag", 512, category=0)]  # fmt: skip
    tags = analyse(input_of(rows)).tags
    assert list(zip(tags.block.tolist(), tags.moment.tolist(), tags.category.tolist())) == [
        (0, 2, 2), (1, 6, 0),
    ]  # fmt: skip


# --------------------------------------------------------------------------------------- segments


def test_a_new_segment_takes_the_place_of_a_gone_one_of_its_size():
    rows = [
        event("segment_alloc", 0, 4 * MIB), event("segment_alloc", 1 << 30, 6 * MIB),
        event("segment_free", 0, 4 * MIB), event("segment_alloc", 1 << 31, 4 * MIB),
    ]  # fmt: skip
    units = analyse(input_of(rows)).units
    assert units.place.tolist() == [0, 4 * MIB, 0]
    assert units.map_bytes == 10 * MIB


def test_unmapping_a_part_leaves_the_rest():
    rows = [event("segment_map", 0, 6 * MIB), event("segment_unmap", 2 * MIB, 2 * MIB)]
    pieces = analyse(input_of(rows)).pieces
    columns = (pieces.address, pieces.size, pieces.begin, pieces.end)
    found = sorted(zip(*(column.tolist() for column in columns)))
    assert found == [(0, 2 * MIB, 1, 3), (2 * MIB, 2 * MIB, 1, 2), (4 * MIB, 2 * MIB, 1, 3)]


def test_touching_mapped_ranges_are_one_unit_and_one_free_span():
    rows = [event("segment_map", 0, 4 * MIB), event("segment_map", 4 * MIB, 4 * MIB)]
    analysis = analyse(input_of(rows))
    assert len(analysis.units.place) == 1
    assert holes(analysis, 2) == moments.Hole(8 * MIB, 1, 8 * MIB)


def test_neighbouring_segments_are_two_free_spans():
    rows = [event("segment_alloc", 0, 2 * MIB), event("segment_alloc", 2 * MIB, 2 * MIB)]
    assert holes(analyse(input_of(rows)), 2) == moments.Hole(4 * MIB, 2, 2 * MIB)


def test_pools_are_told_apart():
    rows = [event("segment_alloc", 0, 2 * MIB), event("segment_alloc", 1 << 30, 20 * MIB),
            event("segment_alloc", 1 << 31, 20 * MIB)]  # fmt: skip
    plain = events_of(rows)
    private = Events(**{**plain.columns(), "pool": np.array([0, 0, 3])})
    analysis = analyse(ReportInput(title="pools", events=private))
    assert analysis.units.pool.tolist() == [0, 1, 2]


def test_blocks_outside_known_segments_have_no_unit():
    rows = [event("segment_alloc", 0, 2 * MIB), alloc(0), alloc(3 * MIB)]
    assert analyse(input_of(rows)).block_unit.tolist() == [0, -1]


# ----------------------------------------------------------------------------------------- stacks


@pytest.mark.parametrize(
    ("stack", "label"),
    [
        (STACKS[0], "me/model.py:11 mlp"),
        ((("/x/torch/optim/adam.py", 3, "step"),), "optim/adam.py:3 step"),
        ((("??", 0, "torch::unwind::unwind()"),
          ("??", 0, "at::_ops::empty::call(long)"),
          ("??", 0, "at::_ops::mul_Tensor::call(at::Tensor const&)"),
          ("??", 0, "torch::autograd::generated::MulBackward0::apply(int)")), "MulBackward0"),
        ((("??", 0, "at::_ops::empty::call(long)"),
          ("??", 0, "at::_ops::mul::call(long)")), "at::mul"),
        ((("??", 0, "c10::cuda::alloc(long)"),), "cuda::alloc"),
        ((("C:\\me\\run.py", 4, "go"),), "me/run.py:4 go"),
    ],
)  # fmt: skip
def test_the_line_of_a_stack_is_the_one_a_person_looks_for(stack, label):
    assert lines.label_of(lines.frame_of(stack)) == label


def test_stacks_are_interned_and_come_back():
    table = lines.intern((*STACKS, ()))
    texts = np.array(table.texts)
    for number, stack in enumerate(STACKS):
        frames = table.frame[table.start[number] : table.start[number + 1]]
        files, names = texts[table.frame_file[frames]], texts[table.frame_name[frames]]
        assert stack == tuple(zip(files, table.frame_number[frames], names))
    assert table.line[3] == -1 and table.own[3] == -1
    assert len(set(table.texts)) == len(table.texts)


# ---------------------------------------------------------------------------------------- refusals


def test_unknown_actions_change_nothing():
    assert action_code("annotate") == ACTIONS.index("other")
    assert lives(analyse(input_of([event("snapshot", 512), alloc(512)]))) == [(512, 2, 3)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": np.zeros(1, np.int64)}, "2 rows"),
        ({"size": np.zeros(2)}, "integers"),
        ({"address": np.array([0, 1 << 52])}, r"2\*\*51"),
        ({"action": np.array([0, 99])}, "action"),
    ],
)
def test_columns_that_make_no_sense_are_refused(change, words):
    columns = events_of([alloc(0), free(0)]).columns()
    with pytest.raises(ArgumentValueError, match=words):
        Events(**{**columns, **change})


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        ([alloc(0, category=9)], {}, "category"),
        ([alloc(0, stack=9)], {}, "stack"),
        ([alloc(0)], {"start": 2}, "start"),
    ],
)
def test_numbers_beyond_the_tables_are_refused(rows, more, words):
    with pytest.raises(ArgumentValueError, match=words):
        input_of(rows, **more)


def test_a_strategy_needs_both_timelines_of_one_length():
    with pytest.raises(ArgumentValueError, match="reserved"):
        StrategyRun("x", 1, 1, 1, 0, 0, np.arange(3), np.arange(2))


def test_the_simulation_meets_every_kind_of_event():
    actions = {row[0] for row in simulate(1, 300).rows}
    assert actions == set(ACTIONS) - {"other"}
