"""Sorting along one dimension, with the permutation. NumPy's stable sorts do the work.

Invariants
----------
* NaN is larger than every number, ascending and descending, as in torch.
* Sorts are stable both ways: equal elements keep their order.
* bfloat16 is sorted as float32, which keeps order and ties.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._impl import TensorImpl, alias, meta_of
from refruntime.kernels import launch
from refruntime.kernels.copy import copy_cuda
from refruntime.kernels.gpu import THREADS, packed_cuda, scratch

Array = np.ndarray[Any, Any]


def sortable(x: TensorImpl) -> Array:
    """Return the elements as an array that NumPy orders rightly (at least one dimension)."""
    array = x.array()
    if x.meta.dtype is _dtypes.bfloat16:
        array = array.astype(np.float32)
    return array if array.ndim else array.reshape(1)


def sorted_places(array: Array, dim: int, descending: bool) -> Array:
    """Return the stable permutation that sorts `array` along `dim`."""
    if not descending:
        return np.argsort(array, axis=dim, kind="stable")
    # A stable ascending sort of the reversed array, reversed, is a stable descending one.
    backward = np.argsort(np.flip(array, dim), axis=dim, kind="stable")
    places: Array = array.shape[dim] - 1 - np.flip(backward, dim)
    return places


def top_places(array: Array, k: int, dim: int, largest: bool) -> Array:
    """Return the places of the `k` largest (or smallest) elements along `dim`, best first."""
    size = array.shape[dim]
    if k == 0 or k * 8 > size:
        return sorted_places(array, dim, largest).take(range(k), dim)
    # Few of many: partition first, then sort what is left.
    split = size - k if largest else k - 1
    parted = np.argpartition(array, split, axis=dim)
    chosen = np.sort(parted.take(range(size - k, size) if largest else range(k), dim), axis=dim)
    order = sorted_places(np.take_along_axis(array, chosen, dim), dim, largest)
    return np.take_along_axis(chosen, order, dim)


def write_places(out: Any, x: TensorImpl, places: Array, dim: int) -> None:
    """Write the elements of `x` at `places` along `dim`, and the places."""
    array = x.array()
    values = np.take_along_axis(array if array.ndim else array.reshape(1), places, dim)
    out[0].array()[...] = values.reshape(out[0].meta.shape)
    out[1].array()[...] = places.reshape(out[1].meta.shape)


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, GPU


# As in cuda/sort.cu.
_TILE = 2 * THREADS


def _pair(x: TensorImpl) -> tuple[TensorImpl, TensorImpl]:
    shape = tuple(x.meta.shape)
    return scratch(x, shape, x.meta.dtype), scratch(x, shape, _dtypes.int64)


def sort_rows_cuda(x: TensorImpl, descending: bool) -> tuple[TensorImpl, TensorImpl]:
    """Sort the rows of a contiguous matrix stably; returns the sorted rows and their places."""
    rows, length = x.meta.shape
    keys, places = _pair(x)
    if not x.meta.numel:
        return keys, places
    names, flag = (x.meta.dtype.ctype,), int(descending)
    launch.raw(
        "sort", "sort_tiles", names, (-(-length // _TILE) * rows,), (THREADS,),
        (keys.address(), places.address(), x.address(), length, flag),
        _TILE * 16,
    )  # fmt: skip
    run = _TILE
    while run < length:
        merged = _pair(x)
        launch.raw(
            "sort", "merge_runs", names, (-(-x.meta.numel // THREADS),), (THREADS,),
            (merged[0].address(), merged[1].address(), keys.address(), places.address(), rows,
             length, run, flag),
        )  # fmt: skip
        keys, places = merged
        run *= 2
    return keys, places


def sort_cuda(out: Any, input: TensorImpl, *, dim: int, descending: bool) -> None:
    """Write the elements in order along `dim` and their places, on the GPU."""
    _sorted_part(out, input, dim, descending, input.meta.shape[dim] if input.meta.ndim else 1)


def topk_cuda(out: Any, input: TensorImpl, *, k: int, dim: int, largest: bool) -> None:
    """Write the `k` largest (or smallest) elements along `dim` and their places, best first."""
    _sorted_part(out, input, dim, largest, k)


def _sorted_part(out: Any, x: TensorImpl, dim: int, descending: bool, k: int) -> None:
    """Sort with `dim` moved to the end, and copy the first `k` of each row to where they belong."""
    if not out[0].meta.numel:
        return
    ndim = x.meta.ndim
    order = [d for d in range(ndim) if d != dim] + [dim] * (ndim > 0)
    rows = packed_cuda(_permuted(x, order))
    length = rows.meta.shape[-1] if ndim else 1
    matrix = alias(
        rows, meta_of((rows.meta.numel // length, length), x.meta.dtype, x.meta.device),
        rows.byte_offset,
    )  # fmt: skip
    for target, found in zip(out, sort_rows_cuda(matrix, descending), strict=True):
        moved = _permuted(target, order)
        steps = tuple(rows.meta.strides[:-1]) + (1,) * (ndim > 0)
        meta = meta_of(tuple(moved.meta.shape), found.meta.dtype, found.meta.device, steps)
        copy_cuda(moved, alias(found, meta, found.byte_offset))


def _permuted(x: TensorImpl, order: list[int]) -> TensorImpl:
    shape, strides = (tuple(of[d] for d in order) for of in (x.meta.shape, x.meta.strides))
    return alias(x, meta_of(shape, x.meta.dtype, x.meta.device, strides), x.byte_offset)
