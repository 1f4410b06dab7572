"""DistributedSampler: each process of a group takes its own share of a dataset.

State
-----
`epoch` enters the seed, so that all processes shuffle alike and each epoch differently.

Invariants
----------
* All shares have one length: the list of indices is cut (`drop_last`) or filled up from its start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError
from refruntime.random import Generator
from refruntime.utils.data.sampler import Sampler

__all__ = ["DistributedSampler"]


class DistributedSampler(Sampler[int]):
    """Every `num_replicas`-th index, starting at `rank`.

    Parameters
    ----------
    dataset : sized
        The dataset that is shared.
    num_replicas, rank : int
        The number of processes, and which of them this is.
    shuffle : bool
        Whether the indices are permuted first.
    seed : int
        The same in all processes.
    drop_last : bool
        Whether the tail that does not divide evenly is left out.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:
            raise ArgumentValueError(
                "DistributedSampler", expected="num_replicas and rank",
                got=f"num_replicas={num_replicas}, rank={rank}",
                remedy="pass both: no process group is asked for them",
            )  # fmt: skip
        if not 0 <= rank < num_replicas:
            raise ArgumentValueError(
                "DistributedSampler", what=f"Invalid rank {rank}",
                expected=f"rank in the interval [0, {num_replicas - 1}]", got=str(rank),
            )  # fmt: skip
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.seed = seed
        size = len(dataset)
        share = size // num_replicas if drop_last else math.ceil(size / num_replicas)
        self.num_samples = share
        self.total_size = share * num_replicas

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        indices = list(range(size))
        if self.shuffle:
            generator = Generator()
            generator.manual_seed(self.seed + self.epoch)
            indices = ops.randperm(size, generator=generator).tolist()
        while len(indices) < self.total_size:
            indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch, so that the next iteration shuffles differently."""
        self.epoch = epoch
