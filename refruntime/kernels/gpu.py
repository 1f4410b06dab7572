"""What the GPU halves of the kernels share: blocks, scratch memory, arguments, packed operands.

State
-----
One fault cell a device (`fault_cell`).

Invariants
----------
* Blocks and splits depend on shapes alone, never on the card: a sum is taken in the same order, and
  comes out the same, on every GPU.
* Nothing waits for the device but `read_integer`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from refruntime import _dtypes, _optional
from refruntime._device import Device
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime.kernels.copy import copy_cuda, fill_cuda

# Threads of a block that cooperate on results: every card runs several such blocks at a time.
THREADS = 256
# Columns that neighbouring threads take, so that a warp reads whole memory transactions.
COLUMNS = 32
# Bytes of a reduction's or scan's state (STATE_BYTES of reduce.cu and scan.cu).
STATE_BYTES = 32

BITS = {
    1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "Wide",
}  # fmt: skip
"""Types that stand for the bits of an element of so many bytes."""

Kernel = Callable[..., None]


def bits_of(dtype: DType) -> str:
    """Return the type that moves elements of a dtype without looking at them."""
    return BITS[dtype.itemsize]


def struct(*numbers: int) -> np.ndarray[Any, Any]:
    """Return a struct of ``long long`` members as a kernel argument."""
    return np.array(numbers, np.int64)


def scratch(like: TensorImpl, shape: tuple[int, ...], dtype: DType) -> TensorImpl:
    """Make a temporary on the device of another tensor."""
    return empty_impl(meta_of(shape, dtype, like.meta.device))


def cast_cuda(x: TensorImpl, dtype: DType) -> TensorImpl:
    """Return `x` itself or a contiguous copy of it in another dtype."""
    if x.meta.dtype is dtype:
        return x
    copy = scratch(x, tuple(x.meta.shape), dtype)
    copy_cuda(copy, x)
    return copy


def packed_cuda(x: TensorImpl) -> TensorImpl:
    """Return `x` itself or a row-major copy of it."""
    if x.meta.contiguous:
        return x
    copy = scratch(x, tuple(x.meta.shape), x.meta.dtype)
    copy_cuda(copy, x)
    return copy


def gpu_array(x: TensorImpl) -> Any:
    """Show a tensor's memory to CuPy, without a copy; the array keeps the storage alive."""
    meta, cuda = x.meta, _optional.cupy.cuda
    span = cuda.UnownedMemory(x.storage.ptr, x.storage.nbytes, x.storage, meta.device.index or 0)
    strides = tuple(stride * meta.dtype.itemsize for stride in meta.strides)
    pointer = cuda.MemoryPointer(span, x.byte_offset)
    return _optional.cupy.ndarray(tuple(meta.shape), meta.dtype.np, pointer, strides)


def optional_address(x: TensorImpl | None) -> int:
    """Return the address of an optional operand, 0 for none."""
    return 0 if x is None else x.address()


def into_contiguous_cuda(kernel: Kernel) -> Kernel:
    """Let a kernel that writes contiguous outputs write outputs of any strides."""

    @wraps(kernel)
    def wrapper(out: Any, *inputs: Any, **params: Any) -> None:
        outs = out if isinstance(out, tuple) else (out,)
        if all(o.meta.contiguous for o in outs):
            return kernel(out, *inputs, **params)
        fresh = tuple(scratch(o, tuple(o.meta.shape), o.meta.dtype) for o in outs)
        kernel(fresh if isinstance(out, tuple) else fresh[0], *inputs, **params)
        for target, source in zip(outs, fresh, strict=True):
            copy_cuda(target, source)
        return None

    return wrapper


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


def row_block(length: int) -> tuple[int, int]:
    """Return the block in which all threads work on one row."""
    return 1, min(THREADS, power_of_two(length))


def column_block(length: int, inner: int) -> tuple[int, int]:
    """Return the block for columns of ``(outer, length, inner)``: columns, threads of each."""
    across = min(COLUMNS, power_of_two(inner))
    return across, min(THREADS // across, power_of_two(length))


def column_grid(outer: int, inner: int, block: tuple[int, int]) -> tuple[int]:
    """Return the grid that goes with `column_block`."""
    return (-(-inner // block[0]) * outer,)


def split(length: int, blocks: int, least: int = 4096, enough: int = 128) -> tuple[int, int]:
    """Cut `length` so that few blocks become enough of them.

    Returns
    -------
    splits, chunk
        How many parts, and the length of each but the last; parts have at least `least` elements.
    """
    wanted = max(1, min(enough // max(blocks, 1), length // least))
    chunk = -(-length // wanted)
    return (-(-length // chunk), chunk) if chunk else (1, 0)


def sides(shape: tuple[int, ...], dim: int) -> tuple[int, int, int]:
    """Return the numbers of elements before, in and after a dimension of a contiguous tensor."""
    if not shape:
        return 1, 1, 1
    outer = inner = 1
    for size in shape[:dim]:
        outer *= size
    for size in shape[dim + 1 :]:
        inner *= size
    return outer, shape[dim], inner


# ---------------------------------------------------------------------------------------------
# Numbers that go to the device, and come back


def upload(array: np.ndarray[Any, Any], device: Device) -> TensorImpl:
    """Copy a NumPy array into a new contiguous tensor on a device."""
    array = np.ascontiguousarray(array)
    out = empty_impl(meta_of(array.shape, _dtypes.from_numpy_dtype(array.dtype), device))
    if device.type == "cpu":
        out.array()[...] = array
    elif array.nbytes:
        runtime = _optional.cupy.cuda.runtime
        kind = runtime.memcpyHostToDevice
        runtime.memcpy(out.address(), array.ctypes.data, array.nbytes, kind)
    return out


_fault_cells: dict[Device, TensorImpl] = {}


def fault_cell(like: TensorImpl) -> TensorImpl:
    """Return the device's cell that a kernel sets to 1 when an index is out of range.

    Whoever makes the host wait for the device (`item`, copies to the CPU, `synchronize`) can read
    it with `read_integer` at no further cost.
    """
    device = like.meta.device
    if device not in _fault_cells:
        cell = scratch(like, (1,), _dtypes.int64)
        fill_cuda(cell, 0)
        _fault_cells[device] = cell
    return _fault_cells[device]


def read_integer(cells: TensorImpl, position: int = 0) -> int:
    """Wait for the device and return one element of a contiguous int64 tensor."""
    if cells.meta.device.type == "cpu":
        return int(cells.array()[position])
    target = np.zeros(1, np.int64)
    runtime = _optional.cupy.cuda.runtime
    address = cells.address() + position * cells.meta.dtype.itemsize
    runtime.memcpy(target.ctypes.data, address, 8, runtime.memcpyDeviceToHost)
    return int(target[0])
