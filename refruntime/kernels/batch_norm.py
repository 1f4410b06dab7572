"""Normalisation over batches: batch_norm forward and backward.

State
-----
None. A tensor is seen as ``[N, C, S]``. With ``S == 1`` the loops run along the channels; otherwise
along the planes.

Invariants
----------
* Means and variances are computed in two passes and in float64.
* Sums over a channel are taken by one unit of work, in the order of memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime._native import ptr_f64
from refruntime.kernels import fold as folds
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl
from refruntime.kernels.norm import types_of
from refruntime.kernels.reduce import GRAIN, into_contiguous, reduce_cpu
from refruntime.kernels.variants import ACC, load_T, ptr_D, ptr_T, store_D, template

Array = np.ndarray[Any, Any]


@template("void(" + "int64, " * 6 + "int64)")
def scale_planes(out, x, table, channels, size, start, stop):  # type: ignore[no-untyped-def]
    """``(x - centre) scale + shift``, with a row of `table` for each of the three."""
    o = ptr_D(out)
    p = ptr_T(x)
    centres = ptr_f64(table)
    if size == 1:
        for row in range(start, stop):
            at = row * channels
            for c in range(channels):
                distance = load_T(p, at + c) - ACC(centres[c])
                value = distance * ACC(centres[channels + c]) + ACC(centres[2 * channels + c])
                store_D(o, at + c, value)
        return
    for row in range(start, stop):
        c = row % channels
        centre = ACC(centres[c])
        scale = ACC(centres[channels + c])
        shift = ACC(centres[2 * channels + c])
        for j in range(row * size, row * size + size):
            store_D(o, j, (load_T(p, j) - centre) * scale + shift)


@template("void(" + "int64, " * 8 + "int64)")
def channel_sums(sums, g, x, centres, batch, channels, size, start, stop):  # type: ignore[no-untyped-def]
    """For each channel the sums of ``g`` and of ``g (x - centre)``, in float64."""
    out = ptr_f64(sums)
    q = ptr_T(g)
    p = ptr_T(x)
    centre_of = ptr_f64(centres)
    if size == 1:
        for c in range(start, stop):
            out[c] = 0.0
            out[channels + c] = 0.0
        for row in range(batch):
            at = row * channels
            for c in range(start, stop):
                h = load_T(q, at + c)
                out[c] += h
                out[channels + c] += h * (load_T(p, at + c) - centre_of[c])
        return
    for c in range(start, stop):
        centre = ACC(centre_of[c])
        total = 0.0
        moment = 0.0
        for row in range(batch):
            at = (row * channels + c) * size
            part = ACC(0)
            along = ACC(0)
            for j in range(at, at + size):
                h = load_T(q, j)
                part += h
                along += h * (load_T(p, j) - centre)
            total += part
            moment += along
        out[c] = total
        out[channels + c] = moment


@template("void(" + "int64, " * 7 + "int64)")
def scale_gradient(out, g, x, table, channels, size, start, stop):  # type: ignore[no-untyped-def]
    """``(g - direct - (x - centre) along) scale``, with a row of `table` for each of the four."""
    o = ptr_D(out)
    q = ptr_T(g)
    p = ptr_T(x)
    t = ptr_f64(table)
    if size == 1:
        for row in range(start, stop):
            at = row * channels
            for c in range(channels):
                distance = load_T(p, at + c) - ACC(t[c])
                rest = load_T(q, at + c) - ACC(t[2 * channels + c])
                value = (rest - distance * ACC(t[3 * channels + c])) * ACC(t[channels + c])
                store_D(o, at + c, value)
        return
    for row in range(start, stop):
        c = row % channels
        centre = ACC(t[c])
        scale = ACC(t[channels + c])
        direct = ACC(t[2 * channels + c])
        along = ACC(t[3 * channels + c])
        for j in range(row * size, row * size + size):
            store_D(o, j, (load_T(q, j) - direct - (load_T(p, j) - centre) * along) * scale)


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, CPU


def _extents(x: TensorImpl) -> tuple[int, int, int]:
    """Return batch, channels and plane size."""
    batch, channels = x.meta.shape[:2]
    size = 1
    for extent in x.meta.shape[2:]:
        size *= extent
    return batch, channels, size


def _numbers(value: TensorImpl | None, count: int, default: float) -> Array:
    if value is None:
        return np.full(count, default)
    return np.asarray(value.array(), np.float64)


def _statistics(x: TensorImpl) -> tuple[Array, Array]:
    """Return mean and biased variance of each channel, in float64."""
    batch, channels, size = _extents(x)
    dims = (0, *range(2, x.meta.ndim))
    count = batch * size
    means = empty_impl(meta_of((channels,), _dtypes.float64))
    variances = empty_impl(means.meta)
    scale = 1.0 / count if count else math.nan
    reduce_cpu(folds.MEAN, means, x, dims, scale)
    reduce_cpu(folds.VAR, variances, x, dims, scale, means.address())
    return means.array(), variances.array()


def _run(kernel: Any, x: TensorImpl, *args: Any) -> None:
    batch, channels, size = _extents(x)
    rows, width = (batch, channels) if size == 1 else (batch * channels, size)
    launch.parallel_for(kernel, rows, max(1, GRAIN // max(1, width)), *args)


@into_contiguous
def batch_norm_cpu(
    out: tuple[TensorImpl, ...], x: TensorImpl, weight: TensorImpl | None, bias: TensorImpl | None,
    running_mean: TensorImpl | None, running_var: TensorImpl | None, *, training: bool, eps: float,
) -> None:  # fmt: skip
    """Batch norm; gives result, mean, reciprocal deviation and unbiased variance of channels."""
    x = contiguous_impl(x)
    batch, channels, size = _extents(x)
    if training:
        mean, variance = _statistics(x)
    else:
        mean, variance = _numbers(running_mean, channels, 0.0), _numbers(running_var, channels, 1.0)
    rstd = 1.0 / np.sqrt(variance + eps)
    table = empty_impl(meta_of((3, channels), _dtypes.float64))
    rows = table.array()
    rows[0] = mean
    rows[1] = rstd * _numbers(weight, channels, 1.0)
    rows[2] = _numbers(bias, channels, 0.0)
    kernel = scale_planes.for_dtypes(**types_of(out[0], x, None))
    _run(kernel, x, out[0].address(), x.address(), table.address(), channels, size)
    count = batch * size
    out[1].array()[...] = mean
    out[2].array()[...] = rstd
    out[3].array()[...] = variance * (count / (count - 1)) if count > 1 else variance


@into_contiguous
def batch_norm_backward_cpu(
    out: tuple[TensorImpl, ...], g: TensorImpl, x: TensorImpl, weight: TensorImpl | None,
    mean: TensorImpl, rstd: TensorImpl, *, training: bool, affine: bool,
) -> None:  # fmt: skip
    """The gradients of operand, weight and bias (the last two if `affine`)."""
    g, x = contiguous_impl(g), contiguous_impl(x)
    batch, channels, size = _extents(x)
    table = empty_impl(meta_of((4, channels), _dtypes.float64))
    rows = table.array()
    rows[0] = mean.array()
    deviation = np.asarray(rstd.array(), np.float64)
    rows[1] = deviation * _numbers(weight, channels, 1.0)
    rows[2:] = 0.0
    types = types_of(out[0], x, None)
    if training or affine:
        sums = empty_impl(meta_of((2, channels), _dtypes.float64))
        launch.parallel_for(
            channel_sums.for_dtypes(**types), channels, max(1, GRAIN // max(1, batch * size)),
            sums.address(), g.address(), x.address(), table.address(), batch, channels, size,
        )  # fmt: skip
        total, moment = sums.array()
        if training:
            rows[2] = total / (batch * size)
            rows[3] = moment * deviation * deviation / (batch * size)
        if affine:
            out[1].array()[...] = moment * deviation
            out[2].array()[...] = total
    kernel = scale_gradient.for_dtypes(**types)
    _run(kernel, x, out[0].address(), g.address(), x.address(), table.address(), channels, size)
