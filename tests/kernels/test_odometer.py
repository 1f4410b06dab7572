"""Walking rows: compiled and as plain Python, against the strides themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refruntime._native import native, ptr_i64
from refruntime.kernels.odometer import advance, begin, cells_of


@native("int64(int64, int64, int64, int64, int64, int64)")
def list_rows(table_address, out_address, first, second, start, rows):
    """Store the addresses of both operands in `rows` rows from element `start` on."""
    table = ptr_i64(table_address)
    out = ptr_i64(out_address)
    cells = cells_of((first, second))
    column = begin(table, cells, 2, start)
    for row in range(rows):
        out[2 * row] = cells[0]
        out[2 * row + 1] = cells[1]
        advance(table, cells, 2)
    return column


def expected_rows(shape, strides, bases):
    """Return the addresses of every row of each operand, in row-major order."""
    outer = np.indices(shape[:-1]).reshape(len(shape) - 1, -1 if len(shape) > 1 else 1)
    return np.stack(
        [base + np.array(steps[:-1]) @ outer for base, steps in zip(bases, strides, strict=True)], 1
    ).astype(np.int64)


@pytest.mark.parametrize("run", [list_rows, list_rows.py_func], ids=["compiled", "plain"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_follow_the_strides_from_any_element(run, data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    step = st.integers(-100, 100)
    strides = [data.draw(st.lists(step, min_size=len(shape), max_size=len(shape))) for _ in "ab"]
    table = np.array([len(shape), *shape, *strides[0], *strides[1]], np.int64)
    start = data.draw(st.integers(0, int(np.prod(shape)) - 1))
    rows = expected_rows(shape, strides, (1000, 5000))[start // shape[-1] :]
    out = np.zeros_like(rows)
    column = run(table.ctypes.data, out.ctypes.data, 1000, 5000, start, len(rows))
    assert column == start % shape[-1]
    np.testing.assert_array_equal(out, rows)


def test_a_single_element_is_one_row_of_one_column():
    table, out = np.array([0], np.int64), np.zeros(2, np.int64)
    assert list_rows(table.ctypes.data, out.ctypes.data, 7, 9, 0, 1) == 0
    assert out.tolist() == [7, 9]
