"""Joining: dtypes, layouts, kin of cat and stack, grids."""

import numpy as np
import pytest

import refruntime as torch


def test_cat_promotes_and_converts():
    joined = torch.cat([torch.tensor([1, 2]), torch.tensor([0.5]), torch.tensor([True])])
    assert joined.dtype is torch.float32
    assert joined.tolist() == [1.0, 2.0, 0.5, 1.0]
    halves = torch.cat([torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.float16)])
    assert halves.dtype is torch.float32


def test_cat_skips_old_style_empty_vectors():
    x = torch.ones(2, 3)
    assert tuple(torch.cat([torch.empty(0), x, torch.empty(0)], 1).shape) == (2, 3)
    assert tuple(torch.cat([torch.empty(0, 3), x]).shape) == (2, 3)


def test_cat_reads_any_layout_and_writes_out():
    x = torch.arange(6.0).reshape(2, 3)
    parts = [x.t(), x.t().contiguous(), x.expand(2, 3)[:, :2].reshape(2, 2)]
    got = torch.cat(parts[:2], 1)
    assert got.tolist() == np.concatenate([x.numpy().T] * 2, 1).tolist()
    out = torch.empty(0)
    assert torch.cat([x, x], 0, out=out) is out
    assert tuple(out.shape) == (4, 3)


def test_cat_of_channels_last_stays_channels_last():
    x = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert torch.cat([x, x], 1).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["hstack", "vstack", "dstack", "column_stack"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 2)])
def test_stacks_equal_numpy(name, shape):
    x = np.arange(float(np.prod(shape))).reshape(shape)
    got = getattr(torch, name)([torch.tensor(x), torch.tensor(-x)])
    assert got.tolist() == getattr(np, name)([x, -x]).tolist()


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_stack_makes_a_new_dimension(dim):
    x = np.arange(6.0).reshape(2, 3)
    got = torch.stack([torch.tensor(x), torch.tensor(-x)], dim)
    assert got.tolist() == np.stack([x, -x], dim).tolist()


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda: torch.cat(torch.ones(2)), TypeError, "must be tuple of Tensors"),
        (lambda: torch.cat([1, 2]), TypeError, "must be Tensor"),
        (lambda: torch.stack([]), RuntimeError, "non-empty"),
        (lambda: torch.stack([torch.ones(2), torch.ones(3)]), RuntimeError, "equal size"),
        (lambda: torch.stack([torch.ones(2)], 3), IndexError, "Dimension out of range"),
        (lambda: torch.meshgrid(torch.ones(2), torch.arange(2)), RuntimeError, "same dtype"),
        (lambda: torch.meshgrid(torch.ones(2), indexing="ab"), ValueError, "indexing"),
    ],
)
def test_join_that_does_not_fit_is_explained(act, error, text):
    with pytest.raises(error, match=text):
        act()


def test_gradient_goes_to_each_part():
    x = torch.ones(2, requires_grad=True)
    y = torch.ones(2, 1, requires_grad=True)
    weight = torch.arange(4.0).reshape(2, 2)
    (torch.cat([x.unsqueeze(1), y], 1) * weight).sum().backward()
    assert x.grad.tolist() == [0.0, 2.0]
    assert y.grad.tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize("indexing", ["ij", "xy"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_meshgrid_equals_numpy(indexing, count):
    vectors = [np.arange(n + 2.0) for n in range(count)]
    got = torch.meshgrid(*[torch.tensor(v) for v in vectors], indexing=indexing)
    for one, two in zip(got, np.meshgrid(*vectors, indexing=indexing), strict=True):
        assert one.tolist() == two.tolist()


def test_cartesian_product_and_block_diagonal():
    pairs = torch.cartesian_prod(torch.tensor([1, 2]), torch.tensor([3, 4]))
    assert pairs.tolist() == [[1, 3], [1, 4], [2, 3], [2, 4]]
    blocks = torch.block_diag(torch.ones(1, 2), torch.tensor([[3.0], [4.0]]))
    assert blocks.tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 3.0], [0.0, 0.0, 4.0]]
