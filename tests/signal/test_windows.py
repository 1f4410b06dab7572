"""The newer window functions."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import ArgumentValueError

windows = torch.signal.windows


def test_names_shared_with_numpy():
    for name, twin in (
        ("bartlett", np.bartlett), ("blackman", np.blackman), ("hamming", np.hamming),
        ("hann", np.hanning),
    ):  # fmt: skip
        got = getattr(windows, name)(7, dtype=torch.float64)
        np.testing.assert_allclose(got.numpy(), twin(7), atol=1e-15)
        periodic = getattr(windows, name)(7, sym=False, dtype=torch.float64)
        np.testing.assert_allclose(periodic.numpy(), twin(8)[:-1], atol=1e-15)


def test_shapes_with_a_parameter():
    places = np.arange(6)
    np.testing.assert_allclose(
        windows.gaussian(6, std=2.0).numpy(), np.exp(-0.5 * ((places - 2.5) / 2) ** 2), rtol=1e-6
    )
    np.testing.assert_allclose(
        windows.exponential(6, tau=3.0).numpy(), np.exp(-np.abs(places - 2.5) / 3), rtol=1e-6
    )
    np.testing.assert_allclose(
        windows.cosine(6).numpy(), np.sin(np.pi * (places + 0.5) / 6), rtol=1e-6
    )
    assert windows.nuttall(5)[2].item() == pytest.approx(1.0)
    assert windows.kaiser(5, beta=0.0).tolist() == [1.0] * 5
    assert windows.general_hamming(5, alpha=1.0).tolist() == [1.0] * 5


@pytest.mark.parametrize(
    "act",
    [lambda: windows.gaussian(3, std=0.0), lambda: windows.exponential(3, tau=-1.0),
     lambda: windows.exponential(3, center=1.0), lambda: windows.kaiser(3, beta=-1.0),
     lambda: windows.general_cosine(3, a=[])],
)  # fmt: skip
def test_bad_parameters_are_refused(act):
    with pytest.raises(ArgumentValueError):
        act()
