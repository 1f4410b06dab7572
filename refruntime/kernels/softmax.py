"""softmax and log_softmax over one dimension, and their backwards.

State
-----
None. A tensor is seen as ``[outer, n, inner]`` with `n` the reduced size. With ``inner == 1`` the
loops go row by row; otherwise a *tile* of neighbouring columns is kept in the stack frame.

Invariants
----------
* Exponents are taken relative to the largest element, so nothing overflows.
* Half types are read and rounded once: what is kept between passes is in float32.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl
from refruntime.kernels.gpu import (
    cast_cuda,
    column_block,
    column_grid,
    into_contiguous_cuda,
    packed_cuda,
    sides,
)
from refruntime.kernels.intrinsics import INTRINSICS
from refruntime.kernels.reduce import GRAIN, into_contiguous
from refruntime.kernels.reduce import logsumexp_cpu as reduce_logsumexp
from refruntime.kernels.tiles import maximum, stack_array
from refruntime.kernels.variants import (
    ACC,
    Placeholder,
    Template,
    load_D,
    load_T,
    ptr_D,
    ptr_T,
    store_D,
    template,
)

TILE = 128
_INF = math.inf

exp: Any = Placeholder("exp")
log: Any = Placeholder("log")
peak_of: Any = Placeholder("peak_of")
total_of: Any = Placeholder("total_of")

_ROWS = "void(int64, int64, int64, int64, int64)"
_COLUMNS = "void(int64, int64, int64, int64, int64, int64)"


@template(_ROWS)
def softmax_rows(out, x, n, start, stop):  # type: ignore[no-untyped-def]
    """``exp(x - max) / sum`` of each row."""
    o = ptr_D(out)
    p = ptr_T(x)
    for row in range(start, stop):
        at = row * n
        peak = ACC(-_INF)
        for j in range(n):
            peak = maximum(peak, ACC(load_T(p, at + j)))
        total = ACC(0)
        for j in range(n):
            value = exp(ACC(load_T(p, at + j)) - peak)
            total += value
            store_D(o, at + j, value)
        scale = ACC(1) / total
        for j in range(n):
            store_D(o, at + j, load_D(o, at + j) * scale)


@template(_ROWS)
def softmax_rows_half(out, x, n, start, stop):  # type: ignore[no-untyped-def]
    """The same for results that cannot hold an intermediate: exponentials are taken twice."""
    o = ptr_D(out)
    p = ptr_T(x)
    for row in range(start, stop):
        at = row * n
        peak = ACC(-_INF)
        for j in range(n):
            peak = maximum(peak, ACC(load_T(p, at + j)))
        total = ACC(0)
        for j in range(n):
            total += exp(ACC(load_T(p, at + j)) - peak)
        scale = ACC(1) / total
        for j in range(n):
            store_D(o, at + j, exp(ACC(load_T(p, at + j)) - peak) * scale)


@template(_ROWS)
def log_softmax_rows(out, x, n, start, stop):  # type: ignore[no-untyped-def]
    """``x - max - log(sum exp(x - max))`` of each row."""
    o = ptr_D(out)
    p = ptr_T(x)
    for row in range(start, stop):
        at = row * n
        peak = ACC(-_INF)
        for j in range(n):
            peak = maximum(peak, ACC(load_T(p, at + j)))
        total = ACC(0)
        for j in range(n):
            total += exp(ACC(load_T(p, at + j)) - peak)
        shift = log(total)
        for j in range(n):
            store_D(o, at + j, ACC(load_T(p, at + j)) - peak - shift)


@template(_COLUMNS)
def softmax_columns(out, x, n, inner, start, stop):  # type: ignore[no-untyped-def]
    """`softmax_rows` down the columns of ``[n, inner]`` matrices, `TILE` columns at a time."""
    o = ptr_D(out)
    p = ptr_T(x)
    peaks = peak_of()
    totals = total_of()
    tiles = (inner + TILE - 1) // TILE
    for u in range(start, stop):
        low = (u % tiles) * TILE
        width = min(TILE, inner - low)
        base = (u // tiles) * n * inner + low
        for c in range(width):
            peaks[c] = ACC(-_INF)
            totals[c] = ACC(0)
        for j in range(n):
            for c in range(width):
                peaks[c] = maximum(peaks[c], ACC(load_T(p, base + j * inner + c)))
        for j in range(n):
            for c in range(width):
                totals[c] += exp(ACC(load_T(p, base + j * inner + c)) - peaks[c])
        for c in range(width):
            totals[c] = ACC(1) / totals[c]
        for j in range(n):
            for c in range(width):
                at = base + j * inner + c
                store_D(o, at, exp(ACC(load_T(p, at)) - peaks[c]) * totals[c])


@template(_COLUMNS)
def log_softmax_columns(out, x, n, inner, start, stop):  # type: ignore[no-untyped-def]
    """`log_softmax_rows` down the columns of ``[n, inner]`` matrices, `TILE` columns at a time."""
    o = ptr_D(out)
    p = ptr_T(x)
    peaks = peak_of()
    totals = total_of()
    tiles = (inner + TILE - 1) // TILE
    for u in range(start, stop):
        low = (u % tiles) * TILE
        width = min(TILE, inner - low)
        base = (u // tiles) * n * inner + low
        for c in range(width):
            peaks[c] = ACC(-_INF)
            totals[c] = ACC(0)
        for j in range(n):
            for c in range(width):
                peaks[c] = maximum(peaks[c], ACC(load_T(p, base + j * inner + c)))
        for j in range(n):
            for c in range(width):
                totals[c] += exp(ACC(load_T(p, base + j * inner + c)) - peaks[c])
        for c in range(width):
            totals[c] = log(totals[c])
        for j in range(n):
            for c in range(width):
                at = base + j * inner + c
                store_D(o, at, ACC(load_T(p, at)) - peaks[c] - totals[c])


_ROWS_BACK = "void(int64, int64, int64, int64, int64, int64)"
_COLUMNS_BACK = "void(int64, int64, int64, int64, int64, int64, int64)"


@template(_ROWS_BACK)
def softmax_back_rows(out, g, y, n, start, stop):  # type: ignore[no-untyped-def]
    """``y (g - sum(g y))`` of each row."""
    o = ptr_D(out)
    p = ptr_T(g)
    q = ptr_T(y)
    for row in range(start, stop):
        at = row * n
        total = ACC(0)
        for j in range(n):
            total += load_T(p, at + j) * load_T(q, at + j)
        for j in range(n):
            store_D(o, at + j, load_T(q, at + j) * (load_T(p, at + j) - total))


@template(_ROWS_BACK)
def log_softmax_back_rows(out, g, y, n, start, stop):  # type: ignore[no-untyped-def]
    """``g - exp(y) sum(g)`` of each row."""
    o = ptr_D(out)
    p = ptr_T(g)
    q = ptr_T(y)
    for row in range(start, stop):
        at = row * n
        total = ACC(0)
        for j in range(n):
            total += load_T(p, at + j)
        for j in range(n):
            store_D(o, at + j, load_T(p, at + j) - exp(load_T(q, at + j)) * total)


@template(_COLUMNS_BACK)
def softmax_back_columns(out, g, y, n, inner, start, stop):  # type: ignore[no-untyped-def]
    """`softmax_back_rows` down columns."""
    o = ptr_D(out)
    p = ptr_T(g)
    q = ptr_T(y)
    totals = total_of()
    tiles = (inner + TILE - 1) // TILE
    for u in range(start, stop):
        low = (u % tiles) * TILE
        width = min(TILE, inner - low)
        base = (u // tiles) * n * inner + low
        for c in range(width):
            totals[c] = ACC(0)
        for j in range(n):
            for c in range(width):
                at = base + j * inner + c
                totals[c] += load_T(p, at) * load_T(q, at)
        for j in range(n):
            for c in range(width):
                at = base + j * inner + c
                store_D(o, at, load_T(q, at) * (load_T(p, at) - totals[c]))


@template(_COLUMNS_BACK)
def log_softmax_back_columns(out, g, y, n, inner, start, stop):  # type: ignore[no-untyped-def]
    """`log_softmax_back_rows` down columns."""
    o = ptr_D(out)
    p = ptr_T(g)
    q = ptr_T(y)
    totals = total_of()
    tiles = (inner + TILE - 1) // TILE
    for u in range(start, stop):
        low = (u % tiles) * TILE
        width = min(TILE, inner - low)
        base = (u // tiles) * n * inner + low
        for c in range(width):
            totals[c] = ACC(0)
        for j in range(n):
            for c in range(width):
                totals[c] += load_T(p, base + j * inner + c)
        for j in range(n):
            for c in range(width):
                at = base + j * inner + c
                store_D(o, at, load_T(p, at) - exp(load_T(q, at)) * totals[c])


@template(_COLUMNS)
def log_sum_columns(out, x, n, inner, start, stop):  # type: ignore[no-untyped-def]
    """``max + log(sum exp(x - max))`` of columns, `TILE` columns at a time."""
    o = ptr_D(out)
    p = ptr_T(x)
    peaks = peak_of()
    totals = total_of()
    tiles = (inner + TILE - 1) // TILE
    for u in range(start, stop):
        low = (u % tiles) * TILE
        width = min(TILE, inner - low)
        base = (u // tiles) * n * inner + low
        for c in range(width):
            peaks[c] = ACC(-_INF)
            totals[c] = ACC(0)
        for j in range(n):
            for c in range(width):
                peaks[c] = maximum(peaks[c], ACC(load_T(p, base + j * inner + c)))
        for c in range(width):
            peaks[c] = ACC(0) if abs(peaks[c]) == ACC(_INF) else peaks[c]
        for j in range(n):
            for c in range(width):
                totals[c] += exp(ACC(load_T(p, base + j * inner + c)) - peaks[c])
        for c in range(width):
            store_D(o, (u // tiles) * inner + low + c, log(totals[c]) + peaks[c])


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, CPU


def _split(meta: TensorMeta, dim: int) -> tuple[int, int, int]:
    """Return the sizes before, of and after `dim`."""
    if not meta.ndim:
        return 1, 1, 1
    outer = inner = 1
    for size in meta.shape[:dim]:
        outer *= size
    for size in meta.shape[dim + 1 :]:
        inner *= size
    return outer, meta.shape[dim], inner


@cache
def _bindings(element: DType, result: DType) -> dict[str, Any]:
    suffix = "f64" if result is _dtypes.float64 else "f32"
    stack = stack_array(result.compute.name, TILE)
    return {
        "T": element, "D": result, "ACC": result.compute, "peak_of": stack, "total_of": stack,
        "exp": INTRINSICS[f"exp_{suffix}"], "log": INTRINSICS[f"log_{suffix}"],
    }  # fmt: skip


def _run(
    rows: Template, columns: Template, out: TensorImpl, operands: tuple[TensorImpl, ...], dim: int
) -> None:
    outer, n, inner = _split(out.meta, dim)
    packed = [contiguous_impl(value) for value in operands]
    bindings = _bindings(operands[0].meta.dtype, out.meta.dtype)
    if inner == 1:
        kernel = rows.for_dtypes(**bindings)
        launch.parallel_for(
            kernel, outer, max(1, GRAIN // max(1, 4 * n)), out.address(),
            *[value.address() for value in packed], n,
        )  # fmt: skip
        return
    kernel = columns.for_dtypes(**bindings)
    tiles = -(-inner // TILE)
    launch.parallel_for(
        kernel, outer * tiles, max(1, GRAIN // max(1, 4 * n * min(inner, TILE))), out.address(),
        *[value.address() for value in packed], n, inner,
    )  # fmt: skip


@into_contiguous
def softmax_cpu(out: TensorImpl, x: TensorImpl, *, dim: int, **_: Any) -> None:
    """Softmax over `dim`, reading the operand's dtype and writing the result's."""
    half = out.meta.dtype.compute is not out.meta.dtype
    _run(softmax_rows_half if half else softmax_rows, softmax_columns, out, (x,), dim)


@into_contiguous
def log_softmax_cpu(out: TensorImpl, x: TensorImpl, *, dim: int, **_: Any) -> None:
    """The logarithm of softmax over `dim`."""
    _run(log_softmax_rows, log_softmax_columns, out, (x,), dim)


@into_contiguous
def logsumexp_cpu(out: TensorImpl, x: TensorImpl, *, dim: Any, **params: Any) -> None:
    """``log(sum(exp(x)))`` over `dim`: by columns where contiguous, else as a reduction."""
    if dim is None or len(dim) != 1 or not x.meta.contiguous or x.meta.dtype is not out.meta.dtype:
        reduce_logsumexp(out, x, dim=dim, **params)
        return
    outer, n, inner = _split(x.meta, dim[0])
    if inner == 1:
        reduce_logsumexp(out, x, dim=dim, **params)
        return
    kernel = log_sum_columns.for_dtypes(**_bindings(x.meta.dtype, out.meta.dtype))
    tiles = -(-inner // TILE)
    launch.parallel_for(
        kernel, outer * tiles, max(1, GRAIN // max(1, 4 * n * min(inner, TILE))), out.address(),
        x.address(), n, inner,
    )  # fmt: skip


@into_contiguous
def softmax_backward_cpu(out: TensorImpl, g: TensorImpl, y: TensorImpl, *, dim: int) -> None:
    """The gradient of softmax's operand from that of its result `y`."""
    _run(softmax_back_rows, softmax_back_columns, out, (g, y), dim)


@into_contiguous
def log_softmax_backward_cpu(out: TensorImpl, g: TensorImpl, y: TensorImpl, *, dim: int) -> None:
    """The gradient of log_softmax's operand from that of its result `y`."""
    _run(log_softmax_back_rows, log_softmax_back_columns, out, (g, y), dim)


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, GPU


def _launch(
    kernel: str, log: bool, out: TensorImpl, operands: tuple[TensorImpl, ...], dim: int
) -> None:
    outer, n, inner = sides(out.meta.shape, dim)
    if not out.meta.numel:
        return
    block = column_block(n, inner)
    packed = [packed_cuda(cast_cuda(value, out.meta.dtype)) for value in operands]
    names = ("true" if log else "false", out.meta.dtype.ctype)
    addresses = (out.address(), *[value.address() for value in packed])
    shared = block[0] * block[1] * 16
    launch.raw(
        "softmax", kernel, names, column_grid(outer, inner, block), block, (*addresses, n, inner),
        shared,
    )  # fmt: skip


@into_contiguous_cuda
def softmax_cuda(out: TensorImpl, x: TensorImpl, *, dim: int, **_: Any) -> None:
    """Softmax over `dim`, computed in the result's dtype."""
    _launch("softmax_forward", False, out, (x,), dim)


@into_contiguous_cuda
def log_softmax_cuda(out: TensorImpl, x: TensorImpl, *, dim: int, **_: Any) -> None:
    """The logarithm of softmax over `dim`."""
    _launch("softmax_forward", True, out, (x,), dim)


@into_contiguous_cuda
def softmax_backward_cuda(out: TensorImpl, g: TensorImpl, y: TensorImpl, *, dim: int) -> None:
    """The gradient of softmax's operand from that of its result `y`."""
    _launch("softmax_backward", False, out, (g, y), dim)


@into_contiguous_cuda
def log_softmax_backward_cuda(out: TensorImpl, g: TensorImpl, y: TensorImpl, *, dim: int) -> None:
    """The gradient of log_softmax's operand from that of its result `y`."""
    _launch("softmax_backward", True, out, (g, y), dim)
