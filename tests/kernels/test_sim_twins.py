"""The numba.cuda twins in numba's CUDA simulator, against NumPy.

The simulator replaces numba.cuda when it is first imported, so these tests run in a process of
their own: ``NUMBA_ENABLE_CUDASIM=1 pytest -m sim``.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from refruntime.kernels import twins

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(
        os.environ.get("NUMBA_ENABLE_CUDASIM") != "1", reason="needs NUMBA_ENABLE_CUDASIM=1"
    ),
]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", [1, 63, 64, 130])
def test_addition_covers_every_element_once(size: int) -> None:
    a, b, out = normal(size), normal(size), np.full(size, np.nan, np.float32)
    twins.add_twin(out, a, b)
    np.testing.assert_array_equal(out, a + b)


@pytest.mark.parametrize("columns", [1, 31, 32, 75])
def test_rows_are_summed_in_shared_memory(columns: int) -> None:
    x, out = normal(2, columns), np.full(2, np.nan, np.float32)
    twins.sum_rows_twin(out, x)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(4, 4, 4), (5, 7, 6), (1, 9, 2)])
def test_tiles_cover_matrices_that_they_do_not_divide(rows: int, depth: int, columns: int) -> None:
    a, b, out = normal(rows, depth), normal(depth, columns), np.zeros((rows, columns), np.float32)
    twins.matmul_twin(out, a, b)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)


def test_the_simulator_names_an_index_out_of_bounds() -> None:
    with pytest.raises(IndexError):
        twins.add_twin(np.zeros(8, np.float32), normal(8), normal(3))
