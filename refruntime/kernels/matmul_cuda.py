"""The GPU half of `kernels.matmul`: cuBLAS through CuPy, on views of our memory.

State
-----
None. CuPy keeps its cuBLAS handles.

Invariants
----------
* Signatures are those of the CPU kernels. CuPy allocates nothing: results go into tensors of ours.
* float16 is multiplied with float32 sums, as cuBLAS does by itself; bfloat16 is widened to float32
  first, for CuPy's products do not cover it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime import _dtypes, _optional
from refruntime._impl import TensorImpl
from refruntime.kernels.copy import copy_cuda
from refruntime.kernels.gpu import cast_cuda, gpu_array, scratch


def _operand(x: TensorImpl, out: TensorImpl) -> Any:
    """Return an operand as a CuPy array in the dtype that the product is computed in."""
    wide = out.meta.dtype is _dtypes.bfloat16
    return gpu_array(cast_cuda(x, _dtypes.float32 if wide else out.meta.dtype))


def _deliver(out: TensorImpl, fill: Callable[[Any], None]) -> None:
    """Let `fill` write the result into `out`, or into a temporary that is then copied."""
    dtype = _dtypes.float32 if out.meta.dtype is _dtypes.bfloat16 else out.meta.dtype
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
    left, right = _operand(a, out).conj(), _operand(b, out)
    _deliver(out, lambda result: _product(left[None], right[:, None], result.reshape(1, 1)))


def addmm_cuda(
    out: TensorImpl, base: TensorImpl, a: TensorImpl, b: TensorImpl, *, beta: Any, alpha: Any
) -> None:
    """``beta base + alpha (a @ b)``; a `beta` of 0 ignores what `base` holds."""
    if not out.meta.numel:
        return
    left, right = _operand(a, out), _operand(b, out)
    # The base is read before the product overwrites an `out` that is the base itself.
    start = None if beta == 0 else _operand(base, out) * beta

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
