"""sequence.cu on the host, and its launch functions, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime.kernels import sequence_cuda
from tests.kernels.cuda_host.launches import Router, filled

FLOATING = [_dtypes.float32, _dtypes.float64, _dtypes.float16, _dtypes.bfloat16]
INTEGERS = [_dtypes.int64, _dtypes.int32, _dtypes.int16, _dtypes.int8, _dtypes.uint8]
LAYOUTS = ("contiguous", "strided")


def made(
    kernel: Any, shape: tuple[int, ...], dtype: DType, layout: str, **params: Any
) -> np.ndarray:
    out = filled(shape, dtype, layout)
    kernel(out, meta=out.meta, **params)
    return out.array()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS], ids=str)
def test_ranges_are_computed_from_the_place(router: Router, dtype: DType, layout: str) -> None:
    got = made(sequence_cuda.arange_cuda, (9,), dtype, layout, start=30, step=-3)
    np.testing.assert_array_equal(got, np.arange(30, 3, -3).astype(dtype.np))
    got = made(sequence_cuda.arange_cuda, (9,), dtype, layout, start=0.25, step=0.5)
    np.testing.assert_array_equal(got, (0.25 + 0.5 * np.arange(9)).astype(dtype.np))
    assert router.launched


def test_integers_beyond_double_precision_stay_exact(router: Router) -> None:
    got = made(
        sequence_cuda.arange_cuda, (3,), _dtypes.int64, "contiguous", start=2**60 + 1, step=1
    )
    assert got.tolist() == [2**60 + 1, 2**60 + 2, 2**60 + 3]
    assert router.launched == ["arange_integers<long long>"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("dtype", [*FLOATING, _dtypes.int32], ids=str)
def test_lines_meet_both_ends(router: Router, dtype: DType, count: int, layout: str) -> None:
    got = made(sequence_cuda.linspace_cuda, (count,), dtype, layout, start=-3.0, end=9.0)
    expected = np.linspace(-3.0, 9.0, count).astype(dtype.np)
    np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=1e-6)
    if count > 1:
        assert got[0] == -3
        assert got[-1] == 9
    got = made(sequence_cuda.logspace_cuda, (count,), dtype, layout, start=0.0, end=6.0, base=2.0)
    expected = np.logspace(0.0, 6.0, count, base=2.0).astype(dtype.np)
    np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=1e-2)
    assert bool(router.launched) == (count > 0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (4, 2), (0, 3)])
def test_identities(router: Router, shape: tuple[int, int], layout: str) -> None:
    got = made(sequence_cuda.eye_cuda, shape, _dtypes.float32, layout)
    np.testing.assert_array_equal(got, np.eye(*shape))
    assert bool(router.launched) == (shape[0] > 0)
