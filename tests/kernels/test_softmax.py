from __future__ import annotations

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._impl import empty_impl, from_array, meta_of
from refruntime.kernels import softmax


def run(kernel, *arrays, dim, dtype=None):
    inputs = [from_array(a, _dtypes.from_numpy_dtype(a.dtype)) for a in arrays]
    out = empty_impl(meta_of(arrays[0].shape, dtype or inputs[0].meta.dtype))
    kernel(out, *inputs, dim=dim)
    return out.array()


def expected(x, dim):
    powers = np.exp(x - x.max(dim, keepdims=True))
    return powers / powers.sum(dim, keepdims=True)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [("f4", 1e-6), ("f8", 1e-14), ("f2", 2e-3)])
def test_softmax_and_its_backward_equal_numpy(dim, dtype, tolerance):
    rng = np.random.default_rng(dim)
    x, g = (rng.standard_normal((6, 150, 140)).astype(dtype) for _ in range(2))
    y = run(softmax.softmax_cpu, x, dim=dim)
    want = expected(x.astype(np.float64), dim)
    np.testing.assert_allclose(y, want, atol=tolerance)
    wide, gradient = want, g.astype(np.float64)
    total = (gradient * wide).sum(dim, keepdims=True)
    back = run(softmax.softmax_backward_cpu, g, y, dim=dim)
    np.testing.assert_allclose(back, wide * (gradient - total), atol=4 * tolerance)


@pytest.mark.parametrize("dim", [0, 1])
def test_log_softmax_and_its_backward_equal_numpy(dim):
    rng = np.random.default_rng(dim)
    x, g = rng.standard_normal((2, 30, 140))
    y = run(softmax.log_softmax_cpu, x, dim=dim)
    want = expected(x, dim)
    np.testing.assert_allclose(y, np.log(want), atol=1e-12)
    back = run(softmax.log_softmax_backward_cpu, g, y, dim=dim)
    np.testing.assert_allclose(back, g - want * g.sum(dim, keepdims=True), atol=1e-12)


@pytest.mark.parametrize("dim", [0, 1])
def test_large_arguments_do_not_overflow(dim):
    x = np.array([[1e30, -1e30], [1e30, 0.0]], np.float32)
    np.testing.assert_array_equal(run(softmax.softmax_cpu, x, dim=1)[0], [1, 0])
    assert np.isfinite(run(softmax.softmax_cpu, x, dim=dim)).all()


def test_a_row_without_any_finite_element_is_nan():
    x = np.full((1, 3), -np.inf, np.float32)
    assert np.isnan(run(softmax.softmax_cpu, x, dim=1)).all()


def test_the_result_may_be_wider_than_the_operand():
    x = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float16)
    y = run(softmax.softmax_cpu, x, dim=1, dtype=_dtypes.float32)
    np.testing.assert_allclose(y, expected(x.astype(np.float64), 1), rtol=1e-6)
