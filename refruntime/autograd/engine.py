"""The engine: backward by dependency count.

State
-----
A `GraphTask` is one call: for each reachable node the number of edges that will still deliver a
gradient (`dependencies`), the gradients that have arrived (`buffers`), and a ready queue ordered by
sequence number, latest first. The caller's thread is the worker; a pool would take from the same
queue.

Invariants
----------
* A node runs once, when its dependencies are zero, so its gradient is complete.
* Gradients are summed in the order in which their nodes run, which the sequence numbers fix.
* A buffer is dropped when its node has run, and saved values are released then, unless the graph is
  retained: memory in flight is what the rest of the backward needs, and nothing else.
* Nothing recurses: a graph may be as deep as memory allows.
"""

from __future__ import annotations

import heapq
from typing import Any

from refruntime._dtypes import float32
from refruntime._impl import AutogradMeta, TensorImpl, meta_of, wrap
from refruntime._ops.opdef import ops
from refruntime._storage import external
from refruntime.autograd.accumulate import fit
from refruntime.autograd.modes import state
from refruntime.autograd.node import AccumulateGrad, Edge, Node
from refruntime.errors import AutogradError


class GraphTask:
    """One backward call over the graph below `roots`."""

    def __init__(
        self, roots: list[Edge], keep_graph: bool, targets: list[Edge] | None, accumulate: bool
    ) -> None:
        self.keep_graph = keep_graph
        self.accumulate = accumulate
        self.captures: dict[Edge, Any] | None = None
        self.needed: set[Node] | None = None
        if targets is not None:
            self.captures = dict.fromkeys(targets)
        self.dependencies = count_dependencies([node for node, _ in roots])
        if targets is not None:
            self.needed = nodes_towards({node for node, _ in targets}, self.dependencies)
        self.buffers: dict[Node, list[Any]] = {}
        self.owned: set[Edge] = set()
        self.ready: list[tuple[int, int, Node]] = []
        self._ticket = 0

    def push(self, node: Node) -> None:
        """Queue a node that has all its gradients."""
        self._ticket += 1
        heapq.heappush(self.ready, (-node.sequence_nr, self._ticket, node))

    def deliver(self, edge: Edge, gradient: TensorImpl) -> None:
        """Add a gradient to what has arrived for an output of a node."""
        node, number = edge
        buffer = self.buffers.get(node)
        if buffer is None:
            buffer = self.buffers[node] = [None] * len(node.output_metas)
        old = buffer[number]
        if old is None:
            buffer[number] = gradient
        elif edge in self.owned and not state.grad:
            ops.add_(old, gradient)
        else:
            buffer[number] = ops.add(old, gradient)
            self.owned.add(edge)

    def run(self) -> None:
        """Run all that becomes ready."""
        while self.ready:
            node = heapq.heappop(self.ready)[2]
            grads = self.buffers.pop(node, None)
            if grads is None:
                grads = [None] * len(node.output_metas)
            if node.tensor_hooks is not None or type(node) is AccumulateGrad:
                _run_tensor_hooks(node, grads)
            if self.captures is not None:
                self._capture(node, grads)
                if not self._runs(node):
                    continue
            self._run_node(node, grads)

    def _capture(self, node: Node, grads: list[Any]) -> None:
        assert self.captures is not None
        for number, gradient in enumerate(grads):
            if (node, number) in self.captures:
                self.captures[node, number] = gradient

    def _runs(self, node: Node) -> bool:
        assert self.needed is not None and self.captures is not None
        if isinstance(node, AccumulateGrad):
            return self.accumulate and (node, 0) in self.captures
        return any(successor in self.needed for successor, _ in node.next_functions)

    def _run_node(self, node: Node, grads: list[Any]) -> None:
        if node.pre_hooks:
            grads = _run_pre_hooks(node, grads)
        if type(node) is not AccumulateGrad and all(g is None for g in grads):
            results: tuple[Any, ...] = (None,) * len(node.next_functions)
        else:
            outputs = tuple(grads)
            # The list must not hold what the node could otherwise take over.
            grads.clear()
            results = node.apply(outputs)
            if node.post_hooks:
                results = _run_post_hooks(node, results, outputs)
            del outputs
        if not self.keep_graph:
            node.release()
        self._hand_on(node, results)

    def _hand_on(self, node: Node, results: tuple[Any, ...]) -> None:
        edges = node.next_functions
        if len(results) < len(edges):
            raise AutogradError(
                node.name(),
                what="returned an incorrect number of gradients",
                expected=str(len(edges)),
                got=str(len(results)),
                remedy="return one gradient (or None) for each operand",
            )
        for edge, gradient in zip(edges, results, strict=False):
            successor = edge[0]
            if successor is None:
                continue
            if self.needed is not None and successor not in self.needed:
                continue
            if gradient is not None:
                meta = successor.output_metas[edge[1]]
                if gradient.meta is not meta:
                    gradient = fit(gradient, meta, node.name())
                self.deliver(edge, gradient)
                del gradient
            self.dependencies[successor] -= 1
            if self.dependencies[successor] == 0:
                self.push(successor)


def count_dependencies(roots: list[Node]) -> dict[Node, int]:
    """Count for each node below `roots` the edges that lead to it."""
    counts: dict[Node, int] = dict.fromkeys(roots, 0)
    stack = list(counts)
    while stack:
        for successor, _ in stack.pop().next_functions:
            if successor is None:
                continue
            if successor in counts:
                counts[successor] += 1
            else:
                counts[successor] = 1
                stack.append(successor)
    return counts


def nodes_towards(targets: set[Node], reachable: dict[Node, int]) -> set[Node]:
    """Return the nodes of a graph from which one of `targets` can be reached."""
    users: dict[Node, list[Node]] = {}
    for node in reachable:
        for successor, _ in node.next_functions:
            if successor is not None:
                users.setdefault(successor, []).append(node)
    found = set(targets)
    stack = list(targets)
    while stack:
        for user in users.get(stack.pop(), ()):
            if user not in found:
                found.add(user)
                stack.append(user)
    return found


def run_backward(
    roots: list[Edge],
    gradients: list[TensorImpl],
    *,
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
        Their gradients.
    keep_graph, create_graph : bool
        Keep saved values; record the backward itself.
    targets : list of edges, optional
        Stop at these; None runs to all leaves.
    accumulate : bool
        With targets: also add to the ``grad`` of those that are leaves.
    """
    previous = state.grad
    state.grad = create_graph
    try:
        task = GraphTask(roots, keep_graph, targets, accumulate)
        for edge, gradient in zip(roots, gradients, strict=True):
            task.deliver(edge, gradient)
        for node in dict.fromkeys(node for node, _ in roots):
            if task.dependencies[node] == 0:
                task.push(node)
        del gradient
        gradients.clear()
        task.run()
    finally:
        state.grad = previous
    return task.captures if task.captures is not None else {}


def calibrate() -> None:
    """Send one gradient through the engine, to learn how many references it has on the way."""
    meta = meta_of((), float32)
    leaf = wrap(external(0, 0, None), meta)
    leaf.autograd = AutogradMeta(True)
    task = GraphTask([], False, None, True)
    previous, state.grad = state.grad, False
    try:
        task._run_node(AccumulateGrad(leaf), [wrap(external(0, 0, None), meta)])
    finally:
        state.grad = previous


def _run_tensor_hooks(node: Node, grads: list[Any]) -> None:
    if isinstance(node, AccumulateGrad):
        meta = node.variable.autograd
        if meta is not None and meta.hooks and grads[0] is not None:
            grads[0] = call_hooks(meta.hooks, grads[0])
        return
    assert node.tensor_hooks is not None
    for number, hooks in node.tensor_hooks.items():
        if grads[number] is not None:
            grads[number] = call_hooks(hooks, grads[number])


def call_hooks(hooks: dict[int, Any], gradient: TensorImpl) -> TensorImpl:
    """Pass a gradient through tensor hooks; a hook may replace it."""
    for hook in list(hooks.values()):
        result = hook(gradient)
        if result is not None:
            gradient = result
    return gradient


def _run_pre_hooks(node: Node, grads: list[Any]) -> list[Any]:
    assert node.pre_hooks is not None
    for hook in list(node.pre_hooks.values()):
        result = hook(tuple(grads))
        if result is not None:
            grads = list(result)
    return grads


def _run_post_hooks(
    node: Node, results: tuple[Any, ...], outputs: tuple[Any, ...]
) -> tuple[Any, ...]:
    assert node.post_hooks is not None
    for hook in list(node.post_hooks.values()):
        replaced = hook(results, outputs)
        if replaced is not None:
            results = replaced if isinstance(replaced, tuple) else (replaced,)
    return results
