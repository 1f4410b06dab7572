"""The GPU half of `kernels.reduce`: launches of reduce.cu.

State
-----
None.

Invariants
----------
* Signatures and results are those of the CPU kernels: `dim` is a sorted tuple, or None for all.
* Any layout of up to 16 dimensions that do not merge is read in place.
* How a reduction is cut into blocks depends on the layout alone, so results are reproducible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from refruntime import _dtypes
from refruntime._impl import TensorImpl, TensorMeta, alias, meta_of
from refruntime._layout import collapse
from refruntime.kernels import launch
from refruntime.kernels.copy import copy_cuda
from refruntime.kernels.gpu import (
    STATE_BYTES,
    THREADS,
    cast_cuda,
    into_contiguous_cuda,
    power_of_two,
    row_block,
    scratch,
    split,
)

Dims = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """How a layout is reduced on a GPU; see ``cuda/reduce.cu``."""

    kept: Any
    reduced: Any
    outputs: int
    length: int
    block: tuple[int, int]
    splits: int
    chunk: int


def _gpu_plan(meta: TensorMeta, dim: Dims, in_order: bool) -> GpuPlan:
    """Choose the launch; `in_order` keeps reduced elements numbered in row-major order."""
    dims = tuple(range(meta.ndim)) if dim is None else dim
    kept = [d for d in range(meta.ndim) if d not in dims]
    kept_shape, (kept_strides,) = collapse(*_picked(meta, kept))
    shape, (strides,) = collapse(*_picked(meta, list(dims)), reorder=not in_order)
    outputs, length = math.prod(kept_shape), math.prod(shape)
    if kept_strides and (not strides or abs(kept_strides[-1]) < abs(strides[-1])):
        # Neighbouring outputs are nearer in memory than the elements of one.
        across = min(32, power_of_two(outputs))
        block = (across, min(THREADS // across, power_of_two(length)))
    else:
        block = row_block(length)
    splits, chunk = split(length, -(-outputs // block[0]))
    return GpuPlan(
        launch.table_argument(kept_shape, [kept_strides]), launch.table_argument(shape, [strides]),
        outputs, length, block, splits, chunk,
    )  # fmt: skip


def _picked(meta: TensorMeta, dims: list[int]) -> tuple[list[int], list[list[int]]]:
    return [meta.shape[d] for d in dims], [[meta.strides[d] for d in dims]]


def reduce_cuda(
    op: str, out: TensorImpl, x: TensorImpl, dim: Dims, parameter: float = 0.0,
    places: TensorImpl | None = None,
) -> None:  # fmt: skip
    """Reduce `x` over `dim` into `out` (contiguous) with an operation of ``operations.cuh``."""
    plan = _gpu_plan(x.meta, dim, places is not None or op.startswith("Arg"))
    if not plan.outputs:
        return
    names = (op, x.meta.dtype.ctype, out.meta.dtype.ctype)
    where = 0 if places is None else places.address()
    partial = None
    if plan.splits > 1:
        nbytes = plan.splits * plan.outputs * STATE_BYTES
        partial = scratch(x, (nbytes,), _dtypes.uint8)
    grid = (-(-plan.outputs // plan.block[0]), plan.splits)
    launch.raw(
        "reduce", "reduce", names, grid, plan.block,
        (x.address(), out.address(), where, 0 if partial is None else partial.address(), plan.kept,
         plan.reduced, plan.outputs, plan.length, plan.chunk, parameter),
        plan.block[0] * plan.block[1] * STATE_BYTES,
    )  # fmt: skip
    if partial is not None:
        launch.raw(
            "reduce", "finish", names, (-(-plan.outputs // THREADS),), (THREADS,),
            (partial.address(), plan.splits, out.address(), where, plan.outputs, plan.length,
             parameter),
        )  # fmt: skip


def as_pairs(x: TensorImpl) -> TensorImpl:
    """View a complex tensor as a real one with one more dimension, of size two."""
    strides = (*(2 * stride for stride in x.meta.strides), 1)
    meta = meta_of((*x.meta.shape, 2), x.meta.dtype.to_real(), x.meta.device, strides)
    return alias(x, meta, x.byte_offset)


def _linear_cuda(op: str, out: TensorImpl, x: TensorImpl, dim: Dims) -> None:
    """Reduce in the result's dtype; integers in int64, complex numbers as pairs."""
    dtype = out.meta.dtype
    if dtype.is_complex:
        whole = tuple(range(x.meta.ndim)) if dim is None else dim
        _linear_cuda(op, as_pairs(out), as_pairs(cast_cuda(x, dtype)), whole)
    elif dtype.is_floating_point:
        reduce_cuda(op, out, cast_cuda(x, dtype), dim)
    elif dtype is _dtypes.int64:
        x = cast_cuda(x, dtype) if x.meta.dtype.is_floating_point else x
        reduce_cuda(op, out, x, dim)
    else:
        total = scratch(out, tuple(out.meta.shape), _dtypes.int64)
        _linear_cuda(op, total, x, dim)
        copy_cuda(out, total)


@into_contiguous_cuda
def sum_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Sum over `dim`."""
    _linear_cuda("Sum", out, x, dim)


@into_contiguous_cuda
def mean_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Average over `dim`; the average of nothing is NaN."""
    if out.meta.dtype.is_complex:
        # The pairs of as_pairs count elements of their own: one part each.
        whole = tuple(range(x.meta.ndim)) if dim is None else dim
        reduce_cuda("Mean", as_pairs(out), as_pairs(cast_cuda(x, out.meta.dtype)), whole)
    else:
        reduce_cuda("Mean", out, cast_cuda(x, out.meta.dtype), dim)


@into_contiguous_cuda
def nansum_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Sum what is not NaN."""
    floating = x.meta.dtype.is_floating_point and out.meta.dtype.is_floating_point
    _linear_cuda("NanSum" if floating else "Sum", out, x, dim)


@into_contiguous_cuda
def prod_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Multiply over `dim`."""
    if out.meta.dtype.is_complex:
        # A product of pairs is not a pair of products: no instance, and the error says so.
        reduce_cuda("Prod", out, x, dim)
    else:
        _linear_cuda("Prod", out, x, dim)


@into_contiguous_cuda
def amax_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Take the largest element; NaN wins."""
    reduce_cuda("Amax", out, x, dim)


@into_contiguous_cuda
def amin_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Take the smallest element; NaN wins."""
    reduce_cuda("Amin", out, x, dim)


@into_contiguous_cuda
def any_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Test whether some element is not zero."""
    reduce_cuda("Any", out, x, dim)


@into_contiguous_cuda
def all_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Test whether all elements are not zero."""
    reduce_cuda("All", out, x, dim)


@into_contiguous_cuda
def count_nonzero_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Count the elements that are not zero."""
    reduce_cuda("CountNonzero", out, x, dim)


@into_contiguous_cuda
def var_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, correction: float, **_: Any) -> None:
    """Variance over `dim`, in one pass that updates mean and squared distances together."""
    reduce_cuda("Var", out, x, dim, float(correction))


@into_contiguous_cuda
def std_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, correction: float, **_: Any) -> None:
    """Standard deviation over `dim`."""
    reduce_cuda("Std", out, x, dim, float(correction))


@into_contiguous_cuda
def var_mean_cuda(
    out: tuple[TensorImpl, TensorImpl], x: TensorImpl, *, dim: Dims, correction: float, **_: Any
) -> None:
    """Variance and mean over `dim`."""
    reduce_cuda("Var", out[0], x, dim, float(correction))
    reduce_cuda("Mean", out[1], x, dim)


_GPU_NORMS = {0.0: "NonzeroNorm", math.inf: "LargestNorm", -math.inf: "SmallestNorm"}


@into_contiguous_cuda
def vector_norm_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, ord: float, **_: Any) -> None:
    """The `ord`-norm over `dim`."""
    x = x if x.meta.dtype.is_complex else cast_cuda(x, out.meta.dtype)
    reduce_cuda(_GPU_NORMS.get(ord, "PNorm"), out, x, dim, float(ord))


@into_contiguous_cuda
def logsumexp_cuda(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """``log(sum(exp(x)))``, safe from overflow: the sum follows the largest element so far."""
    reduce_cuda("LogSumExp", out, cast_cuda(x, out.meta.dtype), dim)
