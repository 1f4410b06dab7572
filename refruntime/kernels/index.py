"""Reading and writing through index tensors: one walk for x[i, j], gather, scatter, embedding.

State
-----
`_plans` keeps, for each combination of layouts that was met, the table that the walk reads;
`_kernels` the compiled walk of each operation and dtype.

A walk goes over a space of positions. At position p it pairs an element of a *plain* operand
(values read or written in order) with an element of `x`::

    plain[plain_strides . p]      x[x_strides . p + sum over t of index_t[strides_t . p] * step_t]

``gather(x, dim, index)`` walks the shape of `index` with one index tensor and x's stride of `dim`
as its step; ``x[i, j]`` walks the shape of the result with one index tensor an entry.

Invariants
----------
* Negative indices count from the end where `wrap` says so. An index outside its range moves
  nothing more: the walk stops, reports the tensor and the value in the table, and the caller
  raises; nothing outside `x` is touched.
* Writes happen in row-major order of the space, so of several values for one place the last stays,
  and sums do not depend on the number of threads.
* Index tensors are int64 here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl
from refruntime._layout import collapse
from refruntime._native import NativeKernel, device_function, native, ptr_i64
from refruntime.errors import ShapeError
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl
from refruntime.kernels.gpu import bits_of, fault_cell
from refruntime.kernels.variants import (
    Placeholder,
    T,
    device_template,
    load_T,
    ptr_T,
    store_T,
    template,
)

# Elements below which a walk is not shared among threads.
GRAIN = 16384

# Slots of the table; behind them stand shape, plain strides and x strides of the outer dimensions,
# then for each index tensor its address, size, step, inner stride and outer strides.
NDIM, COUNT, INNER, PLAIN_STEP, X_STEP, WRAP, VARYING, SPLIT_INNER, FAULT, VALUE, HEADER = range(11)
ADDRESS, SIZE, STEP, STRIDE, TENSOR_HEADER = range(5)

move: Any = Placeholder("move")


# ---------------------------------------------------------------------------------------------
# What a walk does with a pair of elements


@device_template
def get(p, i, q, j):  # type: ignore[no-untyped-def]
    """Copy x's element into the plain operand."""
    p[i] = q[j]


@device_template
def put(p, i, q, j):  # type: ignore[no-untyped-def]
    """Copy the plain operand's element into x."""
    q[j] = p[i]


@device_template
def add(p, i, q, j):  # type: ignore[no-untyped-def]
    """Add the plain operand's element to x's."""
    store_T(q, j, T(load_T(q, j) + load_T(p, i)))


@device_template
def multiply(p, i, q, j):  # type: ignore[no-untyped-def]
    """Multiply x's element by the plain operand's."""
    store_T(q, j, T(load_T(q, j) * load_T(p, i)))


@device_template
def maximum(p, i, q, j):  # type: ignore[no-untyped-def]
    """Keep the larger element in x; NaN wins."""
    value = load_T(p, i)
    if value > load_T(q, j) or value != value:
        store_T(q, j, value)


@device_template
def minimum(p, i, q, j):  # type: ignore[no-untyped-def]
    """Keep the smaller element in x; NaN wins."""
    value = load_T(p, i)
    if value < load_T(q, j) or value != value:
        store_T(q, j, value)


# ---------------------------------------------------------------------------------------------
# The walk


@device_function
def _fault(w, t, value):  # type: ignore[no-untyped-def]
    """Report index tensor `t`; any of several faults may be the one that is seen."""
    w[VALUE] = value
    w[FAULT] = t + 1


@device_function
def _start(w, cursor, linear):  # type: ignore[no-untyped-def]
    """Point the cursor at outer position `linear`: coordinates, plain, x, then each entry."""
    n = w[NDIM]
    k = w[COUNT]
    for slot in range(n, n + 2 + k):
        cursor[slot] = 0
    for d in range(n - 1, -1, -1):
        size = w[HEADER + d]
        above = linear // size
        position = linear - above * size
        linear = above
        cursor[d] = position
        cursor[n] += position * w[HEADER + n + d]
        cursor[n + 1] += position * w[HEADER + 2 * n + d]
        for t in range(k):
            at = HEADER + 3 * n + t * (TENSOR_HEADER + n) + TENSOR_HEADER
            cursor[n + 2 + t] += position * w[at + d]


@device_function
def _advance(w, cursor):  # type: ignore[no-untyped-def]
    """Move the cursor to the next outer position."""
    n = w[NDIM]
    k = w[COUNT]
    for d in range(n - 1, -1, -1):
        cursor[d] += 1
        turn = cursor[d] == w[HEADER + d]
        steps = 1 - w[HEADER + d] if turn else 1
        cursor[n] += steps * w[HEADER + n + d]
        cursor[n + 1] += steps * w[HEADER + 2 * n + d]
        for t in range(k):
            at = HEADER + 3 * n + t * (TENSOR_HEADER + n) + TENSOR_HEADER
            cursor[n + 2 + t] += steps * w[at + d]
        if not turn:
            return
        cursor[d] = 0


@device_function
def _offset(w, cursor, j):  # type: ignore[no-untyped-def]
    """Return what the index tensors add to x's offset at inner position `j`, or -1 for a fault."""
    n = w[NDIM]
    offset = np.int64(0)
    for t in range(w[COUNT]):
        at = HEADER + 3 * n + t * (TENSOR_HEADER + n)
        entries = ptr_i64(w[at + ADDRESS])
        given = entries[cursor[n + 2 + t] + j * w[at + STRIDE]]
        size = w[at + SIZE]
        index = given + size if given < 0 and w[WRAP] != 0 else given
        if index < 0 or index >= size:
            _fault(w, t, given)
            return np.int64(-1)
        offset += index * w[at + STEP]
    return offset


@device_template
def _follow(w, cursor, p, q, first, last):  # type: ignore[no-untyped-def]
    """Walk the inner dimension with one index tensor that varies along it, its row kept at hand."""
    n = w[NDIM]
    at = HEADER + 3 * n
    entries = ptr_i64(w[at + ADDRESS])
    entry, stride, size, reach = cursor[n + 2], w[at + STRIDE], w[at + SIZE], w[at + STEP]
    plain, base, step, jump = cursor[n], cursor[n + 1], w[PLAIN_STEP], w[X_STEP]
    behind = size if w[WRAP] != 0 else np.int64(0)
    for j in range(first, last):
        given = entries[entry + j * stride]
        index = given + behind if given < 0 else given
        if index < 0 or index >= size:
            _fault(w, 0, given)
            return 1
        move(p, plain + j * step, q, base + index * reach + j * jump)
    return 0


@template("int64(int64, int64, int64, int64, int64)", fastmath=frozenset())
def walk(table, plain, x, start, stop):  # type: ignore[no-untyped-def]
    """Pair elements at outer positions [start, stop), or in that part of the inner dimension."""
    w = ptr_i64(table)
    p = ptr_T(plain)
    q = ptr_T(x)
    n = w[NDIM]
    first, last = (0, w[INNER]) if w[SPLIT_INNER] == 0 else (start, stop)
    begin, end = (start, stop) if w[SPLIT_INNER] == 0 else (0, w[SPLIT_INNER])
    step, jump = w[PLAIN_STEP], w[X_STEP]
    cursor = np.zeros(n + 2 + w[COUNT], np.int64)
    _start(w, cursor, begin)
    for _ in range(begin, end):
        at, base = cursor[n], cursor[n + 1]
        if w[VARYING] == 0:
            offset = _offset(w, cursor, 0)
            if offset < 0:
                return 1
            base += offset
            for j in range(first, last):
                move(p, at + j * step, q, base + j * jump)
        elif w[COUNT] == 1:
            if _follow(w, cursor, p, q, first, last) != 0:
                return 1
        else:
            for j in range(first, last):
                offset = _offset(w, cursor, j)
                if offset < 0:
                    return 1
                move(p, at + j * step, q, base + offset + j * jump)
        _advance(w, cursor)
    return 0


# ---------------------------------------------------------------------------------------------
# Plans


@dataclass(frozen=True, slots=True)
class Route:
    """How a walk goes: the space, and strides of all operands in it.

    Parameters
    ----------
    space : tuple of int
        Shape of the walk.
    plain, x : tuple of int
        Strides of the plain operand and of x; 0 along dimensions that an index tensor decides.
    indices : tuple of (strides, size, step)
        One entry an index tensor.
    wrap : bool
        Whether negative indices count from the end.
    """

    space: tuple[int, ...]
    plain: tuple[int, ...]
    x: tuple[int, ...]
    indices: tuple[tuple[tuple[int, ...], int, int], ...]
    wrap: bool = True


@dataclass(frozen=True, slots=True)
class _Plan:
    """A table without addresses, where they go, and the range that threads share."""

    table: np.ndarray[Any, Any]
    slots: tuple[int, ...]
    total: int
    grain: int


_MAX_PLANS = 4096
_plans: dict[tuple[Route, bool], _Plan] = {}
_kernels: dict[tuple[Any, DType], NativeKernel] = {}


def _plan_of(route: Route, reads: bool) -> _Plan:
    found = _plans.get((route, reads))
    if found is None:
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        found = _plans[(route, reads)] = _make_plan(route, reads)
    return found


def _make_plan(route: Route, reads: bool) -> _Plan:
    lists = [route.plain, route.x, *[strides for strides, _, _ in route.indices]]
    shape, strides = collapse(route.space, lists)
    if not shape:
        shape, strides = (1,), tuple((0,) for _ in lists)
    n, inner = len(shape) - 1, shape[-1]
    outer = math.prod(shape[:-1])
    varying = any(walked[-1] for walked in strides[2:])
    # Writers to different inner positions never meet; writers to different outer ones may.
    apart = not varying and strides[1][-1] != 0
    split_inner = (reads and n == 0) or (not reads and apart)
    header = [n, len(route.indices), inner, strides[0][-1], strides[1][-1], int(route.wrap),
              int(varying), outer if split_inner else 0, 0, 0]  # fmt: skip
    rows = [*header, *shape[:-1], *strides[0][:-1], *strides[1][:-1]]
    slots = []
    for (_, size, step), walked in zip(route.indices, strides[2:], strict=True):
        slots.append(len(rows) + ADDRESS)
        rows += [0, size, step, walked[-1], *walked[:-1]]
    total, each = (inner, outer) if split_inner else (outer, inner)
    grain = max(1, GRAIN // each) if reads or apart else total
    return _Plan(np.array(rows, np.int64), tuple(slots), total, grain)


_BITS = {1: _dtypes.uint8, 2: _dtypes.uint16, 4: _dtypes.uint32, 8: _dtypes.uint64}


def _as_pairs(route: Route) -> Route:
    """Rewrite a route over 16-byte elements as one over pairs of 8-byte ones."""
    indices = tuple(
        ((*strides, 0), size, 2 * step) for strides, size, step in route.indices
    )  # fmt: skip
    plain = (*[2 * stride for stride in route.plain], 1)
    x = (*[2 * stride for stride in route.x], 1)
    return Route((*route.space, 2), plain, x, indices, route.wrap)


Fault = tuple[int, int]


@native("int64(int64, int64, int64, int64)")
def first_outside(entries, count, low, high):  # type: ignore[no-untyped-def]
    """Return the place of the first of `count` int64 entries outside [low, high), or -1."""
    p = ptr_i64(entries)
    for i in range(count):
        if p[i] < low or p[i] >= high:
            return i
    return -1


def _first_fault(indices: Sequence[TensorImpl], route: Route) -> Fault | None:
    for t, (index, (_, size, _)) in enumerate(zip(indices, route.indices, strict=True)):
        low = -size if route.wrap else 0
        entries = contiguous_impl(index)
        place = first_outside(entries.address(), entries.meta.numel, low, size)
        if place >= 0:
            return t, int(entries.array().reshape(-1)[place])
    return None


def run_walk(
    op: Any, x: TensorImpl, plain: TensorImpl, indices: Sequence[TensorImpl], route: Route
) -> Fault | None:
    """Walk a route on the CPU.

    Parameters
    ----------
    op : device template
        One of `get`, `put`, `add`, `multiply`, `maximum`, `minimum`.
    x, plain : TensorImpl
        The indexed operand and the other; of one dtype.
    indices : sequence of TensorImpl
        int64 tensors.
    route : Route

    Returns
    -------
    tuple of (position in `indices`, value) or None
        The index that is out of range, if one is.
    """
    if 0 in route.space:
        return None
    if op is not get:
        # A write that fails must leave x as it was.
        fault = _first_fault(indices, route)
        if fault is not None:
            return fault
    dtype = x.meta.dtype
    if op is get or op is put:
        if dtype.itemsize == 16:
            route, dtype = _as_pairs(route), _dtypes.uint64
        dtype = _BITS[dtype.itemsize]
    plan = _plan_of(route, op is get)
    table = plan.table.copy()
    for slot, index in zip(plan.slots, indices, strict=True):
        table[slot] = index.address()
    kernel = _kernels.get((op, dtype))
    if kernel is None:
        kernel = _kernels[op, dtype] = walk.for_dtypes(T=dtype, move=op)
    address = table.__array_interface__["data"][0]
    launch.parallel_for(kernel, plan.total, plan.grain, address, plain.address(), x.address())
    if table[FAULT]:
        return int(table[FAULT]) - 1, int(table[VALUE])
    return None


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, GPU


# As in cuda/index.cu.
_MAX_INDICES = 8
_COMBINING = {"add": "Add", "multiply": "Multiply", "maximum": "Maximum", "minimum": "Minimum"}


def run_walk_cuda(
    op: Any, x: TensorImpl, plain: TensorImpl, indices: Sequence[TensorImpl], route: Route
) -> None:
    """Walk a route on the GPU, with the meaning of `run_walk`.

    An index out of range moves nothing and is reported in the device's fault cell, which is looked
    at when the host next waits for the device: looking here would make every read wait. Of several
    values for one place any may stay; sums of floats come in no fixed order.
    """
    if 0 in route.space:
        return
    walked = [strides for strides, _, _ in route.indices]
    shape, strides = collapse(route.space, [route.plain, route.x, *walked], reorder=True)
    count = math.prod(shape)
    args = (
        launch.table_argument(shape, strides[:2]), _indices_argument(indices, route, strides[2:]),
        count, int(route.wrap), fault_cell(x).address(),
    )  # fmt: skip
    addresses = plain.address(), x.address()
    cover = launch.cover(count)
    bits = bits_of(x.meta.dtype)
    if op is get:
        launch.raw("index", "index_get", (bits,), *cover, (*addresses, *args))
    elif op is put:
        launch.raw("index", "index_put", (bits,), *cover, (*addresses[::-1], *args))
    else:
        pair = (_COMBINING[op.__name__], x.meta.dtype.ctype)
        launch.raw("index", "index_combine", pair, *cover, (*addresses[::-1], *args))


def _indices_argument(
    indices: Sequence[TensorImpl], route: Route, strides: Sequence[Sequence[int]]
) -> np.ndarray[Any, Any]:
    """Return the struct ``Indices`` of cuda/index.cu."""
    if len(indices) > _MAX_INDICES:
        raise ShapeError(
            "index", expected=f"at most {_MAX_INDICES} index tensors", got=len(indices),
            remedy="index in two steps",
        )  # fmt: skip
    table = np.zeros((3, _MAX_INDICES), np.int64)
    walks = np.zeros((_MAX_INDICES, launch.MAX_DIMS), np.int64)
    for t, (index, (_, size, step)) in enumerate(zip(indices, route.indices, strict=True)):
        table[:, t] = index.address(), size, step
        walks[t, : len(strides[t])] = strides[t]
    return np.concatenate([np.array([len(indices)]), table.ravel(), walks.ravel()])
