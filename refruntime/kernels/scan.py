"""Running results along one dimension: sums, products, extremes with their places.

Invariants
----------
* Operands are contiguous (outer, length, inner); a unit of work is one outer position and up to 64
  inner ones, which are read side by side.
* Sums and products of floats run in float64 and are rounded at each store, as in torch; those of
  integers in int64.
* Of equal extremes the last place is reported; a NaN stays once it has been met.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime._native import device_function, ptr_i64
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl, copy_cpu, copy_cuda
from refruntime.kernels.gpu import (
    STATE_BYTES,
    cast_cuda,
    column_block,
    column_grid,
    into_contiguous_cuda,
    optional_address,
    packed_cuda,
    scratch,
)
from refruntime.kernels.variants import (
    ACC,
    D,
    Placeholder,
    T,
    device_template,
    load_T,
    ptr_D,
    ptr_T,
    store_D,
    store_T,
    template,
)

TILE = 64
GRAIN = 16384

step: Any = Placeholder("step")
beyond: Any = Placeholder("beyond")


@device_function
def add_step(total, value):  # type: ignore[no-untyped-def]
    """Return the next running sum."""
    return total + value


@device_function
def multiply_step(total, value):  # type: ignore[no-untyped-def]
    """Return the next running product."""
    return total * value


@device_function
def log_add_step(total, value):  # type: ignore[no-untyped-def]
    """Return the logarithm of the next running sum, from logarithms."""
    if total != total or value != value:
        return total + value
    high = max(total, value)
    if abs(high) == math.inf:
        return high
    return high + math.log1p(math.exp(-abs(total - value)))


@template("void(int64, int64, int64, int64, float64, int64, int64)", fastmath=frozenset())
def running(out, x, length, inner, first, start, stop):  # type: ignore[no-untyped-def]
    """Combine along `length`, from `first`, for units [start, stop)."""
    o = ptr_D(out)
    p = ptr_T(x)
    tiles = (inner + TILE - 1) // TILE
    totals = np.empty(TILE, ACC)
    for unit in range(start, stop):
        left = unit % tiles * TILE
        width = min(TILE, inner - left)
        base = unit // tiles * length * inner + left
        for j in range(width):
            totals[j] = ACC(first)
        for i in range(length):
            at = base + i * inner
            for j in range(width):
                totals[j] = step(totals[j], ACC(load_T(p, at + j)))
                store_D(o, at + j, totals[j])


@device_template
def above(value, best):  # type: ignore[no-untyped-def]
    """Whether `value` takes the place of `best` as a maximum."""
    return value >= best or value != value


@device_template
def below(value, best):  # type: ignore[no-untyped-def]
    """Whether `value` takes the place of `best` as a minimum."""
    return value <= best or value != value


@template("void(int64, int64, int64, int64, int64, int64, int64)", fastmath=frozenset())
def running_extreme(out, places, x, length, inner, start, stop):  # type: ignore[no-untyped-def]
    """Keep the extreme so far, and its place, for columns [start, stop) of all outer positions."""
    o = ptr_T(out)
    w = ptr_i64(places)
    p = ptr_T(x)
    for column in range(start, stop):
        base = column // inner * length * inner + column % inner
        best = load_T(p, base)
        place = 0
        for i in range(length):
            at = base + i * inner
            value = load_T(p, at)
            if beyond(value, best) and (best == best or value != value):
                best = value
                place = i
            store_T(o, at, best)
            w[at] = place


def _extents(x: TensorImpl, dim: int) -> tuple[int, int, int]:
    shape = x.meta.shape if x.meta.ndim else (1,)
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def running_cpu(out: TensorImpl, x: TensorImpl, *, dim: int, product: bool) -> None:
    """Write running sums (or products) of `x` along `dim`."""
    _run(out, x, dim, multiply_step if product else add_step, float(product))


def log_running_cpu(out: TensorImpl, x: TensorImpl, *, dim: int) -> None:
    """Write ``log(cumsum(exp(x)))`` along `dim`, safe from overflow."""
    _run(out, x, dim, log_add_step, -math.inf)


def _run(out: TensorImpl, x: TensorImpl, dim: int, step: Any, first: float) -> None:
    if x.meta.numel == 0:
        return
    x = contiguous_impl(x)
    outer, length, inner = _extents(x, dim)
    target = out if out.meta.contiguous else empty_impl(meta_of(out.meta.shape, out.meta.dtype))
    accumulator = _dtypes.float64 if out.meta.dtype.is_floating_point else _dtypes.int64
    kernel = running.for_dtypes(T=x.meta.dtype, D=out.meta.dtype, ACC=accumulator, step=step)
    units = outer * -(-inner // TILE)
    grain = max(1, GRAIN // (length * min(inner, TILE)))
    launch.parallel_for(kernel, units, grain, target.address(), x.address(), length, inner, first)
    if target is not out:
        copy_cpu(out, target)


def extreme_cpu(out: Any, x: TensorImpl, *, dim: int, largest: bool) -> None:
    """Write running extremes of `x` along `dim` and their places."""
    if x.meta.numel == 0:
        return
    x = contiguous_impl(x)
    outer, length, inner = _extents(x, dim)
    targets = [
        value if value.meta.contiguous else empty_impl(meta_of(value.meta.shape, value.meta.dtype))
        for value in out
    ]
    kernel = running_extreme.for_dtypes(T=x.meta.dtype, beyond=above if largest else below)
    launch.parallel_for(
        kernel, outer * inner, max(1, GRAIN // length), targets[0].address(), targets[1].address(),
        x.address(), length, inner,
    )  # fmt: skip
    for value, target in zip(out, targets, strict=True):
        if target is not value:
            copy_cpu(value, target)


# ---------------------------------------------------------------------------------------------
# The GPU: kernels/cuda/scan.cu


def scan_cuda(op: str, out: TensorImpl, places: TensorImpl | None, x: TensorImpl, dim: int) -> None:
    """Launch the scan `op` (``Sum``, ``Prod``, ``CumulativeMax``, ...) into contiguous targets."""
    if x.meta.numel == 0:
        return
    x = packed_cuda(x)
    outer, length, inner = _extents(x, dim)
    block = column_block(length, inner)
    launch.raw(
        "scan", "scan", (op, x.meta.dtype.ctype, out.meta.dtype.ctype),
        column_grid(outer, inner, block), block,
        (x.address(), out.address(), optional_address(places), length, inner),
        shared=block[0] * block[1] * STATE_BYTES,
    )  # fmt: skip


@into_contiguous_cuda
def running_cuda(out: TensorImpl, x: TensorImpl, *, dim: int, product: bool) -> None:
    """Write running sums (or products) of `x` along `dim`, on the GPU."""
    op, dtype = "Prod" if product else "Sum", out.meta.dtype
    if dtype.is_floating_point:
        scan_cuda(op, out, None, cast_cuda(x, dtype), dim)
    elif dtype is _dtypes.int64:
        # Integers and bool are widened as they are read.
        widened = cast_cuda(x, dtype) if x.meta.dtype.is_floating_point else x
        scan_cuda(op, out, None, widened, dim)
    else:
        totals = scratch(out, tuple(out.meta.shape), _dtypes.int64)
        running_cuda(totals, x, dim=dim, product=product)
        copy_cuda(out, totals)


@into_contiguous_cuda
def log_running_cuda(out: TensorImpl, x: TensorImpl, *, dim: int) -> None:
    """Write ``log(cumsum(exp(x)))`` along `dim`, on the GPU."""
    scan_cuda("LogSumExp", out, None, cast_cuda(x, out.meta.dtype), dim)


@into_contiguous_cuda
def extreme_cuda(out: Any, x: TensorImpl, *, dim: int, largest: bool) -> None:
    """Write running extremes of `x` along `dim` and their places, on the GPU."""
    scan_cuda("CumulativeMax" if largest else "CumulativeMin", out[0], out[1], x, dim)


__all__ = [
    "D", "T", "extreme_cpu", "extreme_cuda", "log_running_cpu", "log_running_cuda", "running_cpu",
    "running_cuda",
]  # fmt: skip
