from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refruntime as torch
from refruntime import _dtypes
from refruntime._impl import empty_impl, from_array, meta_of
from refruntime.config import config
from refruntime.kernels import reduce


def run(kernel, array, dim, dtype=None, **params):
    """Reduce a NumPy array of any strides; the result in the same dtype unless told otherwise."""
    x = from_array(array, _dtypes.from_numpy_dtype(array.dtype))
    kept = tuple(s for d, s in enumerate(array.shape) if dim is not None and d not in dim)
    out = empty_impl(meta_of(kept, dtype or x.meta.dtype))
    kernel(out, x, dim=dim, **params)
    return out.array()


LAYOUTS = {
    "contiguous": lambda a: a,
    "transposed": lambda a: a.transpose(),
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "expanded": lambda a: np.broadcast_to(a[..., :1], a.shape),
}


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple),
    layout=st.sampled_from(sorted(LAYOUTS)),
    data=st.data(),
)
def test_any_dimensions_of_any_layout_equal_numpy(shape, layout, data):
    array = LAYOUTS[layout](np.random.default_rng(len(shape)).standard_normal(shape))
    count = data.draw(st.integers(0, array.ndim))
    dim = tuple(sorted(data.draw(st.permutations(range(array.ndim)))[:count]))
    np.testing.assert_allclose(run(reduce.sum_cpu, array, dim), array.sum(dim), atol=1e-12)
    np.testing.assert_array_equal(run(reduce.amax_cpu, array, dim), array.max(dim))


@pytest.mark.parametrize("shape", [(300, 400), (3, 70_000), (70_000, 3), (2, 90_000, 2)])
def test_long_reductions_that_are_split_equal_numpy(shape):
    array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for count in range(1, len(shape) + 1):
        for dim in itertools.combinations(range(len(shape)), count):
            wide = array.astype(np.float64)
            np.testing.assert_allclose(
                run(reduce.sum_cpu, array, dim), wide.sum(dim), rtol=1e-5, atol=1e-3
            )
            np.testing.assert_allclose(
                run(reduce.var_cpu, array, dim, correction=1), wide.var(dim, ddof=1), rtol=1e-5
            )


def test_a_long_float32_sum_keeps_its_digits():
    array = np.full(3_000_001, 0.1, np.float32)
    assert run(reduce.sum_cpu, array, None) == pytest.approx(
        np.float64(np.float32(0.1)) * array.size, rel=1e-6
    )


@pytest.mark.parametrize("shape", [(1 << 19,), (1 << 17, 6), (6, 1 << 17)])
def test_results_do_not_depend_on_the_number_of_threads(shape):
    array = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    results = []
    for threads in (1, 3):
        with config.patch(num_threads=threads):
            results.append(run(reduce.sum_cpu, array, (0,)))
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("kernel", [reduce.amax_cpu, reduce.amin_cpu])
@pytest.mark.parametrize("dim", [(0,), (1,)])
def test_nan_wins_extremes(kernel, dim):
    array = np.random.default_rng(3).standard_normal((90, 70)).astype(np.float32)
    array[13, 50] = np.nan
    function = np.max if kernel is reduce.amax_cpu else np.min
    np.testing.assert_array_equal(run(kernel, array, dim), function(array, dim))


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "int64", "bool"])
def test_integers_are_summed_exactly_in_int64(name):
    array = np.random.default_rng(4).integers(0, 2, (50, 40)).astype(name)
    result = run(reduce.sum_cpu, array, (0,), _dtypes.int64)
    np.testing.assert_array_equal(result, array.astype(np.int64).sum(0))


@pytest.mark.parametrize("dtype", [_dtypes.float16, _dtypes.bfloat16])
def test_half_types_accumulate_wider_than_themselves(dtype):
    x = torch.full((4096,), 0.25, dtype=dtype)
    assert x.sum().item() == 1024.0
    assert torch.var(torch.arange(64).to(dtype)).item() == pytest.approx(346.67, rel=1e-2)


def test_reductions_of_nothing_give_the_neutral_element():
    array = np.empty((0, 3))
    np.testing.assert_array_equal(run(reduce.sum_cpu, array, (0,)), np.zeros(3))
    np.testing.assert_array_equal(run(reduce.prod_cpu, array, (0,)), np.ones(3))
    assert np.isnan(run(reduce.mean_cpu, array, None))


def test_variance_of_numbers_far_from_zero_keeps_its_digits():
    array = (1e6 + np.random.default_rng(5).standard_normal(10_000)).astype(np.float32)
    result = run(reduce.var_cpu, array, None, correction=0)
    assert result == pytest.approx(array.astype(np.float64).var(), rel=1e-6)


@pytest.mark.parametrize("value", [1000.0, -1000.0, np.inf, -np.inf])
def test_logsumexp_survives_extreme_arguments(value):
    array = np.array([[value, value], [0.0, 1.0]])
    with np.errstate(over="ignore", divide="ignore"):
        expected = np.where(np.isinf(array[0, 0]), array[0, 0], array[0, 0] + np.log(2))
    result = run(reduce.logsumexp_cpu, array, (1,))
    assert result[0] == expected
    assert result[1] == pytest.approx(np.log(1 + np.e))


@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 2.0, 3.0, np.inf, -np.inf])
def test_norms_equal_numpy(order):
    array = np.random.default_rng(6).standard_normal((7, 30))
    expected = np.linalg.norm(array, order, axis=1)
    result = run(reduce.vector_norm_cpu, array, (1,), ord=order)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_a_complex_sum_adds_both_parts():
    array = np.arange(12).reshape(3, 4) + 1j * np.arange(12).reshape(3, 4)[::-1]
    np.testing.assert_array_equal(run(reduce.sum_cpu, array, (0,)), array.sum(0))


def test_a_strided_target_is_written_in_place():
    whole = torch.zeros(3, 2)
    target = whole.array()[:, 1]
    out = from_array(target, _dtypes.float32)
    reduce.sum_cpu(out, torch.ones(3, 5), dim=(1,))
    np.testing.assert_array_equal(whole.array(), [[0, 5], [0, 5], [0, 5]])
