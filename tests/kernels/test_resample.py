from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refruntime import _dtypes
from refruntime._impl import empty_impl, from_array, meta_of
from refruntime.kernels.resample import Taps, identity_taps, resample_cpu


def random_taps(size, lengths, seed):
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *lengths])
    index, weight = rng.integers(0, size, starts[-1]), rng.standard_normal(starts[-1])
    return Taps(size, len(lengths), starts, index, weight)


def matrix(taps):
    dense = np.zeros((taps.count, taps.size))
    for place in range(taps.count):
        for k in range(taps.starts[place], taps.starts[place + 1]):
            dense[place, taps.index[k]] += taps.weight[k]
    return dense


def run(array, rows, columns):
    dtype = _dtypes.from_numpy_dtype(array.dtype)
    out = empty_impl(meta_of((*array.shape[:-2], rows.count, columns.count), dtype))
    resample_cpu(out, from_array(array, dtype), rows=rows, columns=columns)
    return out.array()


lengths = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@given(lengths, lengths, st.integers(0, 99))
def test_resampling_multiplies_by_the_taps_matrices_from_both_sides(rows, columns, seed):
    down, across = random_taps(5, rows, seed), random_taps(7, columns, seed + 1)
    x = np.random.default_rng(seed).standard_normal((2, 5, 7))
    expected = matrix(down) @ x @ matrix(across).T
    np.testing.assert_allclose(run(x, down, across), expected, atol=1e-12)


@given(lengths, st.integers(0, 99))
def test_turned_taps_are_the_transpose_and_turning_twice_gives_them_back(counts, seed):
    taps = random_taps(5, counts, seed)
    np.testing.assert_allclose(matrix(taps.turned), matrix(taps).T)
    assert taps.turned.turned is taps


@pytest.mark.parametrize("each", [1, 2, 3])
def test_a_common_number_of_taps_is_noticed(each):
    assert random_taps(5, [each] * 4, 0).same == each
    assert random_taps(5, [each, each + 1], 0).same == 0


def test_identity_taps_change_nothing_and_an_infinity_stays_where_it_is():
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    x[1, 2, 3] = np.inf
    np.testing.assert_array_equal(run(x, identity_taps(4), identity_taps(5)), x)


def test_half_types_are_summed_in_float32():
    x = np.full((1, 1, 4096), 0.25, np.float16)
    taps = Taps(4096, 1, np.array([0, 4096]), np.arange(4096), np.ones(4096))
    assert run(x, identity_taps(1), taps)[0, 0, 0] == 1024
