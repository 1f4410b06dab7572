"""The threads that help with backward, and the queues from which they take nodes.

State
-----
One `Pool` for the process: a `ReadyQueue` with its daemon threads for each device whose nodes are
published, one lock, and the number of threads that are running nodes of shared calls now.

Invariants
----------
* `Pool.lock` guards all bookkeeping of calls that are shared between threads, and is held only for
  bookkeeping: no kernel, no user code and no wait other than on its conditions happens under it.
* The most deeply nested call is served first, and in it the node with the highest sequence number.
* A thread waits only for nodes that other threads already run, so calls cannot block each other.
* Threads that run nodes at once divide the threads of kernels among themselves.
* A fork waits for the lock; the child starts with an empty pool and a new `generation`.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

from refruntime._device import CPU
from refruntime.config import config
from refruntime.kernels import launch

if TYPE_CHECKING:
    from refruntime.autograd.sharing import Sharing

# Sequence number (negated), a ticket, the node, its gradients.
Item = tuple[int, int, Any, list[Any]]
# Depth of nesting (negated), then as an item, and the call that it belongs to.
_Entry = tuple[int, int, int, "Sharing", Item]


class ReadyQueue:
    """The published nodes of one device, of all calls, and the threads that run them."""

    def __init__(self, pool: Pool, device: Any) -> None:
        self.pool = pool
        self.device = device
        self.entries: list[_Entry] = []
        self.work = threading.Condition(pool.lock)
        self.threads = 0
        self.idle = 0

    def add(self, entry: _Entry) -> None:
        """Offer a node to the workers."""
        heapq.heappush(self.entries, entry)
        if self.idle:
            self.work.notify()
        elif self.threads < self._limit():
            self.threads += 1
            name = f"refruntime-backward-{self.device}-{self.threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _limit(self) -> int:
        # A GPU's kernels are started one after another, whoever starts them.
        return workers() - 1 if self.device.type == "cpu" else 1

    def keep(self, entries: list[_Entry]) -> None:
        """Replace all entries."""
        self.entries = entries
        heapq.heapify(entries)

    def _serve(self) -> None:
        while True:
            with self.pool.lock:
                while not self.entries:
                    self.idle += 1
                    self.work.wait()
                    self.idle -= 1
                sharing, item = heapq.heappop(self.entries)[3:]
                sharing.flying += 1
                self.pool.begin()
            sharing.help(item)
            # An idle thread must hold nothing of the call that it has served.
            del sharing, item


class Pool:
    """All queues, their threads, and the lock. Methods are called with the lock held."""

    def __init__(self) -> None:
        # Reentrant, for a finalizer that runs in the middle of bookkeeping; see `mine`.
        self.lock = threading.RLock()
        self.queues: dict[Any, ReadyQueue] = {}
        self.tickets = itertools.count()
        self.generation = 0
        self.running = 0

    def mine(self) -> bool:
        """Whether this thread is in the middle of bookkeeping: a call made now must not share."""
        return self.lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def publish(self, sharing: Sharing, depth: int, item: Item) -> None:
        """Offer a node of a call to the workers of its device."""
        device = device_of(item[2])
        queue = self.queues.get(device)
        if queue is None:
            queue = self.queues[device] = ReadyQueue(self, device)
        queue.add((-depth, item[0], item[1], sharing, item))
        self._divide()

    def first(self, sharing: Sharing) -> Item | None:
        """Return the published node of a call that was recorded last."""
        entries = [e for queue in self.queues.values() for e in queue.entries if e[3] is sharing]
        return min(entries)[4] if entries else None

    def remove(self, item: Item) -> None:
        """Take a published node back."""
        for queue in self.queues.values():
            queue.keep([entry for entry in queue.entries if entry[4] is not item])

    def forget(self, sharing: Sharing) -> None:
        """Take back all that a call has published."""
        for queue in self.queues.values():
            queue.keep([entry for entry in queue.entries if entry[3] is not sharing])

    def begin(self) -> None:
        """Count this thread among those that run nodes."""
        self.running += 1
        self._divide()

    def end(self) -> None:
        """Undo `begin`."""
        self.running -= 1
        self._divide()

    def _divide(self) -> None:
        """Divide the cores among the threads that run nodes, or are about to."""
        published = sum(len(queue.entries) for queue in self.queues.values())
        launch.divide_threads(min(self.running + published, workers()))

    def after_fork(self) -> None:
        """Forget the threads, which do not exist in a child, and what they ran."""
        self.queues = {}
        self.generation += 1
        self.running = 0
        launch.divide_threads(0)
        self.lock.release()


def workers() -> int:
    """Return how many threads may run the nodes of one backward call, the caller included."""
    return config.backward_workers


def device_of(node: Any) -> Any:
    """Return the device on which the backward of a node runs."""
    metas = node.output_metas
    return metas[0].device if metas and metas[0] is not None else CPU


pool = Pool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=pool.lock.acquire, after_in_parent=pool.lock.release,
        after_in_child=pool.after_fork,
    )  # fmt: skip
