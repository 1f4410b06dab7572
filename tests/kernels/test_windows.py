"""Loops over windows of tensors: which part is read and written, in every layout."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.kernels.windows import WindowKernel


def mixed(a, b, c, d):
    """Two results of four operands."""
    return a + 10 * b, c - d


KERNEL = WindowKernel(mixed, (2,), (2, 1, 1))


def halves(array):
    return np.split(array, 2, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("turned", [False, True])
def test_windows_are_equal_parts_of_the_last_dimension(dtype, turned):
    pair = torch.arange(24.0).reshape(4, 6).to(dtype)
    if turned:
        pair = pair.t().contiguous().t()
    one, two = torch.ones(4, 3, dtype=dtype), torch.full((4, 3), 2.0, dtype=dtype)
    out = torch.empty(4, 6, dtype=dtype)
    KERNEL.run(out, pair, one, two)
    first, second = halves(pair.float().numpy())
    left, right = halves(out.float().numpy())
    np.testing.assert_allclose(left, first + 10 * second, rtol=1e-2)
    np.testing.assert_array_equal(right, np.full((4, 3), -1.0))


def test_nothing_is_written_for_no_elements():
    KERNEL.run(torch.empty(0, 6), torch.empty(0, 6), torch.empty(0, 3), torch.empty(0, 3))


def test_a_repeated_call_reads_its_own_tensors():
    one = torch.ones(1, 3)
    for start in (0.0, 5.0):
        out = torch.empty(1, 6)
        KERNEL.run(out, torch.full((1, 6), start), one, one)
        assert out.tolist() == [[11 * start] * 3 + [0.0] * 3]
