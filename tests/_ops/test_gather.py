"""gather and scatter: repeated places, reductions, parts of src, bad indices."""

import numpy as np
import pytest

import refruntime as torch


def test_scatter_into_repeated_places_keeps_the_last():
    x = torch.zeros(3).scatter(0, torch.tensor([1, 1]), torch.tensor([5.0, 6.0]))
    assert x.tolist() == [0.0, 6.0, 0.0]


def test_scatter_add_sums_repeated_places():
    x = torch.zeros(2, 3)
    x.scatter_add_(1, torch.tensor([[0, 0, 2]]), torch.ones(1, 3))
    assert x.tolist() == [[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("reduce", "include", "want"),
    [
        ("sum", True, [11.0, 7.0, 3.0]),
        ("sum", False, [10.0, 5.0, 3.0]),
        ("prod", True, [24.0, 10.0, 3.0]),
        ("prod", False, [24.0, 5.0, 3.0]),
        ("mean", True, [11 / 3, 3.5, 3.0]),
        ("mean", False, [5.0, 5.0, 3.0]),
        ("amax", True, [6.0, 5.0, 3.0]),
        ("amin", True, [1.0, 2.0, 3.0]),
        ("amin", False, [4.0, 5.0, 3.0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_scatter_reduce_joins_values(reduce, include, want, dtype):
    x = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)
    src = torch.tensor([4.0, 6.0, 5.0], dtype=dtype)
    index = torch.tensor([0, 0, 1])
    got = x.scatter_reduce(0, index, src, reduce, include_self=include)
    np.testing.assert_allclose(got.to(torch.float64).numpy(), want, rtol=1e-3)


def test_scatter_reduce_of_integers():
    x = torch.tensor([1, 9])
    index = torch.tensor([0, 1, 1])
    src = torch.tensor([-3, 4, 20])
    assert x.scatter_reduce(0, index, src, "amax", include_self=False).tolist() == [-3, 20]
    assert x.scatter_reduce(0, index, src, "mean").tolist() == [-1, 11]


def test_scatter_reduce_spreads_the_gradient_over_equal_extremes():
    x = torch.tensor([2.0, 0.0], requires_grad=True)
    src = torch.tensor([2.0, 1.0, 3.0], requires_grad=True)
    x.scatter_reduce(0, torch.tensor([0, 0, 1]), src, "amax").sum().backward()
    assert x.grad.tolist() == [0.5, 0.0]
    assert src.grad.tolist() == [0.5, 0.0, 1.0]


def test_part_of_src_that_is_not_used_gets_zero_gradient():
    src = torch.ones(2, 4, requires_grad=True)
    torch.zeros(3, 4).scatter(0, torch.tensor([[2, 1]]), src).sum().backward()
    assert src.grad.tolist() == [[1.0, 1.0, 0.0, 0.0], [0.0] * 4]


def test_scatter_takes_a_number_and_the_old_reduce_names():
    x = torch.ones(2, 2)
    index = torch.tensor([[1, 0]])
    assert x.scatter(0, index, 5.0).tolist() == [[1.0, 5.0], [5.0, 1.0]]
    assert x.scatter(0, index, 5.0, reduce="add").tolist() == [[1.0, 6.0], [6.0, 1.0]]
    assert x.scatter(0, index, 5.0, reduce="multiply").tolist() == [[1.0, 5.0], [5.0, 1.0]]
    assert x.scatter(0, index, value=2.0).tolist() == [[1.0, 2.0], [2.0, 1.0]]


@pytest.mark.parametrize("index", [[0, 3], [-1, 0]])
def test_index_out_of_range_is_refused_before_anything_is_written(index):
    x = torch.zeros(3)
    index = torch.tensor(index)
    for act in (
        lambda: x.scatter_(0, index, 1.0),
        lambda: x.scatter_add_(0, index, torch.ones(2)),
        lambda: x.gather(0, index),
    ):
        with pytest.raises(RuntimeError, match=r"out of bounds for dimension 0 with size 3"):
            act()
        with pytest.raises(IndexError):
            act()
    assert x.tolist() == [0.0] * 3


def test_gather_of_a_zero_dim_tensor():
    assert torch.tensor(2.5).gather(0, torch.tensor(0)).item() == 2.5


def test_index_slices_act_on_whole_rows():
    x = torch.zeros(3, 2)
    index = torch.tensor([0, 2, 0])
    rows = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    assert x.index_add(0, index, rows, alpha=10).tolist() == [[40.0] * 2, [0.0] * 2, [20.0] * 2]
    assert x.index_copy(0, index, rows).tolist() == [[3.0] * 2, [0.0] * 2, [2.0] * 2]
    assert x.index_fill(1, torch.tensor([-1]), 4).tolist() == [[0.0, 4.0]] * 3
    assert x.index_add_(0, index, rows) is x
    assert x[0].tolist() == [4.0, 4.0]


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda x: x.index_add(0, torch.tensor([5]), torch.ones(1, 2)), RuntimeError, "index 5"),
        (lambda x: x.index_add(0, torch.tensor([0]), torch.ones(2, 2)), RuntimeError, "do not fit"),
        (lambda x: x.index_fill(0, torch.tensor([0]), torch.ones(2)), TypeError, "0-dim"),
        (lambda x: x.index_copy(0, torch.tensor([[0]]), torch.ones(1, 2)), IndexError, "vector"),
        (lambda x: x.index_select(0, torch.tensor([3])), IndexError, "index 3 is out of bounds"),
    ],
)
def test_index_slices_explain_what_does_not_fit(act, error, text):
    with pytest.raises(error, match=text):
        act(torch.zeros(3, 2))


def test_index_select_of_rows_accumulates_the_gradient():
    x = torch.zeros(3, 2, requires_grad=True)
    x.index_select(0, torch.tensor([1, 1, 0])).sum().backward()
    assert x.grad.tolist() == [[1.0] * 2, [2.0] * 2, [0.0] * 2]


def test_index_reduce_joins_rows():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    rows = torch.tensor([[5.0, 1.0], [2.0, 2.0]])
    index = torch.tensor([0, 0])
    assert x.index_reduce(0, index, rows, "amax").tolist() == [[5.0, 2.0], [3.0, 4.0]]
    assert x.index_reduce(0, index, rows, "prod", include_self=False)[0].tolist() == [10.0, 2.0]


def test_index_vectors_write_a_zero_dim_tensor_as_one_element():
    x = torch.tensor(2.0)
    index = torch.tensor([0])
    assert x.index_fill(0, index, 5.0).item() == 5.0
    assert x.index_add(0, index, torch.tensor([3.0])).item() == 5.0
    assert x.index_copy(0, torch.tensor(0), torch.tensor(7.0)).item() == 7.0
    with pytest.raises(IndexError, match="dimension 0 with size 1"):
        x.index_fill(0, torch.tensor([1]), 5.0)


def test_gradient_of_a_product_with_zeros_among_the_factors():
    x = torch.tensor([2.0, 0.0, 3.0], requires_grad=True)
    src = torch.tensor([0.0, 5.0, 4.0, 0.0], requires_grad=True)
    x.scatter_reduce(0, torch.tensor([0, 0, 1, 2]), src, "prod").sum().backward()
    assert x.grad.tolist() == [0.0, 4.0, 0.0]
    assert src.grad.tolist() == [10.0, 0.0, 0.0, 3.0]


def test_writing_into_a_copy_of_an_expanded_tensor_gives_each_element_its_own_memory():
    x = torch.zeros(3).expand(2, 3)
    index = torch.tensor([[0], [2]])
    for out in (
        torch.scatter(x, 1, index, 1.0), torch.scatter_add(x, 1, index, torch.ones(2, 1)),
        x.index_put((torch.arange(2), index[:, 0]), torch.ones(())),
    ):  # fmt: skip
        assert out.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert torch.fill(x, 2.0).add_(1).tolist() == [[3.0] * 3] * 2
