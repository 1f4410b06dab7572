"""Indexing: ``x[...]`` and ``x[...] = value``, read and write.

An index is read in two steps. Integers, slices, None and Ellipsis make one view (`basic_index`).
Index tensors, lists, arrays and masks then read that view (`index`) or write into it
(`index_put`).

Invariants
----------
* Where the result's dimensions of the index tensors stand follows NumPy and torch: in the place of
  the first one if all stand side by side, else in front.
* Masks become index tensors (the coordinates of their true elements) before any kernel runs.
* Negative indices count from the end; one outside its range raises IndexError with index,
  dimension and size, and nothing outside the tensor is read or written.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from refruntime import _dtypes, _layout
from refruntime._dispatch import call, copy_into
from refruntime._impl import TensorImpl, TensorMeta, meta_of, without_overlap
from refruntime._layout import View
from refruntime._ops.creation import zero_dim
from refruntime._ops.index_reader import FULL, Entry, IndexReader, as_places, items_of
from refruntime._ops.opdef import Inplace, OpDef, front, ops, register, require_tensor
from refruntime._ops.parts import embed, zero_fill
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime._ops.view_plans import one_view
from refruntime._ops.views import SELECT, SLICE, UNSQUEEZE
from refruntime.errors import (
    ArgumentTypeError,
    DTypeError,
    IndexRangeError,
    IndexValueError,
    ShapeError,
)
from refruntime.kernels import index as walks
from refruntime.kernels.index import Fault, Route, run_walk, run_walk_cuda

# ---------------------------------------------------------------------------------------------
# Basic indices: one view


def _basic_rule(meta: TensorMeta, *, entries: tuple[Entry, ...]) -> View:
    shape: list[int] = []
    strides: list[int] = []
    offset = dim = 0
    for entry in entries:
        if entry is None:
            shape.append(1)
            strides.append(meta.shape[dim] * meta.strides[dim] if dim < meta.ndim else 1)
            continue
        size, stride = meta.shape[dim], meta.strides[dim]
        if isinstance(entry, int):
            if not -size <= entry < size:
                raise out_of_range("index", entry, dim, size)
            offset += (entry + size if entry < 0 else entry) * stride
        else:
            picked = range(*slice(*entry).indices(size))
            shape.append(len(picked))
            strides.append(stride * entry[2])
            offset += min(picked.start, size) * stride
        dim += 1
    return (*shape, *meta.shape[dim:]), (*strides, *meta.strides[dim:]), offset


BASIC_INDEX = register(
    OpDef(
        "_basic_index",
        ("input",),
        jvp="linear",
        batch="view",
        view=_basic_rule,
        run=one_view(_basic_rule),
        vjp=lambda g, n: embed(g, n.metas[0].shape, "_basic_index", **n.params),
        backward_name="SliceBackward0",
        samples=lambda: [
            Sample((T((2, 3, 4)), 1, slice(0, 3, 2), None)),
            Sample((T((3, 4), layout="transposed"), slice(1, None), -1)),
            Sample((T(()), None)),
        ],
        error_samples=lambda: [
            ErrorSample((T((2, 3)), 0, 3), IndexError, "index 3 is out of bounds for dimension 1"),
            ErrorSample((T((2, 3)), slice(0, 2, -1), 0), ValueError, "greater than zero"),
            ErrorSample((T((2,)), 0, 0), IndexError, "too many indices"),
        ],
        reference=lambda x, *items: x[items],
    )
)


@front(BASIC_INDEX, method=False, name="_basic_index")
def _index_by_items(input: Any, *items: Any) -> Any:
    """Return the view that integers, slices and None make."""
    return basic_view(input, tuple(IndexReader(input, items).entries))


def out_of_range(op: str, index: int, dim: int, size: int) -> IndexValueError:
    """Return the error for an index outside a dimension."""
    return IndexValueError(
        op,
        what=f"index {index} is out of bounds for dimension {dim} with size {size}",
        expected=f"an index in [{-size}, {size - 1}]" if size else "no index: the size is 0",
        got=index,
        remedy="check the index against the tensor's shape",
    )


def basic_view(input: Any, entries: tuple[Entry, ...]) -> Any:
    """Return the view that basic entries make; the tensor itself if they keep everything."""
    active = [(place, entry) for place, entry in enumerate(entries) if entry != FULL]
    if not active:
        return input
    if len(active) > 1:
        return call(BASIC_INDEX, (input,), {"entries": entries})
    place, entry = active[0]
    if entry is None:
        return call(UNSQUEEZE, (input,), {"dim": place})
    if isinstance(entry, int):
        return call(SELECT, (input,), {"dim": place, "index": entry})
    start, stop, step = entry
    return call(SLICE, (input,), {"dim": place, "start": start, "stop": stop, "step": step})


# ---------------------------------------------------------------------------------------------
# Index tensors: records

_SMALL: dict[str, Any] = {"dtype": _dtypes.int64, "low": 0, "high": 1}
_PLACES = T((3,), _dtypes.int64, values=[2, 0, -1])
_DISTINCT = T((3,), _dtypes.int64, values=[3, 0, -2])


def _add_at_reference(g: Any, shape: Any, dims: Any, *indices: Any) -> Any:
    out: Any = np.zeros(shape)
    np.add.at(out, (slice(None),) * dims[0] + indices, g)
    return out


def _put_reference(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    out = x.copy()
    key: Any = tuple(slice(None) if index is None else index for index in indices)
    if accumulate:
        np.add.at(out, key, values)
    else:
        out[key] = values
    return out


@lru_cache(maxsize=4096)
def _geometry(
    x: TensorMeta, dims: tuple[int, ...], indices: tuple[TensorMeta, ...], wrap: bool
) -> Route:
    """Return the walk over ``x`` through `indices` at `dims`; its plain strides are row-major."""
    try:
        block = _layout.broadcast_shapes(*[index.shape for index in indices])
    except ShapeError:
        shapes = ", ".join(str(list(index.shape)) for index in indices)
        raise IndexRangeError(
            "index", what="shape mismatch: indexing tensors could not be broadcast together with "
            f"shapes {shapes}", expected="index tensors that broadcast", got=shapes,
            remedy="reshape the index tensors",
        ) from None  # fmt: skip
    if not x.ndim:
        # A zero-dim tensor is written and read by index vectors as one of one element.
        x = meta_of((1,), x.dtype, x.device, (1,))
    adjacent = dims == tuple(range(dims[0], dims[0] + len(dims)))
    before = dims[0] if adjacent else 0
    rest = [dim for dim in range(x.ndim) if dim not in dims]
    head, tail = rest[:before], rest[before:]

    def placed(values: Any, middle: tuple[int, ...]) -> tuple[int, ...]:
        return (*[values[d] for d in head], *middle, *[values[d] for d in tail])

    zeros = (0,) * x.ndim
    space = placed(x.shape, block)
    entries = tuple(
        (
            placed(zeros, _layout.broadcast_strides(index.shape, index.strides, block)),
            x.shape[dim],
            x.strides[dim],
        )
        for dim, index in zip(dims, indices, strict=True)
    )
    plain = _layout.contiguous_strides(space)
    return Route(space, plain, placed(x.strides, (0,) * len(block)), entries, wrap)


def route_of(
    x: TensorMeta, dims: tuple[int, ...], indices: tuple[Any, ...], plain: TensorMeta,
    wrap: bool = True,
) -> Route:  # fmt: skip
    """Return the walk over `x` with the strides of `plain`, which broadcasts to the space."""
    route = _geometry(x, dims, tuple([index.meta for index in indices]), wrap)
    strides = tuple(_layout.broadcast_strides(plain.shape, plain.strides, route.space))
    if strides == route.plain:
        return route
    return Route(route.space, strides, route.x, route.indices, wrap)


def follow(move: Any, x: TensorImpl, plain: TensorImpl, indices: Any, route: Route) -> Fault | None:
    """Walk a route on the device of `x`; a GPU reports an index out of range later."""
    if x.meta.device.type == "cpu":
        return run_walk(move, x, plain, indices, route)
    run_walk_cuda(move, x, plain, indices, route)
    return None


def check_fault(op: str, fault: Any, dims: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raise IndexError if a walk met an index outside its range."""
    if fault is not None:
        dim = dims[fault[0]]
        raise out_of_range(op, fault[1], dim, shape[dim] if shape else 1)


def _index_infer(input: TensorMeta, *indices: TensorMeta, dims: tuple[int, ...]) -> TensorMeta:
    return meta_of(_geometry(input, dims, indices, True).space, input.dtype, input.device)


def index_kernel(out: TensorImpl, input: TensorImpl, *indices: Any, dims: tuple[int, ...]) -> None:
    """Read ``input`` through `indices` at `dims`."""
    route = route_of(input.meta, dims, indices, out.meta)
    fault = follow(walks.get, input, out, indices, route)
    check_fault("index", fault, dims, input.meta.shape)


def _index_vjp(g: Any, n: Any) -> tuple[Any, ...]:
    indices = n.indices
    params = {"shape": tuple(n.metas[0].shape), "dims": n.dims}
    return call(INDEX_BACKWARD, (g, *indices), params), *[None] * len(indices)


INDEX = register(
    OpDef(
        "_index",
        ("input", "*indices"),
        jvp="linear",
        batch="index",
        infer=_index_infer,
        cpu=index_kernel,
        cuda=index_kernel,
        vjp=_index_vjp,
        saves=("indices",),
        samples=lambda: [
            Sample((T((3, 4)), _PLACES)),
            Sample((T((2, 3, 4), layout="transposed"), slice(None), _PLACES, T((2, 1), **_SMALL))),
            Sample((T((3, 2, 4), layout="strided"), _PLACES, slice(None), T((3,), **_SMALL))),
            Sample((T((3, 3, 3)), T((2, 2), **_SMALL), 0)),
            Sample(
                (T((3, 4), layout="expanded"), T((3,), _dtypes.bool_, values=[1, 0, 1])), grad=False
            ),
            Sample((T((3, 4)), T((3,), _dtypes.bool_, values=[1, 0, 1]))),
            Sample((T((4,), _dtypes.bfloat16), _PLACES), grad=False),
            Sample((T((4,), _dtypes.int8), T((0,), _dtypes.int64)), grad=False, name="empty"),
        ],
        error_samples=lambda: [
            ErrorSample((T((2, 3)), T((1,), values=[0.0])), IndexError, "must be long, int"),
            ErrorSample(
                (T((2, 3)), slice(None), T((1,), _dtypes.int64, values=[3])),
                IndexError,
                "index 3 is out of bounds for dimension 1 with size 3",
            ),
            ErrorSample(
                (T((2, 3)), T((2,), **_SMALL), _PLACES), IndexError, "could not be broadcast"
            ),
            ErrorSample((T((2, 3)), T((3,), _dtypes.bool_)), IndexError, "shape of the mask"),
        ],
        reference=lambda x, *items: x[items],
    )
)


@front(INDEX, method=False, name="_index")
def _index_through(input: Any, *items: Any) -> Any:
    """Return ``input[items]``."""
    return getitem(input, items)


def _index_backward_infer(input: TensorMeta, *indices: Any, shape: Any, dims: Any) -> TensorMeta:
    return meta_of(tuple(shape), input.dtype, input.device)


def _index_backward(
    out: TensorImpl, input: TensorImpl, *indices: Any, shape: Any, dims: Any
) -> None:
    zero_fill(out)
    follow(walks.add, out, input, indices, route_of(out.meta, dims, indices, input.meta))


INDEX_BACKWARD = register(
    OpDef(
        "_index_backward",
        ("input", "*indices"),
        jvp="linear",
        batch="index_backward",
        infer=_index_backward_infer,
        cpu=_index_backward,
        cuda=_index_backward,
        vjp=lambda g, n: (call(INDEX, (g, *n.indices), {"dims": n.dims}), *[None] * len(n.indices)),
        saves=("indices",),
        samples=lambda: [
            Sample((T((3, 4)), (5, 4), (0,), _PLACES)),
            Sample((T((2, 3), layout="transposed"), (2, 3, 3), (1, 2), _PLACES, _PLACES)),
        ],
        reference=_add_at_reference,
    )
)


@front(INDEX_BACKWARD, method=False, name="_index_backward")
def _add_at(input: Any, shape: Any, dims: Any, *indices: Any) -> Any:
    """Return zeros of `shape` with `input` added through `indices` at `dims`."""
    return call(INDEX_BACKWARD, (input, *indices), {"shape": tuple(shape), "dims": tuple(dims)})


def _put_infer(
    input: TensorMeta, values: TensorMeta, *indices: TensorMeta, dims: Any, accumulate: bool
) -> TensorMeta:
    if values.dtype is not input.dtype:
        raise DTypeError(
            "index_put", what="Index put requires the source and destination dtypes match",
            expected=str(input.dtype), got=str(values.dtype),
            remedy="convert the values to the tensor's dtype",
        )  # fmt: skip
    space = _geometry(input, dims, indices, True).space
    try:
        fits = tuple(_layout.broadcast_shapes(values.shape, space)) == tuple(space)
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            "index_put", what=f"shape mismatch: value tensor of shape {list(values.shape)} cannot "
            f"be broadcast to indexing result of shape {list(space)}",
            expected=f"a shape that broadcasts to {tuple(space)}", got=str(tuple(values.shape)),
            remedy="reshape the values",
        )  # fmt: skip
    return without_overlap(input)


def _put_kernel(
    out: TensorImpl, input: TensorImpl, values: TensorImpl, *indices: Any, dims: Any,
    accumulate: bool,
) -> None:  # fmt: skip
    if out is not input:
        copy_into(out, input)
    op = walks.add if accumulate else walks.put
    fault = follow(op, out, values, indices, route_of(out.meta, dims, indices, values.meta))
    check_fault("index_put", fault, dims, out.meta.shape)


def _put_vjp(g: Any, n: Any) -> tuple[Any, ...]:
    indices = n.indices
    base = g
    if n.needs[0] and not n.accumulate:
        zero = ops.zeros((), dtype=g.dtype, device=g.device)
        base = call(INDEX_PUT, (g, zero, *indices), {"dims": n.dims, "accumulate": False})
    values = call(INDEX, (g, *indices), {"dims": n.dims}) if n.needs[1] else None
    return base, values, *[None] * len(indices)


INDEX_PUT = register(
    OpDef(
        "index_put",
        ("input", "values", "*indices"),
        jvp="linear",
        batch="index_put",
        infer=_put_infer,
        cpu=_put_kernel,
        cuda=_put_kernel,
        vjp=_put_vjp,
        saves=("indices",),
        inplace=True,
        samples=lambda: [
            Sample((T((4, 3)), (_DISTINCT,), T((3, 3)))),
            Sample((T((4, 3), layout="transposed"), (_PLACES,), T((3, 1)), True)),
            Sample((T((2, 4)), (None, _DISTINCT), T(()))),
            Sample((T((3, 4)), (_PLACES, _DISTINCT), T((3,), layout="strided"), True)),
            Sample((T((4,), _dtypes.int32), (_PLACES,), T((3,), _dtypes.int32), True), grad=False),
        ],
        error_samples=lambda: [
            ErrorSample((T((2,)), (_PLACES,), T((4,))), RuntimeError, "cannot be broadcast"),
            ErrorSample(
                (T((2,)), (_PLACES,), T((), _dtypes.float64)), RuntimeError, "dtypes match"
            ),
            ErrorSample(
                (T((2,)), (T((1,), _dtypes.int64, values=[2]),), T(())),
                IndexError,
                "index 2 is out",
            ),
        ],
        reference=_put_reference,
    )
)


# ---------------------------------------------------------------------------------------------
# Fronts


@front(INDEX, method=False)
def getitem(input: Any, index: Any) -> Any:
    """Return ``input[index]``: a view for basic indices, a copy for index tensors and masks."""
    kind = type(index)
    if kind is int:
        return call(SELECT, (input,), {"dim": 0, "index": index})
    reader = IndexReader(input, items_of(index))
    shown = basic_view(input, tuple(reader.entries))
    if reader.tensors:
        dims = tuple([place for place, _ in reader.tensors])
        return call(INDEX, (shown, *[t for _, t in reader.tensors]), {"dims": dims})
    # ``x[:]`` is a new tensor over the same memory, as ``x[...]`` is.
    return ops.alias(input) if shown is input else shown


@front(INDEX_PUT, method=False)
def setitem(input: Any, index: Any, value: Any) -> None:
    """Write `value` (a number or a tensor that broadcasts) into ``input[index]``."""
    reader = IndexReader(input, items_of(index))
    if not isinstance(value, (TensorImpl, int, float, complex, np.generic)):
        raise ArgumentTypeError(
            "setitem", what=f"can't assign a {type(value).__name__} to a tensor",
            expected="a tensor or a number", got=type(value).__name__,
            remedy="wrap the value with tensor(...)",
        )  # fmt: skip
    shown = basic_view(input, tuple(reader.entries))
    value = value.item() if isinstance(value, np.generic) else value
    if reader.tensors:
        _put_through(shown, reader.tensors, value)
    elif isinstance(value, TensorImpl):
        ops.copy_(shown, _without_leading_ones(value, shown.meta.ndim))
    else:
        ops.fill_(shown, value)


def _put_through(shown: Any, tensors: list[tuple[int, TensorImpl]], value: Any) -> None:
    dims = tuple([place for place, _ in tensors])
    indices = [tensor for _, tensor in tensors]
    if isinstance(value, TensorImpl):
        space = _geometry(shown.meta, dims, tuple([t.meta for t in indices]), True).space
        value = _without_leading_ones(value, len(space))
    else:
        value = zero_dim(value, shown.meta)
    params = {"dims": dims, "accumulate": False}
    call(INDEX_PUT, (shown, value, *indices), params, Inplace(shown))


def _without_leading_ones(value: Any, ndim: int) -> Any:
    """Drop leading dimensions of size 1 that the target does not have, as assignment allows."""
    extra = value.meta.ndim - ndim
    if extra > 0 and all(size == 1 for size in value.meta.shape[:extra]):
        return ops.squeeze(value, tuple(range(extra)))
    return value


@front(INDEX_PUT, inplace=True)
def index_put(
    input: Any, indices: Any, values: Any, accumulate: bool = False, *, out: Any = None
) -> Any:
    """Return a copy of `input` with `values` at ``input[indices]``, set or added."""
    require_tensor("index_put", input)
    require_tensor("index_put", values, "values")
    dims: list[int] = []
    tensors: list[Any] = []
    dim = 0
    for index in indices:
        if index is None:
            dim += 1
            continue
        require_tensor("index_put", index, "indices")
        mask = index.meta.dtype in (_dtypes.bool_, _dtypes.uint8)
        for places in ops.nonzero(index, as_tuple=True) if mask else (as_places(index),):
            dims.append(dim)
            tensors.append(places)
            dim += 1
    params = {"dims": tuple(dims), "accumulate": accumulate}
    return call(INDEX_PUT, (input, values, *tensors), params, out)
