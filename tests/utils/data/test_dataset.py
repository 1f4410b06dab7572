"""Datasets and how they combine and split."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.random import Generator
from refruntime.utils import data


class Numbers(data.Dataset):
    def __init__(self, *values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]


class Stream(data.IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))

    def __len__(self):
        return self.n


def test_a_tensor_dataset_gives_rows_of_all_tensors():
    rows = data.TensorDataset(torch.arange(6).reshape(3, 2), torch.tensor([7, 8, 9]))
    x, y = rows[1]
    assert (x.tolist(), int(y), len(rows)) == ([2, 3], 8, 3)
    with pytest.raises(AssertionError, match="Size mismatch"):
        data.TensorDataset(torch.ones(2), torch.ones(3))


def test_gathering_rows_is_stacking_samples():
    rows = data.TensorDataset(torch.arange(6).reshape(3, 2), torch.tensor([7, 8, 9]))
    x, y = rows.gather([2, 0, -1])
    assert (x.tolist(), y.tolist()) == ([[4, 5], [0, 1], [4, 5]], [9, 7, 9])
    (batch,) = data.DataLoader(rows, batch_sampler=[[2, 0, -1]])
    (plain,) = data.DataLoader(rows, batch_sampler=[[2, 0, -1]], collate_fn=list)
    assert type(batch) is list
    assert batch[0].tolist() == [sample[0].tolist() for sample in plain]


def test_datasets_add_up():
    both = Numbers(1, 2) + Numbers(3)
    assert type(both) is data.ConcatDataset
    assert [both[i] for i in range(3)] == [1, 2, 3]
    assert (both[-1], both[-3], len(both)) == (3, 1, 3)
    with pytest.raises(ValueError, match="exceed dataset length"):
        both[-4]
    with pytest.raises(AssertionError, match="empty"):
        data.ConcatDataset([])
    with pytest.raises(AssertionError, match="IterableDataset"):
        data.ConcatDataset([Stream(1)])


def test_iterable_datasets_chain():
    chain = Stream(2) + Stream(3)
    assert list(chain) == [0, 1, 0, 1, 2]
    assert len(chain) == 5


def test_a_stack_pairs_datasets():
    assert data.StackDataset(Numbers(1, 2), Numbers(3, 4))[1] == (2, 4)
    assert data.StackDataset(a=Numbers(1), b=Numbers(2))[0] == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="Size mismatch"):
        data.StackDataset(Numbers(1), Numbers(1, 2))


def test_a_subset_renames_indices():
    part = data.Subset(Numbers(10, 11, 12, 13), [3, 1])
    assert [part[0], part[1], len(part)] == [13, 11, 2]
    assert part.__getitems__([1, 0]) == [11, 13]


def test_a_random_split_covers_the_dataset_once():
    parts = data.random_split(Numbers(*range(10)), [7, 3], Generator().manual_seed(1))
    again = data.random_split(Numbers(*range(10)), [7, 3], Generator().manual_seed(1))
    assert [len(part) for part in parts] == [7, 3]
    assert sorted(i for part in parts for i in part.indices) == list(range(10))
    assert [part.indices for part in parts] == [part.indices for part in again]
    assert parts[0].indices != sorted(parts[0].indices)


def test_fractions_are_rounded_down_and_the_rest_goes_to_the_first_parts():
    parts = data.random_split(Numbers(*range(10)), [0.33, 0.33, 0.34])
    assert [len(part) for part in parts] == [4, 3, 3]


def test_lengths_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="Sum of input lengths"):
        data.random_split(Numbers(1, 2), [1, 2])


def test_the_base_classes_ask_for_their_methods():
    with pytest.raises(NotImplementedError):
        data.Dataset()[0]
    with pytest.raises(NotImplementedError):
        iter(data.IterableDataset())
