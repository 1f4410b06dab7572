"""`backward` and `grad`: the calls that start the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refruntime._impl import AutogradMeta, TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd.engine import run_backward
from refruntime.autograd.node import Edge, gradient_edge
from refruntime.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    AutogradError,
    ShapeError,
)

Tensors = TensorImpl | Sequence[TensorImpl]


def backward(
    tensors: Tensors,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Add to the ``grad`` of the leaves the gradient of the sum of `tensors`.

    Parameters
    ----------
    tensors : tensor or sequence of tensors
        The outputs.
    grad_tensors : tensor or sequence, optional
        The gradients of the outputs; needed for those with more than one element.
    retain_graph : bool, optional
        Keep saved values for another backward; defaults to `create_graph`.
    create_graph : bool
        Record the backward, so that it can be differentiated.
    inputs : tensor or sequence, optional
        Only these leaves accumulate.

    Raises
    ------
    AutogradError
        If an output does not require grad, or the graph was used up.
    """
    outputs = _as_tuple(tensors)
    gradients = _root_gradients("backward", outputs, grad_tensors, create_graph)
    targets = None
    if inputs is not None:
        wanted = _as_tuple(inputs)
        if not wanted:
            raise AutogradError(
                "backward", what="inputs argument to backward cannot be empty",
                expected="at least one tensor", got="none", remedy="leave inputs out",
            )  # fmt: skip
        targets = [_target_edge("backward", value) for value in wanted]
    keep = create_graph if retain_graph is None else retain_graph
    captured = run_backward(
        [gradient_edge(output) for output in outputs], gradients, keep_graph=keep,
        create_graph=create_graph, targets=targets,
    )  # fmt: skip
    if inputs is not None:
        _accumulate_captured(_as_tuple(inputs), captured)


def _accumulate_captured(inputs: tuple[TensorImpl, ...], captured: dict[Edge, Any]) -> None:
    """Give non-leaf inputs of `backward` their gradient; leaves have theirs from the engine."""
    for value in inputs:
        meta = value.autograd
        assert meta is not None
        gradient = captured.get(gradient_edge(value))
        if meta.grad_fn is not None and gradient is not None:
            meta.grad = gradient if meta.grad is None else ops.add(meta.grad, gradient)


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """Return the gradients of the sum of `outputs` with respect to `inputs`.

    Parameters
    ----------
    outputs, inputs : tensor or sequence of tensors
        What is differentiated, and with respect to what.
    grad_outputs : tensor or sequence, optional
        Gradients of the outputs.
    retain_graph, create_graph : bool
        As in `backward`.
    only_inputs : bool
        True: gradients are returned, never accumulated into other leaves.
    allow_unused : bool, optional
        Give None for an input that the outputs do not depend on, instead of raising.
    is_grads_batched : bool
        Each of `grad_outputs` has a leading batch dimension; so do the results.
    materialize_grads : bool
        Give zeros instead of None.
    """
    if not only_inputs:
        raise ArgumentValueError(
            "grad", expected="only_inputs=True", got="False",
            remedy="call backward(), which accumulates into the leaves",
        )  # fmt: skip
    outs, wanted = _as_tuple(outputs), _as_tuple(inputs)
    if is_grads_batched:
        return _batched(outs, wanted, grad_outputs, retain_graph, create_graph, allow_unused)
    gradients = _root_gradients("grad", outs, grad_outputs, create_graph)
    targets = [_target_edge("grad", value) for value in wanted]
    captured = run_backward(
        [gradient_edge(output) for output in outs], gradients,
        keep_graph=create_graph if retain_graph is None else retain_graph,
        create_graph=create_graph, targets=targets, accumulate=False,
    )  # fmt: skip
    results = [captured[edge] for edge in targets]
    if materialize_grads:
        return tuple(
            ops.zeros_like(value) if result is None else result
            for value, result in zip(wanted, results, strict=True)
        )
    if not allow_unused and any(result is None for result in results):
        raise AutogradError(
            "grad",
            what="One of the differentiated Tensors appears to not have been used in the graph",
            expected="inputs that the outputs depend on",
            got=f"no gradient for input {results.index(None)}",
            remedy="set allow_unused=True if this is the desired behavior",
        )
    return tuple(results)


def _batched(
    outs: tuple[TensorImpl, ...], wanted: tuple[TensorImpl, ...], grad_outputs: Any,
    retain_graph: bool | None, create_graph: bool, allow_unused: bool | None,
) -> tuple[Any, ...]:  # fmt: skip
    batches = _as_tuple(grad_outputs)
    size = batches[0].meta.shape[0]
    rows = []
    for index in range(size):
        row = [ops.select(batch, 0, index) for batch in batches]
        keep = True if index < size - 1 else retain_graph
        rows.append(
            grad(outs, wanted, row, keep, create_graph=create_graph, allow_unused=allow_unused)
        )
    return tuple(
        None if column[0] is None else ops.stack(list(column))
        for column in zip(*rows, strict=True)
    )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, TensorImpl) or value is None else tuple(value)


def _target_edge(name: str, value: Any) -> Edge:
    if not isinstance(value, TensorImpl):
        raise ArgumentTypeError(name, expected="tensors as inputs", got=type(value).__name__)
    edge = gradient_edge(value)
    if edge[0] is None:
        raise AutogradError(
            name,
            what="One of the differentiated Tensors does not require grad",
            expected="inputs that require grad",
            got=f"a tensor of shape {tuple(value.meta.shape)} without requires_grad",
            remedy="call .requires_grad_() on it before the forward",
        )
    return edge


def _root_gradients(
    name: str, outputs: tuple[Any, ...], gradients: Any, create_graph: bool
) -> list[TensorImpl]:
    given = _as_tuple(gradients) if gradients is not None else (None,) * len(outputs)
    if len(given) != len(outputs):
        raise AutogradError(
            name, what="got a different number of tensors and gradients",
            expected=str(len(outputs)), got=str(len(given)), remedy="pass one for each output",
        )  # fmt: skip
    return [
        _root_gradient(name, output, gradient)
        for output, gradient in zip(outputs, given, strict=True)
    ]


def _root_gradient(name: str, output: TensorImpl, gradient: Any) -> TensorImpl:
    meta: AutogradMeta | None = output.autograd
    if meta is None or not meta.requires_grad:
        raise AutogradError(
            name,
            what="element 0 of tensors does not require grad and does not have a grad_fn",
            expected="an output that was computed from a tensor with requires_grad=True",
            got=f"a tensor of shape {tuple(output.meta.shape)} without history",
            remedy="set requires_grad=True on an input, and compute outside no_grad",
        )
    if gradient is None:
        if output.meta.numel != 1:
            raise AutogradError(
                name,
                what="grad can be implicitly created only for scalar outputs",
                expected="one element",
                got=f"shape {tuple(output.meta.shape)}",
                remedy="reduce the output first, or pass its gradient",
            )
        return ops.ones_like(output, requires_grad=False)  # type: ignore[no-any-return]
    if gradient.meta.shape != output.meta.shape:
        raise ShapeError(
            name,
            what="Mismatch in shape: grad_output and output",
            expected=str(tuple(output.meta.shape)),
            got=str(tuple(gradient.meta.shape)),
            remedy="pass a gradient shaped like the output",
        )
    return gradient  # type: ignore[no-any-return]
