"""DataLoader with worker processes: order, errors, seeds, ends."""

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np
import pytest

import refruntime as torch
from refruntime.alloc import categories
from refruntime.utils import data

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


class Squares(data.Dataset):
    """Sample i is (a float row of i, i * i); the first samples take longest."""

    def __init__(self, n=12):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(0.002 * (self.n - index) % 3)
        return torch.full((3,), float(index)), index * index


class Failing(Squares):
    def __getitem__(self, index):
        if index == 5:
            raise KeyError("no sample 5")
        return index


class Dying(Squares):
    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Shared(data.IterableDataset):
    def __iter__(self):
        info = data.get_worker_info()
        return iter(range(info.id, 7, info.num_workers))


class Draws(data.Dataset):
    """What each worker draws from each generator."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        info = data.get_worker_info()
        drawn = (random.random(), float(np.random.random_sample()), float(torch.rand(())))
        return (info.id, info.seed, *drawn)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_order_and_values_are_those_of_one_process(workers):
    alone = list(data.DataLoader(Squares(), batch_size=5))
    together = list(data.DataLoader(Squares(), batch_size=5, num_workers=workers))
    assert len(alone) == len(together) == 3
    for (x, y), (a, b) in zip(alone, together, strict=True):
        np.testing.assert_array_equal(x.numpy(), a.numpy())
        np.testing.assert_array_equal(y.numpy(), b.numpy())


def test_batches_arrive_in_memory_of_the_allocator():
    (batch,) = data.DataLoader([torch.ones(1000)], num_workers=1)
    assert batch.storage.category != categories.EXTERNAL
    batch.add_(1)
    assert float(batch.sum()) == 2000.0


def test_structure_dtypes_and_shared_tensors_survive_the_way():
    shared = torch.arange(3, dtype=torch.int16)

    def collate(samples):
        return {
            "same": [shared, shared], "half": torch.ones(2, dtype=torch.bfloat16),
            "array": np.arange(4.0), "empty": torch.empty(0, 3), "flag": torch.tensor(True),
            "grad": torch.ones(1, requires_grad=True), "text": ["a", None],
        }  # fmt: skip

    (batch,) = data.DataLoader([0], num_workers=1, collate_fn=collate)
    assert batch["same"][0] is batch["same"][1]
    assert batch["same"][0].dtype is torch.int16
    assert batch["half"].float().tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(batch["array"], np.arange(4.0))
    assert tuple(batch["empty"].shape) == (0, 3)
    assert bool(batch["flag"])
    assert batch["grad"].requires_grad
    assert batch["text"] == ["a", None]


def test_an_error_in_a_worker_comes_out_with_its_traceback():
    loader = data.DataLoader(Failing(), batch_size=2, num_workers=2)
    with pytest.raises(KeyError) as caught:
        list(loader)
    text = str(caught.value)
    assert "Caught KeyError in DataLoader worker process 0." in text
    assert 'raise KeyError("no sample 5")' in text
    assert "\n" in text


def test_a_batch_that_cannot_be_sent_is_an_error():
    loader = data.DataLoader([1], num_workers=1, collate_fn=lambda samples: lambda: samples)
    with pytest.raises(Exception, match="in DataLoader worker process 0"):
        list(loader)


def test_a_worker_that_dies_is_noticed():
    with pytest.raises(RuntimeError, match="exited unexpectedly: killed by signal 9"):
        list(data.DataLoader(Dying(), batch_size=2, num_workers=2))


def test_a_batch_that_takes_too_long_is_an_error():
    class Slow(Squares):
        def __getitem__(self, index):
            time.sleep(30)

    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        list(data.DataLoader(Slow(), num_workers=1, timeout=0.2))


def test_an_iterable_dataset_is_shared_out_by_its_own_code():
    loader = data.DataLoader(Shared(), batch_size=2, num_workers=2)
    assert [batch.tolist() for batch in loader] == [[0, 2], [1, 3], [4, 6], [5]]


def test_workers_have_random_streams_of_their_own_that_the_seed_repeats():
    def draw():
        torch.manual_seed(8)
        return [tuple(float(v) for v in row) for row in
                data.DataLoader(Draws(), batch_size=None, num_workers=2)]  # fmt: skip

    rows = draw()
    assert [row[0] for row in rows] == [0, 1, 0, 1]
    assert rows[1][1] == rows[0][1] + 1
    assert len({value for row in rows for value in row[2:]}) == 12
    assert draw() == rows


def test_each_epoch_has_seeds_of_its_own():
    loader = data.DataLoader(Draws(), batch_size=None, num_workers=1)
    assert next(iter(loader))[1] != next(iter(loader))[1]


def test_the_init_function_runs_in_each_worker():
    def start(number):
        os.environ["REFRUNTIME_TEST_WORKER"] = str(number)

    class Named(Squares):
        def __getitem__(self, index):
            return int(os.environ["REFRUNTIME_TEST_WORKER"])

    loader = data.DataLoader(Named(4), num_workers=2, worker_init_fn=start)
    assert [int(batch) for batch in loader] == [0, 1, 0, 1]
    assert "REFRUNTIME_TEST_WORKER" not in os.environ


def test_an_error_of_the_init_function_comes_out():
    def start(number):
        raise ValueError("bad start")

    with pytest.raises(ValueError, match="bad start"):
        list(data.DataLoader(Squares(), num_workers=1, worker_init_fn=start))


def pids(loader):
    return {int(pid) for batch in loader for pid in batch}


class Pid(Squares):
    def __getitem__(self, index):
        return os.getpid()


def test_persistent_workers_live_on_and_others_do_not():
    lasting = data.DataLoader(Pid(), num_workers=2, persistent_workers=True)
    assert pids(lasting) == pids(lasting)
    passing = data.DataLoader(Pid(), num_workers=2)
    assert pids(passing).isdisjoint(pids(passing))


def test_an_epoch_left_early_does_not_leak_into_the_next():
    loader = data.DataLoader(Squares(), batch_size=3, num_workers=2, persistent_workers=True)
    next(iter(loader))
    assert [y.tolist()[0] for _, y in loader] == [0, 9, 36, 81]


def test_workers_end_when_the_iterator_is_dropped():
    iterator = iter(data.DataLoader(Squares(), num_workers=2))
    next(iterator)
    processes = [worker.process for worker in iterator.workers]
    del iterator
    assert not any(process.is_alive() for process in processes)


def test_without_order_all_batches_still_come():
    loader = data.DataLoader(Squares(), batch_size=2, num_workers=2, in_order=False)
    assert sorted(int(v) for _, y in loader for v in y) == [i * i for i in range(12)]


def test_long_index_lists_and_large_batches_do_not_block_each_other():
    loader = data.DataLoader(range(400_000), batch_size=200_000, num_workers=1)
    assert [int(batch.sum()) for batch in loader] == [19999900000, 59999900000]
