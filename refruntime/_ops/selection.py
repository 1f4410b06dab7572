"""Selecting by value: places of true elements, masks, flat indices, one-hot rows, embedding.

Invariants
----------
* What `nonzero` finds decides a shape, so it runs before anything that depends on it is shaped;
  masked reads and writes are index reads and writes at the places it found.
* The row of an embedding at `padding_idx` is read like any other, and gets no gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta, empty_impl, meta_of
from refruntime._layout import broadcast_shapes, wrap_dim
from refruntime._ops.index_reader import as_places
from refruntime._ops.indexing import INDEX, INDEX_PUT, follow, route_of
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.parts import zero_fill
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime.errors import (
    AutogradError,
    DTypeError,
    IndexRangeError,
    KernelMissingError,
    ShapeError,
)
from refruntime.kernels import index as walks
from refruntime.kernels.select_cuda import embedding_backward_cuda, nonzero_cuda

# ---------------------------------------------------------------------------------------------
# Places of true elements


def _run_nonzero(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> TensorImpl:
    """Find first, then allocate: the number of rows is not known before."""
    if inputs[0].meta.device.type != "cpu":
        return nonzero_cuda(inputs[0])
    array = inputs[0].array()
    found = np.nonzero(array if array.ndim else array.reshape(1))
    count = len(found[0])
    # Columns lie side by side in memory, as in torch: each is an index tensor of its own.
    strides = (1, max(count, 1))
    out = empty_impl(meta_of((count, array.ndim), _dtypes.int64, strides=strides))
    target = out.array()
    for column in range(array.ndim):
        target[:, column] = found[column]
    return out


NONZERO = register(
    OpDef(
        "nonzero",
        ("input",),
        run=_run_nonzero,
        samples=lambda: [
            Sample((T((3, 4), _dtypes.bool_),), grad=False),
            Sample((T((5,), _dtypes.int64, -1, 1, layout="strided"),), grad=False),
            Sample((T((2, 0), _dtypes.bool_),), grad=False, name="empty"),
        ],
        reference=np.argwhere,
    )
)


@front(NONZERO)
def nonzero(input: Any, *, as_tuple: bool = False, out: Any = None) -> Any:
    """Return the coordinates of elements that are not zero: rows, or a tuple of columns."""
    require_tensor("nonzero", input)
    if as_tuple:
        vector = input if input.meta.ndim else ops.reshape(input, (1,))
        return ops.unbind(call(NONZERO, (vector,)), 1)
    return call(NONZERO, (input,))


@front(NONZERO)
def argwhere(input: Any) -> Any:
    """Return the coordinates of elements that are not zero, as rows."""
    return nonzero(input)


def _flat_places(op: str, mask: TensorImpl, shape: tuple[int, ...]) -> Any:
    """Return the row-major places of a mask's true elements, the mask expanded to `shape`."""
    require_tensor(op, mask, "mask")
    if mask.meta.dtype not in (_dtypes.bool_, _dtypes.uint8):
        raise DTypeError(
            op, what=f"{op}: expected BoolTensor for mask", expected="bool",
            got=str(mask.meta.dtype), remedy="compare, or convert the mask with .bool()",
        )  # fmt: skip
    flat = ops.flatten(ops.expand(mask, shape))
    return ops.reshape(call(NONZERO, (flat,)), (-1,))


@front(INDEX)
def masked_select(input: Any, mask: Any, *, out: Any = None) -> Any:
    """Return the elements where `mask` is true, in one dimension."""
    require_tensor("masked_select", input)
    require_tensor("masked_select", mask, "mask")
    shape = broadcast_shapes(input.meta.shape, mask.meta.shape, op="masked_select")
    places = _flat_places("masked_select", mask, shape)
    return call(INDEX, (ops.flatten(ops.expand(input, shape)), places), {"dims": (0,)}, out)


@front(INDEX_PUT)
def masked_scatter(input: Any, mask: Any, source: Any) -> Any:
    """Return `input` with the elements of `source`, in order, where `mask` is true."""
    require_tensor("masked_scatter", input)
    require_tensor("masked_scatter", source, "source")
    shape = broadcast_shapes(input.meta.shape, mask.meta.shape, op="masked_scatter")
    places = _flat_places("masked_scatter", mask, shape)
    count = places.meta.numel
    if source.meta.numel < count:
        raise ShapeError(
            "masked_scatter", what="mask_scatter: expected source to have as many elements "
            "as the mask has true ones", expected=f"at least {count}", got=source.meta.numel,
            remedy="pass more values",
        )  # fmt: skip
    values = ops.slice(ops.flatten(source), 0, 0, count)
    flat = ops.flatten(ops.expand(input, shape))
    params = {"dims": (0,), "accumulate": False}
    return ops.reshape(call(INDEX_PUT, (flat, values, places), params), shape)


@front(INDEX_PUT, name="masked_scatter_")
def masked_scatter_(input: Any, mask: Any, source: Any) -> Any:
    """Write the elements of `source`, in order, where `mask` is true; returns the tensor."""
    return ops.copy_(input, masked_scatter(input, mask, source))


# ---------------------------------------------------------------------------------------------
# Flat indices


@front(INDEX)
def take(input: Any, index: Any) -> Any:
    """Return the elements at row-major places, in the shape of `index`."""
    require_tensor("take", input)
    require_tensor("take", index, "index")
    return call(INDEX, (ops.flatten(input), as_places(index)), {"dims": (0,)})


@front(INDEX_PUT)
def put(input: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Return `input` with `source` at row-major places, set or added."""
    require_tensor("put", input)
    flat = ops.flatten(input)
    values = ops.reshape(source, index.meta.shape)
    params = {"dims": (0,), "accumulate": accumulate}
    written = call(INDEX_PUT, (flat, values, as_places(index)), params)
    return ops.reshape(written, input.meta.shape)


@front(INDEX_PUT, name="put_")
def put_(input: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Write `source` at row-major places, set or added, and return the tensor."""
    return ops.copy_(input, put(input, index, source, accumulate))


@front(INDEX)
def take_along_dim(input: Any, indices: Any, dim: int | None = None, *, out: Any = None) -> Any:
    """Return ``input`` gathered along `dim`, operands broadcast in the other dimensions."""
    require_tensor("take_along_dim", input)
    require_tensor("take_along_dim", indices, "indices")
    if dim is None:
        return ops.gather(ops.flatten(input), 0, ops.flatten(indices), out=out)
    dim = wrap_dim(dim, input.meta.ndim, "take_along_dim")
    if input.meta.ndim != indices.meta.ndim:
        raise ShapeError(
            "take_along_dim", what="input and indices should have the same number of dimensions",
            expected=f"{input.meta.ndim} dimensions", got=indices.meta.ndim,
            remedy="unsqueeze the indices",
        )  # fmt: skip
    others = [
        (*tensor.meta.shape[:dim], 1, *tensor.meta.shape[dim + 1 :]) for tensor in (input, indices)
    ]
    shape = list(broadcast_shapes(*others, op="take_along_dim"))

    if bool((indices.array() < 0).any()):
        wrapped = ops.add(indices, input.meta.shape[dim])
        indices = ops.where(ops.lt(indices, 0), wrapped, indices)

    def widened(tensor: Any) -> Any:
        return ops.expand(tensor, (*shape[:dim], tensor.meta.shape[dim], *shape[dim + 1 :]))

    return ops.gather(widened(input), dim, widened(indices), out=out)


# ---------------------------------------------------------------------------------------------
# Classes


def _classes(op: str, index: Any, num_classes: int) -> int:
    if index.meta.dtype is not _dtypes.int64:
        raise DTypeError(
            op, what=f"{op} is only applicable to index tensor of type LongTensor",
            expected="int64", got=str(index.meta.dtype), remedy="convert the index with .long()",
        )  # fmt: skip
    values = index.array()
    low, high = (int(values.min()), int(values.max())) if values.size else (0, -1)
    if low < 0 or (num_classes != -1 and high >= num_classes):
        raise ShapeError(
            op, what="Class values must be non-negative" if low < 0 else
            "Class values must be smaller than num_classes",
            expected=f"classes below {num_classes}" if low >= 0 else "classes of at least 0",
            got=low if low < 0 else high, remedy="check the classes, or num_classes",
        )  # fmt: skip
    if num_classes == -1 and not values.size:
        raise ShapeError(
            op, what="Can not infer total number of classes from empty tensor",
            expected="num_classes", got="-1", remedy="name num_classes",
        )  # fmt: skip
    return high + 1 if num_classes == -1 else num_classes


@front(method=False)
def one_hot(input: Any, num_classes: int = -1) -> Any:
    """Return int64 rows with a one at each class."""
    require_tensor("one_hot", input)
    count = _classes("one_hot", input, num_classes)
    rows = ops.zeros((*input.meta.shape, count), dtype=_dtypes.int64, device=input.meta.device)
    return ops.scatter_(rows, -1, ops.unsqueeze(input, -1), 1)


def _run_bincount(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> TensorImpl:
    weights = None if inputs[1] is None else inputs[1].array()
    counts = np.bincount(inputs[0].array(), weights, params["minlength"])
    kind = _dtypes.int64
    if weights is not None:
        kind = inputs[1].meta.dtype if inputs[1].meta.dtype is _dtypes.float32 else _dtypes.float64
    out = empty_impl(meta_of(counts.shape, kind))
    out.array()[...] = counts
    return out


BINCOUNT = register(
    OpDef(
        "bincount",
        ("input", "weights"),
        run=_run_bincount,
        samples=lambda: [
            Sample((T((9,), _dtypes.int64, 0, 4),), grad=False),
            Sample((T((4,), _dtypes.int64, 0, 2), T((4,)), 6), grad=False),
        ],
        error_samples=lambda: [
            ErrorSample((T((2, 2), _dtypes.int64),), RuntimeError, "1-d non-negative"),
            ErrorSample((T((2,)),), NotImplementedError, "bincount"),
        ],
        reference=lambda x, weights=None, minlength=0: np.bincount(x, weights, minlength),
    )
)


@front(BINCOUNT)
def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    """Return how often each non-negative integer occurs, or the sum of its weights."""
    require_tensor("bincount", input)
    if input.meta.dtype.kind not in "iu":
        raise KernelMissingError(
            "bincount", what=f'"bincount_cpu" not implemented for {input.meta.dtype.name!r}',
            expected="an integer dtype", got=str(input.meta.dtype), remedy="convert the input",
        )  # fmt: skip
    if input.meta.ndim != 1 or (input.array() < 0).any():
        raise ShapeError(
            "bincount", what="bincount only supports 1-d non-negative integral inputs.",
            expected="one dimension of integers of at least 0",
            got=f"{input.meta.dtype} of shape {tuple(input.meta.shape)}",
            remedy="flatten or convert the input",
        )  # fmt: skip
    return call(BINCOUNT, (input, weights), {"minlength": minlength})


# ---------------------------------------------------------------------------------------------
# Embedding


def _embedding_infer(weight: TensorMeta, indices: TensorMeta, **params: Any) -> TensorMeta:
    if weight.ndim != 2:
        raise ShapeError(
            "embedding", what="'weight' must be 2-D", expected="2 dimensions",
            got=str(tuple(weight.shape)), remedy="pass a matrix, one row an entry",
        )  # fmt: skip
    if indices.dtype not in (_dtypes.int64, _dtypes.int32):
        raise DTypeError(
            "embedding", what="Expected tensor for argument #1 'indices' to have one of the "
            "following scalar types: Long, Int", expected="int64 or int32", got=str(indices.dtype),
            remedy="convert the indices with .long()",
        )  # fmt: skip
    return meta_of((*indices.shape, weight.shape[1]), weight.dtype, weight.device)


def _embedding_kernel(
    out: TensorImpl, weight: TensorImpl, indices: TensorImpl, *, padding_idx: int, by_freq: bool
) -> None:
    route = route_of(weight.meta, (0,), (indices,), out.meta, wrap=False)
    fault = follow(walks.get, weight, out, (indices,), route)
    if fault is not None:
        rows = weight.meta.shape[0]
        raise IndexRangeError(
            "embedding", what=f"index out of range in self: index {fault[1]} is out of bounds for "
            f"dimension 0 with size {rows}", expected=f"indices in [0, {rows - 1}]", got=fault[1],
            remedy="check the indices against num_embeddings",
        )  # fmt: skip


def _embedding_vjp(g: Any, n: Any) -> tuple[Any, None]:
    params = {"rows": n.metas[0].shape[0], "padding_idx": n.padding_idx, "by_freq": n.by_freq}
    return call(EMBEDDING_BACKWARD, (g, n.indices), params), None


def _ids(shape: tuple[int, ...]) -> T:
    return T(shape, _dtypes.int64, 0, 4)


def _embedding_backward_reference(
    g: Any, indices: Any, rows: int, padding_idx: int = -1, by_freq: bool = False
) -> Any:
    out = np.zeros((rows, g.shape[-1]))
    np.add.at(out, indices, g)
    if by_freq:
        out /= np.maximum(np.bincount(indices.ravel(), minlength=rows), 1)[:, None]
    if padding_idx >= 0:
        out[padding_idx] = 0
    return out


EMBEDDING = register(
    OpDef(
        "embedding",
        ("weight", "indices"),
        jvp="linear",
        batch="embedding",
        infer=_embedding_infer,
        cpu=_embedding_kernel,
        cuda=_embedding_kernel,
        vjp=_embedding_vjp,
        saves=("indices",),
        samples=lambda: [
            Sample((T((5, 3)), _ids((4,)))),
            Sample((T((5, 3), layout="transposed"), _ids((2, 3)))),
            Sample((T((3, 2)), T((2,), _dtypes.int32, 0, 2)), grad=False),
        ],
        error_samples=lambda: [
            ErrorSample(
                (T((3, 2)), T((1,), _dtypes.int64, values=[3])), IndexError, "index out of"
            ),
            ErrorSample((T((3, 2)), T((1,), _dtypes.int64, values=[-1])), IndexError, "index -1"),
            ErrorSample((T((3, 2)), T((1,))), RuntimeError, "Long, Int"),
            ErrorSample((T((3,)), _ids((1,))), RuntimeError, "2-D"),
        ],
        reference=lambda weight, indices: weight[indices],
    )
)


def _embedding_backward_infer(
    g: TensorMeta, indices: TensorMeta, *, rows: int, **p: Any
) -> TensorMeta:
    return meta_of((rows, g.shape[-1]), g.dtype, g.device)


def _embedding_backward_cpu(
    out: TensorImpl, g: TensorImpl, indices: TensorImpl, *, rows: int, padding_idx: int,
    by_freq: bool,
) -> None:  # fmt: skip
    zero_fill(out)
    follow(walks.add, out, g, (indices,), route_of(out.meta, (0,), (indices,), g.meta, wrap=False))
    table = out.array()
    if by_freq:
        counts = np.bincount(indices.array().ravel(), minlength=rows)
        table[...] = table / np.maximum(counts, 1)[:, None].astype(table.dtype)
    if padding_idx >= 0:
        table[padding_idx] = 0


def _embedding_backward_vjp(g: Any, n: Any) -> tuple[Any, None]:
    if n.by_freq:
        raise AutogradError(
            "embedding", what="double backwards is not supported for embedding with "
            "scale_grad_by_freq", expected="scale_grad_by_freq=False", got="True",
            remedy="drop scale_grad_by_freq",
        )  # fmt: skip
    if n.padding_idx >= 0:
        row = ops.full((1,), n.padding_idx, dtype=_dtypes.int64, device=g.device)
        g = ops.index_fill(g, 0, row, 0)
    return call(EMBEDDING, (g, n.indices), {"padding_idx": n.padding_idx, "by_freq": False}), None


EMBEDDING_BACKWARD = register(
    OpDef(
        "_embedding_backward",
        ("grad", "indices"),
        jvp="linear",
        batch="embedding_backward",
        infer=_embedding_backward_infer,
        cpu=_embedding_backward_cpu,
        cuda=embedding_backward_cuda,
        vjp=_embedding_backward_vjp,
        saves=("indices",),
        samples=lambda: [
            Sample((T((4, 3)), _ids((4,)), 5)),
            Sample((T((2, 3, 2), layout="transposed"), _ids((2, 3)), 5, 1)),
            Sample((T((4, 3)), _ids((4,)), 5, -1, True), gradgrad=False, grad=False),
        ],
        reference=_embedding_backward_reference,
    )
)


@front(EMBEDDING_BACKWARD, method=False, name="_embedding_backward")
def _embedding_gradient(
    g: Any, indices: Any, rows: int, padding_idx: int = -1, by_freq: bool = False
) -> Any:
    """Return the gradient of the weight of an embedding."""
    params = {"rows": rows, "padding_idx": padding_idx, "by_freq": by_freq}
    return call(EMBEDDING_BACKWARD, (g, indices), params)


@front(EMBEDDING, method=False)
def embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:  # fmt: skip
    """Return the rows of `weight` at `indices` (int64 or int32, any shape)."""
    require_tensor("embedding", weight, "weight")
    require_tensor("embedding", indices, "indices")
    if indices.meta.dtype is _dtypes.int32:
        indices = as_places(indices)
    params = {"padding_idx": padding_idx, "by_freq": bool(scale_grad_by_freq)}
    return call(EMBEDDING, (weight, indices), params)
