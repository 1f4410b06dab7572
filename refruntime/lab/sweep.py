"""Many pieces of work: in this process, on all cores, or on a Dask cluster.

State
-----
In a worker process, what it was started with.

Invariants
----------
* Results come in the order of the tasks, however they were run.
* What tasks share travels once to each worker process; a task is a few words.
* Replays of the caching allocator run on threads: they spend their time in compiled code, which
  lets go of the interpreter lock and keeps all its state to itself. All else needs processes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from refruntime import _optional
from refruntime.config import config
from refruntime.errors import ArgumentValueError
from refruntime.lab.events import EventList
from refruntime.lab.replay import CACHING, Outcome, replay_events

# Called with the share that is done, from 0 to 1.
Progress = Callable[[float], None]
Work = Callable[[Any, Any], Any]


class Task(NamedTuple):
    """One replay: settings, device (0: that of the list), strategy."""

    conf: str
    capacity: int = 0
    strategy: str = CACHING


def run(events: EventList, task: Task) -> Outcome:
    """Carry out one task."""
    return replay_events(events, task.conf, task.capacity or None, task.strategy)


def sweep(
    shared: Any, tasks: Sequence[Any], *, work: Work = run, jobs: int = 0,
    scheduler: str = "", progress: Progress | None = None,
) -> list[Any]:  # fmt: skip
    """Do each task; return what comes of them, in their order.

    Parameters
    ----------
    shared : object
        What all tasks need, such as the event list that each is to replay.
    tasks : sequence
        Each is a `Task`, or what else `work` takes.
    work : callable
        ``work(shared, task)``, a function of a module, so that other processes find it.
    jobs : int
        Threads or processes; 0 is one for each core, 1 is the calling thread.
    scheduler : str
        The address of a Dask scheduler, instead of processes of this machine.
    progress : callable, optional
        Called with the share of tasks that are done.

    Raises
    ------
    OptionalDependencyError
        If a scheduler is given and Dask's ``distributed`` is not installed.
    """
    told = progress or (lambda share: None)
    if scheduler:
        return _on_cluster(shared, tasks, work, scheduler, told)
    count = min(jobs or config.num_threads, len(tasks))
    if count <= 1:
        return _told((work(shared, task) for task in tasks), len(tasks), told)
    if all(_is_compiled(task) for task in tasks):
        with ThreadPoolExecutor(count, "sweep") as threads:
            return _told(threads.map(lambda task: work(shared, task), tasks), len(tasks), told)
    # A fork of a process with threads may deadlock; a fresh interpreter does not.
    context = multiprocessing.get_context("spawn")
    with context.Pool(count, _receive, (shared, work)) as pool:
        return _told(pool.imap(_run_received, tasks), len(tasks), told)


def _is_compiled(task: Any) -> bool:
    return isinstance(task, (Task, Outcome)) and task.strategy == CACHING


def _told(outcomes: Iterable[Any], count: int, progress: Progress) -> list[Any]:
    found = []
    for outcome in outcomes:
        found.append(outcome)
        progress(len(found) / count)
    return found


_received: tuple[Any, Work] | None = None


def _receive(shared: Any, work: Work) -> None:
    global _received
    _received = shared, work


def _run_received(task: Any) -> Any:
    assert _received is not None
    shared, work = _received
    return work(shared, task)


def _on_cluster(
    shared: Any, tasks: Sequence[Any], work: Work, scheduler: str, progress: Progress
) -> list[Any]:
    try:
        client = _optional.distributed.Client(scheduler, timeout=10)
    except OSError as error:
        raise ArgumentValueError(
            "sweep", expected="a Dask scheduler", got=scheduler, what=str(error)
        ) from None
    with client:
        (sent,) = client.scatter([shared], broadcast=True)
        futures = [client.submit(work, sent, task, pure=False) for task in tasks]
        return _told((future.result() for future in futures), len(tasks), progress)
