"""The two iterators of a DataLoader: in this process, and over worker processes.

State
-----
`ParallelIterator` numbers the index lists that it sends and remembers which worker has which.

Invariants
----------
* Worker ``i`` gets every n-th list, so the answer that is due next always comes from a known worker
  and each pipe is read in order; with ``in_order=False`` whichever answer is ready is taken.
* At most ``prefetch_factor`` lists a worker are under way.
* A worker that dies is noticed while its answer is waited for: the iteration ends with an error.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Iterator
from typing import Any

from refruntime.utils.data._transport import receive, send
from refruntime.utils.data._worker import (
    CaughtError,
    Exhausted,
    Fetcher,
    NewEpoch,
    Plan,
    WorkerSetup,
    run_worker,
)
from refruntime.utils.data.pinning import pin_memory

# How long, in seconds, a worker may take to end by itself before it is terminated.
_JOIN_SECONDS = 5.0


class SerialIterator:
    """Fetches each batch when it is asked for, in this process; `pins` them if wanted."""

    def __init__(self, plan: Plan, indices: Iterator[Any], pins: bool = False) -> None:
        self.fetcher = Fetcher(plan)
        self.indices = indices
        self.pins = pins

    def __iter__(self) -> SerialIterator:
        return self

    def __next__(self) -> Any:
        batch = self.fetcher.fetch(next(self.indices))
        return pin_memory(batch) if self.pins else batch


class _Worker:
    """One worker process, its pipe, and how many answers it still owes."""

    def __init__(self, context: Any, setup: WorkerSetup) -> None:
        self.connection, theirs = context.Pipe(duplex=True)
        setup.inherited.append(self.connection)
        # With other start methods than fork, the pipe ends of the parent are not inherited.
        if context.get_start_method() != "fork":
            setup.inherited = []
        self.process = context.Process(target=run_worker, args=(theirs, setup), daemon=True)
        self.process.start()
        theirs.close()
        self.due: collections.deque[int] = collections.deque()
        self.active = True


class ParallelIterator:
    """Hands index lists to worker processes and yields their batches in order.

    Parameters
    ----------
    plan : Plan
        What the workers do.
    indices : iterator
        The index lists of this epoch.
    loader : DataLoader
        Where the settings are read from.
    base_seed : int
        Worker ``i`` seeds its generators with ``base_seed + i``.
    """

    def __init__(self, plan: Plan, indices: Iterator[Any], loader: Any, base_seed: int) -> None:
        self.timeout = loader.timeout
        self.in_order = loader.in_order
        self.persistent = loader.persistent_workers
        self.pins = loader.pins
        self.limit = loader.prefetch_factor * loader.num_workers
        self.workers: list[_Worker] = []
        self._closed = False
        for number in range(loader.num_workers):
            inherited = [worker.connection for worker in self.workers]
            setup = WorkerSetup(
                plan, number, loader.num_workers, base_seed, loader.worker_init_fn, inherited
            )
            self.workers.append(_Worker(_context(loader.multiprocessing_context), setup))
        self.start_epoch(indices)

    def start_epoch(self, indices: Iterator[Any]) -> None:
        """Send the first lists of an epoch; answers of an epoch left early are thrown away."""
        for worker in self.workers:
            while worker.due:
                self._receive(worker)
            worker.active = True
            _tell(worker, NewEpoch())
        self.indices = indices
        self.sent = 0
        self.owner: dict[int, _Worker] = {}
        self.next_number = 0
        self.turn = 0
        for _ in range(self.limit):
            self._send_one()

    def __iter__(self) -> ParallelIterator:
        return self

    def __next__(self) -> Any:
        while True:
            worker = self._due_worker()
            if worker is None:
                if not self.persistent:
                    self.close()
                raise StopIteration
            answer = self._receive(worker)
            if isinstance(answer, Exhausted):
                worker.active = False
            self._send_one()
            if isinstance(answer, CaughtError):
                if not self.persistent:
                    self.close()
                answer.reraise()
            if not isinstance(answer, Exhausted):
                return pin_memory(answer) if self.pins else answer

    def _send_one(self) -> None:
        worker = self._next_active()
        if worker is None:
            return
        try:
            indices = next(self.indices)
        except StopIteration:
            return
        worker.due.append(self.sent)
        self.owner[self.sent] = worker
        self.sent += 1
        _tell(worker, indices)

    def _next_active(self) -> _Worker | None:
        for step in range(len(self.workers)):
            worker = self.workers[(self.turn + step) % len(self.workers)]
            if worker.active:
                self.turn = (self.turn + step + 1) % len(self.workers)
                return worker
        return None

    def _due_worker(self) -> _Worker | None:
        if self.in_order:
            while self.next_number < self.sent:
                worker = self.owner.get(self.next_number)
                if worker is not None:
                    return worker
                self.next_number += 1
            return None
        waiting = {worker.connection: worker for worker in self.workers if worker.due}
        if not waiting:
            return None
        ready = multiprocessing.connection.wait(list(waiting), self.timeout or None)
        return waiting[ready[0]] if ready else next(iter(waiting.values()))

    def _receive(self, worker: _Worker) -> Any:
        self._await(worker)
        try:
            answer = receive(worker.connection)
        except (EOFError, ConnectionResetError):
            raise self._died(worker) from None
        self.owner.pop(worker.due.popleft(), None)
        return answer

    def _await(self, worker: _Worker) -> None:
        """Wait until the worker has something to read, has died, or the time is up."""
        deadline = time.monotonic() + self.timeout if self.timeout > 0 else None
        while not worker.connection.poll():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self.close(kill=True)
                raise RuntimeError(f"DataLoader timed out after {self.timeout} seconds")
            sources = [worker.connection, worker.process.sentinel]
            ready = multiprocessing.connection.wait(sources, left)
            if ready == [worker.process.sentinel] and not worker.connection.poll():
                raise self._died(worker)

    def _died(self, worker: _Worker) -> RuntimeError:
        worker.process.join(_JOIN_SECONDS)
        code = worker.process.exitcode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        pid = worker.process.pid
        self.close(kill=True)
        return RuntimeError(
            f"DataLoader worker (pid(s) {pid}) exited unexpectedly: {how}; run with num_workers=0 "
            "to see the failure in the main process"
        )

    def close(self, kill: bool = False) -> None:
        """End the workers; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for worker in self.workers:
            if not kill:
                _tell(worker, None)
            worker.connection.close()
            if kill:
                worker.process.terminate()
        deadline = time.monotonic() + _JOIN_SECONDS
        for worker in self.workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.terminate()
                worker.process.join()
            worker.due.clear()
        self.owner = {}

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


def _tell(worker: _Worker, message: Any) -> None:
    # A worker that has died is noticed where its answer is due.
    with contextlib.suppress(OSError):
        send(worker.connection, message)


def _context(given: Any) -> Any:
    if given is None:
        methods = multiprocessing.get_all_start_methods()
        given = "fork" if "fork" in methods else methods[0]
    return multiprocessing.get_context(given) if isinstance(given, str) else given
