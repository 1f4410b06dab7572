"""Order: sort, topk, kthvalue, median, unique, searchsorted.

Invariants
----------
* Values are differentiable, places are not: the gradient of sorted values goes back to the places
  that they came from.
* NaN counts as the largest number; the median of elements with a NaN among them is NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta, empty_impl, meta_of
from refruntime._layout import wrap_dim
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.results import named_result
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime.errors import IndexRangeError, ShapeError
from refruntime.kernels import sort as sorts


def _at_dim(meta: TensorMeta, dim: int, size: int) -> tuple[TensorMeta, TensorMeta]:
    """Return the metas of values and places with `size` elements along `dim`."""
    shape = (*meta.shape[:dim], size, *meta.shape[dim + 1 :]) if meta.ndim else ()
    return meta_of(shape, meta.dtype, meta.device), meta_of(shape, _dtypes.int64, meta.device)


def _back_to_places(g: Any, n: Any) -> Any:
    if g[0] is None:
        return None
    zeros = ops.zeros(tuple(n.metas[0].shape), dtype=g[0].dtype, device=g[0].device)
    return ops.scatter_add(zeros, n.dim, n.out1, g[0])


def _picked_jvp(op: OpDef, primals: Any, tangents: Any, out: Any, params: Any) -> Any:
    return ops.gather(tangents[0], params["dim"], out[1]), None


# ---------------------------------------------------------------------------------------------
# sort


def _sort_cpu(out: Any, input: TensorImpl, *, dim: int, descending: bool) -> None:
    places = sorts.sorted_places(sorts.sortable(input), dim, descending)
    sorts.write_places(out, input, places, dim)


def _sort_reference(x: Any, dim: int = -1, descending: bool = False) -> list[Any]:
    order = np.argsort(-x if descending else x, dim, kind="stable")
    return [np.take_along_axis(x, order, dim), order]


SORT = register(
    OpDef(
        "sort",
        ("input",),
        jvp=_picked_jvp,
        batch="along",
        infer=lambda m, *, dim, descending: _at_dim(m, dim, _length(m, dim)),
        cpu=_sort_cpu,
        cuda=sorts.sort_cuda,
        vjp=_back_to_places,
        saves=("out1",),
        nondiff_outputs=(1,),
        samples=lambda: [
            Sample((T((5,)),)),
            Sample((T((3, 4), layout="transposed"), 0, True)),
            Sample((T((2, 3, 4), layout="strided"), 1)),
            Sample((T((6,), _dtypes.int64),), grad=False),
        ],
        error_samples=lambda: [ErrorSample((T((2,)), 1), IndexError, "Dimension out of range")],
        reference=_sort_reference,
    )
)


def _length(meta: TensorMeta, dim: int) -> int:
    return meta.shape[dim] if meta.ndim else 1


@front(SORT)
def sort(
    input: Any, dim: int = -1, descending: bool = False, stable: bool = False, *, out: Any = None
) -> Any:
    """Return the elements in order along a dimension, and their places."""
    require_tensor("sort", input)
    dim = wrap_dim(dim, input.meta.ndim, "sort")
    made = call(SORT, (input,), {"dim": dim, "descending": bool(descending)}, out)
    return named_result("sort", "values", "indices")(made)


@front(SORT)
def argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """Return the places of the elements in order along a dimension."""
    return sort(ops.detach(input), dim, descending)[1]


@front(SORT)
def msort(input: Any) -> Any:
    """Return the elements in order along the first dimension."""
    return sort(input, 0)[0]


# ---------------------------------------------------------------------------------------------
# topk and kthvalue


def _topk_infer(
    input: TensorMeta, *, k: int, dim: int, largest: bool
) -> tuple[TensorMeta, TensorMeta]:
    size = _length(input, dim)
    if not 0 <= k <= size:
        raise ShapeError(
            "topk", what="selected index k out of range", expected=f"a k in [0, {size}]", got=k,
            remedy="check k against the size of the dimension",
        )  # fmt: skip
    return _at_dim(input, dim, k)


def _topk_cpu(out: Any, input: TensorImpl, *, k: int, dim: int, largest: bool) -> None:
    places = sorts.top_places(sorts.sortable(input), k, dim, largest)
    sorts.write_places(out, input, places, dim)


def _topk_reference(x: Any, k: int, dim: int = -1, largest: bool = True) -> list[Any]:
    order = np.argsort(-x if largest else x, dim, kind="stable").take(range(k), dim)
    return [np.take_along_axis(x, order, dim), order]


TOPK = register(
    OpDef(
        "topk",
        ("input",),
        jvp=_picked_jvp,
        batch="along",
        infer=_topk_infer,
        cpu=_topk_cpu,
        cuda=sorts.topk_cuda,
        vjp=_back_to_places,
        saves=("out1",),
        nondiff_outputs=(1,),
        reference=_topk_reference,
        samples=lambda: [
            Sample((T((9,)), 3)),
            Sample((T((4, 40)), 3)),
            Sample((T((3, 4), layout="transposed"), 2, 0, False)),
        ],
        error_samples=lambda: [ErrorSample((T((3,)), 4), RuntimeError, "k out of range")],
    )
)


@front(TOPK)
def topk(
    input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, out: Any = None
) -> Any:
    """Return the `k` largest (or smallest) elements along a dimension, and their places."""
    require_tensor("topk", input)
    dim = wrap_dim(dim, input.meta.ndim, "topk")
    made = call(TOPK, (input,), {"k": int(k), "dim": dim, "largest": bool(largest)}, out)
    return named_result("topk", "values", "indices")(made)


def _kth(name: str, input: Any, k: int, dim: int, keepdim: bool) -> Any:
    require_tensor(name, input)
    dim = wrap_dim(dim, input.meta.ndim, name)
    values, places = call(SORT, (input,), {"dim": dim, "descending": False})
    if input.meta.ndim:
        values, places = (ops.narrow(part, dim, k - 1, 1) for part in (values, places))
        if not keepdim:
            values, places = (ops.squeeze(part, dim) for part in (values, places))
        values, places = ops.clone(values), ops.clone(places)
    return named_result(name, "values", "indices")((values, places))


@front(SORT)
def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the `k`-th smallest element along a dimension (from 1), and its place."""
    require_tensor("kthvalue", input)
    size = _length(input.meta, wrap_dim(dim, input.meta.ndim, "kthvalue"))
    if not 1 <= k <= size:
        raise ShapeError(
            "kthvalue", what="selected number k out of range for dimension",
            expected=f"a k in [1, {size}]", got=k, remedy="check k",
        )  # fmt: skip
    return _kth("kthvalue", input, k, dim, keepdim)


@front(SORT)
def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower median: of all elements, or along a dimension with its place."""
    require_tensor("median", input)
    if dim is None:
        if not input.meta.numel:
            return ops.full((), float("nan"), dtype=input.dtype)
        return median(ops.reshape(input, (-1,)), 0)[0]
    dim = wrap_dim(dim, input.meta.ndim, "median")
    size = _length(input.meta, dim)
    if not size:
        raise IndexRangeError(
            "median", what=f"Expected reduction dim {dim} to have non-zero size.",
            expected="a size above zero", got=str(tuple(input.meta.shape)),
            remedy="reduce another dimension",
        )  # fmt: skip
    if input.meta.dtype.is_floating_point and bool(ops.any(ops.isnan(ops.detach(input)))):
        return _median_with_nan(input, dim, size, keepdim)
    return _kth("median", input, (size + 1) // 2, dim, keepdim)


def _median_with_nan(input: Any, dim: int, size: int, keepdim: bool) -> Any:
    """Take the first NaN of a row that has one, and the middle of the others."""
    array = sorts.sortable(input)
    places = sorts.sorted_places(array, dim, False).take([(size - 1) // 2], dim)
    bad = np.isnan(array)
    first = np.expand_dims(np.argmax(bad, dim), dim)
    chosen = ops.tensor(np.where(bad.any(dim, keepdims=True), first, places).astype(np.int64))
    vector = input if input.meta.ndim else ops.reshape(input, (1,))
    values = ops.gather(vector, dim, chosen)
    if not keepdim or not input.meta.ndim:
        values, chosen = ops.squeeze(values, dim), ops.squeeze(chosen, dim)
    return named_result("median", "values", "indices")((values, chosen))


# ---------------------------------------------------------------------------------------------
# unique and searchsorted: results whose shape the data decides


def _stored(array: Any, dtype: Any) -> TensorImpl:
    out = empty_impl(meta_of(tuple(array.shape), dtype))
    if array.size:
        out.array()[...] = array
    return out


def _run_unique(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> tuple[Any, ...]:
    input = inputs[0]
    array = sorts.sortable(input)
    values, inverse, counts = np.unique(
        array, return_inverse=True, return_counts=True, axis=params["dim"], equal_nan=False
    )
    shape = input.meta.shape if params["dim"] is None else inverse.shape
    return (
        _stored(values, input.meta.dtype),
        _stored(inverse.reshape(shape), _dtypes.int64),
        _stored(counts, _dtypes.int64),
    )


UNIQUE = register(
    OpDef(
        "unique",
        ("input",),
        run=_run_unique,
        samples=lambda: [
            Sample((T((12,), _dtypes.int64, 0, 5),), grad=False),
            Sample(
                (T((3, 4), _dtypes.int8, 0, 5, layout="transposed"), True, True, True), grad=False
            ),
            Sample((T((5, 2), _dtypes.int64, 0, 1),), {"dim": 0}, grad=False),
        ],
        reference=lambda x, order=True, inverse=False, counts=False, dim=None: np.unique(
            x, return_inverse=inverse, return_counts=counts, axis=dim
        ),
    )
)


@front(UNIQUE)
def unique(
    input: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """Return the different elements (or slices of `dim`) in order; on request where they are."""
    require_tensor("unique", input)
    if dim is not None:
        dim = wrap_dim(dim, input.meta.ndim, "unique")
    values, inverse, counts = call(UNIQUE, (ops.detach(input),), {"dim": dim})
    return _asked_for(values, inverse, counts, return_inverse, return_counts)


def _asked_for(
    values: Any, inverse: Any, counts: Any, with_inverse: bool, with_counts: bool
) -> Any:
    asked = [values]
    if with_inverse:
        asked.append(inverse)
    if with_counts:
        asked.append(counts)
    return asked[0] if len(asked) == 1 else tuple(asked)


@front()
def unique_consecutive(
    input: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Return the elements (or slices of `dim`) without those that repeat the one before."""
    require_tensor("unique_consecutive", input)
    axis = 0 if dim is None else wrap_dim(dim, input.meta.ndim, "unique_consecutive")
    array = input.array().reshape(-1) if dim is None else input.array()
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]).any(1)
    starts = np.flatnonzero(new)
    inverse = np.cumsum(new) - 1
    counts = np.diff(np.append(starts, len(rows)))
    shape = input.meta.shape if dim is None else inverse.shape
    return _asked_for(
        _stored(array.take(starts, axis), input.meta.dtype),
        _stored(inverse.reshape(shape), _dtypes.int64), _stored(counts, _dtypes.int64),
        return_inverse, return_counts,
    )  # fmt: skip


def _search_infer(
    sequence: TensorMeta, values: TensorMeta, *, right: bool, int32: bool
) -> TensorMeta:
    if sequence.ndim > 1 and sequence.shape[:-1] != values.shape[:-1]:
        raise ShapeError(
            "searchsorted", what="boundaries tensor should be 1 dimension or the first N-1 "
            "dimensions of boundaries tensor and input value tensor must match",
            expected=str(tuple(sequence.shape[:-1])), got=str(tuple(values.shape[:-1])),
            remedy="expand one of them",
        )  # fmt: skip
    return meta_of(values.shape, _dtypes.int32 if int32 else _dtypes.int64, values.device)


def _search_cpu(
    out: TensorImpl, sequence: TensorImpl, values: TensorImpl, *, right: bool, int32: bool
) -> None:
    side = "right" if right else "left"
    rows, asked = sorts.sortable(sequence), values.array()
    if rows.ndim == 1:
        out.array()[...] = np.searchsorted(rows, asked, side)  # type: ignore[call-overload]
        return
    target = out.array()
    for row in np.ndindex(rows.shape[:-1]):
        target[row] = np.searchsorted(rows[row], asked[row], side)  # type: ignore[call-overload]


SEARCHSORTED = register(
    OpDef(
        "searchsorted",
        ("sorted_sequence", "values"),
        batch="searchsorted",
        infer=_search_infer,
        cpu=_search_cpu,
        samples=lambda: [
            Sample((T((5,), values=[-2, -1, 0, 1, 2]), T((3, 4))), grad=False),
            Sample(
                (T((3,), values=[0, 1, 1]), T((2,), values=[1, 1])), {"right": True}, grad=False
            ),
        ],
        reference=lambda s, v, right=False: np.searchsorted(s, v, "right" if right else "left"),
    )
)


@front(SEARCHSORTED, method=False)
def searchsorted(
    sorted_sequence: Any, values: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> Any:  # fmt: skip
    """Return the places at which `values` would enter a sorted sequence and keep its order."""
    require_tensor("searchsorted", sorted_sequence, "sorted_sequence")
    if sorter is not None:
        sorted_sequence = ops.gather(sorted_sequence, -1, sorter)
    if not isinstance(values, TensorImpl):
        values = ops.tensor(values)
    params = {"right": bool(right) or side == "right", "int32": out_int32}
    return call(SEARCHSORTED, (sorted_sequence, values), params)


@front(SEARCHSORTED, method=False)
def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """Return the number of the bucket, between `boundaries`, that each element falls into."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def _run_isin(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> TensorImpl:
    first, second = (value.array() if isinstance(value, TensorImpl) else value for value in inputs)
    return _stored(np.isin(first, second, invert=params["invert"]), _dtypes.bool_)


ISIN = register(
    OpDef(
        "isin",
        ("elements", "test_elements"),
        run=_run_isin,
        samples=lambda: [
            Sample((T((3, 4), _dtypes.int64, 0, 5), T((2,), _dtypes.int64, 0, 5)), grad=False),
            Sample((T((4,), _dtypes.int64, 0, 2), 1), {"invert": True}, grad=False),
        ],
        reference=np.isin,
    )
)


@front(ISIN, method=False)
def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    """Return which elements are among the test elements (or, inverted, are not)."""
    return call(ISIN, (elements, test_elements), {"invert": bool(invert)})
