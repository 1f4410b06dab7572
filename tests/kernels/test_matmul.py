from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch

rng = np.random.default_rng(0)


def tensor(*shape):
    return torch.from_numpy(rng.standard_normal(shape))


LAYOUTS = {
    "plain": lambda x: x,
    "turned": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded row": lambda x: x[..., :1, :].expand(x.shape),
    "expanded column": lambda x: x[..., :1].expand(x.shape),
}


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_matrices_of_any_layout_multiply_as_in_numpy(left, right):
    a, b = LAYOUTS[left](tensor(5, 7)), LAYOUTS[right](tensor(7, 3))
    np.testing.assert_allclose((a @ b).numpy(), a.numpy() @ b.numpy())


@pytest.mark.parametrize(
    ("left", "right"),
    [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)),
     ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((6, 1, 3, 4), (2, 4, 5)), ((2, 3, 0), (0, 4)),
     ((0, 3, 4), (4, 5))],
)  # fmt: skip
def test_every_combination_of_ranks_multiplies_as_in_numpy(left, right):
    a, b = tensor(*left), tensor(*right)
    np.testing.assert_allclose(torch.matmul(a, b).numpy(), np.matmul(a.numpy(), b.numpy()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_multiplied_in_float32(dtype):
    a = torch.full((1, 2048), 0.5, dtype=dtype)
    assert (a @ a.t()).item() == 512.0


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_multiply_exactly(dtype):
    a = torch.arange(6).reshape(2, 3).to(dtype)
    assert (a @ a.t()).tolist() == [[5, 14], [14, 50]]


def test_addmm_in_place_reads_the_base_before_it_is_overwritten():
    base, a, b = tensor(3, 5), tensor(3, 4), tensor(4, 5)
    expected = 0.5 * base.numpy() + 2 * (a.numpy() @ b.numpy())
    assert base.addmm_(a, b, beta=0.5, alpha=2) is base
    np.testing.assert_allclose(base.numpy(), expected)


def test_a_beta_of_zero_ignores_nan_in_the_base():
    base = torch.full((2, 2), float("nan"))
    eye = torch.eye(2)
    assert torch.addmm(base, eye, eye, beta=0).tolist() == [[1, 0], [0, 1]]


def test_out_of_any_strides_receives_the_product():
    a, b = tensor(3, 4), tensor(4, 5)
    out = torch.zeros(5, 3, dtype=torch.float64).t()
    torch.mm(a, b, out=out)
    np.testing.assert_allclose(out.numpy(), a.numpy() @ b.numpy())
