"""Matrix products on the CPU: BLAS through NumPy, on views of our memory.

State
-----
None.

Invariants
----------
* BLAS sees matrices with one unit stride; others are copied first, for NumPy's own loop over such
  layouts is a hundred times slower.
* Small matrices, and stacks of them, go to `stack_product`; vectors to the loops here.
* Half types are multiplied in float32 and rounded once. Integers use NumPy's exact loop.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime._native import NativeKernel
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl, copy_cpu
from refruntime.kernels.reduce import GRAIN, cast_impl
from refruntime.kernels.stack_product import plan_of
from refruntime.kernels.variants import ACC, load_T, ptr_T, store_T, template

Array = np.ndarray[Any, Any]

# Products that are summed in the computing type before their sum joins the wider one.
CHUNK = 1024


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
    plan = plan_of(out.meta, a.meta, b.meta)
    if plan is not None:
        plan.run(out, a, b)
        return
    dtype = _compute(out)
    left, right = _operand(a, dtype), _operand(b, dtype)
    _deliver(out, lambda result: _product(left, right, result))


@template("void(" + "int64, " * 8 + "int64)")
def rows_by_vector(out, a, b, k, row, column, step, start, stop):  # type: ignore[no-untyped-def]
    """Multiply rows with a vector; sums go over chunks in the computing type, then in float64."""
    o = ptr_T(out)
    p = ptr_T(a)
    q = ptr_T(b)
    for i in range(start, stop):
        total = 0.0
        for low in range(0, k, CHUNK):
            part = ACC(0)
            if column == 1 and step == 1:
                for j in range(low, min(k, low + CHUNK)):
                    part += load_T(p, i * row + j) * load_T(q, j)
            else:
                for j in range(low, min(k, low + CHUNK)):
                    part += load_T(p, i * row + j * column) * load_T(q, j * step)
            total += part
        store_T(o, i, total)


@cache
def _rows_by_vector(dtype: DType) -> NativeKernel:
    return rows_by_vector.for_dtypes(T=dtype, ACC=dtype.compute)


def mv_cpu(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """Matrix times vector."""
    dtype = out.meta.dtype
    (m, k), (row, column) = a.meta.shape, a.meta.strides
    if dtype.is_floating_point and out.meta.contiguous and (column == 1 or m * k <= CHUNK):
        launch.parallel_for(
            _rows_by_vector(dtype), m, max(1, GRAIN // max(1, k)), out.address(), a.address(),
            b.address(), k, row, column, b.meta.strides[0],
        )  # fmt: skip
        return
    left, right = _operand(a, dtype.compute), _operand(b, dtype.compute)
    _deliver(out, lambda result: np.matmul(left, right, out=result))


def dot_cpu(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """Inner product of two vectors."""
    dtype = out.meta.dtype
    if dtype.is_floating_point:
        _rows_by_vector(dtype)(
            out.address(), a.address(), b.address(), a.meta.numel, 0, a.meta.strides[0],
            b.meta.strides[0], 0, 1,
        )  # fmt: skip
        return
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


@template("void(int64, int64, int64, int64, int64)")
def add_to_rows(out, bias, n, start, stop):  # type: ignore[no-untyped-def]
    """Add a vector to each row."""
    o = ptr_T(out)
    b = ptr_T(bias)
    for row in range(start, stop):
        for j in range(row * n, row * n + n):
            store_T(o, j, load_T(o, j) + load_T(b, j - row * n))


@cache
def _add_to_rows(dtype: DType) -> NativeKernel:
    return add_to_rows.for_dtypes(T=dtype)


def linear_cpu(
    out: TensorImpl, x: TensorImpl, weight: TensorImpl, bias: TensorImpl | None
) -> None:
    """``x @ weight.T + bias`` over the last dimension."""
    dtype = _compute(out)
    plan = plan_of(out.meta, x.meta, weight.meta, True) if weight.meta.ndim == 2 else None
    if plan is not None:
        plan.run(out, x, weight)
    else:
        left, right = _operand(x, dtype), _operand(weight, dtype).T
        _deliver(out, lambda result: _rows_product(left, right, result))
    if bias is not None:
        _add_bias(out, bias)


def _rows_product(left: Array, right: Array, result: Array) -> None:
    if left.ndim == 1:
        np.matmul(left, right, out=result)
    else:
        _product(left, right, result)


def _add_bias(out: TensorImpl, bias: TensorImpl) -> None:
    meta = out.meta
    n = meta.shape[-1] if meta.ndim else 1
    if meta.dtype.is_floating_point and meta.contiguous and bias.meta.shape == (n,):
        bias = contiguous_impl(bias)
        launch.parallel_for(
            _add_to_rows(meta.dtype), meta.numel // n if n else 0, max(1, GRAIN // max(1, n)),
            out.address(), bias.address(), n,
        )  # fmt: skip
        return
    result = out.array()
    np.add(result, bias.array(), out=result)
