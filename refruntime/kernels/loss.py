"""Losses: of pairs of tensors (mse, l1, ...), and the negative log likelihood of classes.

State
-----
None.

Invariants
----------
* A reduced loss is summed in float64, block by block of fixed size, then over the blocks in order;
  no temporary of the operands' size is made.
* A target outside the classes makes the kernel return a status, after which nothing it wrote is
  used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from refruntime import _dtypes
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime._native import device_function, ptr_f64, ptr_i64
from refruntime.errors import IndexRangeError
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl
from refruntime.kernels.gpu import (
    THREADS,
    cast_cuda,
    fault_cell,
    into_contiguous_cuda,
    optional_address,
    packed_cuda,
    scratch,
)
from refruntime.kernels.intrinsics import INTRINSICS
from refruntime.kernels.reduce import GRAIN, cast_impl, into_contiguous
from refruntime.kernels.variants import (
    ACC,
    Placeholder,
    load_T,
    ptr_ACC,
    ptr_T,
    store_T,
    template,
)

# Elements, or targets, whose losses one block sums.
BLOCK = 8192
OUT_OF_RANGE = 1

loss_of: Any = Placeholder("loss_of")
exp: Any = Placeholder("exp")
log: Any = Placeholder("log")
log1p: Any = Placeholder("log1p")


@device_function
def squared_error(x, t, parameter):  # type: ignore[no-untyped-def]
    """``(x - t) ** 2``."""
    return (x - t) * (x - t)


@device_function
def absolute_error(x, t, parameter):  # type: ignore[no-untyped-def]
    """``|x - t|``."""
    return abs(x - t)


@device_function
def smooth_error(x, t, parameter):  # type: ignore[no-untyped-def]
    """Quadratic below `parameter`, and continued linearly (smooth_l1_loss)."""
    size = abs(x - t)
    half = size - parameter / 2
    return size * size / (2 * parameter) if size < parameter else half


@device_function
def huber_error(x, t, parameter):  # type: ignore[no-untyped-def]
    """`smooth_error` times its parameter (huber_loss)."""
    size = abs(x - t)
    outside = parameter * (size - parameter / 2)
    return size * size / 2 if size <= parameter else outside


_PAIR = "void(int64, int64, int64, int64, {ACC}, int64, int64)"


@template(_PAIR)
def pair_losses(out, x, t, n, parameter, start, stop):  # type: ignore[no-untyped-def]
    """Write the loss of each pair."""
    o = ptr_T(out)
    p = ptr_T(x)
    q = ptr_T(t)
    for i in range(start, stop):
        store_T(o, i, loss_of(load_T(p, i), load_T(q, i), parameter))


@template(_PAIR)
def pair_sums(sums, x, t, n, parameter, start, stop):  # type: ignore[no-untyped-def]
    """Sum the losses of blocks of pairs; a unit is a block."""
    s = ptr_f64(sums)
    p = ptr_T(x)
    q = ptr_T(t)
    for block in range(start, stop):
        total = 0.0
        for i in range(block * BLOCK, min(n, block * BLOCK + BLOCK)):
            total += loss_of(load_T(p, i), load_T(q, i), parameter)
        s[block] = total


@template("void(int64, int64, int64, int64, float64)")
def finish_losses(out, weights, sums, blocks, divisor):  # type: ignore[no-untyped-def]
    """Add the blocks' sums in order and divide; by the sum of weights if `divisor` is below 0.

    Blocks with weights are pairs of a sum and a weight, and the sum of weights goes to `weights`.
    """
    o = ptr_T(out)
    s = ptr_f64(sums)
    step = 1 if weights == 0 else 2
    total = 0.0
    weight = 0.0
    for block in range(blocks):
        total += s[step * block]
        if weights != 0:
            weight += s[step * block + 1]
    if weights != 0:
        ptr_ACC(weights)[0] = ACC(weight)
    if out != 0:
        store_T(o, 0, total / (weight if divisor < 0.0 else divisor))


@template("int64(" + "int64, " * 10 + "int64)")
def class_losses(out, sums, x, target, weight, classes, inner, ignore, count, start, stop):  # type: ignore[no-untyped-def]
    """Minus the weighted element of the target class, for blocks of targets.

    The losses go to `out` if it is given; their sum and that of the weights go to `sums` if it is.
    """
    o = ptr_T(out)
    p = ptr_T(x)
    w = ptr_T(weight)
    s = ptr_f64(sums)
    place = ptr_i64(target)
    for block in range(start, stop):
        total = 0.0
        weights = 0.0
        for i in range(block * BLOCK, min(count, block * BLOCK + BLOCK)):
            c = place[i]
            loss = ACC(0)
            if c != ignore:
                if c < 0 or c >= classes:
                    return OUT_OF_RANGE
                factor = ACC(1)
                if weight != 0:
                    factor = load_T(w, c)
                loss = -load_T(p, (i // inner * classes + c) * inner + i % inner) * factor
                weights += factor
            if out != 0:
                store_T(o, i, loss)
            total += loss
        if sums != 0:
            s[2 * block] = total
            s[2 * block + 1] = weights
    return 0


@template("void(" + "int64, " * 8 + "float64, int64, int64)")
def class_gradients(out, g, target, weight, classes, inner, ignore, each, scale, start, stop):  # type: ignore[no-untyped-def]
    """Write minus the scaled gradient at each target class, else zero; a unit is a sample."""
    o = ptr_T(out)
    p = ptr_T(g)
    w = ptr_T(weight)
    place = ptr_i64(target)
    for sample in range(start, stop):
        base = sample * classes * inner
        for i in range(base, base + classes * inner):
            store_T(o, i, ACC(0))
        for j in range(inner):
            i = sample * inner + j
            c = place[i]
            if c != ignore:
                value = ACC(load_T(p, i if each != 0 else 0) * scale)
                if weight != 0:
                    value *= load_T(w, c)
                store_T(o, base + c * inner + j, -value)


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, CPU


def pair_loss_cpu(loss: Any) -> Callable[..., None]:
    """Return the kernel of a loss of pairs."""

    @into_contiguous
    def kernel(
        out: TensorImpl, x: TensorImpl, t: TensorImpl, *, reduction: str, parameter: float = 0.0
    ) -> None:
        dtype = out.meta.dtype
        x, t = (contiguous_impl(cast_impl(value, dtype)) for value in (x, t))
        bound = {"T": dtype, "ACC": dtype.compute, "loss_of": loss}
        n = x.meta.numel
        if reduction == "none":
            launch.parallel_for(
                pair_losses.for_dtypes(**bound), n, GRAIN, out.address(), x.address(), t.address(),
                n, parameter,
            )  # fmt: skip
            return
        blocks = -(-n // BLOCK)
        sums = empty_impl(meta_of((blocks,), _dtypes.float64))
        launch.parallel_for(
            pair_sums.for_dtypes(**bound), blocks, GRAIN // BLOCK, sums.address(), x.address(),
            t.address(), n, parameter,
        )  # fmt: skip
        finish_losses.for_dtypes(T=dtype, ACC=dtype.compute)(
            out.address(), 0, sums.address(), blocks, float(n) if reduction == "mean" else 1.0
        )

    return kernel


def _extents(x: TensorImpl) -> tuple[int, int, int]:
    """Return samples, classes and positions of ``[N, C, ...]`` or ``[C]``."""
    if x.meta.ndim == 1:
        return 1, x.meta.shape[0], 1
    inner = 1
    for size in x.meta.shape[2:]:
        inner *= size
    return x.meta.shape[0], x.meta.shape[1], inner


def _class_operands(
    x: TensorImpl, target: TensorImpl, weight: TensorImpl | None
) -> tuple[TensorImpl, TensorImpl, TensorImpl | None]:
    dtype = x.meta.dtype
    weight = None if weight is None else contiguous_impl(cast_impl(weight, dtype))
    target = contiguous_impl(cast_impl(target, _dtypes.int64))
    return contiguous_impl(x), target, weight


@into_contiguous
def nll_loss_cpu(
    out: tuple[TensorImpl, TensorImpl], x: TensorImpl, target: TensorImpl,
    weight: TensorImpl | None, *, ignore_index: int, reduction: str,
) -> None:  # fmt: skip
    """Negative log likelihood; gives the loss and the sum of the weights that count."""
    x, target, weight = _class_operands(x, target, weight)
    samples, classes, inner = _extents(x)
    count = samples * inner
    blocks = -(-count // BLOCK)
    sums = empty_impl(meta_of((blocks, 2), _dtypes.float64))
    status = launch.parallel_for(
        class_losses.for_dtypes(T=x.meta.dtype, ACC=x.meta.dtype.compute), blocks, 1,
        out[0].address() if reduction == "none" else 0, sums.address(), x.address(),
        target.address(), 0 if weight is None else weight.address(), classes, inner, ignore_index,
        count,
    )  # fmt: skip
    if status == OUT_OF_RANGE:
        raise_outside(target, classes, ignore_index)
    finish_losses.for_dtypes(T=x.meta.dtype, ACC=x.meta.dtype.compute)(
        0 if reduction == "none" else out[0].address(), out[1].address(), sums.address(), blocks,
        -1.0 if reduction == "mean" else 1.0,
    )  # fmt: skip


def raise_outside(target: TensorImpl, classes: int, ignore_index: int) -> None:
    """Raise the error that names the first target outside the classes."""
    values = target.array()
    outside = values[((values < 0) | (values >= classes)) & (values != ignore_index)]
    raise IndexRangeError(
        "nll_loss",
        what=f"Target {int(outside.flat[0])} is out of bounds.",
        expected=f"classes 0 to {classes - 1}, or ignore_index {ignore_index}",
        got=int(outside.flat[0]),
        remedy="check the labels, or the number of outputs of the last layer",
    )


@into_contiguous
def nll_loss_backward_cpu(
    out: TensorImpl, g: TensorImpl, target: TensorImpl, weight: TensorImpl | None,
    total_weight: TensorImpl, *, shape: Any, ignore_index: int, reduction: str,
) -> None:  # fmt: skip
    """The gradient of the log-probabilities."""
    g, target, weight = _class_operands(g, target, weight)
    samples, classes, inner = _extents(out)
    scale = 1.0
    if reduction == "mean":
        total = float(total_weight.array())
        scale = 1.0 / total if total else math.nan
    launch.parallel_for(
        class_gradients.for_dtypes(T=out.meta.dtype, ACC=out.meta.dtype.compute), samples,
        max(1, GRAIN // max(1, classes * inner)), out.address(), g.address(), target.address(),
        0 if weight is None else weight.address(), classes, inner, ignore_index,
        int(reduction == "none"), scale,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Binary cross entropy


@template("void(" + "int64, " * 4 + "int64)")
def binary_losses(out, x, t, start, stop):  # type: ignore[no-untyped-def]
    """``-(t log x + (1 - t) log(1 - x))`` of each pair, logarithms not below -100."""
    o = ptr_T(out)
    p = ptr_T(x)
    q = ptr_T(t)
    least = ACC(-100)
    for i in range(start, stop):
        t_i = load_T(q, i)
        yes = log(load_T(p, i))
        no = log1p(-load_T(p, i))
        yes = least if yes < least else yes
        no = least if no < least else no
        store_T(o, i, (t_i - ACC(1)) * no - t_i * yes)


@template("void(" + "int64, " * 5 + "int64)")
def logit_losses(out, x, t, weight, start, stop):  # type: ignore[no-untyped-def]
    """``(1 - t) x + w (log(1 + exp(-|x|)) + max(-x, 0))`` with ``w = 1 + (pos_weight - 1) t``."""
    o = ptr_T(out)
    p = ptr_T(x)
    q = ptr_T(t)
    w = ptr_T(weight)
    one = ACC(1)
    zero = ACC(0)
    for i in range(start, stop):
        x_i = load_T(p, i)
        t_i = load_T(q, i)
        factor = one
        if weight != 0:
            factor = one + (load_T(w, i) - one) * t_i
        negative = -x_i if x_i < zero else zero
        store_T(o, i, (one - t_i) * x_i + factor * (log1p(exp(-abs(x_i))) + negative))


def _math(dtype: Any) -> dict[str, Any]:
    suffix = "f64" if dtype is _dtypes.float64 else "f32"
    names = {name: INTRINSICS[f"{name}_{suffix}"] for name in ("exp", "log", "log1p")}
    return {"T": dtype, "ACC": dtype.compute, **names}


@into_contiguous
def binary_cross_entropy_cpu(out: TensorImpl, x: TensorImpl, t: TensorImpl) -> None:
    """Binary cross entropy of probabilities, element by element."""
    x, t = contiguous_impl(x), contiguous_impl(t)
    launch.parallel_for(
        binary_losses.for_dtypes(**_math(out.meta.dtype)), x.meta.numel, GRAIN // 4, out.address(),
        x.address(), t.address(),
    )  # fmt: skip


@into_contiguous
def binary_cross_entropy_with_logits_cpu(
    out: TensorImpl, x: TensorImpl, t: TensorImpl, pos_weight: TensorImpl | None
) -> None:
    """Binary cross entropy of logits, element by element."""
    x, t = contiguous_impl(x), contiguous_impl(t)
    weight = None if pos_weight is None else contiguous_impl(pos_weight)
    launch.parallel_for(
        logit_losses.for_dtypes(**_math(out.meta.dtype)), x.meta.numel, GRAIN // 4, out.address(),
        x.address(), t.address(), 0 if weight is None else weight.address(),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, GPU


_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
# Blocks whose sums one thread then adds up.
_BLOCKS = 128
_GPU_LOSSES = {
    "squared_error": "SquaredError", "absolute_error": "AbsoluteError",
    "smooth_error": "SmoothError", "huber_error": "HuberError",
}  # fmt: skip


def _sum_blocks(count: int) -> int:
    return max(1, min(_BLOCKS, -(-count // THREADS)))


def pair_loss_cuda(loss: Any) -> Callable[..., None]:
    """Return the GPU kernel of a loss of pairs."""
    name = _GPU_LOSSES[loss.__name__]

    @into_contiguous_cuda
    def kernel(
        out: TensorImpl, x: TensorImpl, t: TensorImpl, *, reduction: str, parameter: float = 0.0
    ) -> None:
        dtype, count = out.meta.dtype, x.meta.numel
        x, t = (packed_cuda(cast_cuda(value, dtype)) for value in (x, t))
        pair = (x.address(), t.address(), count, float(parameter))
        if reduction == "none":
            if count:
                names, cover = (name, dtype.ctype), launch.cover(count)
                launch.raw("loss", "pair_losses", names, *cover, (out.address(), *pair))
            return
        blocks = _sum_blocks(count)
        partial = scratch(out, (blocks,), dtype.compute)
        launch.raw(
            "loss", "pair_partial", (name, dtype.ctype), (blocks,), (1, THREADS),
            (partial.address(), *pair), THREADS * 8,
        )  # fmt: skip
        divisor = float(count if reduction == "mean" else 1)
        launch.raw(
            "loss", "pair_finish", (dtype.ctype,), (1,), (1,),
            (out.address(), partial.address(), blocks, divisor),
        )  # fmt: skip

    return kernel


def _class_operands_cuda(
    x: TensorImpl, target: TensorImpl, weight: TensorImpl | None
) -> tuple[TensorImpl, TensorImpl, TensorImpl | None]:
    weight = None if weight is None else packed_cuda(cast_cuda(weight, x.meta.dtype))
    return packed_cuda(x), packed_cuda(cast_cuda(target, _dtypes.int64)), weight


@into_contiguous_cuda
def nll_loss_cuda(
    out: tuple[TensorImpl, TensorImpl], x: TensorImpl, target: TensorImpl,
    weight: TensorImpl | None, *, ignore_index: int, reduction: str,
) -> None:  # fmt: skip
    """Negative log likelihood, on the GPU; a bad target is reported in the fault cell."""
    x, target, weight = _class_operands_cuda(x, target, weight)
    samples, classes, inner = _extents(x)
    count, ctype = samples * inner, x.meta.dtype.ctype
    operands = (x.address(), target.address(), optional_address(weight), count, classes, inner,
                ignore_index, fault_cell(x).address())  # fmt: skip
    if reduction == "none" and count:
        rows = (out[0].address(), *operands)
        launch.raw("loss", "nll_loss_rows", (ctype,), *launch.cover(count), rows)
    blocks = _sum_blocks(count)
    partial = scratch(x, (blocks, 2), x.meta.dtype.compute)
    launch.raw(
        "loss", "nll_loss_partial", (ctype,), (blocks,), (1, THREADS),
        (partial.address(), *operands), THREADS * 16,
    )  # fmt: skip
    launch.raw(
        "loss", "nll_loss_finish", (ctype,), (1,), (1,),
        (out[0].address(), out[1].address(), partial.address(), blocks, _REDUCTIONS[reduction]),
    )  # fmt: skip


@into_contiguous_cuda
def nll_loss_backward_cuda(
    out: TensorImpl, g: TensorImpl, target: TensorImpl, weight: TensorImpl | None,
    total_weight: TensorImpl, *, shape: Any, ignore_index: int, reduction: str,
) -> None:  # fmt: skip
    """The gradient of the log-probabilities, on the GPU."""
    count = out.meta.numel
    if not count:
        return
    g, target, weight = _class_operands_cuda(g, target, weight)
    _, classes, inner = _extents(out)
    launch.raw(
        "loss", "nll_loss_backward", (out.meta.dtype.ctype,), *launch.cover(count),
        (out.address(), g.address(), target.address(), optional_address(weight),
         total_weight.address(), count, classes, inner, ignore_index, _REDUCTIONS[reduction]),
    )  # fmt: skip


@into_contiguous_cuda
def binary_cross_entropy_cuda(out: TensorImpl, x: TensorImpl, t: TensorImpl) -> None:
    """Binary cross entropy of probabilities, element by element, on the GPU."""
    count = out.meta.numel
    if count:
        x, t = packed_cuda(x), packed_cuda(t)
        args = (out.address(), x.address(), t.address(), count)
        names = (out.meta.dtype.ctype,)
        launch.raw("loss", "binary_losses", names, *launch.cover(count), args)


@into_contiguous_cuda
def binary_cross_entropy_with_logits_cuda(
    out: TensorImpl, x: TensorImpl, t: TensorImpl, pos_weight: TensorImpl | None
) -> None:
    """Binary cross entropy of logits, element by element, on the GPU."""
    count = out.meta.numel
    if count:
        x, t = packed_cuda(x), packed_cuda(t)
        weight = None if pos_weight is None else packed_cuda(pos_weight)
        args = (out.address(), x.address(), t.address(), optional_address(weight), count)
        names = (out.meta.dtype.ctype,)
        launch.raw("loss", "logit_losses", names, *launch.cover(count), args)
