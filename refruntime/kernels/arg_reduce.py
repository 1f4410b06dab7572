"""The places of extremes: argmax, argmin, and max and min over one dimension with their places.

State
-----
None; the plan table is that of `kernels.fold` with one reduced dimension.

Invariants
----------
* Of equal elements the first wins; the first NaN wins over all numbers.
* One dimension is reduced, or all of them in row-major order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, alias, meta_of
from refruntime._native import NativeKernel, device_function, ptr_i64
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl
from refruntime.kernels.fold import TILE, extreme_fold
from refruntime.kernels.gpu import into_contiguous_cuda
from refruntime.kernels.reduce import GRAIN, into_contiguous
from refruntime.kernels.reduce_cuda import reduce_cuda
from refruntime.kernels.tiles import stack_array
from refruntime.kernels.variants import (
    ACC,
    Placeholder,
    load_T,
    ptr_T,
    store_T,
    template,
)

# Elements whose extreme is found by a vector loop before one of them is looked for.
CHUNK = 512

_places = stack_array("int64", TILE)


@device_function
def _above(x, best):  # type: ignore[no-untyped-def]
    return x > best or (x != x and best == best)


@device_function
def _below(x, best):  # type: ignore[no-untyped-def]
    return x < best or (x != x and best == best)


better: Any = Placeholder("better")
merge: Any = Placeholder("merge")
FIRST: Any = Placeholder("FIRST")
stack: Any = Placeholder("stack")

_SIGNATURE = "void(" + "int64, " * 9 + "int64)"


@template(_SIGNATURE)
def arg_rows(values, places, x, k1, s0, s1, n, t1, start, stop):  # type: ignore[no-untyped-def]
    """Find the extreme of one output after the other, a chunk at a time."""
    p = ptr_T(x)
    out = ptr_T(values)
    place = ptr_i64(places)
    for u in range(start, stop):
        base = (u // k1) * s0 + (u % k1) * s1
        best = ACC(load_T(p, base))
        at = 0
        for low in range(0, n, CHUNK):
            high = min(n, low + CHUNK)
            peak = ACC(FIRST)
            if t1 == 1:
                for j in range(low, high):
                    peak = merge(peak, ACC(load_T(p, base + j)))
            else:
                for j in range(low, high):
                    peak = merge(peak, ACC(load_T(p, base + j * t1)))
            if better(peak, best):
                for j in range(low, high):
                    x_j = ACC(load_T(p, base + j * t1))
                    if x_j == peak or x_j != x_j:
                        best = x_j
                        at = j
                        break
        if values != 0:
            store_T(out, u, best)
        if places != 0:
            place[u] = at


@template(_SIGNATURE)
def arg_columns(values, places, x, k1, s0, s1, n, t1, start, stop):  # type: ignore[no-untyped-def]
    """Find the extremes of `TILE` neighbouring outputs at a time; `s1` is one."""
    p = ptr_T(x)
    out = ptr_T(values)
    place = ptr_i64(places)
    best = stack()
    at = _places()
    tiles = (k1 + TILE - 1) // TILE
    for u in range(start, stop):
        low = (u % tiles) * TILE
        width = min(TILE, k1 - low)
        base = (u // tiles) * s0 + low
        for c in range(width):
            best[c] = ACC(load_T(p, base + c))
            at[c] = 0
        for j in range(1, n):
            q = base + j * t1
            for c in range(width):
                x_j = ACC(load_T(p, q + c))
                wins = better(x_j, best[c])
                best[c] = x_j if wins else best[c]
                at[c] = j if wins else at[c]
        first = (u // tiles) * k1 + low
        if values != 0:
            for c in range(width):
                store_T(out, first + c, best[c])
        if places != 0:
            for c in range(width):
                place[first + c] = at[c]


@dataclass(frozen=True, slots=True)
class _Kernels:
    rows: NativeKernel
    columns: NativeKernel


_cache: dict[tuple[bool, DType], _Kernels] = {}


def _kernels(largest: bool, dtype: DType) -> _Kernels:
    key = (largest, dtype)
    if key not in _cache:
        _cache[key] = _specialised(largest, dtype)
    return _cache[key]


def _specialised(largest: bool, dtype: DType) -> _Kernels:
    fold, floating = extreme_fold(largest, dtype), dtype.is_floating_point
    bound: dict[str, Any] = {
        "T": dtype,
        "ACC": _dtypes.float64 if floating else _dtypes.int64,
        "FIRST": fold.first,
        "merge": fold.merge,
        "better": _above if largest else _below,
        "stack": stack_array("float64" if floating else "int64", TILE),
    }
    return _Kernels(arg_rows.for_dtypes(**bound), arg_columns.for_dtypes(**bound))


def _locate(
    values: TensorImpl | None, places: TensorImpl | None, x: TensorImpl, dim: int | None,
    largest: bool,
) -> None:  # fmt: skip
    if dim is None:
        x = contiguous_impl(x)
        x = alias(x, meta_of((x.meta.numel,), x.meta.dtype, x.meta.device), x.byte_offset)
        dim = 0
    outer, inner = _sides(x, dim)
    if outer is None or inner is None:
        x = contiguous_impl(x)
        outer, inner = _sides(x, dim)
    assert outer is not None and inner is not None
    n, step = (x.meta.shape[dim], x.meta.strides[dim]) if x.meta.ndim else (1, 1)
    columns = inner[1] == 1 and inner[0] >= 4 and step != 1
    kernels = _kernels(largest, x.meta.dtype)
    loop = kernels.columns if columns else kernels.rows
    units = outer[0] * (-(-inner[0] // TILE) if columns else inner[0])
    work = max(1, n * (min(inner[0], TILE) if columns else 1))
    launch.parallel_for(
        loop, units, max(1, GRAIN // work), 0 if values is None else values.address(),
        0 if places is None else places.address(), x.address(), inner[0], outer[1], inner[1], n,
        step,
    )  # fmt: skip


def _sides(x: TensorImpl, dim: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Return the dimensions before and after `dim`, each as one (None where they do not merge)."""
    axes = list(zip(x.meta.shape, x.meta.strides, strict=True))
    return _single(axes[:dim]), _single(axes[dim + 1 :])


def _single(axes: list[tuple[int, int]]) -> tuple[int, int] | None:
    from refruntime.kernels.reduce import _merged

    merged = _merged(axes)
    if not merged:
        return (1, 0)
    return merged[0] if len(merged) == 1 else None


@into_contiguous
def argmax_cpu(out: TensorImpl, x: TensorImpl, *, dim: int | None, **_: Any) -> None:
    """Find the place of the largest element."""
    _locate(None, out, x, dim, True)


@into_contiguous
def argmin_cpu(out: TensorImpl, x: TensorImpl, *, dim: int | None, **_: Any) -> None:
    """Find the place of the smallest element."""
    _locate(None, out, x, dim, False)


@into_contiguous
def max_at_cpu(out: tuple[TensorImpl, TensorImpl], x: TensorImpl, *, dim: int, **_: Any) -> None:
    """Find the largest element and its place."""
    _locate(out[0], out[1], x, dim, True)


@into_contiguous
def min_at_cpu(out: tuple[TensorImpl, TensorImpl], x: TensorImpl, *, dim: int, **_: Any) -> None:
    """Find the smallest element and its place."""
    _locate(out[0], out[1], x, dim, False)


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, GPU


def _dims_of(dim: int | None) -> tuple[int, ...] | None:
    return None if dim is None else (dim,)


@into_contiguous_cuda
def argmax_cuda(out: TensorImpl, x: TensorImpl, *, dim: int | None, **_: Any) -> None:
    """Find the place of the largest element."""
    reduce_cuda("Argmax", out, x, _dims_of(dim if x.meta.ndim else None))


@into_contiguous_cuda
def argmin_cuda(out: TensorImpl, x: TensorImpl, *, dim: int | None, **_: Any) -> None:
    """Find the place of the smallest element."""
    reduce_cuda("Argmin", out, x, _dims_of(dim if x.meta.ndim else None))


@into_contiguous_cuda
def max_at_cuda(out: tuple[TensorImpl, TensorImpl], x: TensorImpl, *, dim: int, **_: Any) -> None:
    """Find the largest element and its place."""
    reduce_cuda("MaxAt", out[0], x, _dims_of(dim if x.meta.ndim else None), places=out[1])


@into_contiguous_cuda
def min_at_cuda(out: tuple[TensorImpl, TensorImpl], x: TensorImpl, *, dim: int, **_: Any) -> None:
    """Find the smallest element and its place."""
    reduce_cuda("MinAt", out[0], x, _dims_of(dim if x.meta.ndim else None), places=out[1])


__all__ = ["argmax_cpu", "argmin_cpu", "max_at_cpu", "min_at_cpu"]
