from __future__ import annotations

import numpy as np
import pytest

from refruntime.kernels import conv_table as f
from refruntime.kernels.conv_plan import Shape, plan_correlation, plan_gradient


def shape(**changes):
    fields = {
        "images": 4, "groups": 1, "channels": 3, "rows": 8, "source": (1, 9, 10),
        "result": (1, 9, 10), "kernel": (1, 3, 3), "stride": (1, 1, 1), "padding": (0, 1, 1),
        "dilation": (1, 1, 1),
    }  # fmt: skip
    return Shape(**{**fields, **changes})


def jobs_of(plan):
    return plan.owned[-1]


def written(plan, result):
    """Count how often each output of a channel is written by the jobs' lines."""
    counts = np.zeros(int(np.prod(result)), np.int64)
    for job in jobs_of(plan):
        for d in range(job[f.J_DEPTH]):
            for h in range(job[f.J_LINES]):
                start = job[f.J_OUT] + d * job[f.J_OUT_D] + h * job[f.J_OUT_H]
                counts[start : start + job[f.J_WIDTH] * job[f.J_OUT_W] : job[f.J_OUT_W]] += 1
    return counts


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rows": 64},
        {"stride": (1, 2, 3), "result": (1, 5, 4)},
        {"stride": (1, 2, 3), "source": (1, 5, 4), "result": (1, 9, 10), "transposed": True},
        {"source": (2, 4, 4), "result": (5, 4, 4), "kernel": (2, 1, 1), "stride": (3, 1, 1),
         "padding": (0, 0, 0), "transposed": True},
    ],
)  # fmt: skip
def test_the_jobs_write_each_output_once(changes):
    s = shape(**changes)
    plan = plan_correlation(s, 4, True, 2)
    np.testing.assert_array_equal(written(plan, s.result), 1)


def test_no_tap_reads_outside_the_packed_memory():
    s = shape(stride=(1, 2, 2), result=(1, 5, 5), images=5)
    plan = plan_correlation(s, 4, True, 2)
    table, job = plan.table, jobs_of(plan)[0]
    offsets = plan.owned[0]
    assert len(offsets) == job[f.J_TAPS] == 27
    plane = int(table[f.QD] * table[f.QH] * table[f.QW])
    last = table[f.BATCH] * plane - 1
    last_output = last - plane + (job[f.J_LINES] - 1) * job[f.J_PITCH] + job[f.J_WIDTH]
    assert offsets.max() // 4 + last_output < table[f.BUFFER]


def test_a_padless_unit_stride_convolution_reads_its_source_in_place():
    s = shape(source=(1, 40, 40), result=(1, 38, 38), padding=(0, 0, 0))
    assert plan_correlation(s, 4, True, 2).table[f.DIRECT] == 1
    assert plan_correlation(s, 4, False, 2).table[f.DIRECT] == 0


def test_an_image_narrower_than_a_tile_is_never_read_in_place():
    s = shape(source=(1, 4, 4), result=(1, 2, 2), padding=(0, 0, 0))
    assert plan_correlation(s, 4, True, 2).table[f.DIRECT] == 0


@pytest.mark.parametrize(("rows", "single"), [(1, 1), (9, 1), (8, 0), (13, 0)])
def test_rows_that_would_leave_a_panel_mostly_empty_go_one_by_one(rows, single):
    table = plan_correlation(shape(rows=rows), 4, True, 2).table
    height = int(table[f.TILE_ROWS])
    covered = table[f.PANELS] * height + table[f.SINGLES]
    assert covered >= rows
    if height == 8:
        assert table[f.SINGLES] == single


def test_a_gradient_plan_has_one_row_table_entry_for_each_computed_row():
    plan = plan_gradient(shape(rows=11), 4, 2)
    assert len(plan.rows) == plan.padded_rows >= 11
    assert plan.count == 27
    assert len(plan.taps) >= plan.pitch >= plan.count
