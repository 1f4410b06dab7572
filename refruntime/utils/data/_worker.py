"""The worker process of a DataLoader: takes index lists, sends batches.

State
-----
`_info` says which worker this process is; it is None in the main process.

Invariants
----------
* A worker answers every task, in order: with a batch, with the end of its iterable dataset, or with
  an error that carries the worker's traceback.
* Tasks are read by a thread of their own, so that neither side ever waits for the other to read.
* A worker ends when it is told to, when the pipe closes, and when its parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from refruntime.kernels import launch
from refruntime.random import manual_seed
from refruntime.utils.data._transport import receive, send
from refruntime.utils.data.collate import default_collate
from refruntime.utils.data.dataset import TensorDataset

# How often, in seconds, an idle worker looks whether its parent is still there.
_WATCH_SECONDS = 5.0


@dataclass(slots=True)
class WorkerInfo:
    """Which worker this process is.

    Attributes
    ----------
    id, num_workers : int
        The number of this worker, and how many there are.
    seed : int
        What the random generators of this worker were seeded with.
    dataset : Dataset
        This process's copy of the dataset.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return which worker this process is; None in the main process."""
    return _info


class CaughtError:
    """An exception of a worker, as text and type, to be raised again in the main process."""

    def __init__(self, error: BaseException, where: str) -> None:
        self.kind = type(error)
        self.where = where
        self.trace = "".join(traceback.format_exception(error))

    def reraise(self) -> None:
        """Raise an exception of the same type whose message holds the worker's traceback."""
        text = f"Caught {self.kind.__name__} {self.where}.\nOriginal {self.trace}"
        if issubclass(self.kind, KeyError):
            raise self.kind(_Verbatim(text))
        try:
            error = self.kind(text)
        except Exception:
            raise RuntimeError(text) from None
        raise error


class _Verbatim(str):
    """A text that prints as it is also where a KeyError shows its repr."""

    def __repr__(self) -> str:
        return str(self)


class Exhausted:
    """The answer of a worker whose iterable dataset has ended."""


class NewEpoch:
    """The message that makes a persistent worker start over."""


@dataclass(slots=True)
class Plan:
    """What a worker needs to know to fetch: the dataset and how samples become batches."""

    dataset: Any
    iterable: bool
    batched: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool


class Fetcher:
    """Makes a batch of a list of indices; the same in worker processes and in the main one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.samples: Iterator[Any] | None = iter(plan.dataset) if plan.iterable else None
        # Rows of tensors, stacked, are rows of tensors: one gather makes the batch.
        self.gathers = type(plan.dataset) is TensorDataset and plan.collate_fn is default_collate

    def fetch(self, indices: Any) -> Any:
        """Return the batch (or sample, without batching); StopIteration at an iterable's end."""
        if self.samples is not None:
            data = self._take(self.samples, indices)
        elif self.plan.batched:
            if self.gathers:
                return self.plan.dataset.gather(indices)
            many = getattr(self.plan.dataset, "__getitems__", None)
            data = many(indices) if many else [self.plan.dataset[i] for i in indices]
        else:
            data = self.plan.dataset[indices]
        return self.plan.collate_fn(data)

    def _take(self, samples: Iterator[Any], indices: Any) -> Any:
        if not self.plan.batched:
            return next(samples)
        data = [sample for _, sample in zip(indices, samples, strict=False)]
        if not data or (self.plan.drop_last and len(data) < len(indices)):
            raise StopIteration
        return data


@dataclass(slots=True)
class WorkerSetup:
    """What a worker process is started with."""

    plan: Plan
    number: int
    num_workers: int
    base_seed: int
    init_fn: Callable[[int], None] | None
    inherited: list[Connection]


def _read_tasks(connection: Connection, tasks: queue.SimpleQueue[Any]) -> None:
    parent = os.getppid()
    try:
        while True:
            while not connection.poll(_WATCH_SECONDS):
                if os.getppid() != parent:
                    os._exit(0)
            task = receive(connection)
            tasks.put(task)
            if task is None:
                return
    except (EOFError, OSError):
        tasks.put(None)


def _prepare(setup: WorkerSetup) -> None:
    global _info
    seed = setup.base_seed + setup.number
    random.seed(seed)
    manual_seed(seed)
    np.random.seed(np.random.SeedSequence([setup.base_seed, setup.number]).generate_state(4))
    launch.set_num_threads(1)
    _info = WorkerInfo(setup.number, setup.num_workers, seed, setup.plan.dataset)
    if setup.init_fn is not None:
        setup.init_fn(setup.number)


def _where(setup: WorkerSetup) -> str:
    return f"in DataLoader worker process {setup.number}"


def run_worker(connection: Connection, setup: WorkerSetup) -> None:
    """Serve tasks until told to stop; the entry point of the process."""
    for other in setup.inherited:
        other.close()
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read_tasks, args=(connection, tasks), daemon=True).start()
    # The main process may be gone, or has been interrupted and says so itself.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        _serve(connection, setup, tasks)
    sys.stdout.flush()


def _serve(connection: Connection, setup: WorkerSetup, tasks: queue.SimpleQueue[Any]) -> None:
    failure: CaughtError | None = None
    fetcher: Fetcher | None = None
    try:
        _prepare(setup)
    except Exception as error:
        failure = CaughtError(error, _where(setup))
    while (task := tasks.get()) is not None:
        if isinstance(task, NewEpoch):
            fetcher = None
            continue
        if failure is not None:
            _answer(connection, setup, failure)
            continue
        try:
            if fetcher is None:
                fetcher = Fetcher(setup.plan)
            answer = fetcher.fetch(task)
        except StopIteration as stop:
            answer = Exhausted() if setup.plan.iterable else CaughtError(stop, _where(setup))
        except Exception as error:
            answer = CaughtError(error, _where(setup))
        _answer(connection, setup, answer)


def _answer(connection: Connection, setup: WorkerSetup, answer: Any) -> None:
    try:
        send(connection, answer)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        send(connection, CaughtError(error, _where(setup)))
