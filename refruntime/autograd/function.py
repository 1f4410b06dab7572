"""`Function`: derivative rules that users write.

Invariants
----------
* `forward` runs without recording; the node is the context itself, which `save_for_backward` and
  the attributes set on it reach again in `backward`.
* `backward` runs with recording when the outer backward asked for a graph, so that custom rules
  made of differentiable ops are differentiable again.
* With dual or batched arguments the class's own `jvp` and `vmap` decide what happens
  (`function_transforms`); no op of `forward` is ever differentiated or batched by itself.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from refruntime._impl import AutogradMeta, TensorImpl, detached, requires_grad
from refruntime._ops.opdef import ops
from refruntime.autograd import record
from refruntime.autograd.inplace import check_writable
from refruntime.autograd.levels import Wrapper
from refruntime.autograd.modes import state
from refruntime.autograd.node import Node, gradient_edge, is_differentiable, released
from refruntime.autograd.saved import SavedValue
from refruntime.errors import ArgumentTypeError, AutogradError, KernelMissingError

__all__ = ["Function", "FunctionCtx", "once_differentiable"]

Values = tuple[Any, ...]


class FunctionCtx(Node):
    """What `forward` and `backward` of a custom function share; the node of the graph."""

    function: type[Function]

    def __init__(self) -> None:
        super().__init__(())
        self.needs_input_grad: tuple[bool, ...] = ()
        self.materialize_grads = True
        self.to_save: Values = ()
        self.saved_for_forward: Values | None = None
        self.dirty: tuple[TensorImpl, ...] = ()
        self.non_differentiable: tuple[TensorImpl, ...] = ()
        self._saved: list[Any] | None = []

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors (inputs, outputs or intermediates; None is allowed) for `backward`."""
        _require_tensors("save_for_backward", tensors)
        self.to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep tensors for `jvp`, which finds them in `saved_tensors`."""
        _require_tensors("save_for_forward", tensors)
        self.saved_for_forward = tensors

    def mark_dirty(self, *tensors: TensorImpl) -> None:
        """Say which inputs `forward` wrote to; it must return them."""
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: TensorImpl) -> None:
        """Say which outputs carry no gradient."""
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Say whether absent gradients arrive in `backward` as zeros (the default) or as None."""
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> Values:
        """What `save_for_backward` was given."""
        if self._saved is None:
            raise released(self)
        return tuple(
            value.unpack(self) if isinstance(value, SavedValue) else value for value in self._saved
        )

    def apply(self, grads: Sequence[Any]) -> Values:
        """Return the gradients of the operands from those of the outputs."""
        if self._saved is None:
            raise released(self)
        given = list(grads)
        if self.materialize_grads:
            given = [
                _zeros(meta) if gradient is None and meta is not None else gradient
                for gradient, meta in zip(grads, self.output_metas, strict=True)
            ]
        result = self.function._backward_rule()(self, *given)
        return self._checked(result if isinstance(result, tuple) else (result,))

    def _checked(self, results: Values) -> Values:
        expected = len(self.next_functions)
        extra = results[expected:]
        if len(results) < expected or any(value is not None for value in extra):
            raise AutogradError(
                f"function {self.name()}",
                what="returned an incorrect number of gradients",
                expected=str(expected),
                got=str(len(results)),
                remedy="return one gradient (or None) for each argument of forward",
            )
        for value in results[:expected]:
            if value is not None and not isinstance(value, TensorImpl):
                raise AutogradError(
                    f"function {self.name()}",
                    what=f"expected Variable or None (got {type(value).__name__})",
                    remedy="return tensors or None from backward",
                )
        return results[:expected]

    def release(self) -> None:
        """Drop what was saved."""
        if self._saved:
            self._saved = None

    def seal(self, outputs: Values) -> None:
        """Turn what is to be saved into saved values, once the outputs are known."""
        numbers = {id(output): number for number, output in enumerate(outputs)}
        self._saved = [self._seal_one(value, numbers) for value in self.to_save]
        self.to_save = ()

    def _seal_one(self, value: Any, numbers: dict[int, int]) -> Any:
        if not isinstance(value, TensorImpl):
            return value
        number = numbers.get(id(value))
        history = number is not None and requires_grad(value)
        return SavedValue(value, history, number or 0)


def _require_tensors(name: str, values: Values) -> None:
    for place, value in enumerate(values):
        if value is not None and not isinstance(value, TensorImpl):
            raise ArgumentTypeError(
                name, what=f"{name} can only save variables, but argument {place} is of type "
                f"{type(value).__name__}", expected="tensors or None", got=type(value).__name__,
                remedy="set other values as attributes of ctx",
            )  # fmt: skip


def _zeros(meta: Any) -> Any:
    if not is_differentiable(meta):
        return None
    return ops.zeros(tuple(meta.shape), dtype=meta.dtype, device=meta.device)


class Function:
    """Base class of custom differentiable functions.

    Subclasses define static methods: ``forward(ctx, *args)`` (or ``forward(*args)`` together with
    ``setup_context(ctx, inputs, output)``) and ``backward(ctx, *grad_outputs)``; users call
    ``apply``. For forward derivatives there is ``jvp(ctx, *grad_inputs)``, for `vmap` either
    ``vmap(info, in_dims, *args)`` or ``generate_vmap_rule = True``.
    """

    generate_vmap_rule = False
    _node_class: type[FunctionCtx] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all "
            f"static: call {type(self).__name__}.apply(...)",
            DeprecationWarning,
            stacklevel=2,
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        raise _missing("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: Values, output: Any) -> None:
        """Save what `backward` needs, when `forward` takes no context."""
        raise _missing("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return the gradient (or None) of each argument of `forward`."""
        raise _missing(
            "You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD."
        )

    vjp = backward

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Return the tangent of each output from those of the arguments."""
        raise _missing(
            "You must implement the jvp function for custom autograd.Function to use it with "
            "forward mode AD."
        )

    @staticmethod
    def vmap(info: Any, in_dims: Values, *args: Any) -> Any:
        """Return the outputs for a whole batch, and where the batch is in each."""
        raise _missing("You must implement the vmap staticmethod to use it with vmap.")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run the function and record it."""
        if kwargs:
            args = cls._positional(args, kwargs)
        if any(isinstance(arg, Wrapper) for arg in args):
            from refruntime.autograd.function_transforms import apply_transformed

            return apply_transformed(cls, args)
        return cls._apply(args)[0]

    @classmethod
    def _apply(cls, args: Values) -> tuple[Any, FunctionCtx]:
        """Run the function on plain tensors; return the outputs and the context."""
        # Before the node is made: a node is numbered after those of its operands.
        edges = tuple([gradient_edge(arg) for arg in args])
        node = cls._context()
        node.needs_input_grad = tuple([edge[0] is not None for edge in edges])
        outputs = cls._run_forward(node, args)
        recorded = state.grad and any(node.needs_input_grad)
        return cls._attach(node, args, edges, outputs, recorded), node

    @classmethod
    def _positional(cls, args: Values, kwargs: dict[str, Any]) -> Values:
        """Return keyword arguments of `forward` in their places."""
        skipped: Values = () if cls._has_setup_context() else (None,)
        bound = inspect.signature(cls.forward).bind(*skipped, *args, **kwargs)
        bound.apply_defaults()
        return bound.args[len(skipped) :]

    @classmethod
    def _has_setup_context(cls) -> bool:
        return cls.setup_context is not Function.setup_context

    @classmethod
    def _backward_rule(cls) -> Callable[..., Any]:
        """Return ``backward``, or ``vjp``, which is another name for it."""
        own_backward = cls.backward is not Function.backward
        own_vjp = cls.vjp is not Function.vjp
        if own_backward and own_vjp:
            raise AutogradError(
                cls.__name__,
                what="Implementing both 'backward' and 'vjp' for a custom Function is not allowed. "
                "You should only implement one of them.",
            )
        return cls.vjp if own_vjp else cls.backward

    @classmethod
    def _context(cls) -> FunctionCtx:
        if "_node_class" not in cls.__dict__ or cls._node_class is None:
            cls._node_class = type(cls.__name__ + "Backward", (FunctionCtx,), {"function": cls})
        return cls._node_class()

    @classmethod
    def _run_forward(cls, node: FunctionCtx, args: Values) -> Any:
        previous, state.grad = state.grad, False
        try:
            if not cls._has_setup_context():
                return cls.forward(node, *args)
            outputs = cls.forward(*args)
            cls.setup_context(node, args, outputs)
            return outputs
        finally:
            state.grad = previous

    @classmethod
    def _attach(
        cls, node: FunctionCtx, args: Values, edges: Any, outputs: Any, recorded: bool
    ) -> Any:
        several = isinstance(outputs, (tuple, list))
        outs = list(outputs) if several else [outputs]
        _require_dirty_returned(node, outs)
        outs = [_own_output(out, args, node) for out in outs]
        if recorded:
            node.next_functions = edges
            node.output_metas = tuple(
                [out.meta if isinstance(out, TensorImpl) else None for out in outs]  # type: ignore[misc]
            )
            for number, out in enumerate(outs):
                _set_output_history(node, out, number)
            for observer in record.observers:
                observer(node)
        node.seal(tuple(outs))
        return tuple(outs) if several else outs[0]


def _missing(what: str) -> KernelMissingError:
    return KernelMissingError("autograd.Function", what=what)


def _require_dirty_returned(node: FunctionCtx, outs: list[Any]) -> None:
    if not all(any(out is dirty for out in outs) for dirty in node.dirty):
        raise AutogradError(
            node.name(),
            what="Some elements marked as dirty during the forward method were not returned as "
            "output. The inputs that are modified inplace must all be outputs of the Function.",
        )


def _own_output(out: Any, args: Values, node: FunctionCtx) -> Any:
    """Return an output that may be given a history: an input returned as it is becomes an alias."""
    if not isinstance(out, TensorImpl):
        return out
    if any(out is dirty for dirty in node.dirty):
        check_writable(node.name(), out)
        return out
    if any(out is arg for arg in args):
        alias_of = detached(out)
        node.to_save = tuple(alias_of if value is out else value for value in node.to_save)
        node.non_differentiable = tuple(
            alias_of if value is out else value for value in node.non_differentiable
        )
        return alias_of
    return out


def _set_output_history(node: FunctionCtx, out: Any, number: int) -> None:
    if not isinstance(out, TensorImpl) or not is_differentiable(out.meta):
        return
    if any(out is other for other in node.non_differentiable):
        return
    out.autograd = AutogradMeta(True, node, number, out.counter.version)


# ---------------------------------------------------------------------------------------------
# Rules that must not be differentiated


def once_differentiable(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` whose result must not be differentiated again."""

    @functools.wraps(func)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        differentiable = state.grad and any(map(requires_grad, grads))
        previous, state.grad = state.grad, False
        try:
            result = func(ctx, *grads)
        finally:
            state.grad = previous
        return _refuse(result) if differentiable else result

    return wrapper


class DelayedError(Node):
    """Raises when backward reaches it."""

    def apply(self, grads: Sequence[Any]) -> Values:
        """Return the gradients of the operands from those of the outputs."""
        raise AutogradError(
            "once_differentiable",
            what="trying to differentiate twice a function that was marked with "
            "@once_differentiable",
            expected="a first derivative only",
            got="a second derivative",
            remedy="write the backward with differentiable ops and drop the decorator",
        )


def _refuse(result: Any) -> Any:
    several = isinstance(result, tuple)
    values = list(result) if several else [result]
    for number, value in enumerate(values):
        if isinstance(value, TensorImpl):
            values[number] = marked = detached(value)
            node = DelayedError(())
            node.output_metas = (marked.meta,)
            marked.autograd = AutogradMeta(True, node, 0)
    return tuple(values) if several else values[0]
