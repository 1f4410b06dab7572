"""Normalisation over rows: layer_norm, rms_norm, group_norm, with their backwards.

State
-----
None. Statistics (mean and reciprocal standard deviation) are outputs of the forward, in the
computing type, so the backward reads them instead of the whole operand once more.

Invariants
----------
* Sums of a row go over chunks in the computing type and over rows of chunks in float64: long rows
  stay accurate and short ones stay fast.
* The gradients of weight and bias are first summed over fixed blocks of rows, then over the
  blocks, so they do not depend on the number of threads.
* An address of 0 stands for a missing weight or bias.
"""

from __future__ import annotations

import math
from typing import Any

from refruntime._impl import TensorImpl, alias, empty_impl, meta_of
from refruntime.kernels import fold as folds
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl
from refruntime.kernels.reduce import GRAIN, into_contiguous, reduce_cpu
from refruntime.kernels.variants import (
    ACC,
    device_template,
    load_S,
    load_T,
    ptr_ACC,
    ptr_D,
    ptr_S,
    ptr_T,
    store_D,
    template,
)

CHUNK = 1024
# Rows whose gradients of weight and bias are summed together: at most this many blocks exist.
BLOCKS = 64


@device_template
def _row_sum(p, at, n):  # type: ignore[no-untyped-def]
    """Sum ``p[at : at + n]`` in float64 over chunks."""
    total = 0.0
    for low in range(0, n, CHUNK):
        part = ACC(0)
        for j in range(low, min(n, low + CHUNK)):
            part += load_T(p, at + j)
        total += part
    return total


@device_template
def _row_squares(p, at, n, centre):  # type: ignore[no-untyped-def]
    """Sum the squared distances from `centre` in float64 over chunks."""
    total = 0.0
    for low in range(0, n, CHUNK):
        part = ACC(0)
        for j in range(low, min(n, low + CHUNK)):
            distance = load_T(p, at + j) - centre
            part += distance * distance
        total += part
    return total


@template("void(int64, int64, int64, int64, int64, int64, int64, float64, int64, int64)")
def layer_norm_rows(out, means, rstds, x, weight, bias, n, eps, start, stop):  # type: ignore[no-untyped-def]
    """``(x - mean) rstd weight + bias`` of each row."""
    o = ptr_D(out)
    p = ptr_T(x)
    w = ptr_S(weight)
    b = ptr_S(bias)
    mean_of = ptr_ACC(means)
    rstd_of = ptr_ACC(rstds)
    for row in range(start, stop):
        at = row * n
        mean = ACC(_row_sum(p, at, n) / n)
        rstd = ACC(1.0 / math.sqrt(_row_squares(p, at, n, mean) / n + eps))
        mean_of[row] = mean
        rstd_of[row] = rstd
        if weight == 0 and bias == 0:
            for j in range(n):
                store_D(o, at + j, (load_T(p, at + j) - mean) * rstd)
        elif bias == 0:
            for j in range(n):
                store_D(o, at + j, (load_T(p, at + j) - mean) * rstd * load_S(w, j))
        elif weight == 0:
            for j in range(n):
                store_D(o, at + j, (load_T(p, at + j) - mean) * rstd + load_S(b, j))
        else:
            for j in range(n):
                value = (load_T(p, at + j) - mean) * rstd
                store_D(o, at + j, value * load_S(w, j) + load_S(b, j))


@template("void(" + "int64, " * 11 + "int64)")
def layer_norm_back(out, partials, g, x, means, rstds, weight, n, rows, per, start, stop):  # type: ignore[no-untyped-def]
    """The operand's gradient row by row, and the sums for weight and bias block by block."""
    o = ptr_D(out)
    q = ptr_T(g)
    p = ptr_T(x)
    w = ptr_S(weight)
    sums = ptr_ACC(partials)
    mean_of = ptr_ACC(means)
    rstd_of = ptr_ACC(rstds)
    for block in range(start, stop):
        of_weight = block * 2 * n
        of_bias = of_weight + n
        if partials != 0:
            for j in range(2 * n):
                sums[of_weight + j] = ACC(0)
        for row in range(block * per, min(rows, block * per + per)):
            at = row * n
            mean = mean_of[row]
            rstd = rstd_of[row]
            direct = ACC(0)
            along = ACC(0)
            if weight != 0:
                for j in range(n):
                    h = load_T(q, at + j) * load_S(w, j)
                    direct += h
                    along += h * (load_T(p, at + j) - mean)
            else:
                for j in range(n):
                    h = load_T(q, at + j)
                    direct += h
                    along += h * (load_T(p, at + j) - mean)
            direct /= n
            along *= rstd * rstd / n
            if weight != 0:
                for j in range(n):
                    h = load_T(q, at + j) * load_S(w, j)
                    distance = load_T(p, at + j) - mean
                    store_D(o, at + j, (h - direct - distance * along) * rstd)
            else:
                for j in range(n):
                    distance = load_T(p, at + j) - mean
                    h = load_T(q, at + j)
                    store_D(o, at + j, (h - direct - distance * along) * rstd)
            if partials != 0:
                for j in range(n):
                    h = load_T(q, at + j)
                    sums[of_weight + j] += h * (load_T(p, at + j) - mean) * rstd
                    sums[of_bias + j] += h


@template("void(int64, int64, int64, int64, int64, float64, int64, int64)")
def rms_norm_rows(out, rstds, x, weight, n, eps, start, stop):  # type: ignore[no-untyped-def]
    """``x rstd weight`` of each row, with rstd from the mean square."""
    o = ptr_D(out)
    p = ptr_T(x)
    w = ptr_S(weight)
    rstd_of = ptr_ACC(rstds)
    for row in range(start, stop):
        at = row * n
        rstd = ACC(1.0 / math.sqrt(_row_squares(p, at, n, ACC(0)) / n + eps))
        rstd_of[row] = rstd
        if weight == 0:
            for j in range(n):
                store_D(o, at + j, load_T(p, at + j) * rstd)
        else:
            for j in range(n):
                store_D(o, at + j, load_T(p, at + j) * rstd * load_S(w, j))


@template("void(" + "int64, " * 10 + "int64)")
def rms_norm_back(out, partials, g, x, rstds, weight, n, rows, per, start, stop):  # type: ignore[no-untyped-def]
    """The operand's gradient row by row, and the sums for the weight block by block."""
    o = ptr_D(out)
    q = ptr_T(g)
    p = ptr_T(x)
    w = ptr_S(weight)
    sums = ptr_ACC(partials)
    rstd_of = ptr_ACC(rstds)
    for block in range(start, stop):
        first = block * n
        if partials != 0:
            for j in range(n):
                sums[first + j] = ACC(0)
        for row in range(block * per, min(rows, block * per + per)):
            at = row * n
            rstd = rstd_of[row]
            along = ACC(0)
            if weight != 0:
                for j in range(n):
                    along += load_T(q, at + j) * load_S(w, j) * load_T(p, at + j)
            else:
                for j in range(n):
                    along += load_T(q, at + j) * load_T(p, at + j)
            along *= rstd * rstd / n
            if weight != 0:
                for j in range(n):
                    h = load_T(q, at + j) * load_S(w, j)
                    store_D(o, at + j, (h - load_T(p, at + j) * along) * rstd)
            else:
                for j in range(n):
                    store_D(o, at + j, (load_T(q, at + j) - load_T(p, at + j) * along) * rstd)
            if partials != 0:
                for j in range(n):
                    sums[first + j] += load_T(q, at + j) * load_T(p, at + j) * rstd


@template("void(" + "int64, " * 9 + "float64, int64, int64)")
def group_norm_rows(out, means, rstds, x, weight, bias, groups, channels, size, eps, start, stop):  # type: ignore[no-untyped-def]
    """Normalise each group of `channels` planes of `size`, and scale each plane."""
    o = ptr_D(out)
    p = ptr_T(x)
    w = ptr_S(weight)
    b = ptr_S(bias)
    mean_of = ptr_ACC(means)
    rstd_of = ptr_ACC(rstds)
    n = channels * size
    for row in range(start, stop):
        at = row * n
        mean = ACC(_row_sum(p, at, n) / n)
        rstd = ACC(1.0 / math.sqrt(_row_squares(p, at, n, mean) / n + eps))
        mean_of[row] = mean
        rstd_of[row] = rstd
        first = (row % groups) * channels
        for c in range(channels):
            scale = rstd
            if weight != 0:
                scale *= load_S(w, first + c)
            shift = ACC(0)
            if bias != 0:
                shift += load_S(b, first + c)
            for j in range(at + c * size, at + c * size + size):
                store_D(o, j, (load_T(p, j) - mean) * scale + shift)


@template("void(" + "int64, " * 11 + "int64)")
def group_norm_back(out, planes, g, x, means, rstds, weight, groups, channels, size, start, stop):  # type: ignore[no-untyped-def]
    """The operand's gradient, and for each plane the sums of ``g xhat`` and ``g``."""
    o = ptr_D(out)
    q = ptr_T(g)
    p = ptr_T(x)
    w = ptr_S(weight)
    sums = ptr_ACC(planes)
    mean_of = ptr_ACC(means)
    rstd_of = ptr_ACC(rstds)
    n = channels * size
    for row in range(start, stop):
        at = row * n
        mean = mean_of[row]
        rstd = rstd_of[row]
        first = (row % groups) * channels
        width = groups * channels
        plane = (row // groups) * 2 * width + first
        direct = ACC(0)
        along = ACC(0)
        for c in range(channels):
            total = ACC(0)
            moment = ACC(0)
            for j in range(at + c * size, at + c * size + size):
                h = load_T(q, j)
                total += h
                moment += h * (load_T(p, j) - mean)
            moment *= rstd
            sums[plane + c] = moment
            sums[plane + width + c] = total
            factor = load_S(w, first + c) if weight != 0 else ACC(1)
            direct += total * factor
            along += moment * factor
        direct /= n
        along *= rstd / n
        for c in range(channels):
            factor = load_S(w, first + c) if weight != 0 else ACC(1)
            for j in range(at + c * size, at + c * size + size):
                distance = load_T(p, j) - mean
                store_D(o, j, (load_T(q, j) * factor - direct - distance * along) * rstd)


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, CPU


def address_of(value: TensorImpl | None) -> int:
    """Return the address of an optional operand, 0 for none."""
    return 0 if value is None else value.address()


def packed(value: TensorImpl | None) -> TensorImpl | None:
    """Return an optional operand with contiguous memory."""
    return None if value is None else contiguous_impl(value)


def types_of(out: TensorImpl, x: TensorImpl, weight: TensorImpl | None) -> dict[str, Any]:
    """Return the dtype bindings of a normalisation kernel."""
    of_weight = x.meta.dtype if weight is None else weight.meta.dtype
    compute = x.meta.dtype.compute
    return {"T": x.meta.dtype, "D": out.meta.dtype, "S": of_weight, "ACC": compute}


def _rows_of(x: TensorImpl, n: int) -> int:
    return x.meta.numel // n if n else 0


@into_contiguous
def layer_norm_cpu(
    out: tuple[TensorImpl, TensorImpl, TensorImpl], x: TensorImpl, weight: TensorImpl | None,
    bias: TensorImpl | None, *, n: int, eps: float,
) -> None:  # fmt: skip
    """Layer norm over the last `n` elements; gives result, means, reciprocal deviations."""
    x, weight, bias = contiguous_impl(x), packed(weight), packed(bias)
    kernel = layer_norm_rows.for_dtypes(**types_of(out[0], x, bias if weight is None else weight))
    launch.parallel_for(
        kernel, _rows_of(x, n), max(1, GRAIN // max(1, 4 * n)), out[0].address(), out[1].address(),
        out[2].address(), x.address(), address_of(weight), address_of(bias), n, eps,
    )  # fmt: skip


def _blocks(rows: int) -> tuple[int, int]:
    """Return how many rows a block has, and how many blocks there are."""
    per = max(8, -(-rows // BLOCKS))
    return per, -(-rows // per)


@into_contiguous
def layer_norm_backward_cpu(
    out: tuple[TensorImpl, ...], g: TensorImpl, x: TensorImpl, mean: TensorImpl, rstd: TensorImpl,
    weight: TensorImpl | None, *, n: int, affine: bool,
) -> None:  # fmt: skip
    """The gradients of operand, weight and bias (the last two if `affine`)."""
    g, x, weight = contiguous_impl(g), contiguous_impl(x), packed(weight)
    rows = _rows_of(x, n)
    per, blocks = _blocks(rows)
    partials = empty_impl(meta_of((blocks, 2 * n), x.meta.dtype.compute)) if affine else None
    kernel = layer_norm_back.for_dtypes(**types_of(out[0], x, weight))
    launch.parallel_for(
        kernel, blocks, max(1, GRAIN // max(1, 4 * n * per)), out[0].address(),
        address_of(partials), g.address(), x.address(), mean.address(), rstd.address(),
        address_of(weight), n, rows, per,
    )  # fmt: skip
    if partials is not None:
        _sum_blocks(out[1:], partials, n)


def _sum_blocks(outs: tuple[TensorImpl, ...], partials: TensorImpl, n: int) -> None:
    """Sum the blocks' partials: each output's are `n` wide columns side by side."""
    blocks, width = partials.meta.shape
    for place, out in enumerate(outs):
        meta = meta_of((blocks, n), partials.meta.dtype, strides=(width, 1))
        columns = alias(partials, meta, place * n * meta.dtype.itemsize)
        reduce_cpu(folds.SUM, out, columns, (0,))


@into_contiguous
def rms_norm_cpu(
    out: tuple[TensorImpl, TensorImpl], x: TensorImpl, weight: TensorImpl | None, *, n: int,
    eps: float,
) -> None:  # fmt: skip
    """RMS norm over the last `n` elements; gives result and reciprocal root mean squares."""
    x, weight = contiguous_impl(x), packed(weight)
    kernel = rms_norm_rows.for_dtypes(**types_of(out[0], x, weight))
    launch.parallel_for(
        kernel, _rows_of(x, n), max(1, GRAIN // max(1, 3 * n)), out[0].address(),
        out[1].address(), x.address(), address_of(weight), n, eps,
    )  # fmt: skip


@into_contiguous
def rms_norm_backward_cpu(
    out: tuple[TensorImpl, ...], g: TensorImpl, x: TensorImpl, rstd: TensorImpl,
    weight: TensorImpl | None, *, n: int, affine: bool,
) -> None:  # fmt: skip
    """The gradients of operand and weight (the latter if `affine`)."""
    g, x, weight = contiguous_impl(g), contiguous_impl(x), packed(weight)
    rows = _rows_of(x, n)
    per, blocks = _blocks(rows)
    partials = empty_impl(meta_of((blocks, n), x.meta.dtype.compute)) if affine else None
    kernel = rms_norm_back.for_dtypes(**types_of(out[0], x, weight))
    launch.parallel_for(
        kernel, blocks, max(1, GRAIN // max(1, 4 * n * per)), out[0].address(),
        address_of(partials), g.address(), x.address(), rstd.address(), address_of(weight), n, rows,
        per,
    )  # fmt: skip
    if partials is not None:
        _sum_blocks(out[1:], partials, n)


def _plane(x: TensorImpl) -> int:
    size = 1
    for extent in x.meta.shape[2:]:
        size *= extent
    return size


@into_contiguous
def group_norm_cpu(
    out: tuple[TensorImpl, TensorImpl, TensorImpl], x: TensorImpl, weight: TensorImpl | None,
    bias: TensorImpl | None, *, groups: int, eps: float,
) -> None:  # fmt: skip
    """Group norm of ``[N, C, ...]``; gives result, means, reciprocal deviations."""
    x, weight, bias = contiguous_impl(x), packed(weight), packed(bias)
    channels, size = x.meta.shape[1] // groups, _plane(x)
    kernel = group_norm_rows.for_dtypes(**types_of(out[0], x, bias if weight is None else weight))
    launch.parallel_for(
        kernel, x.meta.shape[0] * groups, max(1, GRAIN // max(1, 4 * channels * size)),
        out[0].address(), out[1].address(), out[2].address(), x.address(), address_of(weight),
        address_of(bias), groups, channels, size, eps,
    )  # fmt: skip


@into_contiguous
def group_norm_backward_cpu(
    out: tuple[TensorImpl, ...], g: TensorImpl, x: TensorImpl, mean: TensorImpl, rstd: TensorImpl,
    weight: TensorImpl | None, *, groups: int, affine: bool,
) -> None:  # fmt: skip
    """The gradients of operand, weight and bias (the last two if `affine`)."""
    g, x, weight = contiguous_impl(g), contiguous_impl(x), packed(weight)
    batch, width, size = x.meta.shape[0], x.meta.shape[1], _plane(x)
    channels = width // groups
    planes = empty_impl(meta_of((batch, 2 * width), x.meta.dtype.compute))
    kernel = group_norm_back.for_dtypes(**types_of(out[0], x, weight))
    launch.parallel_for(
        kernel, batch * groups, max(1, GRAIN // max(1, 4 * channels * size)), out[0].address(),
        planes.address(), g.address(), x.address(), mean.address(), rstd.address(),
        address_of(weight), groups, channels, size,
    )  # fmt: skip
    if affine:
        _sum_blocks(out[1:], planes, width)


