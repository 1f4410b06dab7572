"""Views: other shapes and strides over the same memory.

State
-----
None. Each record's `view` is a rule of `_layout`; running it makes a tensor that shares storage and
version counter with its source.

Invariants
----------
* A view op never touches an element. What cannot be a view (`reshape` of some layouts) says so or
  copies first, where torch copies.
* The derivative of a view that shows a part is `parts.embed`: zeros of the source's shape with the
  gradient in that part. It is itself an op, so derivatives of any order follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime import _dtypes, _layout
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta, detached
from refruntime._layout import View
from refruntime._ops.arguments import int_of, ints_of, spread_ints
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.parts import embed
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime._ops.view_plans import one_view
from refruntime.errors import ShapeError

# ---------------------------------------------------------------------------------------------
# Records


def _view_op(name: str, rule: Callable[..., View], vjp: Callable[..., Any], **fields: Any) -> OpDef:
    return register(
        OpDef(
            name,
            ("input",),
            view=rule,
            run=one_view(rule),
            vjp=vjp,
            jvp="linear",
            batch="view",
            **fields,
        )
    )


def _view_rule(meta: TensorMeta, *, shape: tuple[int, ...]) -> View:
    strides = _layout.view_strides(meta.shape, meta.strides, shape)
    if strides is None:
        raise ShapeError(
            "view",
            what="view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces)",
            expected=f"a shape that strides {meta.strides} can show",
            got=f"{tuple(meta.shape)} as {tuple(shape)}",
            remedy="use .reshape(...) instead",
        )
    return shape, strides, 0


def _view_samples() -> list[Sample]:
    return [
        Sample((T((2, 6)), 3, 4)),
        Sample((T((2, 3, 4)), (-1, 4))),
        Sample((T((4, 3), layout="strided"), 2, 2, 3)),
        Sample((T((2, 3), _dtypes.int64), 6), grad=False),
    ]


VIEW = _view_op(
    "view",
    _view_rule,
    lambda g, n: ops.reshape(g, n.metas[0].shape),
    samples=_view_samples,
    error_samples=lambda: [
        ErrorSample((T((2, 3)), 5), RuntimeError, "invalid for input of size 6"),
        ErrorSample((T((2, 3), layout="transposed"), 6), RuntimeError, r"use \.reshape"),
        ErrorSample((T((2, 3)), -1, -1), RuntimeError, "only one dimension can be inferred"),
        ErrorSample((T((2, 3)), 2.0), TypeError, "must be int"),
    ],
    reference=lambda x, *shape: x.reshape(*shape),
)
ALIAS = _view_op(
    "alias",
    lambda meta: (meta.shape, meta.strides, 0),
    lambda g, n: g,
    samples=lambda: [Sample((T((2, 3), layout="transposed"),))],
    reference=lambda x: x,
)


def _run_detach(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> TensorImpl:
    # No base: a write through the result must not rewrite the history of the source.
    return detached(inputs[0])


DETACH = register(
    OpDef(
        "detach",
        ("input",),
        view=lambda meta: (meta.shape, meta.strides, 0),
        run=_run_detach,
        samples=lambda: [Sample((T((2, 3)),), grad=False)],
        reference=lambda x: x,
    )
)

TRANSPOSE = _view_op(
    "transpose",
    lambda meta, *, dim0, dim1: _layout.transpose(meta.shape, meta.strides, dim0, dim1),
    lambda g, n: ops.transpose(g, n.dim0, n.dim1),
    samples=lambda: [Sample((T((2, 3, 4)), 0, -1)), Sample((T((), grad=True), 0, 0))],
    error_samples=lambda: [ErrorSample((T((2, 3)), 0, 2), IndexError, "Dimension out of range")],
    reference=lambda x, a, b: x.swapaxes(a, b) if x.ndim else x,
)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


PERMUTE = _view_op(
    "permute",
    lambda meta, *, dims: _layout.permute(meta.shape, meta.strides, dims),
    lambda g, n: ops.permute(g, _inverse(_layout.wrap_dims(n.dims, g.ndim, "permute"))),
    samples=lambda: [Sample((T((2, 3, 4)), 2, 0, 1)), Sample((T((2, 3)), (-1, 0)))],
    error_samples=lambda: [
        ErrorSample((T((2, 3)), 0), RuntimeError, "number of dimensions"),
        ErrorSample((T((2, 3)), 0, 0), RuntimeError, "multiple times"),
    ],
    reference=lambda x, *dims: x.transpose(*dims),
)

# The engine sums a gradient down to the shape of its operand.
EXPAND = _view_op(
    "expand",
    lambda meta, *, size: _layout.expand(meta.shape, meta.strides, size),
    lambda g, n: g,
    samples=lambda: [Sample((T((3, 1)), 2, 3, 4)), Sample((T(()), (2,)))],
    error_samples=lambda: [ErrorSample((T((2, 3)), 2, 4), RuntimeError, "expanded size")],
    reference=lambda x, *size: np.broadcast_to(x, size if isinstance(size[0], int) else size[0]),
)


def _back_to_shape(g: Any, n: Any) -> Any:
    return ops.reshape(g, n.metas[0].shape)


SQUEEZE = _view_op(
    "squeeze",
    lambda meta, *, dim: _layout.squeeze(meta.shape, meta.strides, dim),
    _back_to_shape,
    samples=lambda: [Sample((T((1, 3, 1)),)), Sample((T((1, 3, 1)), -1)), Sample((T((2, 1)), 0))],
    error_samples=lambda: [ErrorSample((T((1, 3)), 2), IndexError, "Dimension out of range")],
    reference=lambda x, dim=None: x if dim is not None and x.shape[dim] != 1 else x.squeeze(dim),
)
UNSQUEEZE = _view_op(
    "unsqueeze",
    lambda meta, *, dim: _layout.unsqueeze(meta.shape, meta.strides, dim),
    _back_to_shape,
    samples=lambda: [Sample((T((2, 3)), 1)), Sample((T(()), -1))],
    error_samples=lambda: [ErrorSample((T((2,)), 3), IndexError, "Dimension out of range")],
    reference=np.expand_dims,
)


def _embedding_vjp(view: str) -> Callable[..., Any]:
    def vjp(g: Any, n: Any) -> Any:
        return embed(g, n.metas[0].shape, view, **n.params)

    return vjp


SELECT = _view_op(
    "select",
    lambda meta, *, dim, index: _layout.select(meta.shape, meta.strides, dim, index),
    _embedding_vjp("select"),
    samples=lambda: [Sample((T((2, 3)), 0, 1)), Sample((T((2, 3), layout="transposed"), -1, -1))],
    error_samples=lambda: [
        ErrorSample((T((2, 3)), 1, 3), IndexError, "index 3 is out of bounds"),
        ErrorSample((T(()), 0, 0), IndexError, "0-dim"),
    ],
    reference=lambda x, dim, index: x.take(index, dim),
)
SLICE = _view_op(
    "slice",
    lambda meta, *, dim, start, stop, step: _layout.slice_(
        meta.shape, meta.strides, dim, start, stop, step
    ),
    _embedding_vjp("slice"),
    samples=lambda: [Sample((T((5, 3)), 0, 1, 5, 2)), Sample((T((2, 4)), 1, -3, None))],
    error_samples=lambda: [ErrorSample((T((3,)), 0, 0, 3, 0), ValueError, "greater than zero")],
    reference=lambda x, dim, start, end, step=1: x[
        (slice(None),) * dim + (slice(start, end, step),)
    ],
)
NARROW = _view_op(
    "narrow",
    lambda meta, *, dim, start, length: _layout.narrow(
        meta.shape, meta.strides, dim, start, length
    ),
    _embedding_vjp("narrow"),
    backward_name="SliceBackward0",
    samples=lambda: [Sample((T((5, 3)), 0, 1, 3)), Sample((T((2, 4)), -1, -3, 2))],
    error_samples=lambda: [ErrorSample((T((3,)), 0, 2, 2), RuntimeError, "exceeds dimension size")],
    reference=lambda x, dim, start, length: x.take(
        range(start % x.shape[dim], start % x.shape[dim] + length), dim
    ),
)
DIAGONAL = _view_op(
    "diagonal",
    lambda meta, *, offset, dim1, dim2: _layout.diagonal(
        meta.shape, meta.strides, offset, dim1, dim2
    ),
    _embedding_vjp("diagonal"),
    samples=lambda: [
        Sample((T((3, 4)), 1)),
        Sample((T((2, 3, 4)), -1, 2, 0)),
        Sample((T((3, 3)),)),
    ],
    error_samples=lambda: [ErrorSample((T((2, 2)), 0, 1, 1), RuntimeError, "identical")],
    reference=np.diagonal,
)


# ---------------------------------------------------------------------------------------------
# Shapes


@front(VIEW)
def view(input: Any, *shape: Any, size: Any = None) -> Any:
    """Show the same elements in another shape (one size may be -1), or as another dtype."""
    require_tensor("view", input)
    if len(shape) == 1 and isinstance(shape[0], DType):
        return ops.view_dtype(input, shape[0])
    sizes = _layout.infer_shape(spread_ints("view", "size", shape, size), input.numel(), "view")
    return call(VIEW, (input,), {"shape": sizes})


@front(VIEW)
def reshape(input: Any, *args: Any, shape: Any = None) -> Any:
    """Return the elements in another shape: a view where the layout allows it, else a copy."""
    require_tensor("reshape", input)
    meta = input.meta
    sizes = _layout.infer_shape(spread_ints("reshape", "shape", args, shape), meta.numel, "reshape")
    return _reshaped(input, sizes)


def _reshaped(input: Any, sizes: tuple[int, ...]) -> Any:
    meta = input.meta
    if _layout.view_strides(meta.shape, meta.strides, sizes) is None:
        input = ops.contiguous(input)
    return call(VIEW, (input,), {"shape": sizes})


@front(VIEW)
def view_as(input: Any, other: Any) -> Any:
    """Show the elements in the shape of `other`."""
    return view(input, other.meta.shape)


@front(VIEW)
def reshape_as(input: Any, other: Any) -> Any:
    """Return the elements in the shape of `other`."""
    return reshape(input, other.meta.shape)


@front(VIEW)
def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Make one dimension of those from `start_dim` to `end_dim`."""
    require_tensor("flatten", input)
    shape = _layout.flatten_shape(input.meta.shape, start_dim, end_dim)
    return input if shape == input.meta.shape else _reshaped(input, shape)


@front(VIEW)
def ravel(input: Any) -> Any:
    """Return the elements in one dimension."""
    return flatten(input)


@front(VIEW)
def unflatten(input: Any, dim: int, sizes: Any) -> Any:
    """Split dimension `dim` into `sizes`."""
    require_tensor("unflatten", input)
    sizes = ints_of("unflatten", "sizes", sizes)
    return _reshaped(input, _layout.unflatten_shape(input.meta.shape, dim, sizes))


@front(SQUEEZE)
def squeeze(input: Any, dim: Any = None) -> Any:
    """Drop dimensions of size 1: all, or those named."""
    require_tensor("squeeze", input)
    return call(SQUEEZE, (input,), {"dim": tuple(dim) if isinstance(dim, list) else dim})


@front(UNSQUEEZE)
def unsqueeze(input: Any, dim: int) -> Any:
    """Insert a dimension of size 1 at `dim`."""
    require_tensor("unsqueeze", input)
    return call(UNSQUEEZE, (input,), {"dim": int_of("unsqueeze", "dim", dim)})


# ---------------------------------------------------------------------------------------------
# Order of dimensions


@front(TRANSPOSE, aliases=("swapaxes", "swapdims"))
def transpose(input: Any, dim0: int, dim1: int) -> Any:
    """Swap two dimensions."""
    require_tensor("transpose", input)
    return call(TRANSPOSE, (input,), {"dim0": dim0, "dim1": dim1})


@front(TRANSPOSE)
def t(input: Any) -> Any:
    """Transpose a matrix; a tensor with fewer dimensions is shown as it is."""
    require_tensor("t", input)
    if input.meta.ndim > 2:
        raise ShapeError(
            "t", what=f"t() expects a tensor with <= 2 dimensions, but self is {input.meta.ndim}D",
            expected="at most 2 dimensions", got=str(tuple(input.meta.shape)),
            remedy="use transpose(dim0, dim1) or mT",
        )  # fmt: skip
    return call(
        TRANSPOSE, (input,), {"dim0": 0, "dim1": input.meta.ndim - 1 if input.meta.ndim else 0}
    )


@front(PERMUTE)
def permute(input: Any, *args: Any, dims: Any = None) -> Any:
    """Put the dimensions in the order `dims`."""
    require_tensor("permute", input)
    return call(PERMUTE, (input,), {"dims": spread_ints("permute", "dims", args, dims)})


@front(PERMUTE, aliases=("moveaxis",))
def movedim(input: Any, source: Any, destination: Any) -> Any:
    """Move dimensions to new places."""
    require_tensor("movedim", input)
    ndim = input.meta.ndim
    order = _layout.movedim(range(ndim), range(ndim), source, destination)[0]
    return call(PERMUTE, (input,), {"dims": order})


def _reversed(input: Any) -> Any:
    """Reverse the order of the dimensions."""
    return permute(input, tuple(range(input.meta.ndim))[::-1])


def _matrix_transposed(input: Any) -> Any:
    """Swap the last two dimensions."""
    if input.meta.ndim < 2:
        raise ShapeError(
            "mT", what="tensor.mT is only supported on matrices or batches of matrices",
            expected="at least 2 dimensions", got=str(tuple(input.meta.shape)),
            remedy="unsqueeze the tensor first",
        )  # fmt: skip
    return transpose(input, -2, -1)


def _conjugate_transposed(input: Any) -> Any:
    """Transpose a matrix and conjugate it."""
    if input.meta.ndim not in (0, 2):
        raise ShapeError(
            "H", what="tensor.H is only supported on matrices (2-D tensors)",
            expected="two dimensions", got=str(tuple(input.meta.shape)), remedy="use mH",
        )  # fmt: skip
    return ops.conj(_reversed(input))


@front(TRANSPOSE)
def adjoint(input: Any) -> Any:
    """Swap the last two dimensions (and conjugate, for complex tensors)."""
    return ops.conj(_matrix_transposed(input))


# Properties of the tensor: its module makes them of these.
ops.T = _reversed
ops.H = _conjugate_transposed
ops.mT = _matrix_transposed
ops.mH = adjoint


# ---------------------------------------------------------------------------------------------
# Repetition without copies


@front(EXPAND)
def expand(input: Any, *args: Any, size: Any = None, implicit: bool = False) -> Any:
    """Repeat dimensions of size 1, and new leading ones; -1 keeps a size."""
    require_tensor("expand", input)
    return call(EXPAND, (input,), {"size": spread_ints("expand", "size", args, size)})


@front(EXPAND)
def expand_as(input: Any, other: Any) -> Any:
    """Expand to the shape of `other`."""
    return expand(input, other.meta.shape)


@front(EXPAND)
def broadcast_to(input: Any, *args: Any, size: Any = None) -> Any:
    """Expand to `size`."""
    return expand(input, *args, size=size)


@front(method=False)
def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """Expand tensors to their common shape."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    for tensor in tensors:
        require_tensor("broadcast_tensors", tensor, "tensors")
    shape = _layout.broadcast_shapes(*[t.meta.shape for t in tensors], op="broadcast_tensors")
    return tuple(expand(tensor, shape) for tensor in tensors)


@front(method=False)
def broadcast_shapes(*shapes: Any) -> Any:
    """Return the shape to which all of `shapes` broadcast."""
    listed = [ints_of("broadcast_shapes", "shapes", shape) for shape in shapes]
    return _layout.Size(_layout.broadcast_shapes(*listed, op="broadcast_shapes"))


# ---------------------------------------------------------------------------------------------
# Parts


@front(SELECT)
def select(input: Any, dim: int, index: Any) -> Any:
    """Take one index of a dimension, which goes away."""
    require_tensor("select", input)
    return call(SELECT, (input,), {"dim": dim, "index": int_of("select", "index", index)})


@front(SLICE, method=False, name="slice")
def slice_(input: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Take every `step`-th index of a dimension from `start` to `end`."""
    require_tensor("slice", input)
    return call(SLICE, (input,), {"dim": dim, "start": start, "stop": end, "step": step})


@front(NARROW)
def narrow(input: Any, dim: int, start: Any, length: int) -> Any:
    """Take `length` indices of a dimension from `start`."""
    require_tensor("narrow", input)
    params = {
        "dim": dim,
        "start": int_of("narrow", "start", start),
        "length": int_of("narrow", "length", length),
    }
    return call(NARROW, (input,), params)


@front(DIAGONAL)
def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Show a diagonal of two dimensions as a new last one."""
    require_tensor("diagonal", input)
    return call(DIAGONAL, (input,), {"offset": offset, "dim1": dim1, "dim2": dim2})


# ---------------------------------------------------------------------------------------------
# The same tensor


@front(ALIAS, method=False, name="alias")
def alias_(input: Any) -> Any:
    """Return another tensor over the same memory, in the graph."""
    return call(ALIAS, (input,))


@front(DETACH)
def detach(input: Any) -> Any:
    """Return the same memory, outside the graph; writes are seen by both."""
    require_tensor("detach", input)
    return call(DETACH, (input,))
