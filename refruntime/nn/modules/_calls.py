"""ModuleCalls: what happens when a module is called, and the hooks around it.

State
-----
Hooks by number: `_forward_pre_hooks`, `_forward_hooks`, `_backward_pre_hooks`, `_backward_hooks`;
and, under the same numbers, which of the forward hooks take keyword arguments or run after errors.

Invariants
----------
* A module without hooks costs four look-ups over its `forward`.
* The order is: pre-hooks (global, then own), `forward`, hooks (global, then own). A hook that
  returns something other than None replaces the arguments or the result.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from refruntime.autograd.hooks import Hook, RemovableHandle
from refruntime.errors import RefruntimeError
from refruntime.nn.modules._hooks import BackwardWatch, everywhere
from refruntime.nn.modules._state import ModuleState


class HookError(RefruntimeError, RuntimeError):
    """A forward pre-hook with keyword arguments returned something else than a pair."""


class ModuleCalls(ModuleState):
    """Calling a module."""

    _forward_pre_hooks: OrderedDict[int, Hook]
    _forward_pre_hooks_with_kwargs: OrderedDict[int, bool]
    _forward_hooks: OrderedDict[int, Hook]
    _forward_hooks_with_kwargs: OrderedDict[int, bool]
    _forward_hooks_always_called: OrderedDict[int, bool]
    _backward_pre_hooks: OrderedDict[int, Hook]
    _backward_hooks: OrderedDict[int, Hook]
    _is_full_backward_hook: bool | None

    def _missing_forward(self, *args: Any) -> Any:
        """Compute the result of the module; each subclass defines its own."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    # A plain attribute, so that subclasses may define any signature.
    forward: Callable[..., Any] = _missing_forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
            or everywhere.all
        ):
            return self._call_with_hooks(args, kwargs)
        return self.forward(*args, **kwargs)

    # torch's names for the same call; programs wrap or override them.
    _call_impl = __call__
    _wrapped_call_impl = __call__

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        called: set[int] = set()
        result: Any = None
        try:
            args, kwargs = self._run_pre_hooks(args, kwargs)
            watch = self._backward_watch()
            if watch is not None:
                args = watch.wrap_inputs(args)
            result = self.forward(*args, **kwargs)
            for number, hook, with_kwargs, _ in self._all_forward_hooks():
                called.add(number)
                seen = (args, kwargs, result) if with_kwargs else (args, result)
                answer = hook(self, *seen)
                result = result if answer is None else answer
            return result if watch is None else watch.wrap_output(result)
        except Exception:
            self._run_always_hooks(args, kwargs, result, called)
            raise

    def _run_pre_hooks(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for number, hook in [*everywhere.forward_pre.items(), *self._forward_pre_hooks.items()]:
            if number in self._forward_pre_hooks_with_kwargs:
                answer = hook(self, args, kwargs)
                if answer is not None:
                    args, kwargs = self._pair(answer)
            else:
                answer = hook(self, args)
                if answer is not None:
                    args = answer if isinstance(answer, tuple) else (answer,)
        return args, kwargs

    def _pair(self, answer: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise HookError(
                f"{type(self).__name__} forward pre-hook",
                expected="None or a tuple of (new_args, new_kwargs)",
                got=repr(answer),
                remedy="return both, changed or not",
            )
        return answer

    def _all_forward_hooks(self) -> Iterator[tuple[int, Hook, bool, bool]]:
        for number, hook in list(everywhere.forward.items()):
            yield (
                number, hook, number in everywhere.forward_with_kwargs,
                number in everywhere.forward_always,
            )  # fmt: skip
        for number, hook in list(self._forward_hooks.items()):
            yield (
                number, hook, number in self._forward_hooks_with_kwargs,
                number in self._forward_hooks_always_called,
            )  # fmt: skip

    def _run_always_hooks(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, called: set[int]
    ) -> None:
        for number, hook, with_kwargs, always in self._all_forward_hooks():
            if not always or number in called:
                continue
            try:
                seen = (args, kwargs, result) if with_kwargs else (args, result)
                answer = hook(self, *seen)
                result = result if answer is None else answer
            except Exception as error:
                warnings.warn(
                    "module forward hook with ``always_call=True`` raised an exception that was "
                    f"silenced as another error was raised in forward: {error!s}",
                    stacklevel=2,
                )

    def _backward_watch(self) -> BackwardWatch | None:
        pre_hooks = [*everywhere.backward_pre.values(), *self._backward_pre_hooks.values()]
        hooks = [*everywhere.backward.values(), *self._backward_hooks.values()]
        return BackwardWatch(self, pre_hooks, hooks) if pre_hooks or hooks else None

    # ------------------------------------------------------------------ registration

    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` (or ``args, kwargs``) before `forward`.

        The hook may return new arguments; with `with_kwargs`, a pair of both.
        """
        flags = [self._forward_pre_hooks_with_kwargs] if with_kwargs else []
        return RemovableHandle.enter(self._forward_pre_hooks, hook, prepend, flags)

    def register_forward_hook(
        self,
        hook: Hook,
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call ``hook(module, args, output)`` (or ``args, kwargs, output``) after `forward`.

        The hook may return a new output. With `always_call` it also runs when `forward` raised.
        """
        flags = [self._forward_hooks_with_kwargs] if with_kwargs else []
        if always_call:
            flags.append(self._forward_hooks_always_called)
        return RemovableHandle.enter(self._forward_hooks, hook, prepend, flags)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` when the gradients of the outputs are known."""
        return RemovableHandle.enter(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when those of the inputs are known.

        The hook may return new gradients of the inputs.
        """
        self.__dict__["_is_full_backward_hook"] = True
        return RemovableHandle.enter(self._backward_hooks, hook, prepend)

    def register_backward_hook(self, hook: Hook) -> RemovableHandle:
        """Alias of `register_full_backward_hook` (the older, less exact hook is not kept)."""
        return self.register_full_backward_hook(hook)
