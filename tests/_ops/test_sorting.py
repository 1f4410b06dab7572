"""Order: stability, NaN, top elements, medians, unique values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refruntime as torch

NAN = float("nan")


@given(st.lists(st.integers(-3, 3), max_size=30), st.booleans())
def test_sort_is_stable_both_ways(values, descending):
    got, places = torch.tensor(values, dtype=torch.int64).sort(descending=descending)
    order = sorted(range(len(values)), key=lambda i: values[i], reverse=descending)
    assert places.tolist() == order
    assert got.tolist() == [values[i] for i in order]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_is_the_largest_number(dtype):
    x = torch.tensor([2.0, NAN, 1.0], dtype=dtype)
    assert x.sort()[1].tolist() == [2, 0, 1]
    assert x.sort(descending=True)[1].tolist() == [1, 0, 2]
    assert x.topk(1)[1].tolist() == [1]
    assert x.topk(2, largest=False)[1].tolist() == [2, 0]
    assert x.sort()[0].dtype is dtype


@pytest.mark.parametrize(("size", "k"), [(1, 1), (5, 5), (100, 3), (100, 0), (64, 8), (65, 8)])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_gives_the_best_in_order(size, k, largest):
    x = np.random.default_rng(size).permutation(size).astype(np.float32)
    values, places = torch.tensor(np.stack([x, -x])).topk(k, largest=largest)
    for row, source in zip(values.tolist(), (x, -x), strict=True):
        assert row == sorted(source.tolist(), reverse=largest)[:k]
    assert np.take_along_axis(np.stack([x, -x]), places.numpy(), 1).tolist() == values.tolist()


def test_sort_along_any_dimension_of_any_layout():
    x = torch.tensor(np.random.default_rng(0).random((3, 4, 5))).permute(2, 0, 1)
    for dim in range(3):
        values, places = x.sort(dim)
        np.testing.assert_array_equal(values.numpy(), np.sort(x.numpy(), dim))
        np.testing.assert_array_equal(x.gather(dim, places).numpy(), values.numpy())
        assert x.argsort(dim).tolist() == places.tolist()
    assert torch.msort(x).tolist() == np.sort(x.numpy(), 0).tolist()


def test_gradient_goes_back_to_where_the_values_stood():
    x = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    (x.sort()[0] * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert x.grad.tolist() == [100.0, 1.0, 10.0]
    y = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    y.median().backward()
    assert y.grad.tolist() == [0.0, 0.0, 1.0]


def test_median_is_the_lower_middle_and_nan_if_any():
    assert torch.tensor([4.0, 1.0, 2.0, 3.0]).median().item() == 2.0
    values, places = torch.tensor([[5, 1, 3], [2, 9, 4]]).median(1, keepdim=True)
    assert (values.tolist(), places.tolist()) == ([[3], [4]], [[2], [2]])
    values, places = torch.tensor([[1.0, NAN, 3.0], [2.0, 9.0, 4.0]]).median(1)
    assert places.tolist() == [1, 2]
    assert np.isnan(values[0].item())
    assert values[1].item() == 4.0
    assert np.isnan(torch.tensor([]).median().item())


def test_kthvalue_counts_from_one():
    x = torch.tensor([[3.0, 1.0, 2.0]])
    assert x.kthvalue(2).values.tolist() == [2.0]
    assert x.kthvalue(3, keepdim=True).indices.tolist() == [[0]]


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda x: x.topk(4), RuntimeError, "k out of range"),
        (lambda x: x.kthvalue(0), RuntimeError, "out of range"),
        (lambda x: x.kthvalue(4), RuntimeError, "out of range"),
        (lambda x: x[:0].median(0), IndexError, "non-zero size"),
        (lambda x: torch.searchsorted(torch.zeros(2, 3), x), RuntimeError, "boundaries"),
    ],
)
def test_order_that_is_not_there_is_explained(act, error, text):
    with pytest.raises(error, match=text):
        act(torch.zeros(3))


@given(st.lists(st.integers(-4, 4), max_size=20))
def test_unique_equals_numpy(values):
    x = torch.tensor(values, dtype=torch.int64)
    got = torch.unique(x, return_inverse=True, return_counts=True)
    want = np.unique(np.array(values, np.int64), return_inverse=True, return_counts=True)
    assert [part.tolist() for part in got] == [part.tolist() for part in want]
    assert x.unique().tolist() == want[0].tolist()


def test_unique_consecutive_drops_only_neighbours():
    x = torch.tensor([1, 1, 2, 2, 1])
    values, inverse, counts = torch.unique_consecutive(x, True, True)
    assert values.tolist() == [1, 2, 1]
    assert inverse.tolist() == [0, 0, 1, 1, 2]
    assert counts.tolist() == [2, 2, 1]
    rows = torch.tensor([[1, 2], [1, 2], [3, 4]])
    assert torch.unique_consecutive(rows, dim=0).tolist() == [[1, 2], [3, 4]]


def test_searchsorted_and_bucketize():
    edges = torch.tensor([1.0, 3.0, 5.0])
    assert torch.searchsorted(edges, torch.tensor([[3.0, 0.0]])).tolist() == [[1, 0]]
    assert torch.searchsorted(edges, torch.tensor([3.0]), side="right").tolist() == [2]
    assert torch.searchsorted(edges, 4.0).item() == 2
    assert torch.bucketize(torch.tensor([3.0]), edges, right=True).tolist() == [2]
    rows = torch.tensor([[1.0, 3.0], [2.0, 4.0]])
    assert torch.searchsorted(rows, torch.tensor([[2.0], [2.0]])).tolist() == [[1], [0]]
    assert torch.searchsorted(edges, torch.tensor([2.0]), out_int32=True).dtype is torch.int32


def test_isin_takes_tensors_and_numbers():
    x = torch.tensor([1, 2, 3])
    assert torch.isin(x, torch.tensor([2, 9])).tolist() == [False, True, False]
    assert torch.isin(x, 3, invert=True).tolist() == [True, True, False]
    assert torch.isin(2, x).item() is True
