"""Values that a node keeps for its backward.

State
-----
For each thread a stack of hook pairs (`saved_tensors_hooks`), and how many threads have one, so
that recording without hooks looks at one global alone.

Invariants
----------
* A saved value remembers the version of its tensor; unpacking it after a write raises.
* An output of the node is saved without its history (which would be a reference cycle through the
  node) and gets the history back when unpacked.
* Saving tags the bytes as SAVED. The node that did so tags them as they were before when it is
  released: it was recorded first of those that save them, so in backward it is the last of them.
* With hooks, what ``pack`` returned is kept and nothing else; ``unpack`` makes a tensor of it,
  which gets the place in the graph that the saved tensor had.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from refruntime._impl import AutogradMeta, TensorImpl, detached
from refruntime.alloc.categories import ACTIVATION, SAVED, TEMPORARY
from refruntime.errors import ArgumentTypeError, AutogradError

RETAG = (TEMPORARY, ACTIVATION)


class SavedValue:
    """A tensor kept for backward, with the version that it had."""

    __slots__ = ("is_output", "output_nr", "tensor", "version")

    def __new__(cls, *args: Any) -> Any:
        """Make a `PackedValue` where hooks of this thread are in place."""
        return object.__new__(PackedValue if active and hooks.stack else cls)

    def __init__(self, tensor: TensorImpl, is_output: bool = False, output_nr: int = 0) -> None:
        self.is_output = is_output
        self.output_nr = output_nr
        self.tensor = detached(tensor) if is_output else tensor
        self.version = tensor.counter.version
        if tensor.storage.category in RETAG:
            tensor.storage.tag(SAVED)

    def unpack(self, node: Any) -> TensorImpl:
        """Return the tensor, checked against its version.

        Raises
        ------
        AutogradError
            If the tensor was written to since it was saved.
        """
        tensor = self.tensor
        if tensor.counter.version != self.version:
            raise modified(tensor, self.version, node)
        if not self.is_output:
            return tensor
        output = detached(tensor)
        output.autograd = AutogradMeta(True, node, self.output_nr)
        return output


def modified(tensor: TensorImpl, version: int, node: Any) -> AutogradError:
    """Return the error for a saved tensor that was written to."""
    return AutogradError(
        node.name(),
        what="one of the variables needed for gradient computation has been modified by an "
        f"inplace operation: {list(tensor.meta.shape)} of {tensor.meta.dtype}",
        expected=f"version {version}",
        got=f"is at version {tensor.counter.version}",
        remedy="write to a clone, or use the functional form of the in-place call",
    )


# ---------------------------------------------------------------------------------------------
# Hooks

Pack = Callable[[Any], Any]


class _Hooks(threading.local):
    # Pairs of pack and unpack; the innermost is the last.
    stack: tuple[tuple[Pack, Pack], ...] = ()
    # Why hooks are refused on this thread, if they are.
    refusal: str | None = None


hooks = _Hooks()
_count_lock = threading.Lock()
# How many pairs are on the stacks of all threads; recording asks nothing more when it is zero.
active = 0


def push_hooks(pack: Pack, unpack: Pack) -> None:
    """Send what this thread saves from now on through `pack`, and back through `unpack`.

    Raises
    ------
    AutogradError
        Inside of ``disable_saved_tensors_hooks``.
    """
    global active
    if hooks.refusal is not None:
        raise AutogradError(
            "saved_tensors_hooks", what=hooks.refusal, expected="hooks to be allowed here",
            got="a call inside disable_saved_tensors_hooks", remedy="leave that context first",
        )  # fmt: skip
    hooks.stack = (*hooks.stack, (pack, unpack))
    with _count_lock:
        active += 1


def pop_hooks() -> None:
    """Undo the last `push_hooks` of this thread."""
    global active
    hooks.stack = hooks.stack[:-1]
    with _count_lock:
        active -= 1


class PackedValue(SavedValue):
    """What ``pack`` made of a saved tensor, with the place in the graph that the tensor had."""

    __slots__ = ("edge", "packed", "unpack_hook")

    def __init__(self, tensor: TensorImpl, is_output: bool = False, output_nr: int = 0) -> None:
        pack, self.unpack_hook = hooks.stack[-1]
        self.is_output = is_output
        self.output_nr = output_nr
        # An output has no history of its own to give away: that would be a cycle.
        shown = detached(tensor) if is_output else tensor
        version = tensor.counter.version
        previous, hooks.stack = hooks.stack, ()
        try:
            self.packed = pack(shown)
        finally:
            hooks.stack = previous
        if tensor.counter.version != version:
            raise _written_by_hook()
        self.edge = None if is_output else _history(tensor)

    def unpack(self, node: Any) -> TensorImpl:
        """Return the tensor that ``unpack`` makes, in the place of the saved one."""
        value = self.unpack_hook(self.packed)
        if not isinstance(value, TensorImpl):
            raise ArgumentTypeError(
                "saved_tensors_hooks",
                what="Output of saved tensor unpack_hook expected to be a Tensor",
                expected="a tensor", got=f"result of type {type(value).__name__}",
                remedy="return the tensor that was packed",
            )  # fmt: skip
        edge = (node, self.output_nr) if self.is_output else self.edge
        return value if edge is None else with_history(value, edge)


def _history(tensor: TensorImpl) -> Any:
    from refruntime.autograd.node import gradient_edge

    edge = gradient_edge(tensor)
    return None if edge[0] is None else edge


def with_history(value: TensorImpl, edge: Any) -> TensorImpl:
    """Return the memory of `value` as a tensor whose gradient goes along `edge`."""
    from refruntime.autograd.node import AccumulateGrad

    node, number = edge
    if type(node) is AccumulateGrad and value is node.variable:
        return value
    tensor = detached(value)
    tensor.autograd = AutogradMeta(True, node, number, tensor.counter.version)
    return tensor


def _written_by_hook() -> AutogradError:
    return AutogradError(
        "saved_tensors_hooks",
        what="A saved tensor pack hook is modifying its input in place",
        expected="a pack hook that leaves the tensor as it is", got="a write",
        remedy="work on a clone",
    )  # fmt: skip
