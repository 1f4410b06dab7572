"""A backward call whose nodes run on several threads.

State
-----
A `Sharing` takes over a `GraphTask` that has met two expensive nodes which are ready at once. Each
thread that takes part has a `Hand`: cheap nodes stay with the thread that made them ready, and so
does one expensive node; the other expensive ones are published. What runs Python code of the user
waits in `mine` for the caller's thread.

Invariants
----------
* All bookkeeping is done under ``pool.lock``; nodes and sums run outside it.
* The gradients that meet at one input of a node are summed in the order in which one thread alone
  would sum them: a `Turn` holds those that come too early.
* `flying` counts the workers that take part; the call ends when there is none and nothing waits.
* After a failure, or an interrupt of the caller, no further node starts, and the call is left when
  the last running one has ended.
"""

from __future__ import annotations

import heapq
import threading
from typing import TYPE_CHECKING, Any

from refruntime.autograd.modes import state
from refruntime.autograd.node import Edge, Node
from refruntime.autograd.pool import Item, pool, workers
from refruntime.autograd.reentry import PATIENCE
from refruntime.autograd.survey import cost_ns, fills_all_cores
from refruntime.errors import AutogradError

if TYPE_CHECKING:
    from refruntime.autograd.engine import GraphTask

# A node that takes less than this is not worth a second thread: two chains of nodes that take 50 us
# each run as fast on one thread as on two, and 1.2 times as fast at 90 us.
WORTH_NS = 80_000.0


# A node with an output smaller than this is not looked at closer.
SMALL_BYTES = 1 << 16


def worth_sharing(node: Node, ready: list[Any]) -> bool:
    """Whether `node`, about to run, and one of the next few in `ready` are both expensive."""
    metas = node.output_metas
    if not metas or metas[0] is None or metas[0].nbytes < SMALL_BYTES or workers() == 1:
        return False
    if not _expensive(node) or pool.mine():
        return False
    return any(item[1].pure and _expensive(item[1]) for item in ready[:4])


def _expensive(node: Node) -> bool:
    """Whether a node leaves work for a second thread: it takes long, and keeps to one core."""
    return cost_ns(node) >= WORTH_NS and not fills_all_cores(node)


class Hand:
    """What one thread is going to run: cheap nodes first, then one expensive node."""

    __slots__ = ("cheap", "is_caller", "kept")

    def __init__(self, is_caller: bool) -> None:
        self.cheap: list[Item] = []
        self.kept: Item | None = None
        self.is_caller = is_caller

    def next(self) -> Item | None:
        """Take the next node out of the hand."""
        if self.cheap:
            return heapq.heappop(self.cheap)
        item, self.kept = self.kept, None
        return item


class Turn:
    """The order in which the gradients that meet at one input of a node are summed."""

    __slots__ = ("adding", "edge", "held", "place", "position")

    def __init__(self, edge: Edge, producers: list[tuple[int, int, Node]]) -> None:
        self.edge = edge
        self.place = {(node, index): n for n, (_, index, node) in enumerate(sorted(producers))}
        self.held: dict[int, Any] = {}
        self.position = 0
        self.adding = False

    def hold(self, producer: Node, index: int, gradient: Any) -> bool:
        """Keep a gradient until its turn; return whether the caller should sum now."""
        self.held[self.place[producer, index]] = gradient
        if self.adding or self.position not in self.held:
            return False
        self.adding = True
        return True


class Sharing:
    """The shared state of one call; see the module docstring."""

    def __init__(self, task: GraphTask) -> None:
        self.task = task
        self.mine: list[Item] = []
        self.flying = 0
        self.changed = threading.Condition(pool.lock)
        self.error: BaseException | None = None
        self.stopped = False
        self.generation = pool.generation
        self.turns = self._find_turns()
        self._mode = (state.grad, state.inference)

    def _find_turns(self) -> dict[Edge, Turn]:
        """Find the inputs of nodes where several gradients have still to meet."""
        producers: dict[Edge, list[tuple[int, int, Node]]] = {}
        for node in self.task.remaining():
            for index, edge in enumerate(node.next_functions):
                if edge[0] in self.task.joins and self.task.wants(edge[0]):
                    producers.setdefault(edge, []).append((-node.sequence_nr, index, node))
        return {edge: Turn(edge, keys) for edge, keys in producers.items()}

    # -- the caller's thread --------------------------------------------------------------------

    def run(self) -> None:
        """Run all that is left of the task."""
        hand = Hand(is_caller=True)
        try:
            with pool.lock:
                waiting, self.task.ready = sorted(self.task.ready), []
                self._place([(node, grads) for _, node, grads in waiting], hand)
                del waiting
            while self._deal(hand):
                try:
                    self._play(hand)
                finally:
                    with pool.lock:
                        pool.end()
        except BaseException as error:
            self._stop(error)
        self._leave()

    def _deal(self, hand: Hand) -> bool:
        """Give the caller a node to run, once there is one; False ends the call."""
        with pool.lock:
            while not self.stopped:
                if self.generation != pool.generation:
                    raise _forked()
                if not hand.cheap and hand.kept is None:
                    hand.kept = self._claim()
                if hand.cheap or hand.kept:
                    pool.begin()
                    return True
                if self.flying == 0:
                    return False
                self.changed.wait(PATIENCE)
        return False

    def _claim(self) -> Item | None:
        """Take the caller's next node: its own or a published one, whichever was recorded later."""
        published = pool.first(self)
        if published is None or (self.mine and self.mine[0] < published):
            return heapq.heappop(self.mine) if self.mine else None
        pool.remove(published)
        return published

    def _stop(self, error: BaseException) -> None:
        """Let no further node start, and keep the first error for the caller."""
        with pool.lock:
            if self.error is None:
                self.error = error
            self.stopped = True
            self.changed.notify_all()

    def _leave(self) -> None:
        """Wait for the workers, whatever interrupts; raise what went wrong."""
        while True:
            try:
                with pool.lock:
                    pool.forget(self)
                    self.mine.clear()
                    while self.flying and self.generation == pool.generation:
                        self.changed.wait(PATIENCE)
                break
            except KeyboardInterrupt as error:
                self._stop(error)
        self.turns.clear()
        if self.error is not None:
            failure, self.error = self.error, None
            try:
                raise failure
            finally:
                # A local variable of the frame that the traceback holds: a cycle.
                del failure

    # -- a worker -------------------------------------------------------------------------------

    def help(self, item: Item) -> None:
        """Run a published node and what it makes ready; the worker is counted already."""
        hand = Hand(is_caller=False)
        hand.kept = item
        before = state.grad, state.inference
        state.grad, state.inference = self._mode
        try:
            self._play(hand)
        except BaseException as error:
            error.add_note(f"(raised on thread {threading.current_thread().name})")
            self._stop(error)
        finally:
            state.grad, state.inference = before
            with pool.lock:
                self.flying -= 1
                pool.end()
                self.changed.notify_all()

    # -- both -----------------------------------------------------------------------------------

    def _play(self, hand: Hand) -> None:
        """Run a hand until it is empty."""
        while not self.stopped and (item := hand.next()) is not None:
            node, grads = item[-2:]
            self._hand_on(node, self.task.fitted(node, self.task.evaluate(node, grads)), hand)

    def _hand_on(self, node: Node, results: list[Any], hand: Hand) -> None:
        """Deliver the gradients that a node has made, and place what becomes ready."""
        due: list[Turn] = []
        ready: list[tuple[Node, list[Any]]] = []
        with pool.lock:
            for index, edge in enumerate(node.next_functions):
                if edge[0] is None or not self.task.wants(edge[0]):
                    continue
                turn = self.turns.get(edge)
                if turn is None:
                    ready.append((edge[0], self.task.lone(edge, results[index])))
                elif turn.hold(node, index, results[index]):
                    due.append(turn)
                results[index] = None
            self._place(ready, hand)
        for turn in due:
            self._sum(turn, hand)

    def _sum(self, turn: Turn, hand: Hand) -> None:
        """Sum what is there in turn, until the next gradient is missing."""
        node, number = turn.edge
        while True:
            with pool.lock:
                if turn.position not in turn.held:
                    turn.adding = False
                    return
                gradient = turn.held.pop(turn.position)
                turn.position += 1
                held = [gradient]
                del gradient
            self.task.add(node, number, held)
            with pool.lock:
                grads = self.task.count_down(node)
                if grads is not None:
                    self._place([(node, grads)], hand)

    def _place(self, ready: list[tuple[Node, list[Any]]], hand: Hand) -> None:
        """Say where nodes that have become ready will run; the thread holds the lock."""
        for node, grads in ready:
            item = (-node.sequence_nr, next(pool.tickets), node, grads)
            if not self.task.is_pure(node):
                heapq.heappush(self.mine, item)
                self.changed.notify_all()
            elif not _expensive(node):
                heapq.heappush(hand.cheap, item)
            elif hand.kept is None:
                hand.kept = item
            else:
                pool.publish(self, self.task.depth, item)


def _forked() -> AutogradError:
    return AutogradError(
        "backward",
        what="the process was forked in the middle of a backward call, and the threads that ran a "
        "part of it do not exist in the child",
        expected="no fork inside of backward",
        got="a fork, in a hook or a custom function",
        remedy="fork before or after the call, or set config.backward_workers = 1",
    )
