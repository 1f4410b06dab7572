"""Short-time transforms: single stretches against NumPy, and the way there and back."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import ArgumentValueError, ShapeError

SIGNAL = np.random.default_rng(0).standard_normal((2, 40))


def test_each_stretch_is_a_transform_of_the_windowed_signal():
    window = torch.hann_window(6, dtype=torch.float64)
    got = torch.stft(
        torch.tensor(SIGNAL), 8, 3, 6, window, center=False, return_complex=True
    ).numpy()
    assert got.shape == (2, 5, 11)
    padded = np.pad(window.numpy(), 1)
    for stretch in range(11):
        part = SIGNAL[:, 3 * stretch : 3 * stretch + 8]
        np.testing.assert_allclose(got[:, :, stretch], np.fft.rfft(part * padded))


def test_centred_stretches_see_the_reflected_borders():
    got = torch.stft(torch.tensor(SIGNAL[0]), 4, 2, center=True, return_complex=True)
    padded = np.pad(SIGNAL[0], 2, mode="reflect")
    np.testing.assert_allclose(got[:, 0].numpy(), np.fft.rfft(padded[:4]))
    pairs = torch.stft(torch.tensor(SIGNAL[0]), 4, 2, return_complex=False)
    np.testing.assert_allclose(pairs[..., 1].numpy(), got.numpy().imag)


@pytest.mark.parametrize(
    "options",
    [{}, {"normalized": True}, {"win_length": 6}, {"onesided": False}, {"hop_length": 3}],
)
def test_inverse_gives_the_signal_back(options):
    window = torch.hann_window(options.get("win_length", 8), dtype=torch.float64) + 0.1
    x = torch.tensor(SIGNAL)
    there = torch.stft(x, 8, window=window, return_complex=True, **options)
    back = torch.istft(there, 8, window=window, length=38, **options)
    np.testing.assert_allclose(back.numpy(), SIGNAL[:, :38], atol=1e-12)
    assert torch.istft(there[0], 8, window=window, length=41, **options).shape == (41,)


def test_gradients_of_both_directions():
    window = torch.hann_window(4, dtype=torch.float64) + 0.1
    x = torch.tensor(SIGNAL[:, :12], requires_grad=True)

    def there_and_back(x):
        spectra = torch.stft(x, 4, window=window, return_complex=True)
        return torch.istft(spectra * 2j, 4, window=window)

    assert torch.autograd.gradcheck(there_and_back, [x], fast_mode=True)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda x: torch.stft(x, 8), ArgumentValueError),
        (lambda x: torch.stft(x, 8, 0, return_complex=True), ShapeError),
        (lambda x: torch.stft(x, 8, win_length=9, return_complex=True), ShapeError),
        (lambda x: torch.stft(x, 64, center=False, return_complex=True), ShapeError),
        (lambda x: torch.stft(x, 8, window=torch.ones(3), return_complex=True), ShapeError),
        (lambda x: torch.istft(x, 8), ShapeError),
        (lambda x: torch.istft(torch.stft(x, 8, 8, 4, return_complex=True), 8, 8, 4), ShapeError),
    ],
)
def test_bad_arguments_are_refused(act, error):
    with pytest.raises(error):
        act(torch.tensor(SIGNAL))
