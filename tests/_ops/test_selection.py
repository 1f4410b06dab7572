"""Masks, flat indices, one-hot rows, embedding."""

import numpy as np
import pytest

import refruntime as torch


def test_nonzero_gives_rows_or_columns():
    x = torch.tensor([[0, 3, 0], [5, 0, 7]])
    assert torch.nonzero(x).tolist() == [[0, 1], [1, 0], [1, 2]]
    assert torch.argwhere(x).tolist() == [[0, 1], [1, 0], [1, 2]]
    rows, columns = torch.nonzero(x, as_tuple=True)
    assert (rows.tolist(), columns.tolist()) == ([0, 1, 1], [1, 0, 2])
    assert tuple(torch.nonzero(torch.tensor(5)).shape) == (1, 0)
    assert tuple(torch.nonzero(torch.tensor(0)).shape) == (0, 0)
    assert [t.tolist() for t in torch.where(x > 4)] == [[1, 1], [0, 2]]


def test_masked_select_broadcasts_and_carries_the_gradient():
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    picked = x.masked_select(torch.tensor([True, False, True]))
    assert picked.tolist() == [0.0, 2.0, 3.0, 5.0]
    picked.sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0, 1.0]] * 2


def test_masked_scatter_takes_values_in_order():
    x = torch.zeros(2, 2)
    mask = torch.tensor([[True, False], [True, True]])
    source = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    assert x.masked_scatter(mask, source).tolist() == [[1.0, 0.0], [2.0, 3.0]]
    x.masked_scatter(mask, source).sum().backward()
    assert source.grad.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert x.masked_scatter_(mask, source.detach()) is x
    assert x.tolist() == [[1.0, 0.0], [2.0, 3.0]]


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda x: x.masked_select(torch.zeros(3)), RuntimeError, "BoolTensor"),
        (lambda x: x.masked_select(torch.ones(4, dtype=torch.bool)), RuntimeError, "must match"),
        (lambda x: x.masked_scatter(x >= 0, torch.ones(5)), RuntimeError, "as many"),
        (lambda x: x.take(torch.tensor([6])), IndexError, "index 6 is out of bounds"),
        (lambda x: torch.take_along_dim(x, torch.tensor([0]), 1), RuntimeError, "same number"),
        (lambda x: torch.nn.functional.one_hot(torch.tensor([-1])), RuntimeError, "non-negative"),
        (lambda x: torch.nn.functional.one_hot(torch.tensor([2]), 2), RuntimeError, "smaller"),
        (lambda x: torch.nn.functional.one_hot(x), RuntimeError, "LongTensor"),
    ],
)
def test_what_does_not_fit_is_explained(act, error, text):
    with pytest.raises(error, match=text):
        act(torch.zeros(2, 3))


def test_take_reads_row_major_places():
    x = torch.arange(6.0).reshape(2, 3).t()
    assert x.take(torch.tensor([[0, 1], [-1, 2]])).tolist() == [[0.0, 3.0], [5.0, 1.0]]


def test_take_along_dim_broadcasts_the_other_dimensions():
    x = torch.arange(6.0).reshape(2, 3)
    order = torch.tensor([[2], [0]])
    want = np.take_along_axis(x.numpy(), order.numpy(), 1)
    assert torch.take_along_dim(x, order, 1).tolist() == want.tolist()
    assert torch.take_along_dim(x, torch.tensor([[1]]), 1).tolist() == [[1.0], [4.0]]
    assert torch.take_along_dim(x, torch.tensor([5, 0])).tolist() == [5.0, 0.0]


def test_one_hot_infers_the_number_of_classes():
    classes = torch.tensor([[0, 2], [1, 1]])
    rows = torch.nn.functional.one_hot(classes)
    assert rows.dtype is torch.int64
    assert rows.tolist() == np.eye(3, dtype=int)[classes.numpy()].tolist()
    assert tuple(torch.nn.functional.one_hot(classes, 5).shape) == (2, 2, 5)


def test_bincount_counts_or_sums_weights():
    x = torch.tensor([1, 3, 1])
    assert torch.bincount(x).tolist() == [0, 2, 0, 1]
    assert torch.bincount(x, minlength=6).tolist() == [0, 2, 0, 1, 0, 0]
    assert torch.bincount(x, torch.tensor([0.5, 1.0, 2.0])).tolist() == [0.0, 2.5, 0.0, 1.0]


def test_embedding_row_at_padding_idx_gets_no_gradient():
    weight = torch.ones(4, 2, requires_grad=True)
    index = torch.tensor([[1, 0], [1, 3]])
    torch.embedding(weight, index, 1).sum().backward()
    assert weight.grad.tolist() == [[1.0] * 2, [0.0] * 2, [0.0] * 2, [1.0] * 2]


def test_embedding_gradient_may_be_divided_by_frequency():
    weight = torch.ones(3, 2, requires_grad=True)
    torch.embedding(weight, torch.tensor([2, 2, 0]), -1, True).sum().backward()
    assert weight.grad.tolist() == [[1.0] * 2, [0.0] * 2, [1.0] * 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_embedding_of_every_floating_dtype(dtype):
    weight = torch.arange(6).reshape(3, 2).to(dtype).requires_grad_()
    rows = torch.embedding(weight, torch.tensor([2, 2, 0], dtype=torch.int32))
    assert rows.dtype is dtype
    assert rows.detach().to(torch.float32).tolist() == [[4.0, 5.0], [4.0, 5.0], [0.0, 1.0]]
    rows.sum().backward()
    assert weight.grad.to(torch.float32).tolist() == [[1.0] * 2, [0.0] * 2, [2.0] * 2]


def test_put_writes_row_major_places():
    x = torch.zeros(2, 2)
    index = torch.tensor([[0, 3]])
    assert x.put(index, torch.tensor([1.0, 2.0])).tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert x.put_(torch.tensor([1, 1]), torch.ones(2), accumulate=True) is x
    assert x.tolist() == [[0.0, 2.0], [0.0, 0.0]]


def test_take_along_dim_counts_negative_places_from_the_end():
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.take_along_dim(x, torch.tensor([[-1], [0]]), 1).tolist() == [[2.0], [3.0]]
    with pytest.raises(IndexError):
        torch.take_along_dim(x, torch.tensor([[-4]]), 1)
