"""Copy, cast and fill: between any strides and dtypes.

State
-----
Plans of copies that were made, by the metas of target and source (bounded).

Invariants
----------
* Same dtype moves bits, whatever the dtype, complex ones included; a cast is the pointwise kernel
  of the identity. Casts of complex numbers go through NumPy.
* The source may have fewer dimensions or sizes of 1: it is broadcast to the target.
* Target and source do not overlap, unless they are the same elements.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta, empty_impl, meta_of
from refruntime._layout import broadcast_strides, collapse, is_dense
from refruntime.config import config
from refruntime.errors import DTypeError
from refruntime.kernels import launch
from refruntime.kernels.emit_numba import kernel_for
from refruntime.kernels.scalar import Body, single
from refruntime.kernels.variants import load_T, ptr_T, store_T, template

_IDENTITY = Body.from_source("def cast(x):\n    return x")
_CONSTANT = Body.from_source("def fill(*, value):\n    return value")

# Types that stand for the bits of an element of so many bytes.
_BITS = {1: _dtypes.uint8, 2: _dtypes.uint16, 4: _dtypes.uint32, 8: _dtypes.uint64}
_CUDA_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long",
              16: "Wide"}  # fmt: skip

_MAX_PLANS = 4096
# Bytes of a plain copy below which another thread does not pay.
_MOVE_GRAIN = 1 << 20
# Side of the square that a transposing copy moves at once: both sides stay in the cache.
_TILE = 32

Plan = Callable[[int, int], object]
_plans: dict[tuple[TensorMeta, TensorMeta], Plan] = {}


def copy_cpu(out: TensorImpl, x: TensorImpl) -> None:
    """Write the elements of `x`, broadcast and cast, into `out`."""
    key = (out.meta, x.meta)
    plan = _plans.get(key)
    if plan is None:
        if _needs_numpy(out.meta.dtype, x.meta.dtype):
            _copy_by_numpy(out, x)
            return
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        plan = _plans[key] = _plan(out.meta, x.meta)
    plan(out.address(), x.address())


def contiguous_impl(x: TensorImpl) -> TensorImpl:
    """Return `x` if it is row-major, else a row-major copy."""
    if x.meta.contiguous:
        return x
    out = empty_impl(meta_of(x.meta.shape, x.meta.dtype, x.meta.device))
    if x.meta.device.type == "cpu":
        copy_cpu(out, x)
    else:
        copy_cuda(out, x)
    return out


def _needs_numpy(target: DType, source: DType) -> bool:
    return target is not source and (target.is_complex or source.is_complex)


def _copy_by_numpy(out: TensorImpl, x: TensorImpl) -> None:
    with warnings.catch_warnings():
        # PyTorch drops imaginary parts in copies too, with a warning of its own elsewhere.
        warnings.simplefilter("ignore")
        out.array()[...] = x.array()


def _nothing(target: int, source: int) -> None:
    """Copy no element."""


def _plan(out: TensorMeta, x: TensorMeta) -> Plan:
    """Return the cheapest way to copy between two layouts."""
    if out.numel == 0:
        return _nothing
    strides = _spread(out, x)
    if out.dtype is x.dtype:
        if out.strides == strides and is_dense(out.shape, out.strides):
            return _move(out.nbytes)
        return _strided(out, strides, *_as_bits(out.dtype))
    return _strided(out, strides, out.dtype, x.dtype)


def _spread(out: TensorMeta, x: TensorMeta) -> tuple[int, ...]:
    if x.shape == out.shape:
        return x.strides
    return broadcast_strides(x.shape, x.strides, out.shape)


def _as_bits(dtype: DType) -> tuple[DType, DType]:
    bits = _BITS.get(dtype.itemsize, dtype)
    return bits, bits


def _move(nbytes: int) -> Plan:
    """Return a plan that copies one span of bytes."""
    if nbytes <= _MOVE_GRAIN:
        return lambda target, source: ctypes.memmove(target, source, nbytes)
    return lambda target, source: launch.parallel_for(
        _move_part, nbytes, _MOVE_GRAIN, target, source
    )  # fmt: skip


def _move_part(target: int, source: int, start: int, stop: int) -> None:
    ctypes.memmove(target + start, source + start, stop - start)


def _strided(out: TensorMeta, strides: tuple[int, ...], target: DType, source: DType) -> Plan:
    """Return a plan for any strides; `target` and `source` are how elements are seen."""
    shape, (out_strides, x_strides) = collapse(out.shape, [out.strides, strides], reorder=True)
    out_bytes = [stride * out.dtype.itemsize for stride in out_strides]
    x_bytes = [stride * source.itemsize for stride in x_strides]
    if target.is_complex:
        # Two float64 an element: one more dimension.
        shape, out_bytes, x_bytes = (*shape, 2), [*out_bytes, 8], [*x_bytes, 8]
        target = source = _dtypes.uint64
    if target is source and _turns(shape, out_bytes, x_bytes, target.itemsize):
        return _turn(shape, out_bytes, x_bytes, target)
    graph = single(_IDENTITY, source, "a")
    kernel = kernel_for(graph, (source,), (target,))
    table = np.array([len(shape), *shape, *out_bytes, *x_bytes], np.int64)
    entry = kernel.for_table(table.tolist())
    total = int(np.prod(shape, dtype=np.int64))
    return lambda to, of: launch.parallel_for(
        entry, total, config.parallel_grain, table.ctypes.data, to, of
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Transposing copies


@template("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def turn_tiles(out, x, rows, columns, out_step, x_step, start, stop):  # type: ignore[no-untyped-def]
    """Copy ``out[r, c] = x[r, c]`` with `out` dense along c and `x` dense along r, by row bands.

    A band is 32 rows; steps are in elements: of `out` along r, of `x` along c.
    """
    o = ptr_T(out)
    p = ptr_T(x)
    for band in range(start, stop):
        first = band * 32
        last = min(first + 32, rows)
        for left in range(0, columns, 32):
            right = min(left + 32, columns)
            for r in range(first, last):
                for c in range(left, right):
                    store_T(o, r * out_step + c, load_T(p, c * x_step + r))


def _turns(shape: tuple[int, ...], out: list[int], x: list[int], itemsize: int) -> bool:
    """Whether this is a large matrix that is dense along different dimensions on both sides."""
    return (
        len(shape) == 2
        and min(shape) >= _TILE
        and out[1] == x[0] == itemsize
        and out[0] % itemsize == x[1] % itemsize == 0
    )


def _turn(shape: tuple[int, ...], out: list[int], x: list[int], dtype: DType) -> Plan:
    rows, columns = shape
    kernel = turn_tiles.for_dtypes(T=dtype)
    out_step, x_step = out[0] // dtype.itemsize, x[1] // dtype.itemsize
    bands = -(-rows // _TILE)
    grain = max(config.parallel_grain // (_TILE * columns), 1)
    return lambda to, of: launch.parallel_for(
        kernel, bands, grain, to, of, rows, columns, out_step, x_step
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Fill


def fill_cpu(out: TensorImpl, value: float | complex) -> None:
    """Set every element of `out` to a number.

    Raises
    ------
    DTypeError
        If an integer dtype cannot hold the number.
    """
    meta = out.meta
    if meta.numel == 0:
        return
    if meta.dtype.is_complex:
        out.array()[...] = value
        return
    number = fill_number(value, meta.dtype)
    dense = is_dense(meta.shape, meta.strides)
    if dense and number == 0 and np.copysign(1.0, number) > 0:
        _clear(out.address(), meta.nbytes)
        return
    _fill_plan(meta, "f" if isinstance(number, float) else "i")(out.address(), number)


@lru_cache(maxsize=4096)
def _fill_plan(meta: TensorMeta, kind: str) -> Callable[..., int]:
    """Return what fills memory of this meta, given its address and the number."""
    kernel = kernel_for(single(_CONSTANT, meta.dtype, "", kind), (), (meta.dtype,))
    grain = config.parallel_grain
    if is_dense(meta.shape, meta.strides):
        flat = kernel.flat
        return lambda to, number: launch.parallel_for(flat, meta.numel, grain, to, number)
    table = _fill_table(meta)
    strided = kernel.for_table(table.tolist())
    return lambda to, number: launch.parallel_for(
        strided, meta.numel, grain, table.ctypes.data, to, number
    )


def fill_number(value: Any, dtype: DType) -> float | int:
    """Return a number as kernels take it: a float, or an int that fits into int64.

    Raises
    ------
    DTypeError
        If the dtype cannot hold it.
    """
    if isinstance(value, complex):
        if value.imag:
            raise DTypeError(
                "fill_",
                what=f"value cannot be converted to type {dtype.name} without overflow",
                expected="a real number", got=repr(value), remedy="fill a complex tensor",
            )  # fmt: skip
        value = value.real
    if dtype.is_floating_point:
        return float(value)
    if dtype is _dtypes.bool_:
        return int(bool(value))
    limits = _dtypes.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        raise DTypeError(
            "fill_",
            what=f"value cannot be converted to type {dtype.name} without overflow",
            expected=f"a number from {limits.min} to {limits.max}",
            got=repr(value),
            remedy="use a wider dtype",
        )
    number = int(value)
    return number - (1 << 64) if number >= 1 << 63 else number


def _fill_table(meta: TensorMeta) -> Any:
    shape, (strides,) = collapse(meta.shape, [meta.strides], reorder=True)
    steps = [stride * meta.dtype.itemsize for stride in strides]
    return np.array([len(shape), *shape, *steps], np.int64)


def _clear(address: int, nbytes: int) -> None:
    launch.parallel_for(_clear_part, nbytes, _MOVE_GRAIN, address)


def _clear_part(address: int, start: int, stop: int) -> None:
    ctypes.memset(address + start, 0, stop - start)


# ---------------------------------------------------------------------------------------------
# GPU


def copy_cuda(out: TensorImpl, x: TensorImpl) -> None:
    """Write the elements of `x`, broadcast and cast, into `out`, on the GPU."""
    if out.meta.numel == 0:
        return
    lists = [out.meta.strides, _spread(out.meta, x.meta)]
    shape, strides = collapse(out.meta.shape, lists, reorder=True)
    args = (out.address(), x.address(), launch.table_argument(shape, strides), out.meta.numel)
    grid, block = launch.cover(out.meta.numel)
    if out.meta.dtype is x.meta.dtype:
        bits = _CUDA_BITS[out.meta.dtype.itemsize]
        if not _turn_cuda(bits, args[:2], shape, strides):
            launch.raw("copy", "copy_bits", (bits,), grid, block, args)
        return
    names = (out.meta.dtype.ctype, x.meta.dtype.ctype)
    launch.raw("copy", "convert", names, grid, block, args)


def _turn_cuda(
    bits: str, addresses: Sequence[int], shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]
) -> bool:
    """Copy transposed matrices through tiles in shared memory, if that is what the copy is."""
    out, x = strides
    if len(shape) == 2:
        shape, out, x = (1, *shape), (shape[0] * shape[1], *out), (0, *x)
    if len(shape) != 3 or min(shape[1:]) < _TILE or x[1] != 1:
        return False
    batch, rows, columns = shape
    if out != (rows * columns, columns, 1):
        return False
    grid = (-(-columns // _TILE) * -(-rows // _TILE) * batch,)
    args = (*addresses, rows, columns, x[0], x[2])
    launch.raw("copy", "transpose_bits", (bits,), grid, (_TILE, 8), args)
    return True


def fill_cuda(out: TensorImpl, value: float | complex) -> None:
    """Set every element of `out` to a number, on the GPU."""
    meta = out.meta
    if meta.numel == 0:
        return
    if meta.dtype.kind in "iu":
        value = fill_number(value, meta.dtype)
    element = np.array([value]).astype(meta.dtype.np).tobytes().ljust(16, b"\0")
    low, high = (int(word) for word in np.frombuffer(element, np.int64))
    shape, strides = collapse(meta.shape, [meta.strides], reorder=True)
    args = (out.address(), launch.table_argument(shape, strides), meta.numel, low, high)
    bits = (_CUDA_BITS[meta.dtype.itemsize],)
    launch.raw("copy", "fill_bits", bits, *launch.cover(meta.numel), args)

