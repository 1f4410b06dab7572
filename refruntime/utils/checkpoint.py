"""torch.utils.checkpoint: trade computation for activation memory.

State
-----
`_Frame` is one checkpointed call without reentrance: how to run it again, weak references to the
holders that stand in the graph for what it saved, and the node that keeps its arguments. The
reentrant form is a custom `Function`, whose backward runs the call again and backward through it.

Invariants
----------
* The n-th tensor that the second run saves is the n-th that the first run saved: nothing else
  connects the two. What differs in number, shape, dtype or device is an error.
* A holder gives its value away when it is unpacked, so a recomputed activation lives from the
  second run until its node has run. A value that was given away is computed again when asked again.
* The second run stops as soon as all that was saved is there again (early stop).
* The arguments of a frame are saved like any other value, so those of an inner frame are themselves
  recomputed by the frame around it.
* The second run sees the random numbers and the autocast region of the first.

Source: Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", 2016; the hook
form follows the behaviour of PyTorch's ``use_reentrant=False``.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from refruntime._impl import TensorImpl, detached, requires_grad
from refruntime._ops.opdef import ops
from refruntime.autograd import Function, backward, enable_grad, is_grad_enabled
from refruntime.autograd.graph import saved_tensors_hooks
from refruntime.autograd.levels import Wrapper
from refruntime.autograd.reentry import nest
from refruntime.errors import ArgumentTypeError, ArgumentValueError, AutogradError, RefruntimeError
from refruntime.utils._selective import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)
from refruntime.utils._surroundings import Surroundings

__all__ = [
    "CheckpointError", "CheckpointFunction", "CheckpointPolicy", "SelectiveCheckpointContext",
    "checkpoint", "checkpoint_sequential", "create_selective_checkpoint_contexts",
    "noop_context_fn", "set_checkpoint_debug_enabled", "set_checkpoint_early_stop",
]  # fmt: skip

Contexts = tuple[Any, Any]


class CheckpointError(RefruntimeError, RuntimeError):
    """A second run that did not do what the first one did."""


def noop_context_fn() -> Contexts:
    """Return two contexts that do nothing."""
    return contextlib.nullcontext(), contextlib.nullcontext()


# ---------------------------------------------------------------------------------------------
# Settings of a thread


class _Settings(threading.local):
    early_stop: bool | None = None
    debug: bool | None = None


_settings = _Settings()


@contextlib.contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Say for calls in this block whether recomputation stops when all is there."""
    previous, _settings.early_stop = _settings.early_stop, enable
    try:
        yield
    finally:
        _settings.early_stop = previous


@contextlib.contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Say for calls in this block whether a mismatch shows where each tensor was saved."""
    previous, _settings.debug = _settings.debug, enabled
    try:
        yield
    finally:
        _settings.debug = previous


# ---------------------------------------------------------------------------------------------
# Without reentrance


class _Stop(Exception):  # noqa: N818  no error: the run has done its work
    """Ends a second run that has saved all it must."""


class _Holder:
    """Stands in the graph for a tensor that was not kept."""

    __slots__ = ("__weakref__", "value")

    value: Any


class _KeptArguments(Function):
    """Saves the arguments of a frame as any node saves its operands; its node is never run."""

    @staticmethod
    def forward(ctx: Any, trigger: Any, *tensors: Any) -> Any:
        ctx.save_for_backward(*tensors)
        return ops.empty((0,))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise AssertionError("the node of kept arguments was run")


def _keep_arguments(args: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Return the node that holds the tensors among `args`, and the other arguments."""
    tensors = [arg for arg in args if isinstance(arg, TensorImpl)]
    rest = [_TENSOR if isinstance(arg, TensorImpl) else arg for arg in args]
    trigger = ops.empty((0,)).requires_grad_(True)
    with enable_grad():
        return _KeptArguments.apply(trigger, *tensors).grad_fn, rest


_TENSOR = object()


class _Frame:
    """One checkpointed call: how to run it again, and what it saved."""

    def __init__(
        self, function: Callable[..., Any], kwargs: dict[str, Any], second: Any,
        surroundings: Surroundings, early_stop: bool, check: bool, debug: bool,
    ) -> None:  # fmt: skip
        self.function = function
        self.kwargs = kwargs
        self.second = second
        self.surroundings = surroundings
        self.early_stop = early_stop
        self.check = check
        self.holders: list[weakref.ref[_Holder]] = []
        self.metas: list[Any] = []
        self.traces: list[str] | None = [] if debug else None
        self.lock = threading.RLock()
        self.node: Any = None
        self.rest: list[Any] = []

    def keep(self, args: tuple[Any, ...]) -> None:
        """Keep the arguments, by the hooks of the frame around this one if there is one."""
        self.node, self.rest = _keep_arguments(args)

    def pack(self, tensor: TensorImpl) -> _Holder:
        """Forget a tensor that the first run saves."""
        holder = _Holder()
        holder.value = None
        self.holders.append(weakref.ref(holder))
        self.metas.append(_described(tensor) if self.check else None)
        if self.traces is not None:
            self.traces.append(_saved_where())
        return holder

    def unpack(self, holder: _Holder) -> TensorImpl:
        """Return what a holder stands for, after a second run if need be."""
        with self.lock:
            if holder.value is None:
                self._run_again()
            value, holder.value = holder.value, None
        if value is None:
            raise self._counts_differ(0)
        return value  # type: ignore[no-any-return]

    def _arguments(self) -> list[Any]:
        tensors = iter(self.node.saved_tensors)
        return [next(tensors) if arg is _TENSOR else arg for arg in self.rest]

    def _run_again(self) -> None:
        run = _SecondRun(self)
        args = self._arguments()
        hooks = saved_tensors_hooks(run.pack, run.unpack)
        # The frame's own hooks are innermost: those around this backward see nothing of it.
        with (
            self.surroundings.restored(), self.second, enable_grad(), hooks,
            contextlib.suppress(_Stop),
        ):  # fmt: skip
            self.function(*args, **self.kwargs)
        run.check()

    def _counts_differ(self, found: int, traces: list[str] | None = None) -> CheckpointError:
        return CheckpointError(
            "torch.utils.checkpoint",
            what="A different number of tensors was saved during the original forward and "
            "recomputation",
            expected=f"{len(self.holders)} tensors as during forward",
            got=f"{found} tensors during recomputation" + self._told(traces),
            remedy="make the function do the same each time it runs; debug=True shows where each "
            "tensor was saved",
        )

    def _told(self, traces: list[str] | None) -> str:
        if self.traces is None or traces is None:
            return ""
        lines = [f"\nforward {k}: {line}" for k, line in enumerate(self.traces)]
        lines += [f"\nrecomputation {k}: {line}" for k, line in enumerate(traces)]
        return "".join(lines)


class _SecondRun:
    """The hooks of a second run: hands what is saved to the holders, in order."""

    def __init__(self, frame: _Frame) -> None:
        self.frame = frame
        self.count = 0
        self.found: list[tuple[int, Any]] = []
        self.traces: list[str] | None = None if frame.traces is None else []

    def pack(self, tensor: TensorImpl) -> TensorImpl:
        """Give a saved tensor to the holder of its number."""
        frame, number = self.frame, self.count
        self.count += 1
        if self.traces is not None:
            self.traces.append(_saved_where())
        if number < len(frame.holders):
            if frame.check:
                self.found.append((number, _described(tensor)))
            holder = frame.holders[number]()
            if holder is not None:
                holder.value = detached(tensor)
        if frame.early_stop and self.count == len(frame.holders):
            raise _Stop
        # What this run's own graph keeps is never asked for: the graph dies with the run.
        return detached(tensor)

    @staticmethod
    def unpack(tensor: TensorImpl) -> TensorImpl:
        """Return a value of the second run's own graph (a backward inside the function)."""
        return tensor

    def check(self) -> None:
        """Raise unless the second run saved what the first one did.

        Raises
        ------
        CheckpointError
            Naming each tensor that differs.
        """
        frame = self.frame
        if self.count != len(frame.holders):
            raise frame._counts_differ(self.count, self.traces)
        wrong = [(k, meta) for k, meta in self.found if meta != frame.metas[k]]
        if wrong:
            told = "".join(
                f"\ntensor at position {k}:\nsaved metadata: {frame.metas[k]}\n"
                f"recomputed metadata: {meta}"
                for k, meta in wrong
            )
            raise CheckpointError(
                "torch.utils.checkpoint",
                what="Recomputed values for the following tensors have different metadata than "
                "during the forward pass." + told + frame._told(self.traces),
                remedy="make the function do the same each time it runs, or pass "
                "determinism_check='none'",
            )


def _described(tensor: TensorImpl) -> dict[str, Any]:
    meta = tensor.meta
    return {"shape": tuple(meta.shape), "dtype": meta.dtype, "device": meta.device}


def _saved_where() -> str:
    """Return the line of the user's program that saves a tensor now."""
    for entry in reversed(traceback.extract_stack()):
        if "refruntime" not in entry.filename:
            return f"{entry.filename}:{entry.lineno} {entry.line}"
    return "inside the runtime"


def _without_reentrance(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    context_fn: Callable[[], Contexts], determinism_check: str, debug: bool, early_stop: bool,
    keep_rng: bool,
) -> Any:  # fmt: skip
    if determinism_check not in ("default", "none"):
        raise ArgumentValueError(
            "checkpoint", expected="determinism_check to be one of ['default', 'none']",
            got=determinism_check,
        )  # fmt: skip
    if any(isinstance(arg, Wrapper) for arg in args):
        warnings.warn(
            "torch.utils.checkpoint: inside vmap and forward derivatives the activations are kept",
            stacklevel=3,
        )
        return function(*args, **kwargs)
    first, second = context_fn()
    if not is_grad_enabled():
        with first:
            return function(*args, **kwargs)
    stop = early_stop if _settings.early_stop is None else _settings.early_stop
    debug = debug if _settings.debug is None else _settings.debug
    frame = _Frame(
        function, kwargs, second, Surroundings(keep_rng, args), stop,
        determinism_check == "default", debug,
    )  # fmt: skip
    frame.keep(args)
    with first, saved_tensors_hooks(frame.pack, frame.unpack):
        return function(*args, **kwargs)


# ---------------------------------------------------------------------------------------------
# With reentrance


class CheckpointFunction(Function):
    """Runs a function without keeping its graph; its backward runs it again with one."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], keep_rng: bool, *args: Any) -> Any:
        """Run the function and keep its arguments."""
        ctx.run = run
        ctx.surroundings = Surroundings(keep_rng, args)
        ctx.rest = [_TENSOR if isinstance(arg, TensorImpl) else arg for arg in args]
        ctx.save_for_backward(*(arg for arg in args if isinstance(arg, TensorImpl)))
        ctx.set_materialize_grads(False)
        return run(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Run the function again with a graph, and backward through it."""
        _require_accumulation()
        args: list[Any] = _arguments_again(ctx)
        with enable_grad(), ctx.surroundings.restored():
            result = ctx.run(*args)
        outputs: Any = result if isinstance(result, (tuple, list)) else (result,)
        pairs = [
            (output, grad)
            for output, grad in zip(outputs, grads, strict=True)
            if grad is not None and requires_grad(output)
        ]
        if not pairs:
            raise AutogradError(
                "checkpoint",
                what="none of output has requires_grad=True, this checkpoint() is not necessary",
                remedy="call the function itself",
            )
        backward([output for output, _ in pairs], [grad for _, grad in pairs])
        found = [getattr(arg, "grad", None) for arg in args]
        return (None, None, *found)


def _arguments_again(ctx: Any) -> list[Any]:
    """Return the arguments, tensors as leaves that collect the gradients asked for."""
    tensors = iter(ctx.saved_tensors)
    args = list(ctx.rest)
    for place, (arg, needed) in enumerate(zip(args, ctx.needs_input_grad[2:], strict=True)):
        if arg is _TENSOR:
            args[place] = next(tensors).detach().requires_grad_(needed)
    return args


def _require_accumulation() -> None:
    """Raise if the running backward returns gradients and accumulates none."""
    task = nest.task
    if task is not None and task.captures is not None:
        raise AutogradError(
            "checkpoint",
            what="When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or "
            "passing an `inputs` parameter to .backward()",
            expected="backward() to all leaves", got="a backward with inputs",
            remedy="set use_reentrant=False",
        )  # fmt: skip


def _reentrant(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], keep_rng: bool
) -> Any:
    if kwargs:
        raise ArgumentValueError(
            "checkpoint", what="Unexpected keyword arguments: " + ",".join(kwargs),
            remedy="use_reentrant=False takes keyword arguments for the function",
        )  # fmt: skip
    if is_grad_enabled() and not any(map(requires_grad, args)):
        warnings.warn(
            "None of the inputs have requires_grad=True. Gradients will be None", stacklevel=3
        )
    return CheckpointFunction.apply(function, keep_rng, *args)


# ---------------------------------------------------------------------------------------------
# The calls


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None,
    context_fn: Callable[[], Contexts] = noop_context_fn, determinism_check: str = "default",
    debug: bool = False, early_stop: bool = True, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run a function without keeping its activations; the backward pass computes them again.

    Parameters
    ----------
    function : callable
        What to run; it must do the same when run again.
    *args, **kwargs
        Its arguments; the reentrant form takes positional ones only.
    use_reentrant : bool
        False, which is recommended: hooks on what is saved. True: a custom Function, whose
        arguments alone get gradients through `backward`. Left out, it is True, with a warning.
    context_fn : callable, optional
        Gives two contexts: for the first run and for the second one.
    determinism_check : {"default", "none"}
        Whether shapes, dtypes and devices of both runs are compared.
    debug : bool
        Show in errors where each tensor was saved.
    early_stop : bool
        End the second run when all that is needed is there.
    preserve_rng_state : bool
        Whether the second run draws the same random numbers; default True.

    Raises
    ------
    CheckpointError
        In backward, if the second run differs from the first.
    """
    if not callable(function):
        raise ArgumentTypeError("checkpoint", expected="a function", got=type(function).__name__)
    keep_rng = kwargs.pop("preserve_rng_state", True)
    if use_reentrant is None:
        warnings.warn(
            "torch.utils.checkpoint: pass use_reentrant explicitly; use_reentrant=False is "
            "recommended, and True is the default for old programs",
            stacklevel=2,
        )
        use_reentrant = True
    if not use_reentrant:
        return _without_reentrance(
            function, args, kwargs, context_fn, determinism_check, debug, early_stop, keep_rng
        )
    if context_fn is not noop_context_fn or debug:
        raise ArgumentValueError(
            "checkpoint",
            what="Passing `context_fn` or `debug` is only supported when use_reentrant=False",
        )
    return _reentrant(function, args, kwargs, keep_rng)


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
    use_reentrant : bool
        As in `checkpoint`.
    """
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ArgumentValueError(
            "checkpoint_sequential", what="Unexpected keyword arguments: " + ",".join(kwargs)
        )
    steps = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(steps) // segments
    for start in range(0, size * (segments - 1), size or 1):
        part = functools.partial(_run_all, steps[start : start + size])
        input = checkpoint(part, input, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    return _run_all(steps[size * (segments - 1) :], input)


def _run_all(steps: list[Callable[..., Any]], input: Any) -> Any:
    for step in steps:
        input = step(input)
    return input
