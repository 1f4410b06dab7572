"""Flips, rolls, repetitions and triangles: their forms, and every element size."""

import numpy as np
import pytest

import refruntime as torch

DTYPES = [torch.bool, torch.int8, torch.int16, torch.bfloat16, torch.float32, torch.complex64,
          torch.complex128]  # fmt: skip


def cube(dtype=torch.float32):
    return torch.arange(24).reshape(2, 3, 4).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_move_elements_of_every_size(dtype):
    x = cube(dtype).permute(2, 0, 1)
    a = x.numpy() if dtype is not torch.bfloat16 else x.to(torch.float32).numpy()
    for got, want in (
        (x.flip(0, 2), np.flip(a, (0, 2))),
        (x.roll(3, 1), np.roll(a, 3, 1)),
        (x.repeat(1, 2, 1), np.tile(a, (1, 2, 1))),
        (x.tril(1), np.tril(a, 1)),
        (x.triu(-1), np.triu(a, -1)),
    ):
        shown = got.to(torch.float32) if dtype is torch.bfloat16 else got
        np.testing.assert_array_equal(shown.numpy(), want)
        assert got.dtype is dtype


@pytest.mark.parametrize("k", range(-3, 5))
def test_rot90_equals_numpy(k):
    x = cube()
    np.testing.assert_array_equal(x.rot90(k, (1, 2)).numpy(), np.rot90(x.numpy(), k, (1, 2)))
    np.testing.assert_array_equal(x.rot90(k, (2, 0)).numpy(), np.rot90(x.numpy(), k, (2, 0)))


def test_flips_and_rolls_in_every_spelling():
    x = cube()[0]
    a = x.numpy()
    assert torch.flip(x, [0]).tolist() == x.flip((0,)).tolist() == x.flip(0).tolist()
    assert torch.fliplr(x).tolist() == np.fliplr(a).tolist()
    assert torch.flipud(x).tolist() == np.flipud(a).tolist()
    assert torch.roll(x, 5).tolist() == np.roll(a, 5).tolist()
    assert torch.roll(x, (1, -1), (0, 1)).tolist() == np.roll(a, (1, -1), (0, 1)).tolist()
    assert x.roll(shifts=-7, dims=1).tolist() == np.roll(a, -7, 1).tolist()


def test_tile_and_repeat_interleave():
    x = torch.tensor([[1, 2], [3, 4]])
    assert torch.tile(x, (2,)).tolist() == np.tile(x.numpy(), 2).tolist()
    assert x.repeat_interleave(2).tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert x.repeat_interleave(torch.tensor([0, 2]), 0).tolist() == [[3, 4], [3, 4]]
    assert torch.repeat_interleave(torch.tensor([2, 0, 1])).tolist() == [0, 0, 2]
    y = torch.ones(2, requires_grad=True)
    y.repeat_interleave(torch.tensor([3, 1])).sum().backward()
    assert y.grad.tolist() == [3.0, 1.0]


@pytest.mark.parametrize("diagonal", [-5, -1, 0, 2, 9])
def test_triangles_equal_numpy_for_any_diagonal(diagonal):
    x = cube()
    np.testing.assert_array_equal(x.tril(diagonal).numpy(), np.tril(x.numpy(), diagonal))
    np.testing.assert_array_equal(x.triu(diagonal).numpy(), np.triu(x.numpy(), diagonal))


def test_triangle_in_place_on_any_layout():
    x = torch.ones(3, 3)
    assert x.tril_() is x
    assert x.tolist() == [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    whole = torch.ones(3, 4)
    whole[:, ::2].triu_(1)
    assert whole.tolist() == [[0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]]
    turned = torch.ones(2, 2)
    turned.t().tril_()
    assert turned.tolist() == [[1.0, 1.0], [0.0, 1.0]]


def test_causal_mask_idiom():
    mask = torch.triu(torch.full((3, 3), float("-inf")), diagonal=1)
    assert mask.tolist() == np.triu(np.full((3, 3), -np.inf), 1).tolist()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0,), (3, 0, 2)])
def test_empty_tensors_stay_empty(shape):
    x = torch.zeros(shape)
    assert tuple(x.flip(0).shape) == shape
    assert tuple(x.roll(1, 0).shape) == shape
    assert tuple(x.repeat(*[2] * len(shape)).shape) == tuple(2 * s for s in shape)
    if len(shape) > 1:
        assert tuple(x.tril().shape) == shape


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda x: x.flip(3), IndexError, "Dimension out of range"),
        (lambda x: x.roll((1, 2), 0), RuntimeError, "must align"),
        (lambda x: x.roll((1, 2)), RuntimeError, "must align"),
        (lambda x: x.repeat(2), RuntimeError, "repeat dims"),
        (lambda x: x.repeat(1, 1, -1), RuntimeError, "repeat dims"),
        (lambda x: x.repeat_interleave(-1), RuntimeError, "negative"),
        (lambda x: x.repeat_interleave(torch.tensor([1, 2]), 1), RuntimeError, "same size"),
    ],
)
def test_rearrangement_that_does_not_fit_is_explained(act, error, text):
    with pytest.raises(error, match=text):
        act(cube())
