"""`Function`: derivative rules that users write.

Invariants
----------
* `forward` runs without recording; the node is the context itself, which `save_for_backward` and
  the attributes set on it reach again in `backward`.
* `backward` runs with recording when the outer backward asked for a graph, so that custom rules
  made of differentiable ops are differentiable again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from refruntime._impl import AutogradMeta, TensorImpl, detached, requires_grad
from refruntime._ops.opdef import ops
from refruntime.autograd.inplace import check_writable
from refruntime.autograd.modes import state
from refruntime.autograd.node import Node, gradient_edge, is_differentiable, released
from refruntime.autograd.saved import SavedValue
from refruntime.errors import AutogradError


class FunctionCtx(Node):
    """What `forward` and `backward` of a custom function share; the node of the graph."""

    function: type[Function]

    def __init__(self) -> None:
        super().__init__(())
        self.needs_input_grad: tuple[bool, ...] = ()
        self.materialize_grads = True
        self.to_save: tuple[Any, ...] = ()
        self.dirty: tuple[TensorImpl, ...] = ()
        self.non_differentiable: tuple[TensorImpl, ...] = ()
        self._saved: list[Any] | None = []

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors (inputs, outputs or intermediates; None is allowed) for `backward`."""
        self.to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep tensors for `jvp`."""
        self.saved_for_forward = tensors

    def mark_dirty(self, *tensors: TensorImpl) -> None:
        """Say which inputs `forward` wrote to."""
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: TensorImpl) -> None:
        """Say which outputs carry no gradient."""
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Say whether absent gradients arrive in `backward` as zeros (the default) or as None."""
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` was given."""
        if self._saved is None:
            raise released(self)
        return tuple(
            value.unpack(self) if isinstance(value, SavedValue) else value for value in self._saved
        )

    def apply(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradients of the operands from those of the outputs."""
        if self._saved is None:
            raise released(self)
        if self.materialize_grads:
            grads = tuple(
                ops.zeros(tuple(meta.shape), dtype=meta.dtype, device=meta.device)
                if gradient is None and is_differentiable(meta)
                else gradient
                for gradient, meta in zip(grads, self.output_metas, strict=True)
            )
        result = self.function.backward(self, *grads)
        results = result if isinstance(result, tuple) else (result,)
        return self._trim(results)

    def _trim(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        expected = len(self.next_functions)
        extra = results[expected:]
        if len(results) < expected or any(value is not None for value in extra):
            raise AutogradError(
                self.name(),
                what="returned an incorrect number of gradients",
                expected=str(expected),
                got=str(len(results)),
                remedy="return one gradient (or None) for each argument of forward",
            )
        return results[:expected]

    def release(self) -> None:
        """Drop what was saved."""
        if self._saved:
            self._saved = None

    def seal(self, outputs: tuple[Any, ...]) -> None:
        """Turn what is to be saved into saved values, once the outputs are known."""
        numbers = {id(output): number for number, output in enumerate(outputs)}
        self._saved = [self._seal_one(value, numbers) for value in self.to_save]
        self.to_save = ()

    def _seal_one(self, value: Any, numbers: dict[int, int]) -> Any:
        if not isinstance(value, TensorImpl):
            return value
        number = numbers.get(id(value))
        return SavedValue(value, number is not None, number or 0)


class Function:
    """Base class of custom differentiable functions.

    Subclasses define static methods: ``forward(ctx, *args)`` (or ``forward(*args)`` together with
    ``setup_context(ctx, inputs, output)``) and ``backward(ctx, *grad_outputs)``; users call
    ``apply``.
    """

    _node_class: type[FunctionCtx] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise AutogradError(
            type(self).__name__,
            what="a Function is not instantiated",
            expected="a call of apply",
            got="a constructor call",
            remedy=f"call {type(self).__name__}.apply(...)",
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        raise NotImplementedError("a custom autograd.Function must define forward")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what `backward` needs, when `forward` takes no context."""
        raise NotImplementedError("setup_context")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return the gradient (or None) of each argument of `forward`."""
        raise NotImplementedError("a custom autograd.Function must define backward or vjp")

    vjp = backward

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run the function and record it."""
        node = cls._context()
        edges = tuple([gradient_edge(arg) for arg in args])
        node.needs_input_grad = tuple([edge[0] is not None for edge in edges])
        outputs = cls._run_forward(node, args, kwargs)
        recorded = state.grad and any(node.needs_input_grad)
        return cls._attach(node, args, edges, outputs, recorded)

    @classmethod
    def _context(cls) -> FunctionCtx:
        if "_node_class" not in cls.__dict__ or cls._node_class is None:
            cls._node_class = type(cls.__name__ + "Backward", (FunctionCtx,), {"function": cls})
        return cls._node_class()

    @classmethod
    def _run_forward(cls, node: FunctionCtx, args: tuple[Any, ...], kwargs: Any) -> Any:
        previous, state.grad = state.grad, False
        try:
            if cls.setup_context is Function.setup_context:
                return cls.forward(node, *args, **kwargs)
            outputs = cls.forward(*args, **kwargs)
            cls.setup_context(node, args, outputs)
            return outputs
        finally:
            state.grad = previous

    @classmethod
    def _attach(
        cls, node: FunctionCtx, args: tuple[Any, ...], edges: Any, outputs: Any, recorded: bool
    ) -> Any:
        several = isinstance(outputs, (tuple, list))
        outs = list(outputs) if several else [outputs]
        outs = [_own_output(out, args, node) for out in outs]
        if recorded:
            node.next_functions = edges
            node.output_metas = tuple(
                [out.meta if isinstance(out, TensorImpl) else None for out in outs]  # type: ignore[misc]
            )
            for number, out in enumerate(outs):
                _set_output_history(node, out, number)
        node.seal(tuple(outs))
        return tuple(outs) if several else outs[0]


def _own_output(out: Any, args: tuple[Any, ...], node: FunctionCtx) -> Any:
    """Return an output that may be given a history: an input returned as it is becomes an alias."""
    if not isinstance(out, TensorImpl):
        return out
    if any(out is dirty for dirty in node.dirty):
        check_writable(node.name(), out)
        return out
    if any(out is arg for arg in args):
        alias_of = detached(out)
        node.to_save = tuple(alias_of if value is out else value for value in node.to_save)
        return alias_of
    return out


def _set_output_history(node: FunctionCtx, out: Any, number: int) -> None:
    if not isinstance(out, TensorImpl) or not is_differentiable(out.meta):
        return
    if any(out is other for other in node.non_differentiable):
        return
    out.autograd = AutogradMeta(True, node, number, out.counter.version)


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

    def apply(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
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
