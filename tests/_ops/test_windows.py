"""Windows against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import ArgumentValueError

NUMPY = {
    "bartlett": np.bartlett, "blackman": np.blackman, "hamming": np.hamming, "hann": np.hanning,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("size", [0, 1, 2, 7, 8])
def test_periodic_window_is_a_longer_one_without_its_last(name, size):
    window = getattr(torch, f"{name}_window")
    want = NUMPY[name](size + 1)[:-1] if size > 1 else np.ones(size)
    np.testing.assert_allclose(window(size, dtype=torch.float64).numpy(), want, atol=1e-15)
    symmetric = window(size, periodic=False, dtype=torch.float64)
    np.testing.assert_allclose(symmetric.numpy(), NUMPY[name](size), atol=1e-15)


def test_kaiser_window_and_its_dtype():
    got = torch.kaiser_window(9, periodic=False, beta=5.0)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), np.kaiser(9, 5.0), rtol=1e-6)


@pytest.mark.parametrize("size", [-1, 5])
def test_bad_arguments_are_refused(size):
    with pytest.raises(ArgumentValueError):
        torch.hann_window(size, dtype=torch.int64)
