"""DataLoader: batches of a dataset, in this process or made by worker processes.

State
-----
The settings of the constructor, fixed from then on, and the iterator of persistent workers.

Invariants
----------
* The order of batches is that of the sampler, whatever the number of workers (unless
  ``in_order=False``).
* Each epoch draws one seed from the loader's generator; worker ``i`` seeds itself with seed + i.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from refruntime import _storage
from refruntime.errors import ArgumentValueError
from refruntime.utils.data._iterators import ParallelIterator, SerialIterator
from refruntime.utils.data._worker import Plan, WorkerInfo, get_worker_info
from refruntime.utils.data.collate import default_collate, default_convert
from refruntime.utils.data.dataset import IterableDataset
from refruntime.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    draw_seed,
)

__all__ = ["DataLoader", "WorkerInfo", "default_collate", "default_convert", "get_worker_info"]

T_co = TypeVar("T_co", covariant=True)

_FIXED = frozenset(
    {"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"}
)


class _Endless(Sampler[None]):
    """The sampler of an iterable dataset: there are no indices, only asking."""

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)


def _refuse(what: str, remedy: str = "") -> ArgumentValueError:
    return ArgumentValueError("DataLoader", what=what, remedy=remedy)


class DataLoader(Generic[T_co]):
    """Iterates over batches of a dataset.

    Parameters
    ----------
    dataset : Dataset
        Map-style or iterable-style.
    batch_size : int or None
        Samples a batch; None gives the samples one by one, without collation.
    shuffle : bool, optional
        Whether to take the samples in random order.
    sampler : Sampler or iterable, optional
        Where the indices come from, in the place of `shuffle`.
    batch_sampler : Sampler or iterable, optional
        Gives lists of indices, in the place of the four arguments before.
    num_workers : int
        Processes that make batches; 0 makes them in this process.
    collate_fn : callable, optional
        Makes a batch of a list of samples; default `default_collate`.
    pin_memory : bool
        Whether batches are put into page-locked memory; without a GPU they are not.
    drop_last : bool
        Whether a last, smaller batch is left out.
    timeout : float
        Seconds to wait for a batch of a worker; 0 waits for ever.
    worker_init_fn : callable, optional
        Called with its number in each worker, after seeding.
    multiprocessing_context : str or context, optional
        How processes are started; default ``fork``.
    generator : Generator, optional
        Where shuffling and the workers' seeds come from.
    prefetch_factor : int, optional
        Batches under way a worker; default 2.
    persistent_workers : bool
        Whether the processes live on after an epoch.
    pin_memory_device : str
        Accepted and not used.
    in_order : bool
        Whether batches keep the sampler's order (else: the first that is ready).
    """

    _iterator: ParallelIterator | None = None

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor if prefetch_factor or not num_workers else 2
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self._is_iterable = isinstance(dataset, IterableDataset)
        if self._is_iterable:
            _check_iterable(shuffle, sampler, batch_sampler)
        _check_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        if sampler is None:
            sampler = self._default_sampler(bool(shuffle))
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        default = default_convert if batch_sampler is None else default_collate
        self.collate_fn: Callable[[Any], Any] = default if collate_fn is None else collate_fn
        self._fixed = True

    def _default_sampler(self, shuffle: bool) -> Any:
        if self._is_iterable:
            return _Endless()
        if shuffle:
            return RandomSampler(self.dataset, generator=self.generator)
        return SequentialSampler(self.dataset)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self.__dict__.get("_fixed"):
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized"
            )
        object.__setattr__(self, name, value)

    def __iter__(self) -> Any:
        if not (self.persistent_workers and self.num_workers > 0):
            return self._get_iterator()
        if self._iterator is None or self._iterator._closed:
            self._iterator = self._get_iterator()
        else:
            self._iterator.start_epoch(iter(self._index_sampler))
        return self._iterator

    def _get_iterator(self) -> Any:
        batched = self._auto_collation
        drop_last = self.drop_last and batched
        plan = Plan(self.dataset, self._is_iterable, batched, self.collate_fn, drop_last)
        if self.num_workers == 0:
            return SerialIterator(plan, iter(self._index_sampler), self.pins)
        base_seed = draw_seed(self.generator)
        return ParallelIterator(plan, iter(self._index_sampler), self, base_seed)

    @property
    def pins(self) -> bool:
        """Whether batches are pinned: where it was asked for and there is a GPU."""
        return self.pin_memory and bool(_storage.gpu_allocators)

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._auto_collation else self.sampler

    def __len__(self) -> int:
        if not self._is_iterable:
            return len(self._index_sampler)
        size = len(self.dataset)
        if self.batch_size is None:
            return size
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)


def _check_workers(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool
) -> None:
    if num_workers < 0:
        raise _refuse(
            "num_workers option should be non-negative", "use num_workers=0 for no processes"
        )
    if timeout < 0:
        raise _refuse("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise _refuse(
            "prefetch_factor option could only be specified in multiprocessing", "num_workers > 0"
        )
    if prefetch_factor is not None and prefetch_factor < 0:
        raise _refuse("prefetch_factor option should be non-negative")
    if persistent_workers and num_workers == 0:
        raise _refuse("persistent_workers option needs num_workers > 0")


def _check_order(
    batch_size: int | None, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    if sampler is not None and shuffle:
        raise _refuse("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise _refuse(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                "sampler, and drop_last"
            )
    elif batch_size is None and drop_last:
        raise _refuse("batch_size=None option disables auto-batching", "drop drop_last")


def _check_iterable(shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    if shuffle not in (False, None):
        raise _refuse(
            f"DataLoader with IterableDataset: expected unspecified shuffle option, got {shuffle}"
        )
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if given is not None:
            raise _refuse(f"DataLoader with IterableDataset: expected unspecified {name} option")
