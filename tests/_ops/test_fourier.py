"""Fourier transforms against NumPy, and their gradients against the adjoint matrix."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import ArgumentValueError, DTypeError, ShapeError

RNG = np.random.default_rng(0)
REAL = RNG.standard_normal((3, 4, 5))
COMPLEX = REAL + 1j * RNG.standard_normal((3, 4, 5))
NORMS = [None, "backward", "ortho", "forward"]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_over_one_dimension(name, norm):
    array = REAL if name in ("rfft", "ihfft") else COMPLEX
    for n, dim in ((None, -1), (3, 0), (7, 1), (4, 2)):
        got = getattr(torch.fft, name)(torch.tensor(array), n, dim, norm)
        want = getattr(np.fft, name)(array, n, dim, norm)
        np.testing.assert_allclose(got.numpy(), want, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_over_several_dimensions(name, norm):
    array = REAL if name == "rfftn" else COMPLEX
    for s, dim in ((None, None), ((3, 6), (0, 2)), ((2, 3), (2, 1)), (None, (1,))):
        got = getattr(torch.fft, name)(torch.tensor(array), s, dim, norm)
        want = getattr(np.fft, name)(array, s, dim, norm)
        np.testing.assert_allclose(got.numpy(), want, atol=1e-12)


def test_two_dimensional_forms_take_the_last_two():
    np.testing.assert_allclose(torch.fft.fft2(torch.tensor(COMPLEX)).numpy(), np.fft.fft2(COMPLEX))
    half = torch.fft.rfft2(torch.tensor(REAL))
    np.testing.assert_allclose(torch.fft.irfft2(half, s=(4, 5)).numpy(), REAL, atol=1e-12)


def test_hermitian_forms_of_several_dimensions_undo_each_other():
    half = torch.fft.ihfftn(torch.tensor(REAL))
    np.testing.assert_allclose(torch.fft.hfftn(half, s=(3, 4, 5)).numpy(), REAL, atol=1e-12)


def test_dtypes_keep_their_width():
    assert torch.fft.fft(torch.zeros(4)).dtype == torch.complex64
    assert torch.fft.rfft(torch.zeros(4, dtype=torch.float64)).dtype == torch.complex128
    assert torch.fft.irfft(torch.zeros(4, dtype=torch.complex64)).dtype == torch.float32
    assert torch.fft.fft(torch.arange(4)).dtype == torch.complex64


def real_gradient(function, array):
    leaf = torch.tensor(array, requires_grad=True)
    function(leaf).backward()
    return leaf.grad.numpy()


@pytest.mark.parametrize("size", [4, 5])
def test_gradient_of_the_half_spectrum(size):
    signal = RNG.standard_normal(size)
    weights = RNG.standard_normal(size // 2 + 1) + 1j * RNG.standard_normal(size // 2 + 1)
    grad = real_gradient(lambda x: (torch.fft.rfft(x) * torch.tensor(weights)).real.sum(), signal)
    basis = np.fft.rfft(np.eye(size), axis=0)
    np.testing.assert_allclose(grad, (weights @ basis).real, atol=1e-12)


@pytest.mark.parametrize("size", [4, 5])
def test_gradient_passes_to_a_half_spectrum(size):
    spectrum = torch.tensor(np.fft.rfft(RNG.standard_normal(size)), requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda parts: torch.fft.irfft(torch.view_as_complex(parts), size),
        [torch.view_as_real(spectrum).detach().requires_grad_()],
    )


def test_second_derivatives_of_several_dimensions():
    x = torch.tensor(REAL[:, :2, :3].copy(), requires_grad=True)

    def power(x):
        return torch.fft.fftn(x, dim=(0, 2), norm="ortho").abs().square()

    assert torch.autograd.gradgradcheck(power, [x], fast_mode=True)


def test_frequencies_and_shifts():
    for n in (4, 5):
        np.testing.assert_allclose(torch.fft.fftfreq(n, 0.5).numpy(), np.fft.fftfreq(n, 0.5))
        np.testing.assert_allclose(torch.fft.rfftfreq(n, 0.5).numpy(), np.fft.rfftfreq(n, 0.5))
    array = torch.tensor(REAL)
    for dim in (None, 1, (0, 2)):
        moved = torch.fft.fftshift(array, dim)
        np.testing.assert_array_equal(moved.numpy(), np.fft.fftshift(REAL, dim))
        np.testing.assert_array_equal(torch.fft.ifftshift(moved, dim).numpy(), REAL)


def test_result_can_be_written_elsewhere():
    target = torch.empty(4, dtype=torch.complex64)
    assert torch.fft.fft(torch.ones(4), out=target) is target
    assert target.tolist() == [4, 0, 0, 0]


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda: torch.fft.fft(torch.ones(3), norm="other"), ArgumentValueError),
        (lambda: torch.fft.rfft(torch.ones(3, dtype=torch.complex64)), DTypeError),
        (lambda: torch.fft.fft(torch.ones(3), 0), ShapeError),
        (lambda: torch.fft.irfft(torch.ones(1)), ShapeError),
        (lambda: torch.fft.fftn(torch.ones(3), s=(1, 2), dim=(0,)), ShapeError),
        (lambda: torch.fft.fft(torch.ones(3), dim=1), IndexError),
    ],
)
def test_bad_arguments_are_refused(act, error):
    with pytest.raises(error):
        act()
