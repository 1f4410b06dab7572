"""Reading a graph before it is run: what joins where, what leads to a target, what a node costs.

Invariants
----------
* Nothing here recurses: a graph may be as deep as memory allows.
* A node has a higher sequence number than the nodes of its operands, so the order of sequence
  numbers, latest first, is an order in which a graph can be run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refruntime._impl import TensorMeta
from refruntime.autograd.node import Node
from refruntime.kernels import blas


def survey(roots: Iterable[Node]) -> tuple[set[Node], dict[Node, int]]:
    """Return the nodes below `roots`, and the number of edges into each node that has several.

    A root counts as having one edge more for each time that it is listed: its own gradient.
    """
    seen: set[Node] = set()
    joins: dict[Node, int] = {}
    stack: list[Node] = []
    for node in roots:
        if node in seen:
            joins[node] = joins.get(node, 1) + 1
        else:
            seen.add(node)
            stack.append(node)
    while stack:
        for successor, _ in stack.pop().next_functions:
            if successor is None:
                continue
            if successor in seen:
                joins[successor] = joins.get(successor, 1) + 1
            else:
                seen.add(successor)
                if successor.next_functions:
                    stack.append(successor)
    return seen, joins


def towards(targets: Iterable[Node], reachable: Iterable[Node]) -> set[Node]:
    """Return the nodes of a graph from which one of `targets` can be reached."""
    users: dict[Node, list[Node]] = {}
    for node in reachable:
        for successor, _ in node.next_functions:
            if successor is not None:
                users.setdefault(successor, []).append(node)
    found = set(targets)
    stack = list(found)
    while stack:
        for user in users.get(stack.pop(), ()):
            if user not in found:
                found.add(user)
                stack.append(user)
    return found


# What a core does in a nanosecond, roughly: bytes streamed, and products summed.
_BYTES_PER_NS = 20.0
_PRODUCTS_PER_NS = 80.0


def cost_ns(node: Node) -> float:
    """Estimate how long the backward of a node takes on one core, in nanoseconds.

    All values that it knows of are read or written about once. A contraction (a product of
    matrices, a convolution, attention) multiplies the square root of the product of the sizes of
    its two operands and its output, once for each operand.
    """
    outputs = [meta for meta in node.output_metas if meta is not None]
    operands = [meta for meta in getattr(node, "metas", ()) if isinstance(meta, TensorMeta)]
    nbytes = sum(meta.nbytes for meta in (*outputs, *operands))
    cost = nbytes / _BYTES_PER_NS
    if len(operands) > 1 and outputs and _contracts(node):
        products = (operands[0].numel * operands[1].numel * outputs[0].numel) ** 0.5
        cost += 2 * products / _PRODUCTS_PER_NS
    return cost


def fills_all_cores(node: Node) -> bool:
    """Whether the backward of a node is BLAS that uses several threads by itself."""
    return _contracts(node) and blas.threads() > 1


def _contracts(node: Any) -> bool:
    # What autocast runs in half precision are the contractions, and nothing else.
    return getattr(node, "op", None) is not None and node.op.autocast == "lower"
