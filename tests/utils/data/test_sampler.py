"""Samplers: orders, repeatability, counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refruntime as torch
from refruntime.random import Generator
from refruntime.utils import data


def seeded(seed=3):
    return Generator().manual_seed(seed)


def test_sequential_indices():
    assert list(data.SequentialSampler("abc")) == [0, 1, 2]


@given(st.integers(1, 60), st.integers(0, 5))
def test_random_indices_are_a_permutation_fixed_by_the_generator(size, seed):
    order = list(data.RandomSampler(range(size), generator=seeded(seed)))
    assert sorted(order) == list(range(size))
    assert order == list(data.RandomSampler(range(size), generator=seeded(seed)))


def test_the_default_generator_is_repeatable_by_its_seed_and_differs_between_epochs():
    sampler = data.RandomSampler(range(50))
    torch.manual_seed(4)
    first, second = list(sampler), list(sampler)
    torch.manual_seed(4)
    assert list(sampler) == first != second


def test_more_samples_than_the_dataset_start_a_new_permutation():
    order = list(data.RandomSampler(range(4), num_samples=10, generator=seeded()))
    assert sorted(order[:4]) == sorted(order[4:8]) == [0, 1, 2, 3]
    assert len(order) == 10


def test_with_replacement_indices_repeat():
    sampler = data.RandomSampler(range(5), replacement=True, num_samples=100, generator=seeded())
    order = list(sampler)
    assert len(order) == len(sampler) == 100
    assert set(order) == {0, 1, 2, 3, 4}


def test_a_subset_is_permuted():
    order = list(data.SubsetRandomSampler([9, 5, 7], generator=seeded()))
    assert sorted(order) == [5, 7, 9]


def test_weights_decide_how_often_an_index_comes():
    sampler = data.WeightedRandomSampler([0.0, 3.0, 1.0], 4000, generator=seeded())
    order = list(sampler)
    assert len(sampler) == len(order) == 4000
    assert 0 not in order
    assert abs(order.count(1) / 4000 - 0.75) < 0.03
    once = list(data.WeightedRandomSampler([1.0, 1.0, 1.0], 3, replacement=False))
    assert sorted(once) == [0, 1, 2]


@given(st.integers(1, 30), st.integers(1, 7), st.booleans())
def test_batches_hold_all_indices_in_order(size, batch_size, drop_last):
    sampler = data.BatchSampler(range(size), batch_size, drop_last)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    kept = size - size % batch_size if drop_last else size
    assert [i for batch in batches for i in batch] == list(range(kept))
    assert all(len(batch) == batch_size for batch in batches[:-1])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: data.BatchSampler([1], 0, False), ValueError, "batch_size"),
        (lambda: data.BatchSampler([1], 2, "no"), TypeError, "drop_last"),
        (lambda: data.RandomSampler([], num_samples=None), ValueError, "num_samples"),
        (lambda: data.RandomSampler([1], replacement=1), TypeError, "replacement"),
        (lambda: data.WeightedRandomSampler([[1.0]], 1), ValueError, "1d sequence"),
        (lambda: data.DistributedSampler([1]), ValueError, "num_replicas and rank"),
        (lambda: data.DistributedSampler([1], 2, 2), ValueError, "Invalid rank"),
    ],
)
def test_settings_that_make_no_sense(make, error, text):
    with pytest.raises(error, match=text):
        make()


def shares(drop_last, epoch=0):
    samplers = [data.DistributedSampler(range(10), 4, r, drop_last=drop_last) for r in range(4)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


def test_processes_share_a_dataset_evenly():
    filled, cut = shares(False), shares(True)
    assert [len(share) for share in filled] == [3] * 4
    assert {i for share in filled for i in share} == set(range(10))
    assert [len(share) for share in cut] == [2] * 4
    assert len({i for share in cut for i in share}) == 8
    assert shares(True, epoch=1) != cut
