"""Pointwise ops over complex numbers against NumPy, and their gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import KernelMissingError

Z = np.array([1 + 2j, -0.5 + 0.25j, 0.75 - 1.5j])
W = np.array([0.5 - 1j, 2 + 0.5j, -1 + 0.1j])

UNARY = ["exp", "log", "sin", "cos", "tan", "tanh", "sinh", "cosh", "sqrt", "square", "reciprocal",
         "neg", "log1p", "expm1", "asinh", "atan"]  # fmt: skip
NUMPY_NAMES = {"neg": "negative", "asinh": "arcsinh", "atan": "arctan"}


@pytest.mark.parametrize("name", UNARY)
def test_function_equals_numpys(name):
    got = getattr(torch, name)(torch.tensor(Z))
    np.testing.assert_allclose(got.numpy(), getattr(np, NUMPY_NAMES.get(name, name))(Z))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_arithmetic_mixes_complex_and_real_and_numbers(name):
    real = np.array([0.5, 2.0, -1.0], np.float32)
    function, twin = getattr(torch, name), {"sub": np.subtract, "div": np.divide}.get(
        name, getattr(np, {"add": "add", "mul": "multiply"}.get(name, "add"))
    )  # fmt: skip
    complexes = torch.tensor(Z, dtype=torch.complex64)
    for other, value in ((torch.tensor(real), real), (2, 2), (1.5 - 1j, 1.5 - 1j)):
        got = function(complexes, other)
        assert got.dtype == torch.complex64
        np.testing.assert_allclose(got.numpy(), twin(Z.astype(np.complex64), value), rtol=1e-6)
    assert function(torch.tensor(real), 1j).dtype == torch.complex64


def test_layouts_and_targets():
    matrix = torch.tensor(np.outer(Z, W))
    np.testing.assert_allclose((matrix.t() * 2j).numpy(), np.outer(Z, W).T * 2j)
    target = matrix.clone()
    target.mul_(1j)
    np.testing.assert_allclose(target.numpy(), np.outer(Z, W) * 1j)
    np.testing.assert_allclose((matrix + torch.tensor(Z)).numpy(), np.outer(Z, W) + Z)


def test_comparisons_and_tests_give_truth_values():
    z = torch.tensor(Z)
    assert (z == z).tolist() == [True] * 3
    assert torch.isfinite(z).tolist() == [True] * 3
    assert torch.where(torch.tensor([True, False, True]), z, 0 * z).tolist() == [Z[0], 0, Z[2]]
    assert torch.allclose(z, z + 1e-12)


@pytest.mark.parametrize("act", [torch.floor, torch.relu, torch.sign, lambda z: z > z])
def test_what_needs_an_order_is_refused(act):
    with pytest.raises(KernelMissingError):
        act(torch.tensor(Z))


def test_magnitude_angle_and_sign():
    z = torch.tensor(Z)
    assert z.abs().dtype == torch.float64
    np.testing.assert_allclose(z.abs().numpy(), np.abs(Z))
    np.testing.assert_allclose(z.angle().numpy(), np.angle(Z))
    np.testing.assert_allclose(torch.sgn(z).numpy(), Z / np.abs(Z))
    assert torch.sgn(torch.zeros(1, dtype=torch.complex64)).tolist() == [0]
    np.testing.assert_allclose(torch.polar(z.abs(), z.angle()).numpy(), Z)
    assert torch.angle(torch.tensor([-1.0, 2.0])).tolist() == [pytest.approx(np.pi), 0.0]
    np.testing.assert_allclose(z.conj().numpy(), Z.conj())
    real = torch.ones(2)
    assert real.conj() is real


def gradient(function, z: np.ndarray) -> np.ndarray:
    """The gradient by the engine, as torch defines it: d/d(real) + i d/d(imaginary)."""
    leaf = torch.tensor(z, requires_grad=True)
    function(leaf).backward()
    return leaf.grad.numpy()


def differences(function, z: np.ndarray) -> np.ndarray:
    grad = np.zeros_like(z)
    for place in range(len(z)):
        for direction in (1, 1j):
            step = np.zeros_like(z)
            step[place] = 1e-6 * direction
            up, down = (float(function(torch.tensor(z + s))) for s in (step, -step))
            grad[place] += direction * (up - down) / 2e-6
    return grad


@pytest.mark.parametrize(
    "function",
    [
        lambda z: (z * torch.tensor(W)).real.sum(),
        lambda z: (torch.tensor(W) / z).imag.sum(),
        lambda z: (z * z.conj()).real.sum(),
        lambda z: z.exp().imag.sum(),
        lambda z: (z.tanh() * 2j).real.sum(),
        lambda z: z.sqrt().real.sum(),
        lambda z: z.abs().sum(),
        lambda z: z.angle().sum(),
        lambda z: torch.sgn(z).real.sum(),
        lambda z: (z**3).real.sum(),
        lambda z: torch.view_as_real(z * z).sum(),
        lambda z: (z.mean() * (1 - 2j)).real,
        lambda z: z.cumsum(0)[1].imag,
    ],
)
def test_gradient_equals_differences(function):
    np.testing.assert_allclose(gradient(function, Z), differences(function, Z), rtol=1e-5)


def test_gradient_of_a_real_operand_is_real():
    real = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (real * torch.tensor(W)).real.sum().backward()
    assert real.grad.dtype == torch.float32
    np.testing.assert_allclose(real.grad.numpy(), W.real, rtol=1e-6)


def test_rotary_embedding_in_complex_form():
    angles = torch.arange(6.0).reshape(2, 3)
    x = torch.randn(2, 3, 2, requires_grad=True)
    turned = torch.view_as_real(torch.view_as_complex(x) * torch.polar(torch.ones(2, 3), angles))
    first = x[..., 0] * angles.cos() - x[..., 1] * angles.sin()
    np.testing.assert_allclose(turned[..., 0].detach().numpy(), first.detach().numpy(), rtol=1e-5)
    turned.pow(2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_convolution_of_complex_numbers_is_refused():
    z = torch.zeros(1, 1, 3, dtype=torch.complex64)
    with pytest.raises(KernelMissingError, match="complex64"):
        torch.conv1d(z, z)
