"""torch.utils.checkpoint: trade computation for activation memory.

State
-----
A checkpointed call keeps its arguments and the state of the random generator, and nothing of what
it computed; the backward pass computes it again.

Invariants
----------
* The second run sees the same arguments and draws the same random numbers as the first.
* Tensors that the function reaches otherwise than by its arguments must be leaves (parameters):
  their gradients are accumulated by the backward pass of the second run.

Source: Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", 2016.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd import Function, backward, enable_grad, is_grad_enabled
from refruntime.errors import ArgumentTypeError
from refruntime.random import default_generator, fork_rng

__all__ = ["checkpoint", "checkpoint_sequential"]


@contextlib.contextmanager
def _replayed(state: bytes | None) -> Iterator[None]:
    """Draw as from a state of the generator, and leave the generator as it was."""
    if state is None:
        yield
        return
    with fork_rng():
        default_generator.load_state_bytes(state)
        yield


class _Recomputed(Function):
    """Runs a function without keeping its graph; its backward runs it again with one."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], keep_rng: bool, trigger: Any, *args: Any) -> Any:
        ctx.run = run
        ctx.rng = default_generator.state_bytes() if keep_rng else None
        ctx.places = [i for i, arg in enumerate(args) if isinstance(arg, TensorImpl)]
        ctx.others = [None if isinstance(arg, TensorImpl) else arg for arg in args]
        ctx.save_for_backward(*(args[i] for i in ctx.places))
        ctx.set_materialize_grads(False)
        return run(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        args: list[Any] = list(ctx.others)
        for place, tensor, needed in zip(
            ctx.places, ctx.saved_tensors, _needed(ctx), strict=True
        ):
            args[place] = tensor.detach().requires_grad_(needed)
        with enable_grad(), _replayed(ctx.rng):
            result = ctx.run(*args)
        outputs: Any = result if isinstance(result, (tuple, list)) else (result,)
        pairs = [
            (output, grad)
            for output, grad in zip(outputs, grads, strict=True)
            if grad is not None and getattr(output, "requires_grad", False)
        ]
        if pairs:
            backward([output for output, _ in pairs], [grad for _, grad in pairs])
        found = [arg.grad if place in ctx.places else None for place, arg in enumerate(args)]
        return (None, None, None, *found)


def _needed(ctx: Any) -> list[bool]:
    """Return, for each tensor argument, whether its gradient is asked for."""
    return [ctx.needs_input_grad[3 + place] for place in ctx.places]


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None,
    context_fn: Any = None, determinism_check: str = "default", debug: bool = False,
    preserve_rng_state: bool = True, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run a function without keeping its activations; the backward pass computes them again.

    Parameters
    ----------
    function : callable
        What to run; it must give the same result when run again.
    *args, **kwargs
        Its arguments. Tensors among the positional ones get gradients.
    use_reentrant, context_fn, determinism_check, debug
        Accepted; there is one implementation.
    preserve_rng_state : bool
        Whether the second run draws the same random numbers.
    """
    if not callable(function):
        raise ArgumentTypeError(
            "checkpoint", expected="a function", got=type(function).__name__
        )
    if not is_grad_enabled():
        return function(*args, **kwargs)
    # The trigger needs a gradient, so that the call is recorded also when only parameters do.
    trigger = ops.zeros(0).requires_grad_(True)
    return _Recomputed.apply(
        lambda *again: function(*again, **kwargs), preserve_rng_state, trigger, *args
    )


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Run functions one after the other, in checkpointed segments; the last keeps its activations.

    Parameters
    ----------
    functions : Sequential or list of callable
    segments : int
        How many parts to cut the list into.
    input : Tensor
        What the first function gets.
    """
    steps = list(functions)
    size = max(len(steps) // segments, 1)
    for start in range(0, size * (segments - 1), size):
        part = functools.partial(_run_all, steps[start : start + size])
        input = checkpoint(part, input, use_reentrant=use_reentrant, **kwargs)
    return _run_all(steps[size * (segments - 1) :], input)


def _run_all(steps: list[Callable[..., Any]], input: Any) -> Any:
    for step in steps:
        input = step(input)
    return input
