"""The GPU half of `kernels.matmul`: cuBLAS through CuPy, on views of our memory.

State
-----
None. CuPy keeps its cuBLAS handles.

Invariants
----------
* Signatures are those of the CPU kernels.
* Results, and copies of operands whose layout cuBLAS cannot read, are tensors of ours: what CuPy
  allocates by itself are small tables of pointers.
* float16 is multiplied with float32 sums, as cuBLAS does by itself; bfloat16 is widened to float32
  first, for CuPy's products do not cover it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime import _dtypes, _optional
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl
from refruntime.kernels.copy import copy_cuda
from refruntime.kernels.gpu import cast_cuda, gpu_array, packed_cuda, scratch


def _compute(out: TensorImpl) -> DType:
    return _dtypes.float32 if out.meta.dtype is _dtypes.bfloat16 else out.meta.dtype


def _operand(x: TensorImpl, out: TensorImpl) -> Any:
    """Return an operand as a CuPy array that cuBLAS can read, in the computing dtype."""
    x = cast_cuda(x, _compute(out))
    shape, strides = x.meta.shape, x.meta.strides
    turned = x.meta.ndim == 2 and strides == (1, shape[0])
    return gpu_array(x if turned else packed_cuda(x))


def _deliver(out: TensorImpl, fill: Callable[[Any], None]) -> None:
    """Let `fill` write the result into `out`, or into a temporary that is then copied."""
    dtype = _compute(out)
    if dtype is out.meta.dtype and out.meta.contiguous:
        fill(gpu_array(out))
        return
    result = scratch(out, tuple(out.meta.shape), dtype)
    fill(gpu_array(result))
    copy_cuda(out, result)


def _product(a: Any, b: Any, result: Any) -> None:
    """Multiply stacks of matrices; a sum over nothing is zero."""
    if a.shape[-1] == 0:
        result[...] = 0
    else:
        _optional.cupy.matmul(a, b, out=result)


def matmul_cuda(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """``a @ b`` for stacks of matrices whose leading dimensions broadcast."""
    if out.meta.numel:
        left, right = _operand(a, out), _operand(b, out)
        _deliver(out, lambda result: _product(left, right, result))


def mv_cuda(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """Matrix times vector."""
    if out.meta.numel:
        left, right = _operand(a, out), _operand(b, out)
        _deliver(out, lambda result: _product(left, right[:, None], result[:, None]))


def dot_cuda(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """Inner product of two vectors."""
    left, right = _operand(a, out), _operand(b, out)
    _deliver(out, lambda result: _product(left[None], right[:, None], result.reshape(1, 1)))


def vdot_cuda(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """Inner product with the first vector conjugated."""
    turned = scratch(out, tuple(a.meta.shape), _compute(out))
    left, right = gpu_array(turned), _operand(b, out)
    _optional.cupy.conjugate(_operand(a, out), out=left)
    _deliver(out, lambda result: _product(left[None], right[:, None], result.reshape(1, 1)))


def addmm_cuda(
    out: TensorImpl, base: TensorImpl, a: TensorImpl, b: TensorImpl, *, beta: Any, alpha: Any
) -> None:
    """``beta base + alpha (a @ b)``; a `beta` of 0 ignores what `base` holds."""
    if not out.meta.numel:
        return
    left, right = _operand(a, out), _operand(b, out)
    # The base is read before the product overwrites an `out` that is the base itself.
    start = None
    if beta != 0:
        kept = scratch(out, tuple(base.meta.shape), _compute(out))
        start = gpu_array(kept)
        _optional.cupy.multiply(_operand(base, out), beta, out=start)

    def fill(result: Any) -> None:
        _product(left, right, result)
        if alpha != 1:
            result *= alpha
        if start is not None:
            result += start

    _deliver(out, fill)


def linear_cuda(
    out: TensorImpl, x: TensorImpl, weight: TensorImpl, bias: TensorImpl | None
) -> None:
    """``x @ weight.T + bias`` over the last dimension."""
    if not out.meta.numel:
        return
    left, right = _operand(x, out), _operand(weight, out).T
    shift = None if bias is None else _operand(bias, out)

    def fill(result: Any) -> None:
        rows = result.reshape(-1, result.shape[-1])
        _product(left.reshape(-1, left.shape[-1]), right, rows)
        if shift is not None:
            result += shift

    _deliver(out, fill)
