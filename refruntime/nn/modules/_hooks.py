"""Hooks: the handle that removes one, the global ones, and the gates behind full backward hooks.

State
-----
`everywhere` holds the hooks that apply to all modules. A `RemovableHandle` knows the dict and the
number under which its hook stands.

Invariants
----------
* A handle holds its dict weakly: a hook never keeps a module alive.
* Numbers never repeat, so that hooks run in the order of registration.
* A gate is an identity function in the graph: its backward is where a module's hooks see the
  gradients of its outputs, then of its inputs.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from refruntime._impl import TensorImpl
from refruntime.autograd import Function, is_grad_enabled
from refruntime.errors import AutogradError

Hook = Callable[..., Any]
_numbers = itertools.count()


class RemovableHandle:
    """Removes a hook: ``handle.remove()``, or by leaving a ``with`` block.

    Parameters
    ----------
    hooks_dict : dict
        Where the hook stands.
    extra_dict : dict or list of dict, optional
        Where the same number stands beside it.
    """

    def __init__(self, hooks_dict: Any, *, extra_dict: Any = None) -> None:
        self.id = next(_numbers)
        self.hooks_dict_ref = weakref.ref(hooks_dict)
        extras = extra_dict if isinstance(extra_dict, (list, tuple)) else [extra_dict]
        self.extra_dict_ref = tuple(weakref.ref(extra) for extra in extras if extra is not None)

    @classmethod
    def enter(
        cls, hooks: Any, hook: Hook, prepend: bool = False, flags: Any = ()
    ) -> RemovableHandle:
        """Put `hook` into `hooks`, its number into each dict of `flags`; return the handle."""
        handle = cls(hooks, extra_dict=list(flags))
        hooks[handle.id] = hook
        for flag in flags:
            flag[handle.id] = True
        if prepend:
            hooks.move_to_end(handle.id, last=False)
        return handle

    def remove(self) -> None:
        """Take the hook out; a second call does nothing."""
        for ref in (self.hooks_dict_ref, *self.extra_dict_ref):
            held = ref()
            if held is not None:
                held.pop(self.id, None)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.hooks_dict_ref(), self.id, tuple(ref() for ref in self.extra_dict_ref)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        hooks, self.id, extras = state
        alive = OrderedDict() if hooks is None else hooks
        self.hooks_dict_ref = weakref.ref(alive)
        self.extra_dict_ref = tuple(weakref.ref(x) for x in extras if x is not None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


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
