"""Triangles of matrices, and reversed, rolled and repeated copies.

Invariants
----------
* Reversing, rolling and repeating are strided copies between views; only the triangles have a loop
  of their own, which moves elements by their bits.
* Targets may have any strides; a triangle into one that is not row-major goes through a temporary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refruntime import _dtypes
from refruntime._impl import TensorImpl, alias, empty_impl, meta_of
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl, copy_cpu, copy_cuda
from refruntime.kernels.variants import T, ptr_T, template

GRAIN = 32768
_BITS = {1: _dtypes.uint8, 2: _dtypes.uint16, 4: _dtypes.uint32, 8: _dtypes.uint64}
BITS_CUDA = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int",
             8: "unsigned long long", 16: "Wide"}  # fmt: skip


def copy_any(out: TensorImpl, x: TensorImpl) -> None:
    """Copy `x` into `out` on their device."""
    (copy_cpu if out.meta.device.type == "cpu" else copy_cuda)(out, x)


def shown(x: TensorImpl, shape: Sequence[int], strides: Sequence[int], offset: int) -> TensorImpl:
    """Return `x`'s memory under another layout; the offset is in elements from its first."""
    meta = meta_of(tuple(shape), x.meta.dtype, x.meta.device, tuple(strides))
    return alias(x, meta, x.byte_offset + offset * x.meta.dtype.itemsize)


# ---------------------------------------------------------------------------------------------
# Copies between views


def flip(out: TensorImpl, x: TensorImpl, *, dims: tuple[int, ...]) -> None:
    """Write `x` with the order of `dims` reversed."""
    shape, strides = x.meta.shape, list(x.meta.strides)
    if x.meta.numel == 0:
        return
    offset = 0
    for dim in dims:
        offset += (shape[dim] - 1) * strides[dim]
        strides[dim] = -strides[dim]
    copy_any(out, shown(x, shape, strides, offset))


def roll(out: TensorImpl, x: TensorImpl, *, shift: int, dim: int) -> None:
    """Write `x` moved by `shift` places along `dim`; what leaves at one end enters at the other."""
    size = x.meta.shape[dim]
    if size == 0:
        return
    head = shift % size
    for source, target, length in ((0, head, size - head), (size - head, 0, head)):
        copy_any(_part(out, dim, target, length), _part(x, dim, source, length))


def _part(x: TensorImpl, dim: int, start: int, length: int) -> TensorImpl:
    shape = (*x.meta.shape[:dim], length, *x.meta.shape[dim + 1 :])
    return shown(x, shape, x.meta.strides, start * x.meta.strides[dim])


def repeat(out: TensorImpl, x: TensorImpl, *, repeats: tuple[int, ...]) -> None:
    """Write `x` as often as `repeats` says along each dimension (leading ones are new)."""
    if out.meta.numel == 0:
        return
    missing = len(repeats) - x.meta.ndim
    sizes = (1,) * missing + tuple(x.meta.shape)
    steps = (0,) * missing + x.meta.strides
    shape: list[int] = []
    out_strides: list[int] = []
    x_strides: list[int] = []
    for count, size, stride, step in zip(repeats, sizes, out.meta.strides, steps, strict=True):
        shape += [count, size]
        out_strides += [size * stride, stride]
        x_strides += [0, step]
    copy_any(shown(out, shape, out_strides, 0), shown(x, shape, x_strides, 0))


# ---------------------------------------------------------------------------------------------
# Triangles


@template("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def triangle_rows(out, x, rows, columns, diagonal, upper, start, stop):  # type: ignore[no-untyped-def]
    """Keep one side of a diagonal in rows [start, stop) of all planes; the rest becomes zero."""
    o = ptr_T(out)
    p = ptr_T(x)
    for row in range(start, stop):
        edge = min(max(row % rows + diagonal + (1 - upper), 0), columns)
        first, last = (edge, columns) if upper != 0 else (0, edge)
        base = row * columns
        for column in range(first):
            o[base + column] = T(0)
        for column in range(first, last):
            o[base + column] = p[base + column]
        for column in range(last, columns):
            o[base + column] = T(0)


def triangle_cpu(out: TensorImpl, x: TensorImpl, *, diagonal: int, upper: bool) -> None:
    """Write the upper or lower triangle of the matrices in `x`."""
    if x.meta.dtype.itemsize == 16:
        picked = _numpy_triangle(x.array(), diagonal, upper)
        out.array()[...] = picked
        return
    _through_contiguous(out, x, diagonal, upper, _triangle_cpu)


def _numpy_triangle(array: Any, diagonal: int, upper: bool) -> Any:
    import numpy as np

    return np.triu(array, diagonal) if upper else np.tril(array, diagonal)


def triangle_cuda(out: TensorImpl, x: TensorImpl, *, diagonal: int, upper: bool) -> None:
    """Write the upper or lower triangle of the matrices in `x`, on the GPU."""
    _through_contiguous(out, x, diagonal, upper, _triangle_cuda)


def _through_contiguous(
    out: TensorImpl, x: TensorImpl, diagonal: int, upper: bool, compute: Any
) -> None:
    if x.meta.numel == 0:
        return
    target = out if out.meta.contiguous else empty_impl(meta_of(out.meta.shape, out.meta.dtype))
    compute(target, contiguous_impl(x), diagonal, upper)
    if target is not out:
        copy_any(out, target)


def _triangle_cpu(out: TensorImpl, x: TensorImpl, diagonal: int, upper: bool) -> None:
    rows, columns = x.meta.shape[-2:]
    kernel = triangle_rows.for_dtypes(T=_BITS[x.meta.dtype.itemsize])
    launch.parallel_for(
        kernel, x.meta.numel // columns, max(1, GRAIN // columns), out.address(), x.address(),
        rows, columns, diagonal, int(upper),
    )  # fmt: skip


def _triangle_cuda(out: TensorImpl, x: TensorImpl, diagonal: int, upper: bool) -> None:
    rows, columns = x.meta.shape[-2:]
    names = ("true" if upper else "false", BITS_CUDA[x.meta.dtype.itemsize])
    args = (out.address(), x.address(), rows, columns, diagonal, x.meta.numel)
    launch.raw("rearrange", "triangle", names, *launch.cover(x.meta.numel), args)
