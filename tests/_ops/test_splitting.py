"""Taking tensors apart: sizes of the pieces, and what cannot be split."""

import numpy as np
import pytest

import refruntime as torch


def sizes(parts, dim=0):
    return [part.shape[dim] for part in parts]


def test_split_takes_a_size_or_a_list_of_sizes():
    x = torch.arange(7)
    assert sizes(x.split(3)) == [3, 3, 1]
    assert sizes(x.split([2, 0, 5])) == [2, 0, 5]
    assert [p.tolist() for p in x.split([3, 4])] == [[0, 1, 2], [3, 4, 5, 6]]
    assert sizes(torch.zeros(2, 5).split(2, -1), 1) == [2, 2, 1]
    assert sizes(torch.zeros(0).split(3)) == [0]


@pytest.mark.parametrize(("total", "count"), [(7, 3), (5, 4), (4, 4), (2, 5), (0, 2)])
def test_chunk_gives_equal_pieces_and_perhaps_fewer(total, count):
    parts = torch.arange(total).chunk(count)
    size = -(-total // count)
    assert sizes(parts) == ([size] * (total // size) + [total % size] * bool(total % size)
                            if total else [0] * count)  # fmt: skip


@pytest.mark.parametrize("sections", [3, 1, [2, 5], [5, 2], (1, -1), [0, 9]])
def test_tensor_split_equals_numpy(sections):
    x = torch.arange(7)
    got = [part.tolist() for part in x.tensor_split(sections)]
    assert got == [part.tolist() for part in np.array_split(x.numpy(), sections)]
    if not isinstance(sections, int):
        assert [p.tolist() for p in x.tensor_split(torch.tensor(sections))] == got


def test_axis_splits_equal_numpy():
    x = torch.arange(24).reshape(2, 6, 2)
    for name, count in (("hsplit", 3), ("vsplit", 2), ("dsplit", 2)):
        got = [part.tolist() for part in getattr(torch, name)(x, count)]
        assert got == [part.tolist() for part in getattr(np, name)(x.numpy(), count)]
    assert sizes(torch.arange(4).hsplit(2)) == [2, 2]


def test_iteration_and_unpacking_unbind_the_first_dimension():
    first, second = torch.arange(4).reshape(2, 2)
    assert (first.tolist(), second.tolist()) == ([0, 1], [2, 3])
    assert [row.sum().item() for row in torch.ones(3, 2)] == [2.0] * 3


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda: torch.zeros(5).split([2, 2]), RuntimeError, "sum exactly to 5"),
        (lambda: torch.zeros(5).split([6, -1]), RuntimeError, "sum exactly to 5"),
        (lambda: torch.zeros(5).split(0), RuntimeError, "split_size can only be 0"),
        (lambda: torch.zeros(5).split(-1), RuntimeError, "non-negative"),
        (lambda: torch.zeros(5).split(1, 1), IndexError, "Dimension out of range"),
        (lambda: torch.tensor(1.0).split(1), RuntimeError, "at least a 1-dimensional"),
        (lambda: torch.zeros(5).chunk(0), RuntimeError, "greater than 0"),
        (lambda: torch.zeros(5).tensor_split(0), RuntimeError, "larger than 0"),
        (lambda: torch.zeros(5).hsplit(2), RuntimeError, "not divisible"),
        (lambda: torch.zeros(4).vsplit(2), RuntimeError, "at least 2 dimension"),
        (lambda: torch.tensor(1.0).unbind(), IndexError, "no dimensions"),
    ],
)
def test_split_that_is_not_there_is_explained(act, error, text):
    with pytest.raises(error, match=text):
        act()


def test_gradients_of_the_pieces_are_joined():
    x = torch.ones(5, requires_grad=True)
    first, _, last = x.split(2)
    (first.sum() * 2 + last.sum() * 3).backward()
    assert x.grad.tolist() == [2.0, 2.0, 0.0, 0.0, 3.0]
