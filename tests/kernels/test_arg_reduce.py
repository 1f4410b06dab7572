from __future__ import annotations

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._impl import empty_impl, from_array, meta_of
from refruntime.kernels import arg_reduce


def places(kernel, array, dim):
    x = from_array(array, _dtypes.from_numpy_dtype(array.dtype))
    kept = () if dim is None else array.shape[:dim] + array.shape[dim + 1 :]
    out = empty_impl(meta_of(kept, _dtypes.int64))
    kernel(out, x, dim=dim)
    return out.array()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dim", [None, 0, 1, 2])
def test_places_equal_numpy_along_each_dimension(dim, turned):
    array = np.random.default_rng(0).standard_normal((5, 700, 9)).astype(np.float32)
    array = array.transpose() if turned else array
    np.testing.assert_array_equal(places(arg_reduce.argmax_cpu, array, dim), array.argmax(dim))
    np.testing.assert_array_equal(places(arg_reduce.argmin_cpu, array, dim), array.argmin(dim))


@pytest.mark.parametrize("shape", [(3, 2000), (2000, 8)])
def test_of_equal_elements_the_first_place_is_returned(shape):
    dim = int(np.argmax(shape))
    array = np.random.default_rng(1).integers(0, 3, shape)
    np.testing.assert_array_equal(places(arg_reduce.argmax_cpu, array, dim), array.argmax(dim))


@pytest.mark.parametrize("dim", [0, 1])
def test_the_first_nan_wins(dim):
    array = np.random.default_rng(2).standard_normal((60, 50))
    array[20, 30] = array[40, 30] = array[20, 45] = np.nan
    np.testing.assert_array_equal(places(arg_reduce.argmax_cpu, array, dim), array.argmax(dim))


def test_all_elements_minus_infinity_give_the_first_place():
    assert places(arg_reduce.argmax_cpu, np.full(40, -np.inf), 0) == 0


def test_values_and_places_come_together():
    array = np.random.default_rng(3).standard_normal((6, 40)).astype(np.float32)
    values = empty_impl(meta_of((6,), _dtypes.float32))
    found = empty_impl(meta_of((6,), _dtypes.int64))
    arg_reduce.min_at_cpu((values, found), from_array(array, _dtypes.float32), dim=1)
    np.testing.assert_array_equal(values.array(), array.min(1))
    np.testing.assert_array_equal(found.array(), array.argmin(1))
