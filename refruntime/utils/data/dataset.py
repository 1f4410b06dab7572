"""Datasets: where samples come from.

State
-----
A map-style `Dataset` answers ``dataset[i]`` and usually ``len(dataset)``; an `IterableDataset`
only iterates. The combining classes hold other datasets and no samples of their own.

Invariants
----------
* A dataset is never changed by the loader; each worker process has its own copy of it.
"""

from __future__ import annotations

import bisect
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from refruntime._dtypes import int64
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """Samples by index. A subclass defines ``__getitem__`` and usually ``__len__``.

    It may also define ``__getitems__(indices)``, which the loader then calls once a batch.
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """Samples in the order of an iterator. A subclass defines ``__iter__``.

    With several workers each of them iterates over its own copy: `get_worker_info` tells a copy
    which share is its own.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")

    def __add__(self, other: Dataset[Any]) -> Any:
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Any, ...]]):
    """Sample i is the tuple of the i-th rows of the tensors.

    Parameters
    ----------
    *tensors : Tensor
        Tensors of the same first size.
    """

    def __init__(self, *tensors: Any) -> None:
        if any(t.shape[0] != tensors[0].shape[0] for t in tensors):
            raise AssertionError("Size mismatch between tensors")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def gather(self, indices: Sequence[int]) -> list[Any]:
        """Return the rows at several indices, each tensor's rows stacked."""
        size = len(self)
        places = ops.tensor([i + size if i < 0 else i for i in indices], dtype=int64)
        return [ops.index_select(t, 0, places.to(t.device)) for t in self.tensors]

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])


class StackDataset(Dataset[Any]):
    """Sample i is the tuple (or dict) of the i-th samples of several datasets of one length."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ArgumentValueError(
                "StackDataset", expected="datasets by position or by keyword",
                got="both" if args else "none",
            )  # fmt: skip
        self.datasets: Any = kwargs or args
        lengths = {len(d) for d in (kwargs.values() if kwargs else args)}
        if len(lengths) > 1:
            raise ArgumentValueError("StackDataset", what="Size mismatch between datasets")
        self._length = lengths.pop()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {key: dataset[index] for key, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __len__(self) -> int:
        return self._length


class ConcatDataset(Dataset[Any]):
    """The samples of several map-style datasets, one dataset after the other.

    Parameters
    ----------
    datasets : iterable of Dataset
        At least one; none of them iterable-style.
    """

    datasets: list[Any]
    cumulative_sizes: list[int]

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        size = len(self)
        if index < -size:
            raise ValueError("absolute value of index should not exceed dataset length")
        place = index + size if index < 0 else index
        which = bisect.bisect_right(self.cumulative_sizes, place)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][place - before]


class ChainDataset(IterableDataset[Any]):
    """The samples of several iterable datasets, one dataset after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield from dataset

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets)


class Subset(Dataset[Any]):
    """The samples of a dataset at some indices."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the samples at several places of the subset."""
        places = [self.indices[i] for i in indices]
        many = getattr(self.dataset, "__getitems__", None)
        if callable(many):
            return list(many(places))
        return [self.dataset[place] for place in places]

    def __len__(self) -> int:
        return len(self.indices)


def _lengths_of_fractions(fractions: Sequence[float], size: int) -> list[int]:
    """Turn fractions into lengths; what rounding leaves goes to the first parts, one each."""
    lengths = []
    for i, fraction in enumerate(fractions):
        if not 0 <= fraction <= 1:
            raise ArgumentValueError(
                "random_split", what=f"Fraction at index {i} is not between 0 and 1",
                got=str(fraction),
            )  # fmt: skip
        lengths.append(math.floor(size * fraction))
    for i in range(size - sum(lengths)):
        lengths[i % len(lengths)] += 1
    for i, length in enumerate(lengths):
        if length == 0:
            warnings.warn(f"Length of split at index {i} is 0.", stacklevel=3)
    return lengths


def random_split(
    dataset: Any, lengths: Sequence[float], generator: Any = None
) -> list[Subset]:
    """Split a dataset into parts that do not overlap.

    Parameters
    ----------
    dataset : Dataset
        A dataset with a length.
    lengths : sequence of int or float
        Lengths that sum to the dataset's, or fractions that sum to 1.
    generator : Generator, optional
        Where the permutation comes from.
    """
    size = len(dataset)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        parts = _lengths_of_fractions(lengths, size)
    else:
        parts = [int(n) for n in lengths]
    if sum(parts) != size:
        raise ArgumentValueError(
            "random_split",
            what="Sum of input lengths does not equal the length of the input dataset!",
            expected=str(size), got=str(sum(parts)),
        )  # fmt: skip
    order = ops.randperm(size, generator=generator).tolist()
    ends = itertools.accumulate(parts)
    return [Subset(dataset, order[end - n : end]) for end, n in zip(ends, parts, strict=True)]
