"""Samplers: in which order the samples of a dataset are taken.

State
-----
A sampler is iterable and may be iterated again, for the next epoch; what it draws comes from its
generator, or from the default one.

Invariants
----------
* A random sampler with a generator gives the same order for the same generator state.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

from refruntime._dtypes import float64, int64
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentTypeError, ArgumentValueError
from refruntime.random import Generator

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]

T_co = TypeVar("T_co", covariant=True)

# Indices are drawn this many at a time when drawing with replacement.
_CHUNK = 32


def draw_seed(generator: Any = None) -> int:
    """Draw a seed from a generator (by default the global one)."""
    return int(ops.empty((), dtype=int64).random_(generator=generator).item())


def _check_flag(op: str, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ArgumentTypeError(op, what=f"{name} should be a boolean value", got=f"{name}={value}")


def _check_count(op: str, name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ArgumentValueError(
            op, what=f"{name} should be a positive integer value", got=f"{name}={value}"
        )


class Sampler(Generic[T_co]):
    """The base class of all samplers. A subclass defines ``__iter__`` and usually ``__len__``."""

    def __init__(self, data_source: Any = None) -> None:
        pass

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ... in order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """The indices in random order.

    Parameters
    ----------
    data_source : sized
        The dataset.
    replacement : bool
        Whether an index may come more than once.
    num_samples : int, optional
        How many indices to give; by default the length of the dataset.
    generator : Generator, optional
        Where the numbers come from; by default a new one, seeded from the global generator.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        _check_flag("RandomSampler", "replacement", replacement)
        _check_count("RandomSampler", "num_samples", self.num_samples)

    @property
    def num_samples(self) -> int:
        """How many indices an iteration gives."""
        # The length is asked for each time: a dataset may grow between epochs.
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        generator = self.generator
        if generator is None:
            generator = Generator()
            generator.manual_seed(draw_seed())
        draw = self._with_replacement if self.replacement else self._permutations
        return itertools.islice(draw(generator), self.num_samples)

    def _with_replacement(self, generator: Any) -> Iterator[int]:
        size = len(self.data_source)
        while True:
            yield from ops.randint(0, size, (_CHUNK,), dtype=int64, generator=generator).tolist()

    def _permutations(self, generator: Any) -> Iterator[int]:
        size = len(self.data_source)
        while True:
            yield from ops.randperm(size, generator=generator).tolist()

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in random order, each once."""

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        order = ops.randperm(len(self.indices), generator=self.generator).tolist()
        return (self.indices[i] for i in order)

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices drawn with probabilities proportional to their weights.

    Parameters
    ----------
    weights : sequence of float
        One weight an index; they need not sum to one.
    num_samples : int
        How many indices to draw.
    replacement : bool
        Whether an index may come more than once.
    generator : Generator, optional
        Where the numbers come from.
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Any = None,
    ) -> None:
        _check_count("WeightedRandomSampler", "num_samples", num_samples)
        _check_flag("WeightedRandomSampler", "replacement", replacement)
        self.weights = ops.as_tensor(weights, dtype=float64)
        if self.weights.ndim != 1:
            raise ArgumentValueError(
                "WeightedRandomSampler", what="weights should be a 1d sequence",
                got=f"weights have shape {tuple(self.weights.shape)}",
            )  # fmt: skip
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        drawn = ops.multinomial(
            self.weights, self.num_samples, self.replacement, generator=self.generator
        )
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of `batch_size` indices of another sampler.

    Parameters
    ----------
    sampler : iterable of int
        Where the indices come from.
    batch_size : int
        How many make a batch.
    drop_last : bool
        Whether a last, smaller batch is left out.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        _check_count("BatchSampler", "batch_size", batch_size)
        _check_flag("BatchSampler", "drop_last", drop_last)
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        size = len(self.sampler)  # type: ignore[arg-type]
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
