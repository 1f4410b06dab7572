"""Matrix products on the CPU: BLAS through NumPy, on views of our memory.

State
-----
None.

Invariants
----------
* BLAS sees matrices with one unit stride; others are copied first, for NumPy's own loop over such
  layouts is a hundred times slower.
* Stacks of small matrices go to `stack_product`, which BLAS serves one by one and slowly.
* Half types are multiplied in float32 and rounded once. Integers use NumPy's exact loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime.kernels import stack_product
from refruntime.kernels.copy import contiguous_impl, copy_cpu
from refruntime.kernels.reduce import cast_impl

Array = np.ndarray[Any, Any]


def _blas_ready(x: TensorImpl) -> bool:
    """Whether the last two dimensions are a matrix that BLAS can read, transposed or not."""
    meta = x.meta
    if meta.contiguous or meta.ndim < 2:
        return meta.contiguous or meta.ndim == 0 or meta.strides[-1] > 0
    rows, columns = meta.shape[-2:]
    down, across = meta.strides[-2:]
    as_it_is = across == 1 and down >= max(1, columns)
    turned = down == 1 and across >= max(1, rows)
    return as_it_is or turned


def _operand(x: TensorImpl, dtype: DType) -> Array:
    """Return an operand as an array in the computing dtype that BLAS can read."""
    x = cast_impl(x, dtype)
    return (x if _blas_ready(x) else contiguous_impl(x)).array()


def _compute(out: TensorImpl) -> DType:
    return out.meta.dtype.compute


def _deliver(out: TensorImpl, fill: Any) -> None:
    """Let `fill` write the result into `out`, or into a temporary that is then rounded."""
    dtype = _compute(out)
    if dtype is out.meta.dtype and out.meta.contiguous:
        fill(out.array())
        return
    result = empty_impl(meta_of(out.meta.shape, dtype))
    fill(result.array())
    copy_cpu(out, result)


def _product(a: Array, b: Array, result: Array) -> None:
    """Multiply stacks of matrices; one matrix on the right makes it a single product."""
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous and result.flags.c_contiguous:
        rows = a.size // a.shape[-1] if a.shape[-1] else int(np.prod(a.shape[:-1]))
        a, result = a.reshape(rows, a.shape[-1]), result.reshape(rows, b.shape[-1])
    if a.shape[-1] == 0:
        result[...] = 0
        return
    np.matmul(a, b, out=result)


def matmul_cpu(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """``a @ b`` for stacks of matrices whose leading dimensions broadcast."""
    dtype = _compute(out)
    if out.meta.contiguous and stack_product.fits(out, a, b):
        stack_product.stack_product_cpu(out, a, b)
        return
    left, right = _operand(a, dtype), _operand(b, dtype)
    _deliver(out, lambda result: _product(left, right, result))


def mv_cpu(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """Matrix times vector."""
    dtype = _compute(out)
    left, right = _operand(a, dtype), _operand(b, dtype)
    _deliver(out, lambda result: np.matmul(left, right, out=result))


def dot_cpu(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """Inner product of two vectors."""
    dtype = _compute(out)
    left, right = _operand(a, dtype), _operand(b, dtype)

    def fill(result: Array) -> None:
        result[...] = np.dot(left, right)

    _deliver(out, fill)


def vdot_cpu(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """Inner product with the first vector conjugated."""
    dtype = _compute(out)
    left, right = _operand(a, dtype), _operand(b, dtype)

    def fill(result: Array) -> None:
        result[...] = np.vdot(left, right)

    _deliver(out, fill)


def addmm_cpu(
    out: TensorImpl, base: TensorImpl, a: TensorImpl, b: TensorImpl, *, beta: Any, alpha: Any
) -> None:
    """``beta base + alpha (a @ b)``; a `beta` of 0 ignores what `base` holds."""
    dtype = _compute(out)
    if dtype.kind in "iu":
        beta, alpha = int(beta), int(alpha)
    left, right = _operand(a, dtype), _operand(b, dtype)
    # The base is read before the product overwrites an `out` that is the base itself.
    start = None if beta == 0 else _scaled_copy(cast_impl(base, dtype).array(), beta, out is base)

    def fill(result: Array) -> None:
        _product(left, right, result)
        if alpha != 1:
            np.multiply(result, alpha, out=result, casting="unsafe")
        if start is not None:
            np.add(result, start, out=result)

    _deliver(out, fill)


def _scaled_copy(base: Array, beta: Any, aliased: bool) -> Array:
    if beta != 1:
        scaled: Array = np.multiply(base, beta, dtype=base.dtype, casting="unsafe")
        return scaled
    return base.copy() if aliased else base


def linear_cpu(
    out: TensorImpl, x: TensorImpl, weight: TensorImpl, bias: TensorImpl | None
) -> None:
    """``x @ weight.T + bias`` over the last dimension."""
    dtype = _compute(out)
    left, right = _operand(x, dtype), _operand(weight, dtype).T
    shift = None if bias is None else cast_impl(bias, dtype).array()

    def fill(result: Array) -> None:
        if left.ndim == 1:
            np.matmul(left, right, out=result)
        else:
            _product(left, right, result)
        if shift is not None:
            np.add(result, shift, out=result)

    _deliver(out, fill)
