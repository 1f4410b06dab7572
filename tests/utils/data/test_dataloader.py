"""DataLoader in this process: batching, shuffling, settings."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.random import Generator
from refruntime.utils import data

TEN = list(range(10))


class Stream(data.IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))

    def __len__(self):
        return self.n


def lists(loader):
    return [batch.tolist() for batch in loader]


def test_batches_come_in_order_and_the_last_may_be_smaller():
    loader = data.DataLoader(TEN, batch_size=4)
    assert lists(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    assert lists(loader) == lists(loader)


def test_drop_last_leaves_the_smaller_batch_out():
    loader = data.DataLoader(TEN, batch_size=4, drop_last=True)
    assert lists(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(loader) == 2


def test_shuffling_is_repeatable_by_generator():
    loaders = [
        data.DataLoader(TEN, batch_size=5, shuffle=True, generator=Generator().manual_seed(1))
        for _ in range(2)
    ]
    first, second = lists(loaders[0]), lists(loaders[1])
    assert first == second
    assert sorted(i for batch in first for i in batch) == TEN
    assert lists(loaders[0]) != first


def test_a_sampler_or_a_batch_sampler_decides():
    assert lists(data.DataLoader(TEN, batch_size=2, sampler=[3, 1, 4])) == [[3, 1], [4]]
    loader = data.DataLoader(TEN, batch_sampler=[[5], [1, 2]])
    assert lists(loader) == [[5], [1, 2]]
    assert len(loader) == 2


def test_without_batching_samples_are_converted_one_by_one():
    loader = data.DataLoader(data.TensorDataset(torch.arange(3)), batch_size=None)
    assert [[int(x) for x in sample] for sample in loader] == [[0], [1], [2]]


def test_a_collate_function_makes_the_batch():
    loader = data.DataLoader(TEN, batch_size=5, collate_fn=sum)
    assert list(loader) == [10, 35]


def test_iterable_datasets_are_batched():
    assert lists(data.DataLoader(Stream(5), batch_size=2)) == [[0, 1], [2, 3], [4]]
    assert lists(data.DataLoader(Stream(5), batch_size=2, drop_last=True)) == [[0, 1], [2, 3]]
    assert list(data.DataLoader(Stream(3), batch_size=None)) == [0, 1, 2]
    assert len(data.DataLoader(Stream(5), batch_size=2)) == 3


def test_a_dataset_may_give_many_samples_at_once():
    class Many(data.Dataset):
        def __len__(self):
            return 4

        def __getitems__(self, indices):
            return [i * 10 for i in indices]

    assert lists(data.DataLoader(Many(), batch_size=2)) == [[0, 10], [20, 30]]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sampler": [0], "shuffle": True}, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler option"),
        ({"batch_size": None, "drop_last": True}, "auto-batching"),
        ({"num_workers": -1}, "num_workers"),
        ({"timeout": -1}, "timeout"),
        ({"prefetch_factor": 2}, "prefetch_factor"),
        ({"persistent_workers": True}, "persistent_workers"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_settings_that_exclude_each_other(settings, text):
    with pytest.raises(ValueError, match=text):
        data.DataLoader(TEN, **settings)


@pytest.mark.parametrize(
    "settings", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}]
)
def test_an_iterable_dataset_takes_no_order(settings):
    with pytest.raises(ValueError, match="IterableDataset"):
        data.DataLoader(Stream(3), **settings)


def test_settings_are_fixed_after_construction():
    loader = data.DataLoader(TEN)
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3
    loader.note = "free"


def test_there_is_no_worker_in_the_main_process():
    assert data.get_worker_info() is None
