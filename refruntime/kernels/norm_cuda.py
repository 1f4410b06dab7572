"""The GPU half of `kernels.norm` and `kernels.batch_norm`: launches of norm.cu, batch_norm.cu.

State
-----
None.

Invariants
----------
* Weights, biases and running statistics go to the kernels in the computing type; where they are
  kept in another one, a small cast comes first.
* Signatures are those of the CPU kernels.
"""

from __future__ import annotations

import math

from refruntime._impl import TensorImpl, alias, meta_of
from refruntime.kernels import launch
from refruntime.kernels.copy import fill_cuda
from refruntime.kernels.gpu import (
    THREADS,
    cast_cuda,
    column_block,
    into_contiguous_cuda,
    optional_address,
    packed_cuda,
    row_block,
    scratch,
    split,
)

Out = tuple[TensorImpl, ...]


def _parameter(value: TensorImpl | None, like: TensorImpl) -> TensorImpl | None:
    """Return a weight or bias in the computing type, contiguous."""
    return None if value is None else packed_cuda(cast_cuda(value, like.meta.dtype.compute))


def _rows_forward(
    out: Out, x: TensorImpl, weight: TensorImpl | None, bias: TensorImpl | None, columns: int,
    groups: int, span: int, eps: float, centred: bool,
) -> None:  # fmt: skip
    """Normalise rows; `out` is the result, [the means,] the reciprocal deviations."""
    rows = x.meta.numel // columns if columns else 0
    if not rows:
        return
    x, weight, bias = packed_cuda(x), _parameter(weight, x), _parameter(bias, x)
    block = row_block(columns)
    mean = out[1].address() if centred else 0
    launch.raw(
        "norm", "row_norm_forward", (str(centred).lower(), x.meta.dtype.ctype), (rows,), block,
        (out[0].address(), x.address(), optional_address(weight), optional_address(bias), mean,
         out[-1].address(), columns, groups, span, eps),
        block[1] * 24,
    )  # fmt: skip


def _rows_backward(
    gx: TensorImpl, g: TensorImpl, x: TensorImpl, weight: TensorImpl | None,
    mean: TensorImpl | None, rstd: TensorImpl, columns: int, groups: int, span: int,
) -> None:  # fmt: skip
    weight = _parameter(weight, x)
    block = row_block(columns)
    names = ("false" if mean is None else "true", x.meta.dtype.ctype)
    launch.raw(
        "norm", "row_norm_backward", names, (x.meta.numel // columns,), block,
        (gx.address(), g.address(), x.address(), optional_address(weight), optional_address(mean),
         rstd.address(), columns, groups, span),
        block[1] * 16,
    )  # fmt: skip


def _affine_backward(
    out: Out, g: TensorImpl, x: TensorImpl, mean: TensorImpl | None, rstd: TensorImpl, columns: int
) -> None:
    """The gradients of weight (and bias) of rows that share one affine map, in two steps."""
    rows = x.meta.numel // columns
    block = column_block(rows, columns)
    grid = -(-columns // block[0])
    splits, chunk = split(rows, grid, least=32)
    partial = scratch(x, (2, splits, columns), x.meta.dtype.compute)
    ctype = x.meta.dtype.ctype
    launch.raw(
        "norm", "affine_norm_backward", ("false" if mean is None else "true", ctype),
        (grid, splits), block,
        (partial.address(), g.address(), x.address(), optional_address(mean), rstd.address(), rows,
         columns, chunk),
        block[0] * block[1] * 16,
    )  # fmt: skip
    bias = out[1].address() if len(out) > 1 else 0
    launch.raw(
        "norm", "affine_finish", (ctype,), (-(-columns // THREADS),), (THREADS,),
        (out[0].address(), bias, partial.address(), splits, columns),
    )  # fmt: skip


def _rows_and_affine_backward(
    out: Out, g: TensorImpl, x: TensorImpl, mean: TensorImpl | None, rstd: TensorImpl,
    weight: TensorImpl | None, n: int, affine: bool,
) -> None:  # fmt: skip
    if not x.meta.numel:
        for parameter in out[1:]:
            fill_cuda(parameter, 0.0)
        return
    g, x = packed_cuda(g), packed_cuda(x)
    _rows_backward(out[0], g, x, weight, mean, rstd, n, 1, 1)
    if affine:
        _affine_backward(out[1:], g, x, mean, rstd, n)


@into_contiguous_cuda
def layer_norm_cuda(
    out: Out, x: TensorImpl, weight: TensorImpl | None, bias: TensorImpl | None, *, n: int,
    eps: float,
) -> None:  # fmt: skip
    """Layer norm over the last `n` elements; gives result, means, reciprocal deviations."""
    _rows_forward(out, x, weight, bias, n, 1, 1, eps, centred=True)


@into_contiguous_cuda
def layer_norm_backward_cuda(
    out: Out, g: TensorImpl, x: TensorImpl, mean: TensorImpl, rstd: TensorImpl,
    weight: TensorImpl | None, *, n: int, affine: bool,
) -> None:  # fmt: skip
    """The gradients of operand, weight and bias (the last two if `affine`)."""
    _rows_and_affine_backward(out, g, x, mean, rstd, weight, n, affine)


@into_contiguous_cuda
def rms_norm_cuda(
    out: Out, x: TensorImpl, weight: TensorImpl | None, *, n: int, eps: float
) -> None:
    """RMS norm over the last `n` elements; gives result and reciprocal root mean squares."""
    _rows_forward(out, x, weight, None, n, 1, 1, eps, centred=False)


@into_contiguous_cuda
def rms_norm_backward_cuda(
    out: Out, g: TensorImpl, x: TensorImpl, rstd: TensorImpl, weight: TensorImpl | None, *, n: int,
    affine: bool,
) -> None:  # fmt: skip
    """The gradients of operand and weight (the latter if `affine`)."""
    _rows_and_affine_backward(out, g, x, None, rstd, weight, n, affine)


def _extents(x: TensorImpl) -> tuple[int, int, int]:
    """Return batch, channels and elements of a plane."""
    return x.meta.shape[0], x.meta.shape[1], math.prod(x.meta.shape[2:])


@into_contiguous_cuda
def group_norm_cuda(
    out: Out, x: TensorImpl, weight: TensorImpl | None, bias: TensorImpl | None, *, groups: int,
    eps: float,
) -> None:  # fmt: skip
    """Group norm of ``[N, C, ...]``; gives result, means, reciprocal deviations."""
    _, channels, span = _extents(x)
    _rows_forward(out, x, weight, bias, channels // groups * span, groups, span, eps, centred=True)


@into_contiguous_cuda
def group_norm_backward_cuda(
    out: Out, g: TensorImpl, x: TensorImpl, mean: TensorImpl, rstd: TensorImpl,
    weight: TensorImpl | None, *, groups: int, affine: bool,
) -> None:  # fmt: skip
    """The gradients of operand, weight and bias (the last two if `affine`)."""
    batch, channels, span = _extents(x)
    if not x.meta.numel:
        for parameter in out[1:]:
            fill_cuda(parameter, 0.0)
        return
    g, x = packed_cuda(g), packed_cuda(x)
    columns = channels // groups * span
    _rows_backward(out[0], g, x, weight, mean, rstd, columns, groups, span)
    if affine:
        block = row_block(batch * span)
        launch.raw(
            "norm", "channel_norm_backward", (x.meta.dtype.ctype,), (channels,), block,
            (out[1].address(), out[2].address(), g.address(), x.address(), mean.address(),
             rstd.address(), batch * groups, columns, groups, span),
            block[1] * 16,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# batch_norm


@into_contiguous_cuda
def batch_norm_cuda(
    out: Out, x: TensorImpl, weight: TensorImpl | None, bias: TensorImpl | None,
    running_mean: TensorImpl | None, running_var: TensorImpl | None, *, training: bool, eps: float,
) -> None:  # fmt: skip
    """Batch norm; gives result, mean, reciprocal deviation and unbiased variance of channels."""
    batch, channels, span = _extents(x)
    if not channels:
        return
    x, ctype = packed_cuda(x), x.meta.dtype.ctype
    moments = tuple(o.address() for o in out[1:])
    if training:
        block = row_block(batch * span)
        args = (x.address(), *moments, batch, channels, span, eps)
        launch.raw(
            "batch_norm", "batch_norm_statistics", (ctype,), (channels,), block, args, block[1] * 24
        )
    else:
        known = _known(running_mean, out[1], 0.0), _known(running_var, out[3], 1.0)
        args = (*moments, *(value.address() for value in known), channels, eps)
        grid = (-(-channels // THREADS),)
        launch.raw("batch_norm", "batch_norm_recall", (ctype,), grid, (THREADS,), args)
    if not x.meta.numel:
        return
    weight, bias = _parameter(weight, x), _parameter(bias, x)
    launch.raw(
        "batch_norm", "batch_norm_forward", (ctype,), *launch.cover(x.meta.numel),
        (out[0].address(), x.address(), optional_address(weight), optional_address(bias),
         *moments[:2], channels, span, x.meta.numel),
    )  # fmt: skip


def _known(value: TensorImpl | None, like: TensorImpl, default: float) -> TensorImpl:
    """Return a running statistic in the dtype of `like`, or that many times its default."""
    if value is not None:
        return packed_cuda(cast_cuda(value, like.meta.dtype))
    filled = scratch(like, tuple(like.meta.shape), like.meta.dtype)
    fill_cuda(filled, default)
    return filled


def _row(matrix: TensorImpl, row: int) -> TensorImpl:
    columns = matrix.meta.shape[1]
    meta = meta_of((columns,), matrix.meta.dtype, matrix.meta.device)
    return alias(matrix, meta, matrix.byte_offset + row * columns * matrix.meta.dtype.itemsize)


@into_contiguous_cuda
def batch_norm_backward_cuda(
    out: Out, g: TensorImpl, x: TensorImpl, weight: TensorImpl | None, mean: TensorImpl,
    rstd: TensorImpl, *, training: bool, affine: bool,
) -> None:  # fmt: skip
    """The gradients of operand, weight and bias (the last two if `affine`)."""
    batch, channels, span = _extents(x)
    if not channels:
        return
    g, x, ctype = packed_cuda(g), packed_cuda(x), x.meta.dtype.ctype
    moments = mean.address(), rstd.address()
    sums = (0, 0)
    if training or affine:
        own = out[1], out[2]
        if not affine:
            spare = scratch(mean, (2, channels), mean.meta.dtype)
            own = _row(spare, 0), _row(spare, 1)
        sums = own[1].address(), own[0].address()
        block = row_block(batch * span)
        launch.raw(
            "batch_norm", "batch_norm_sums", (ctype,), (channels,), block,
            (*sums, g.address(), x.address(), *moments, batch, channels, span),
            block[1] * 16,
        )  # fmt: skip
    if not x.meta.numel:
        return
    weight = _parameter(weight, x)
    launch.raw(
        "batch_norm", "batch_norm_backward", (str(training).lower(), ctype),
        *launch.cover(x.meta.numel),
        (out[0].address(), g.address(), x.address(), optional_address(weight), *moments, *sums,
         channels, span, x.meta.numel),
    )  # fmt: skip
