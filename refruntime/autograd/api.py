"""`backward` and `grad`: the calls that start the engine.

Invariants
----------
* What is asked for is checked before anything runs: a call that raises here has changed nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from refruntime._impl import TensorImpl, TensorMeta, wrap
from refruntime._ops.opdef import ops
from refruntime._storage import external
from refruntime.autograd.accumulate import LONE_OBJECT, LONE_STORAGE
from refruntime.autograd.engine import run_backward
from refruntime.autograd.node import Edge, Node, gradient_edge
from refruntime.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    AutogradError,
    ShapeError,
)

# A tensor, or the edge along which its gradient goes (``autograd.graph.get_gradient_edge``).
Tensors = Any


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
        The outputs; gradient edges count as tensors.
    grad_tensors : tensor or sequence, optional
        The gradients of the outputs; needed for those with more than one element.
    retain_graph : bool, optional
        Keep saved values for another backward; defaults to `create_graph`.
    create_graph : bool
        Record the backward, so that it can be differentiated.
    inputs : tensor or sequence, optional
        Only these accumulate: leaves, and tensors computed from them too.

    Raises
    ------
    AutogradError
        If an output does not require grad, or the graph was used up.
    """
    keep = create_graph if retain_graph is None else retain_graph
    if grad_tensors is None and inputs is None and isinstance(tensors, TensorImpl):
        run_backward([gradient_edge(tensors)], [_start("backward", 0, tensors)], keep, create_graph)
        return
    outputs = _as_tuple(tensors)
    gradients = _root_gradients("backward", outputs, grad_tensors)
    targets = None
    if inputs is not None:
        wanted = _as_tuple(inputs)
        if not wanted:
            raise _nothing_wanted("backward")
        targets = [_target_edge("backward", value) for value in wanted]
    edges = [_edge(output) for output in outputs]
    captured = run_backward(edges, gradients, keep, create_graph, targets)
    if inputs is not None:
        _accumulate_captured(_as_tuple(inputs), captured)


def _accumulate_captured(inputs: tuple[Any, ...], captured: dict[Edge, Any]) -> None:
    """Give non-leaf inputs of `backward` their gradient; leaves have theirs from the engine."""
    for value in inputs:
        if not isinstance(value, TensorImpl):
            continue
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
        What is differentiated, and with respect to what; gradient edges count as tensors.
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
        Give zeros instead of None; then `allow_unused` must not be False.

    Raises
    ------
    AutogradError
        If an output or an input does not require grad, the graph was used up, or an input is not
        in the graph.
    """
    if not only_inputs:
        raise ArgumentValueError(
            "grad", expected="only_inputs=True", got="False",
            remedy="call backward(), which accumulates into the leaves",
        )  # fmt: skip
    if materialize_grads and allow_unused is False:
        raise ArgumentValueError(
            "grad",
            what="Expected allow_unused to be True or not passed when materialize_grads=True, but "
            "got: allow_unused=False.",
            expected="allow_unused True or left out", got="False",
        )  # fmt: skip
    outs, wanted = _as_tuple(outputs), _as_tuple(inputs)
    if not wanted:
        raise _nothing_wanted("grad")
    targets = [_target_edge("grad", value) for value in wanted]
    keep = create_graph if retain_graph is None else retain_graph
    if is_grads_batched:
        results = _batched(outs, targets, grad_outputs, keep, create_graph)
    else:
        gradients = _root_gradients("grad", outs, grad_outputs)
        edges = [_edge(output) for output in outs]
        captured = run_backward(edges, gradients, keep, create_graph, targets, False)
        results = [captured[edge] for edge in targets]
    if materialize_grads:
        return tuple(
            _zeros_of(value, target) if result is None else result
            for value, target, result in zip(wanted, targets, results, strict=True)
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


def _zeros_of(value: Any, target: Edge) -> TensorImpl:
    if isinstance(value, TensorImpl):
        return ops.zeros_like(value, requires_grad=False)  # type: ignore[no-any-return]
    meta = target[0].output_metas[target[1]]
    return ops.zeros(tuple(meta.shape), dtype=meta.dtype, device=meta.device)  # type: ignore[no-any-return]


def _batched(
    outs: tuple[Any, ...], targets: list[Edge], grad_outputs: Any, keep: bool, create_graph: bool
) -> list[Any]:
    """Run one backward for each row of the gradients, and stack what they give."""
    batches = _as_tuple(grad_outputs)
    if any(batch is None or batch.meta.ndim == 0 for batch in batches):
        raise ArgumentValueError(
            "grad", expected="is_grads_batched with grad_outputs of at least one dimension",
            got="a gradient without a batch dimension", remedy="stack the gradients along dim 0",
        )  # fmt: skip
    edges = [_edge(output) for output in outs]
    size = batches[0].meta.shape[0]
    rows = []
    for index in range(size):
        gradients = [ops.select(batch, 0, index) for batch in batches]
        _check_shapes("grad", outs, gradients)
        last = index == size - 1
        captured = run_backward(
            edges, gradients, keep if last else True, create_graph, targets, False
        )
        rows.append([captured[edge] for edge in targets])
    return [
        None if column[0] is None else ops.stack(list(column)) for column in zip(*rows, strict=True)
    ]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if isinstance(value, TensorImpl) or value is None or _is_edge(value):
        return (value,)
    return tuple(value)


def _is_edge(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) >= 2 and isinstance(value[0], Node)


def _edge(value: Any) -> Edge:
    """Return the edge of an output or an input, which may be an edge itself."""
    return gradient_edge(value) if isinstance(value, TensorImpl) else (value[0], value[1])


def _nothing_wanted(name: str) -> AutogradError:
    return AutogradError(
        name, what=f"`inputs` argument to `{name}()` cannot be empty",
        expected="at least one tensor", got="none", remedy="name an input, or leave inputs out",
    )  # fmt: skip


def _target_edge(name: str, value: Any) -> Edge:
    if not isinstance(value, TensorImpl) and not _is_edge(value):
        raise ArgumentTypeError(name, expected="tensors as inputs", got=type(value).__name__)
    edge = _edge(value)
    if edge[0] is None:
        raise AutogradError(
            name,
            what="One of the differentiated Tensors does not require grad",
            expected="inputs that require grad",
            got=f"a tensor of shape {tuple(value.meta.shape)} without requires_grad",
            remedy="call .requires_grad_() on it before the forward",
        )
    return edge


# ---------------------------------------------------------------------------------------------
# Where the gradients start


def _root_gradients(name: str, outputs: tuple[Any, ...], gradients: Any) -> list[TensorImpl]:
    given: Sequence[Any]
    if gradients is None:
        given = (None,) * len(outputs)
    else:
        given = _as_tuple(gradients)
        if len(given) != len(outputs):
            raise AutogradError(
                name, what=f"got {len(outputs)} tensors and {len(given)} gradients",
                expected=str(len(outputs)), got=str(len(given)),
                remedy="pass one for each output",
            )  # fmt: skip
        _check_shapes(name, outputs, given)
    return [
        _start(name, number, output) if gradient is None else gradient
        for number, (output, gradient) in enumerate(zip(outputs, given, strict=True))
    ]


def _meta_of_root(name: str, number: int, output: Any) -> TensorMeta:
    """Return the meta of an output that has a history."""
    if not isinstance(output, TensorImpl):
        return output[0].output_metas[output[1]]  # type: ignore[no-any-return]
    meta = output.autograd
    if meta is None or not meta.requires_grad:
        raise AutogradError(
            name,
            what=f"element {number} of tensors does not require grad and does not have a grad_fn",
            expected="an output that was computed from a tensor with requires_grad=True",
            got=f"a tensor of shape {tuple(output.meta.shape)} without history",
            remedy="set requires_grad=True on an input, and compute outside no_grad",
        )
    return output.meta


def _start(name: str, number: int, output: Any) -> TensorImpl:
    """Return the gradient of an output that was given none: one."""
    meta = _meta_of_root(name, number, output)
    if meta.numel != 1:
        raise AutogradError(
            name,
            what="grad can be implicitly created only for scalar outputs",
            expected="one element",
            got=f"shape {tuple(meta.shape)}",
            remedy="reduce the output first, or pass its gradient",
        )
    one = _ones.get(meta)
    if (
        one is None
        or sys.getrefcount(one) > LONE_OBJECT
        or sys.getrefcount(one.storage) > LONE_STORAGE
        or one.counter.version
    ):
        one = _make_one(meta)
    return one


# A one for each meta, on the CPU: the tensor is used again as long as nobody else holds it or has
# written to it. Its bytes belong to a NumPy array, so that no block of the allocator stays taken.
_ones: dict[TensorMeta, TensorImpl] = {}
_MAX_ONES = 64


def _make_one(meta: TensorMeta) -> TensorImpl:
    if meta.device.type != "cpu":
        return ops.ones(tuple(meta.shape), dtype=meta.dtype, device=meta.device)  # type: ignore[no-any-return]
    array = np.ones(1, meta.dtype.np)
    one = wrap(external(array.ctypes.data, array.nbytes, array), meta)
    if len(_ones) >= _MAX_ONES:
        _ones.clear()
    _ones[meta] = one
    return one


def _check_shapes(name: str, outputs: Sequence[Any], gradients: Sequence[Any]) -> None:
    for number, (output, gradient) in enumerate(zip(outputs, gradients, strict=True)):
        shape = _meta_of_root(name, number, output).shape
        if gradient is not None and gradient.meta.shape != shape:
            raise ShapeError(
                name,
                what=f"Mismatch in shape: grad_output[{number}] has a shape of "
                f"{tuple(gradient.meta.shape)} and output[{number}] has a shape of {tuple(shape)}",
                expected=str(tuple(shape)),
                got=str(tuple(gradient.meta.shape)),
                remedy="pass a gradient shaped like the output",
            )
