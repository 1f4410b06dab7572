"""Reductions over any dimensions: sum, mean, extremes and their places, variance, norms, tests.

State
-----
`_plans` keeps, for each (meta, reduced dimensions) that was met, how the loops of `kernels.fold`
walk it: the table of extents and strides, the number of units of work and of splits.

Invariants
----------
* `dim` is a sorted tuple of non-negative dimensions, or None for all of them.
* Layouts that are not two kept and two reduced dimensions after merging are copied into one that
  is; everything else is read in place.
* Splits have a fixed size, so results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta, alias, empty_impl, meta_of
from refruntime.kernels import fold as folds
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl, copy_cpu
from refruntime.kernels.fold import TILE, Fold, extreme_fold, fold_kernels

# Elements in one split of a reduction to few outputs, and in the smallest share of a thread.
SPLIT = 65536
GRAIN = 32768
FEW = 16

Dims = tuple[int, ...] | None
Axes = list[tuple[int, int]]

_MAX_PLANS = 4096


@dataclass(slots=True)
class Plan:
    """How one layout is reduced; see `kernels.fold` for the table."""

    table: np.ndarray[Any, Any]
    address: int
    columns: bool
    units: int
    splits: int
    kept: int
    grain: int


_plans: dict[tuple[TensorMeta, Dims], Plan | None] = {}


def _plan_of(meta: TensorMeta, dim: Dims) -> Plan | None:
    """Return the plan of a reduction, or None if the layout must be copied first."""
    key = (meta, dim)
    if key not in _plans:
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        _plans[key] = _make_plan(meta, dim)
    return _plans[key]


def _make_plan(meta: TensorMeta, dim: Dims) -> Plan | None:
    if dim is None:
        dim = tuple(range(meta.ndim))
    axes = list(zip(meta.shape, meta.strides, strict=True))
    kept = _merged([axes[d] for d in range(meta.ndim) if d not in dim])
    reduced = _merged(sorted((axes[d] for d in dim), key=lambda axis: -axis[1]))
    if len(kept) > 2 or len(reduced) > 2:
        return None
    (k0, s0), (k1, s1) = _two(kept)
    (r0, t0), (r1, t1) = _two(reduced)
    columns = s1 == 1 and k1 >= 4 and t1 != 1
    units = k0 * (-(-k1 // TILE) if columns else k1)
    limit, per, splits = r0 * r1, max(r0, 1), 1
    width = min(k1, TILE) if columns else 1
    if units < FEW and limit * width >= 2 * SPLIT:
        rows = max(1, SPLIT // width)
        if r0 == 1:
            r0, r1, t0 = -(-limit // rows), rows, rows * t1
        per = max(1, rows // r1)
        splits = -(-r0 // per)
    table = np.array([k0, k1, s0, s1, r0, r1, t0, t1, limit, per, k0 * k1], np.int64)
    work = max(1, limit * width // splits)
    return Plan(
        table, table.ctypes.data, columns, units * splits, splits, k0 * k1, max(1, GRAIN // work)
    )


def _merged(axes: Axes) -> Axes:
    """Join neighbouring axes that are walked as one, and drop those of size one."""
    if any(size == 0 for size, _ in axes):
        return [(0, 1)]
    merged: Axes = []
    for size, stride in axes:
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def _two(axes: Axes) -> Axes:
    return [(1, 0)] * (2 - len(axes)) + axes


def _reduced_last(x: TensorImpl, dim: Dims) -> tuple[TensorImpl, Dims]:
    """Return a contiguous copy of `x` whose reduced dimensions come last, and where they are."""
    if dim is None:
        return contiguous_impl(x), None
    kept = [d for d in range(x.meta.ndim) if d not in dim]
    order = [*kept, *dim]
    shape = tuple(x.meta.shape[d] for d in order)
    strides = tuple(x.meta.strides[d] for d in order)
    view = alias(x, meta_of(shape, x.meta.dtype, x.meta.device, strides), x.byte_offset)
    return contiguous_impl(view), tuple(range(len(kept), x.meta.ndim))


def reduce_cpu(
    fold: Fold, out: TensorImpl, x: TensorImpl, dim: Dims, parameter: float = 0.0, anchor: int = 0
) -> None:
    """Fold `x` over `dim` into `out` (contiguous).

    Parameters
    ----------
    parameter : float
        The fold's number, such as a scale.
    anchor : int
        Address of one float64 an output that the fold takes as its point, or 0.
    """
    plan = _plan_of(x.meta, dim)
    if plan is None:
        x, dim = _reduced_last(x, dim)
        plan = _plan_of(x.meta, dim)
        assert plan is not None
    kernels = fold_kernels(fold, x.meta.dtype, out.meta.dtype)
    loop = kernels.columns if plan.columns else kernels.rows
    if plan.splits == 1:
        launch.parallel_for(
            loop, plan.units, plan.grain, out.address(), x.address(), anchor, plan.address,
            parameter, 1,
        )  # fmt: skip
        return
    partials = empty_impl(meta_of((plan.splits * plan.kept,), _dtypes.float64))
    launch.parallel_for(
        loop, plan.units, plan.grain, partials.address(), x.address(), anchor, plan.address,
        parameter, 0,
    )  # fmt: skip
    kernels.combine(
        out.address(), partials.address(), anchor, plan.splits, plan.kept, parameter, 0, plan.kept
    )


def bind_reduce(
    fold: Fold, out: TensorMeta, x: TensorMeta, dim: Dims, parameter: float
) -> Callable[[TensorImpl, TensorImpl], Any] | None:
    """Return a launch of `reduce_cpu` for one pair of metas; None if they need more than one loop.

    Parameters
    ----------
    fold, dim, parameter
        As in `reduce_cpu`.
    out, x : TensorMeta
        The metas of the result (contiguous) and of the operand.
    """
    plan = _plan_of(x, dim)
    if plan is None or plan.splits > 1 or plan.units > plan.grain:
        return None
    if out.dtype.is_complex or x.dtype.is_complex or not out.dtype.is_floating_point:
        return None
    if x.dtype.is_floating_point != out.dtype.is_floating_point:
        return None
    kernels = fold_kernels(fold, x.dtype, out.dtype)
    loop = kernels.columns if plan.columns else kernels.rows
    loop.compile()
    entry, units, table = loop.entry, plan.units, plan.address

    def launch(to: TensorImpl, of: TensorImpl, plan: Plan = plan) -> Any:
        # The plan keeps the table alive whose address is passed.
        return entry(
            to.storage.ptr + to.byte_offset, of.storage.ptr + of.byte_offset, 0, table, parameter,
            1, 0, units,
        )  # fmt: skip

    return launch


Kernel = Callable[..., None]


def into_contiguous(kernel: Kernel) -> Kernel:
    """Let a kernel that writes contiguous outputs write outputs of any strides."""

    @wraps(kernel)
    def wrapper(out: Any, *inputs: Any, **params: Any) -> None:
        if isinstance(out, TensorImpl) and out.meta.contiguous:
            return kernel(out, *inputs, **params)
        outs = out if isinstance(out, tuple) else (out,)
        if all(o.meta.contiguous for o in outs):
            return kernel(out, *inputs, **params)
        fresh = tuple(empty_impl(meta_of(o.meta.shape, o.meta.dtype)) for o in outs)
        kernel(fresh if isinstance(out, tuple) else fresh[0], *inputs, **params)
        for target, source in zip(outs, fresh, strict=True):
            copy_cpu(target, source)
        return None

    return wrapper


def cast_impl(x: TensorImpl, dtype: DType) -> TensorImpl:
    """Return `x` itself or a contiguous copy of it in another dtype."""
    if x.meta.dtype is dtype:
        return x
    copy = empty_impl(meta_of(x.meta.shape, dtype, x.meta.device))
    copy_cpu(copy, x)
    return copy


def _as_real(x: TensorImpl) -> TensorImpl:
    """View a complex tensor as a real one with one more dimension, of size two."""
    strides = (*(2 * stride for stride in x.meta.strides), 1)
    meta = meta_of((*x.meta.shape, 2), x.meta.dtype.to_real(), x.meta.device, strides)
    return alias(x, meta, x.byte_offset)


def _count(meta: TensorMeta, dim: Dims) -> int:
    if dim is None:
        return meta.numel
    count = 1
    for d in dim:
        count *= meta.shape[d]
    return count


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, CPU


@into_contiguous
def sum_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Sum over `dim`."""
    _linear(folds.SUM, out, x, dim, 1.0)


@into_contiguous
def mean_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Average over `dim`; the average of nothing is NaN."""
    count = _count(x.meta, dim)
    _linear(folds.MEAN, out, x, dim, 1.0 / count if count else float("nan"))


def _linear(fold: Fold, out: TensorImpl, x: TensorImpl, dim: Dims, scale: float) -> None:
    if out.meta.dtype.is_complex:
        x = cast_impl(x, out.meta.dtype)
        # The dimension of the parts stays, also when all others are reduced.
        dim = tuple(range(x.meta.ndim)) if dim is None else dim
        reduce_cpu(fold, _as_real(out), _as_real(x), dim, scale)
        return
    if x.meta.dtype.is_complex or (
        x.meta.dtype.is_floating_point and not out.meta.dtype.is_floating_point
    ):
        x = cast_impl(x, out.meta.dtype)
    reduce_cpu(fold, out, x, dim, scale)


@into_contiguous
def nansum_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Sum what is not NaN."""
    fold = folds.NANSUM if x.meta.dtype.is_floating_point else folds.SUM
    _linear(fold, out, x, dim, 1.0)


@into_contiguous
def prod_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Multiply over `dim`."""
    x = cast_impl(x, out.meta.dtype)
    if x.meta.dtype.is_complex:
        np.prod(x.array(), axis=dim, out=out.array().reshape(_kept_shape(x.meta, dim)))
        return
    reduce_cpu(folds.PROD, out, x, dim)


def _kept_shape(meta: TensorMeta, dim: Dims) -> tuple[int, ...]:
    if dim is None:
        return ()
    return tuple(size for d, size in enumerate(meta.shape) if d not in dim)


@into_contiguous
def amax_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Take the largest element; NaN wins."""
    reduce_cpu(extreme_fold(True, x.meta.dtype), out, x, dim)


@into_contiguous
def amin_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Take the smallest element; NaN wins."""
    reduce_cpu(extreme_fold(False, x.meta.dtype), out, x, dim)


@into_contiguous
def any_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Test whether some element is not zero."""
    _test(folds.ANY, out, x, dim)


@into_contiguous
def all_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Test whether all elements are not zero."""
    _test(folds.ALL, out, x, dim)


@into_contiguous
def count_nonzero_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """Count the elements that are not zero."""
    _test(folds.NONZERO, out, x, dim)


def _test(fold: Fold, out: TensorImpl, x: TensorImpl, dim: Dims) -> None:
    if x.meta.dtype.is_complex:
        x = cast_impl(x, _dtypes.bool_)
    reduce_cpu(fold, out, x, dim)


@into_contiguous
def var_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, correction: float, **_: Any) -> None:
    """Variance over `dim`, in two passes: the mean, then the squared distances from it."""
    _spread(folds.VAR, out, _means(x, dim), x, dim, correction)


@into_contiguous
def std_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, correction: float, **_: Any) -> None:
    """Standard deviation over `dim`."""
    _spread(folds.STD, out, _means(x, dim), x, dim, correction)


@into_contiguous
def var_mean_cpu(
    out: tuple[TensorImpl, TensorImpl], x: TensorImpl, *, dim: Dims, correction: float, **_: Any
) -> None:
    """Variance and mean over `dim`."""
    means = _means(x, dim)
    _spread(folds.VAR, out[0], means, x, dim, correction)
    copy_cpu(out[1], alias(means, meta_of(out[1].meta.shape, _dtypes.float64), 0))


def _means(x: TensorImpl, dim: Dims) -> TensorImpl:
    means = empty_impl(meta_of(_kept_shape(x.meta, dim), _dtypes.float64))
    count = _count(x.meta, dim)
    reduce_cpu(folds.MEAN, means, x, dim, 1.0 / count if count else float("nan"))
    return means


def _spread(
    fold: Fold, out: TensorImpl, means: TensorImpl, x: TensorImpl, dim: Dims, correction: float
) -> None:
    # As in torch, too few elements give infinity or NaN, never a negative divisor.
    degrees = max(0.0, _count(x.meta, dim) - correction)
    scale = 1.0 / degrees if degrees else float("inf")
    reduce_cpu(fold, out, x, dim, scale, means.address())


_NORMS = {
    0.0: folds.NONZERO,
    1.0: folds.NORM_1,
    2.0: folds.NORM_2,
    float("inf"): folds.NORM_INF,
    float("-inf"): folds.NORM_MINUS_INF,
}


@into_contiguous
def vector_norm_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, ord: float, **_: Any) -> None:
    """The `ord`-norm over `dim`."""
    if x.meta.dtype.is_complex:
        real = empty_impl(meta_of(x.meta.shape, x.meta.dtype.to_real()))
        np.abs(x.array(), out=real.array())
        x = real
    fold = _NORMS.get(ord)
    if fold is None:
        reduce_cpu(folds.NORM_P, out, x, dim, ord)
    else:
        reduce_cpu(fold, out, x, dim)


@into_contiguous
def logsumexp_cpu(out: TensorImpl, x: TensorImpl, *, dim: Dims, **_: Any) -> None:
    """``log(sum(exp(x)))``, safe from overflow: the exponents are taken relative to the largest."""
    x = cast_impl(x, out.meta.dtype)
    peaks = empty_impl(meta_of(_kept_shape(x.meta, dim), _dtypes.float64))
    reduce_cpu(folds.AMAX, peaks, x, dim)
    values = peaks.array()
    values[np.isinf(values)] = 0.0
    fold = folds.LOGSUMEXP_64 if x.meta.dtype is _dtypes.float64 else folds.LOGSUMEXP
    reduce_cpu(fold, out, x, dim, 0.0, peaks.address())
