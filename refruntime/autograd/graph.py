"""``torch.autograd.graph``: nodes, edges, and the hooks that see a graph being made and run.

Invariants
----------
* A context manager of this module holds on the thread that entered it, and is undone in reverse.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd import saved
from refruntime.autograd.hooks import RemovableHandle
from refruntime.autograd.mutation import allow_mutation_on_saved_tensors
from refruntime.autograd.node import Node, gradient_edge
from refruntime.autograd.reentry import nest
from refruntime.errors import ArgumentValueError, AutogradError

__all__ = [
    "GradientEdge",
    "Node",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]


class GradientEdge(NamedTuple):
    """Where the gradient of a tensor goes: an output of a node.

    Functions that take tensors to differentiate take such edges too, so that a tensor need not be
    kept alive for them.
    """

    node: Any
    output_nr: int


def get_gradient_edge(tensor: TensorImpl) -> GradientEdge:
    """Return the edge along which the gradient of `tensor` goes.

    Raises
    ------
    AutogradError
        If the tensor does not require grad.
    """
    edge = gradient_edge(tensor)
    if edge[0] is None:
        raise AutogradError(
            "get_gradient_edge",
            what="It is not possible to get the gradient edge for a Tensor that does not require "
            "gradients",
            expected="a tensor that requires grad", got="one that does not",
            remedy="set requires_grad=True on an input",
        )  # fmt: skip
    return GradientEdge(*edge)


def increment_version(tensor: TensorImpl | Iterable[TensorImpl]) -> None:
    """Say that a tensor was written to by something that autograd does not see."""
    for one in (tensor,) if isinstance(tensor, TensorImpl) else tensor:
        one.counter.version += 1


# ---------------------------------------------------------------------------------------------
# Hooks of saved tensors


class saved_tensors_hooks:  # noqa: N801 - torch's spelling
    """Keep what ``pack_hook(tensor)`` returns in the place of each tensor that is saved.

    Parameters
    ----------
    pack_hook : callable
        Called when a tensor is saved for backward; it must not write to it.
    unpack_hook : callable
        Called with what `pack_hook` returned, each time that backward needs the tensor.
    """

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        saved.push_hooks(self.pack_hook, self.unpack_hook)

    def __exit__(self, *exc: object) -> None:
        saved.pop_hooks()


class save_on_cpu(saved_tensors_hooks):  # noqa: N801
    """Keep saved tensors in host memory, and copy them back when backward needs them.

    Parameters
    ----------
    pin_memory : bool
        Ask for page-locked memory, from which copies to a GPU do not wait.
    device_type : str
        The device whose tensors are moved.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(tensor: Any) -> tuple[Any, Any]:
            if tensor.device.type == "cpu" and not pin_memory:
                return tensor.device, ops.clone(tensor)
            copy = ops.to(tensor, "cpu")
            return tensor.device, copy.pin_memory() if pin_memory else copy

        def unpack(packed: tuple[Any, Any]) -> Any:
            device, copy = packed
            return ops.to(copy, device, non_blocking=pin_memory)

        super().__init__(pack, unpack)


@contextlib.contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """Refuse hooks of saved tensors in this context, with `error_message`."""
    previous = saved.hooks.refusal
    if saved.hooks.stack:
        raise AutogradError(
            "disable_saved_tensors_hooks", what=error_message, expected="no hooks in place",
            got="saved_tensors_hooks around this context", remedy="leave their context first",
        )  # fmt: skip
    saved.hooks.refusal = error_message
    try:
        yield
    finally:
        saved.hooks.refusal = previous


# ---------------------------------------------------------------------------------------------
# One hook of several tensors


class _Handles(RemovableHandle):
    """Removes all hooks of one `register_multi_grad_hook`."""

    def __init__(self, handles: tuple[RemovableHandle, ...]) -> None:
        self.handles = handles

    def remove(self) -> None:
        """Take the hooks out."""
        for handle in self.handles:
            handle.remove()

    def __getstate__(self) -> Any:
        return self.handles

    def __setstate__(self, state: Any) -> None:
        self.handles = state


def register_multi_grad_hook(
    tensors: Sequence[TensorImpl], fn: Callable[..., Any], *, mode: str = "all"
) -> RemovableHandle:
    """Call `fn` once in each backward call, when gradients of `tensors` are there.

    Parameters
    ----------
    tensors : sequence of tensors
        Tensors that require grad.
    fn : callable
        With ``mode="all"`` called with a list of the gradients, None for a tensor that the call
        does not reach, after the last that it reaches; with ``"any"`` with the first gradient.
    mode : {"all", "any"}
        When to call.
    """
    if mode not in ("all", "any"):
        raise ArgumentValueError(
            "register_multi_grad_hook", what="Expects mode to be one of ('all', 'any')",
            expected="'all' or 'any'", got=mode,
        )  # fmt: skip
    hook = _WhenAll(tensors, fn) if mode == "all" else _WhenAny(fn)
    return _Handles(
        tuple(
            tensor.register_hook(hook.of(number))  # type: ignore[attr-defined]
            for number, tensor in enumerate(tensors)
        )
    )


class _WhenAll:
    """Collects gradients until the running call will bring no more of them."""

    def __init__(self, tensors: Sequence[TensorImpl], fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.edges = [get_gradient_edge(tensor) for tensor in tensors]
        # For each call that runs now: how many are still to come, and those that came.
        self.calls: weakref.WeakKeyDictionary[Any, tuple[list[int], list[Any]]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, number: int) -> Callable[[Any], None]:
        """Return the hook of one of the tensors."""

        def hook(gradient: Any) -> None:
            task = nest.task
            if task not in self.calls:
                expected = sum(task.will_reach(edge.node) for edge in self.edges)
                self.calls[task] = [expected], [None] * len(self.edges)
            left, found = self.calls[task]
            left[0] -= 1
            found[number] = gradient
            if left[0] == 0:
                del self.calls[task]
                self.fn(found)

        return hook


class _WhenAny:
    """Passes the first gradient of each call on."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def of(self, number: int) -> Callable[[Any], None]:
        """Return the hook of one of the tensors."""

        def hook(gradient: Any) -> None:
            if nest.task not in self.seen:
                self.seen.add(nest.task)
                self.fn(gradient)

        return hook
