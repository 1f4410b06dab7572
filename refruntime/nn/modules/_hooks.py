"""Hooks: the handle that removes one, the global ones, and the gates behind full backward hooks.

State
-----
`everywhere` holds the hooks that apply to all modules.

Invariants
----------
* A gate is an identity function in the graph: its backward is where a module's hooks see the
  gradients of its outputs, then of its inputs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from refruntime._impl import TensorImpl
from refruntime.autograd import Function, is_grad_enabled
from refruntime.autograd.hooks import Hook, RemovableHandle
from refruntime.errors import AutogradError


class GlobalHooks:
    """The hooks of all modules; `all` has the number of each, and is what a call tests first."""

    def __init__(self) -> None:
        self.all: OrderedDict[int, bool] = OrderedDict()
        self.forward_pre: OrderedDict[int, Hook] = OrderedDict()
        self.forward: OrderedDict[int, Hook] = OrderedDict()
        self.forward_with_kwargs: OrderedDict[int, bool] = OrderedDict()
        self.forward_always: OrderedDict[int, bool] = OrderedDict()
        self.backward_pre: OrderedDict[int, Hook] = OrderedDict()
        self.backward: OrderedDict[int, Hook] = OrderedDict()


everywhere = GlobalHooks()


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, args)`` before the forward of every module."""
    return RemovableHandle.enter(everywhere.forward_pre, hook, flags=[everywhere.all])


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call ``hook(module, args, output)`` after the forward of every module."""
    flags = [everywhere.all]
    if with_kwargs:
        flags.append(everywhere.forward_with_kwargs)
    if always_call:
        flags.append(everywhere.forward_always)
    return RemovableHandle.enter(everywhere.forward, hook, flags=flags)


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, grad_output)`` before the backward of every module."""
    return RemovableHandle.enter(everywhere.backward_pre, hook, flags=[everywhere.all])


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, grad_input, grad_output)`` after the backward of every module."""
    return RemovableHandle.enter(everywhere.backward, hook, flags=[everywhere.all])


class _Gate(Function):
    """The identity; its backward hands the gradients to `watch` and takes its answer."""

    @staticmethod
    def forward(ctx: Any, watch: Hook, *tensors: Any) -> Any:
        ctx.watch = watch
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *ctx.watch(grads))


class BackwardWatch:
    """Runs the full backward hooks of one call of one module.

    The gate around the outputs notes their gradients (and runs the pre-hooks); the gate around the
    inputs runs the hooks with both. Where no input needs a gradient the first gate runs the hooks,
    with None for every input.
    """

    def __init__(self, module: Any, pre_hooks: list[Hook], hooks: list[Hook]) -> None:
        self.module = module
        self.pre_hooks = pre_hooks
        self.hooks = hooks
        self.grad_outputs: tuple[Any, ...] | None = None
        self.input_places: list[int] = []
        self.output_places: list[int] = []
        self.n_inputs = 0
        self.n_outputs = 0

    def wrap_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Send the tensors among the arguments through a gate."""
        self.n_inputs = len(args)
        wrapped, self.input_places = _through_gate(args, self._on_inputs)
        return wrapped

    def wrap_output(self, result: Any) -> Any:
        """Send the tensors among the results through a gate."""
        results = result if isinstance(result, tuple) else (result,)
        self.n_outputs = len(results)
        wrapped, self.output_places = _through_gate(results, self._on_outputs)
        return wrapped if isinstance(result, tuple) else wrapped[0]

    def _on_outputs(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        seen = _spread(grads, self.output_places, self.n_outputs)
        for hook in self.pre_hooks:
            answer = hook(self.module, seen)
            if answer is not None:
                seen = self._checked(answer, seen, "grad_output")
        self.grad_outputs = seen
        if not self.input_places:
            self._run_hooks((None,) * self.n_inputs)
        return tuple(seen[place] for place in self.output_places)

    def _on_inputs(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.grad_outputs is None:
            return grads
        grad_inputs = self._run_hooks(_spread(grads, self.input_places, self.n_inputs))
        return tuple(grad_inputs[place] for place in self.input_places)

    def _run_hooks(self, grad_inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        seen, self.grad_outputs = self.grad_outputs, None
        for hook in self.hooks:
            answer = hook(self.module, grad_inputs, seen)
            if answer is not None:
                grad_inputs = self._checked(answer, grad_inputs, "grad_input")
        return grad_inputs

    def _checked(self, answer: Any, before: tuple[Any, ...], what: str) -> tuple[Any, ...]:
        given = answer if isinstance(answer, tuple) else (answer,)
        if len(given) != len(before):
            raise AutogradError(
                "Module backward hook",
                what=f"the hook returned another number of gradients ({what})",
                expected=str(len(before)),
                got=str(len(given)),
                remedy=f"return None, or one gradient for each {what}",
            )
        return given


def _through_gate(values: tuple[Any, ...], watch: Hook) -> tuple[tuple[Any, ...], list[int]]:
    """Replace the tensors among `values` by the gate's; also return where those stand."""
    tensors = [i for i, value in enumerate(values) if isinstance(value, TensorImpl)]
    if not is_grad_enabled() or not any(values[i].requires_grad for i in tensors):
        return values, []
    places = [i for i in tensors if values[i].dtype.is_floating_point or values[i].dtype.is_complex]
    gated = _Gate.apply(watch, *(values[i] for i in places))
    found = list(values)
    for place, tensor in zip(places, gated, strict=True):
        found[place] = tensor
    return tuple(found), places


def _spread(grads: tuple[Any, ...], places: list[int], size: int) -> tuple[Any, ...]:
    full: list[Any] = [None] * size
    for place, grad in zip(places, grads, strict=True):
        full[place] = grad
    return tuple(full)
