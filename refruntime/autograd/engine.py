"""The engine: backward by dependency count.

State
-----
A `GraphTask` is one call: for each node that several edges lead to, how many of them have still to
deliver (`joins`) and what has arrived (`buffers`); and the nodes that have all their gradients: a
heap ordered by sequence number, latest first, and a queue of leaves, which go before all others.

Invariants
----------
* A node runs once, when all its edges have delivered, so its gradient is complete.
* Gradients are summed in the order of the sequence numbers of the nodes that they come from,
  whatever the number of threads.
* A gradient is dropped when its node has run, and saved values are released then, unless the graph
  is retained: memory in flight is what the rest of the backward needs, and nothing else.
* Nothing recurses: a graph may be as deep as memory allows, and so may calls inside of calls.
* A call stays on its thread, without a lock, until two expensive nodes are ready at once; then it
  becomes a `Sharing`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush, heappushpop
from typing import Any, cast

from refruntime import _dispatch
from refruntime._impl import TensorImpl
from refruntime.autograd import accumulate as sums
from refruntime.autograd import reentry, streams
from refruntime.autograd.calls import run_post_hooks, run_pre_hooks, run_tensor_hooks
from refruntime.autograd.modes import state
from refruntime.autograd.node import AccumulateGrad, Edge, Masked, Node, OpNode
from refruntime.autograd.sharing import Sharing, worth_sharing
from refruntime.autograd.survey import survey, towards
from refruntime.errors import AutogradError

# Called around each node that runs, as ``observer(run, node, grads)``, and returns what ``run(node,
# grads)`` gives: anomaly mode and the trace look at backward so. The last one is the outermost.
observers: list[Callable[..., Sequence[Any]]] = []

# One gradient for each output of a node, None where there is none; whoever uses them empties it.
Grads = list[Any]
# Sequence number (negated), node, gradients.
Item = tuple[int, Node, Grads]


class GraphTask:
    """One backward call over the graph below `roots`."""

    __slots__ = (
        "__weakref__", "accumulate", "buffers", "captures", "depth", "joins", "keep_graph",
        "leaves", "meeting", "needed", "plain", "reachable", "ready", "watched",
    )  # fmt: skip

    def __init__(
        self, roots: list[Edge], keep_graph: bool, targets: list[Edge] | None, accumulate: bool,
        outer: GraphTask | None = None,
    ) -> None:  # fmt: skip
        self.keep_graph = keep_graph
        self.accumulate = accumulate
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.captures: dict[Edge, Any] | None = None
        self.needed: set[Node] | None = None
        self.reachable, self.joins = survey([node for node, _ in roots])
        if targets is not None:
            self.captures = dict.fromkeys(targets)
            self.needed = towards([node for node, _ in targets], self.reachable)
        # Nothing is recorded and no mode looks on: rules may take their shorter way.
        self.plain = not (state.grad or _dispatch.modes or _dispatch.autocast)
        self.meeting = None if streams.active is None else streams.Meeting(streams.active)
        # Whether every node takes the way through `_evaluate_watched`.
        self.watched = targets is not None or bool(observers) or self.meeting is not None
        self.buffers: dict[Node, Grads] = {}
        self.ready: list[Item] = []
        self.leaves: deque[tuple[AccumulateGrad, Grads]] = deque()

    # -- what has arrived -----------------------------------------------------------------------

    def wants(self, node: Node) -> bool:
        """Whether a gradient of `node` leads to what the call was asked for."""
        return self.needed is None or node in self.needed

    def will_reach(self, node: Node) -> bool:
        """Whether this call brings a gradient to `node`."""
        return node in self.reachable and self.wants(node)

    def lone(self, edge: Edge, gradient: Any) -> Grads:
        """Return the gradients of a node that one edge alone leads to."""
        node, number = edge
        count = len(node.output_metas)
        if count == 1:
            return [gradient]
        grads = [None] * count
        grads[number] = gradient
        return grads

    def add(self, node: Node, number: int, held: Grads) -> None:
        """Sum the gradient in `held` with what has arrived for an output of a node."""
        buffer = self.buffers.get(node)
        if buffer is None:
            buffer = self.buffers[node] = [None] * len(node.output_metas)
        if held[0] is not None:
            sums.add_to_buffer(buffer, number, held)

    def count_down(self, node: Node) -> Grads | None:
        """Count an edge that has delivered; return the node's gradients if it was the last."""
        left = self.joins[node] - 1
        self.joins[node] = left
        return None if left else self.buffers.pop(node)

    def deliver(self, edge: Edge, held: Grads) -> None:
        """Hand on the gradient (or None) in `held` along an edge, and queue what is ready."""
        node, number = edge
        if node in self.joins:
            self.add(node, number, held)
            counted = self.count_down(node)
            if counted is None:
                return
            grads = counted
        else:
            grads = held if len(node.output_metas) == 1 else self.lone(edge, held.pop())
        if type(node) is AccumulateGrad:
            self.leaves.append((node, grads))
        else:
            heappush(self.ready, (-node.sequence_nr, node, grads))

    # -- one thread -----------------------------------------------------------------------------

    def run(self) -> None:  # noqa: C901 - the hot loop, written out
        """Run all that becomes ready."""
        # Written out, without `evaluate`, `fitted` and `deliver`: every node of every small graph
        # passes here. The names that hold gradients are cleared before a leaf may take one over.
        leaves, ready, joins, needed = self.leaves, self.ready, self.joins, self.needed
        plain = self.plain
        watched, keep = self.watched, self.keep_graph
        kept: Item | None = None
        while True:
            while leaves:
                leaf, grads = leaves.popleft()
                if watched or leaf.hooked or leaf.variable.autograd.hooks:  # type: ignore[union-attr]
                    self._evaluate_watched(leaf, grads)
                elif grads[0] is not None:
                    sums.accumulate(leaf.variable, grads)
            if kept is not None:
                item = heappushpop(ready, kept) if ready else kept
                kept = None
            elif ready:
                item = heappop(ready)
            else:
                return
            if ready and plain and worth_sharing(item[1], ready):
                heappush(ready, item)
                Sharing(self).run()
                return
            _, node, grads = item
            if watched or node.hooked:
                results = self.evaluate(node, grads)
            else:
                results = node.apply_plain(grads) if plain else node.apply(grads)
                grads.clear()
                if not keep and node.saved_values is not None:
                    node.release()
            edges = node.next_functions
            if len(results) < len(edges):
                raise _too_few(node, results)
            for edge, gradient in zip(edges, results):
                successor = edge[0]
                if successor is None or (needed is not None and successor not in needed):
                    continue
                is_leaf = type(successor) is AccumulateGrad
                if gradient is not None:
                    meta = successor.variable.meta if is_leaf else successor.output_metas[edge[1]]
                    if gradient.meta is not meta and (
                        gradient.meta.shape != meta.shape or gradient.meta.dtype is not meta.dtype
                    ):
                        gradient = sums.fit(gradient, meta, node.name())
                if joins and successor in joins:
                    self.deliver(edge, [gradient])
                elif is_leaf:
                    leaves.append((successor, [gradient]))
                elif len(successor.output_metas) > 1:
                    self.deliver(edge, [gradient])
                elif kept is None:
                    kept = (-successor.sequence_nr, successor, [gradient])
                else:
                    heappush(ready, (-successor.sequence_nr, successor, [gradient]))
            results, gradient = (), None

    # -- one node -------------------------------------------------------------------------------

    def is_pure(self, node: Node) -> bool:
        """Whether the step of `node` runs kernels alone, and no Python code of the user."""
        if type(node) is AccumulateGrad:
            meta = node.variable.autograd
            return not (node.hooked or meta is None or meta.hooks or meta.post_accumulate_hooks)
        return node.pure and not node.hooked

    def evaluate(self, node: Node, grads: Grads) -> Sequence[Any]:
        """Run the hooks and the rule of a node; return the gradients of its operands."""
        if node.hooked or self.watched or _has_leaf_hooks(node):
            return self._evaluate_watched(node, grads)
        results = node.apply_plain(grads) if self.plain else node.apply(grads)
        grads.clear()
        if not self.keep_graph:
            node.release()
        return results

    def _evaluate_watched(self, node: Node, grads: Grads) -> Sequence[Any]:
        """Run a node that has hooks, or is a target of the call, or that somebody looks at."""
        run: Callable[[Node, Grads], Sequence[Any]] = self._evaluate_hooked
        for observer in observers:
            run = partial(observer, run)
        if self.meeting is None:
            return run(node, grads)
        with self.meeting.on(node):
            results = run(node, grads)
        for successor, _ in node.next_functions:
            if successor is not None:
                self.meeting.came(successor, node)
        return results

    def _evaluate_hooked(self, node: Node, grads: Grads) -> Sequence[Any]:
        """Run a node that has hooks, or is a target of the call, or leads to some targets only."""
        run_tensor_hooks(node, grads)
        if self.captures is not None:
            self._capture(node, grads)
            if not self._runs(node):
                grads.clear()
                return (None,) * len(node.next_functions)
        if node.pre_hooks:
            grads = run_pre_hooks(node, grads)
        outputs = tuple(grads) if node.post_hooks else ()
        results: Sequence[Any] = self._rule(node)(grads)
        grads.clear()
        if node.post_hooks:
            results = run_post_hooks(node, tuple(results), outputs)
        if not self.keep_graph:
            node.release()
        return results

    def _rule(self, node: Node) -> Any:
        """Return `apply` of a node, which skips operands that lead to no target."""
        if self.needed is not None and isinstance(node, OpNode):
            needs = tuple([edge[0] in self.needed for edge in node.next_functions])
            if needs != node.needs:
                return Masked(node, needs).apply
        return node.apply_plain if self.plain else node.apply

    def _capture(self, node: Node, grads: Grads) -> None:
        assert self.captures is not None
        for number, gradient in enumerate(grads):
            if (node, number) in self.captures:
                self.captures[node, number] = gradient

    def _runs(self, node: Node) -> bool:
        assert self.needed is not None and self.captures is not None
        if type(node) is AccumulateGrad:
            return self.accumulate and (node, 0) in self.captures
        return any(successor in self.needed for successor, _ in node.next_functions)

    def fitted(self, node: Node, results: Sequence[Any]) -> list[Any]:
        """Return gradients in the shapes and dtypes of the operands that they belong to."""
        edges = node.next_functions
        if len(results) < len(edges):
            raise _too_few(node, results)
        fitted = list(results)
        for index, (successor, number) in enumerate(edges):
            gradient = fitted[index]
            if gradient is not None and successor is not None and self.wants(successor):
                meta = successor.output_metas[number]
                if gradient.meta is not meta:
                    fitted[index] = sums.fit(gradient, meta, node.name())
        return fitted

    def remaining(self) -> set[Node]:
        """Return the nodes that have not run."""
        waiting = [node for _, node, _ in self.ready] + [node for node, _ in self.leaves]
        return survey(waiting)[0]


def _has_leaf_hooks(node: Node) -> bool:
    if type(node) is not AccumulateGrad:
        return False
    meta = node.variable.autograd
    return meta is not None and bool(meta.hooks)


def _too_few(node: Node, results: Sequence[Any]) -> AutogradError:
    return AutogradError(
        node.name(),
        what="returned an incorrect number of gradients",
        expected=str(len(node.next_functions)),
        got=str(len(results)),
        remedy="return one gradient (or None) for each operand",
    )


def run_backward(
    roots: list[Edge],
    gradients: list[TensorImpl],
    keep_graph: bool,
    create_graph: bool,
    targets: list[Edge] | None = None,
    accumulate: bool = True,
) -> dict[Edge, Any]:
    """Run backward from `roots` and return the gradients captured at `targets`.

    Parameters
    ----------
    roots : list of edges
        The outputs to start from.
    gradients : list of tensors
        Their gradients; emptied.
    keep_graph, create_graph : bool
        Keep saved values; record the backward itself.
    targets : list of edges, optional
        Stop at these; None runs to all leaves.
    accumulate : bool
        With targets: also add to the ``grad`` of those that are leaves.
    """
    nest = reentry.nest
    outer = nest.task
    if outer is not None and reentry.is_deep():
        arguments = (roots, gradients, keep_graph, create_graph, targets, accumulate)
        found = reentry.on_another_thread(partial(run_backward, *arguments))
        return cast(dict[Edge, Any], found)
    before, state.grad = state.grad, create_graph
    try:
        task = nest.task = GraphTask(roots, keep_graph, targets, accumulate, outer)
        if len(gradients) > 1:
            gradients.reverse()
        for edge in roots:
            if task.meeting is not None:
                task.meeting.start(edge[0])
            task.deliver(edge, [gradients.pop()])
        task.run()
        if task.meeting is not None:
            task.meeting.end()
    finally:
        state.grad, nest.task = before, outer
    return task.captures or {}
