"""Copy, cast and fill between any strides and dtypes, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refruntime import _dtypes
from refruntime._dtypes import ALL_DTYPES
from refruntime._impl import empty_impl, from_array, meta_of
from refruntime.errors import DTypeError
from refruntime.kernels.copy import contiguous_impl, copy_cpu, fill_cpu

COMPLEX = [dtype for dtype in ALL_DTYPES if dtype.is_complex]


def tensor(array, dtype):
    return from_array(array, dtype)


def empty(shape, dtype, strides=None):
    return empty_impl(meta_of(shape, dtype, strides=strides))


def numbers(dtype, shape=(3, 4)):
    count = int(np.prod(shape))
    values = np.arange(count) % 2 if dtype.kind == "b" else np.arange(count) % 100
    return values.reshape(shape).astype(dtype.np)


# Every dtype on either side of one dtype of each kind; each pair is a kernel of its own.
HUBS = [_dtypes.bool_, _dtypes.uint8, _dtypes.int64, _dtypes.float16, _dtypes.float32]
PAIRS = sorted(
    {pair for hub in (*HUBS, *COMPLEX) for d in ALL_DTYPES for pair in ((hub, d), (d, hub))},
    key=lambda pair: (pair[0].index, pair[1].index),
)


@pytest.mark.parametrize(("target", "source"), PAIRS, ids=lambda d: d.name)
def test_cast_between_dtypes(target, source):
    x = numbers(source)
    out = empty(x.shape, target)
    copy_cpu(out, tensor(x, source))
    expected = x.real if source.is_complex and not target.is_complex else x
    np.testing.assert_array_equal(out.array(), expected.astype(target.np))


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda d: d.name)
def test_transposed_source_keeps_its_elements(dtype):
    x = numbers(dtype, (5, 7)).T
    out = empty(x.shape, dtype)
    copy_cpu(out, tensor(x, dtype))
    np.testing.assert_array_equal(out.array(), x)


@pytest.mark.parametrize("shape", [(33, 70), (64, 64), (100, 31), (257, 129)])
def test_large_transpose_goes_by_tiles(shape):
    x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape).T
    out = contiguous_impl(tensor(x, _dtypes.float32))
    np.testing.assert_array_equal(out.array(), x)
    assert out.meta.contiguous


def test_source_is_broadcast():
    x = np.array([[1.0], [2.0]], np.float32)
    out = empty((3, 2, 4), _dtypes.float64)
    copy_cpu(out, tensor(x, _dtypes.float32))
    np.testing.assert_array_equal(out.array(), np.broadcast_to(x, (3, 2, 4)))


def test_strided_target_keeps_what_lies_between():
    memory = np.zeros(12, np.int16)
    out = tensor(memory[::3], _dtypes.int16)
    copy_cpu(out, tensor(np.array([1, 2, 3, 4], np.int8), _dtypes.int8))
    np.testing.assert_array_equal(memory, [1, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0, 0])


def test_empty_copy_touches_nothing():
    copy_cpu(empty((0, 3), _dtypes.float32), tensor(np.zeros((1, 3), np.float32), _dtypes.float32))


def test_half_rounds_to_nearest_even():
    x = np.array([2049.0, 2051.0, 65519.0, 65520.0, 1e-8, np.nan, -np.inf, 6.1e-5], np.float32)
    out = empty(x.shape, _dtypes.float16)
    copy_cpu(out, tensor(x, _dtypes.float32))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out.array(), x.astype(np.float16))


def test_float_to_bool_asks_whether_it_differs_from_zero():
    x = np.array([0.0, -0.0, 0.1, np.nan, -3.0], np.float32)
    out = empty(x.shape, _dtypes.bool_)
    copy_cpu(out, tensor(x, _dtypes.float32))
    np.testing.assert_array_equal(out.array(), [False, False, True, True, True])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_layout_copies_right(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    order = data.draw(st.permutations(range(len(shape))))
    steps = data.draw(st.lists(st.integers(1, 2), min_size=len(shape), max_size=len(shape)))
    big = np.arange(np.prod([s * n for s, n in zip(steps, shape)]), dtype=np.float64)
    big = big.reshape([s * n for s, n in zip(steps, shape)])
    x = big[tuple(slice(None, None, step) for step in steps)].transpose(order)
    out = empty(x.shape, _dtypes.float64)
    copy_cpu(out, tensor(x, _dtypes.float64))
    np.testing.assert_array_equal(out.array(), x)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("value", [0, 1, 7])
def test_fill_dense(dtype, value):
    out = empty((3, 5), dtype)
    fill_cpu(out, value)
    expected = np.full((3, 5), value != 0 if dtype is _dtypes.bool_ else value).astype(dtype.np)
    np.testing.assert_array_equal(out.array(), expected)


def test_fill_strided_keeps_what_lies_between():
    memory = np.zeros((4, 4), np.float32)
    fill_cpu(tensor(memory[1::2, ::3], _dtypes.float32), 2.5)
    expected = np.zeros((4, 4), np.float32)
    expected[1::2, ::3] = 2.5
    np.testing.assert_array_equal(memory, expected)


def test_fill_keeps_negative_zero():
    out = empty((2,), _dtypes.float32)
    fill_cpu(out, -0.0)
    assert np.signbit(out.array()).all()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(_dtypes.int8, 300), (_dtypes.uint8, -1), (_dtypes.int64, 2**63), (_dtypes.int32, 1j)],
)
def test_fill_refuses_what_the_dtype_cannot_hold(dtype, value):
    with pytest.raises(DTypeError, match="without overflow"):
        fill_cpu(empty((2,), dtype), value)


def test_fill_takes_the_largest_uint64():
    out = empty((2,), _dtypes.uint64)
    fill_cpu(out, 2**64 - 1)
    assert (out.array() == 2**64 - 1).all()
