"""Matrix products: BLAS through NumPy on the CPU, cuBLAS through CuPy on a GPU.

Invariants
----------
* Operands are read in place, transposed ones too; the result is written in place when BLAS can.
* Half types multiply in float32 and are rounded once.
* Batch dimensions broadcast.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes, _optional
from refruntime._impl import TensorImpl, array_of

Array = np.ndarray[Any, Any]


def matmul_cpu(out: TensorImpl, input: TensorImpl, other: TensorImpl) -> None:
    """Write ``input @ other`` into `out`; matrices, or batches of them that broadcast."""
    _into(out, _product(_wide(input), _wide(other), _direct(out)))


def addmm_cpu(
    out: TensorImpl, input: TensorImpl, mat1: TensorImpl, mat2: TensorImpl, *, beta: float,
    alpha: float,
) -> None:  # fmt: skip
    """Write ``beta * input + alpha * mat1 @ mat2`` into `out`."""
    aliased = out.storage is input.storage
    product = _product(_wide(mat1), _wide(mat2), None if aliased else _direct(out))
    if alpha != 1:
        product *= product.dtype.type(alpha)
    if beta != 0:
        added = _wide(input)
        product += added if beta == 1 else product.dtype.type(beta) * added
    _into(out, product)


def linear_cpu(
    out: TensorImpl, input: TensorImpl, weight: TensorImpl, bias: TensorImpl | None
) -> None:
    """Write ``input @ weight.T + bias`` into `out`; the last dimension of `input` is contracted."""
    rows = _wide(input)
    target = _direct(out)
    if rows.ndim != 2:
        # One large product is faster than a batch of small ones.
        rows = rows.reshape(-1, rows.shape[-1])
        target = None if target is None else target.reshape(-1, target.shape[-1])
    product = _product(rows, _wide(weight).T, target)
    if bias is not None:
        product += _wide(bias)
    _into(out, product.reshape(tuple(out.meta.shape)))


def _product(first: Array, second: Array, target: Array | None) -> Array:
    if first.dtype.kind == "b":
        return np.matmul(first, second)
    return np.matmul(first, second, out=target) if target is not None else np.matmul(first, second)


def _wide(tensor: TensorImpl) -> Array:
    """Return the NumPy array that BLAS reads: half types are widened."""
    array = tensor.array()
    if tensor.meta.dtype.compute is not tensor.meta.dtype:
        return array.astype(np.float32)
    return array


def _direct(out: TensorImpl) -> Array | None:
    """Return the array that BLAS may write, or None when the result must be converted."""
    if out.meta.dtype.compute is not out.meta.dtype or not out.meta.contiguous:
        return None
    return array_of(out.storage, out.meta, out.byte_offset) if out.meta.numel else None


def _into(out: TensorImpl, product: Array) -> None:
    if out.meta.numel == 0:
        return
    target = out.array()
    if not np.shares_memory(target, product):
        target[...] = product


def _cupy_array(tensor: TensorImpl) -> Any:
    cupy = _optional.cupy
    memory = cupy.cuda.UnownedMemory(tensor.storage.ptr, tensor.storage.nbytes, tensor)
    pointer = cupy.cuda.MemoryPointer(memory, tensor.byte_offset)
    strides = tuple(stride * tensor.meta.dtype.itemsize for stride in tensor.meta.strides)
    return cupy.ndarray(tuple(tensor.meta.shape), tensor.meta.dtype.np, pointer, strides)


def matmul_cuda(out: TensorImpl, input: TensorImpl, other: TensorImpl) -> None:
    """GPU twin of `matmul_cpu`."""
    _optional.cupy.matmul(_cupy_array(input), _cupy_array(other), out=_cupy_array(out))


def addmm_cuda(
    out: TensorImpl, input: TensorImpl, mat1: TensorImpl, mat2: TensorImpl, *, beta: float,
    alpha: float,
) -> None:  # fmt: skip
    """GPU twin of `addmm_cpu`."""
    product = alpha * _optional.cupy.matmul(_cupy_array(mat1), _cupy_array(mat2))
    target = _cupy_array(out)
    target[...] = product + beta * _cupy_array(input) if beta else product


def linear_cuda(
    out: TensorImpl, input: TensorImpl, weight: TensorImpl, bias: TensorImpl | None
) -> None:
    """GPU twin of `linear_cpu`."""
    target = _cupy_array(out)
    _optional.cupy.matmul(_cupy_array(input), _cupy_array(weight).T, out=target)
    if bias is not None:
        target += _cupy_array(bias)


def supports(dtype: _dtypes.DType) -> bool:
    """Whether matrices of this dtype can be multiplied."""
    return dtype.kind in "iufc"
