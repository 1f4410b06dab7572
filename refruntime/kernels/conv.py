"""Convolution: forward, transposed, and the gradient of the weight, in one to three dimensions.

State
-----
None here; `conv_plan` caches plans, `conv_loops` holds the compiled loops.

Invariants
----------
* All three are products over packed memory (see `conv_loops`): the gradient of the source is a
  transposed convolution, and the other way round.
* Half types are packed as float32; the result is rounded once.
* Scratch memory comes from the caching allocator like any tensor's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from math import prod
from typing import Any

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta, empty_impl, meta_of
from refruntime.config import config
from refruntime.kernels import launch
from refruntime.kernels.conv_loops import (
    correlate,
    pack_batches,
    pack_panels,
    store_sums,
    weight_dots,
)
from refruntime.kernels.conv_plan import (
    DOT_POSITIONS,
    GradientPlan,
    Shape,
    plan_correlation,
    plan_gradient,
)
from refruntime.kernels.conv_table import BATCH, BUFFER
from refruntime.kernels.copy import contiguous_impl, copy_cpu
from refruntime.kernels.gpu import (
    THREADS,
    into_contiguous_cuda,
    optional_address,
    packed_cuda,
    scratch,
    split,
    struct,
)
from refruntime.kernels.reduce import cast_impl, into_contiguous
from refruntime.kernels.tiles import DotTile, OuterTile, PadRow, ShiftRow

# Floating-point operations below which sharing work between threads costs more than it saves.
WORTH_SHARING = 2_000_000
GRAIN = 32768
# Packed memory that a weight gradient may hold at a time.
PACKED_BYTES = 64 << 20


@cache
def _bindings(element: DType, result: DType) -> dict[str, Any]:
    compute = element.compute
    name = compute.name
    return {
        "T": element, "D": result, "ACC": compute, "PLAIN": int(element is compute is result),
        "outer": OuterTile(name), "outer_1": OuterTile(name, 1), "dot": DotTile(name),
        "dot_1": DotTile(name, 1), "pad_row": PadRow(name), "shift_row": ShiftRow(name),
    }  # fmt: skip


def _scratch(nbytes: int) -> TensorImpl:
    return empty_impl(meta_of((nbytes,), _dtypes.uint8))


def _work_grain(flops: int, units: int) -> int:
    """Return how many units one thread should have at least: about 20 microseconds of work."""
    return max(1, -(-units * WORTH_SHARING // max(1, flops)))


def correlate_cpu(
    out: TensorImpl, x: TensorImpl, weight: TensorImpl, bias: TensorImpl | None, shape: Shape
) -> None:
    """Convolve packed `x` with `weight` into `out`, all contiguous."""
    bindings = _bindings(x.meta.dtype, out.meta.dtype)
    compute = x.meta.dtype.compute
    plan = plan_correlation(shape, compute.itemsize, bool(bindings["PLAIN"]), config.num_threads)
    # One allocation: the panels, then the slots' scratch memory on a cache line of its own.
    start = -(-plan.panel_bytes // 64) * 64
    memory = _scratch(start + plan.scratch_bytes)
    panels = memory.address()
    flops = 2 * out.meta.numel * shape.channels * prod(shape.kernel)
    launch.parallel_for(
        pack_panels.for_dtypes(**bindings), shape.groups, max(1, GRAIN // plan.group_stride),
        panels, weight.address(), plan.address, plan.group_stride, plan.row_stride,
    )  # fmt: skip
    launch.parallel_for(
        correlate.for_dtypes(**bindings), plan.slots, _work_grain(flops, plan.slots),
        out.address(), x.address(), 0 if bias is None else bias.address(), panels, plan.address,
        panels + start,
    )  # fmt: skip


def correlate_weight_cpu(out: TensorImpl, g: TensorImpl, x: TensorImpl, shape: Shape) -> None:
    """The gradient of the weight of a forward convolution, all contiguous."""
    bindings = _bindings(x.meta.dtype, out.meta.dtype)
    compute = x.meta.dtype.compute
    sums: TensorImpl | None = None
    step = _images_at_once(shape, compute.itemsize)
    for first in range(0, shape.images, step):
        part = replace(shape, images=min(step, shape.images - first))
        plan = plan_gradient(part, compute.itemsize, config.num_threads)
        if sums is None:
            sums = empty_impl(meta_of((shape.groups, plan.padded_rows, plan.pitch), compute))
            sums.array()[...] = 0
        _add_products(sums, g, x, part, plan, first, bindings)
    assert sums is not None
    store_sums.for_dtypes(**bindings)(
        out.address(), sums.address(), plan.pitch, shape.rows, plan.padded_rows, plan.count, 0,
        shape.groups * shape.rows,
    )  # fmt: skip


def _images_at_once(shape: Shape, itemsize: int) -> int:
    """Return how many images are packed at a time, within `PACKED_BYTES`."""
    of_source = shape.channels * prod(shape.source)
    image = shape.groups * (of_source + shape.rows * prod(shape.result)) * itemsize
    return max(1, min(shape.images, PACKED_BYTES // max(1, image)))


def _add_products(
    sums: TensorImpl, g: TensorImpl, x: TensorImpl, shape: Shape, plan: GradientPlan, first: int,
    bindings: dict[str, Any],
) -> None:  # fmt: skip
    item, size = x.meta.dtype.compute.itemsize, x.meta.dtype.itemsize
    left, right = plan.left.ctypes.data, plan.right.ctypes.data
    units = -(-shape.images // int(plan.left[BATCH])) * shape.groups
    packed_g = _scratch(units * int(plan.left[BUFFER]) * item)
    packed_x = _scratch(units * int(plan.right[BUFFER]) * item)
    pack = pack_batches.for_dtypes(**bindings)
    result_image = shape.groups * shape.rows * prod(shape.result) * size
    source_image = shape.groups * shape.channels * prod(shape.source) * size
    for target, source, table, image in (
        (packed_g, g, left, result_image), (packed_x, x, right, source_image),
    ):  # fmt: skip
        launch.parallel_for(
            pack, units, max(1, GRAIN * units * size // max(1, image * shape.images)),
            target.address(), source.address() + first * image, table,
        )  # fmt: skip
    flops = 2 * shape.images * shape.groups * shape.rows * prod(shape.result) * plan.count
    launch.parallel_for(
        weight_dots.for_dtypes(**bindings), plan.units, _work_grain(flops, plan.units),
        sums.address(), packed_g.address(), packed_x.address(), left, right,
        plan.rows.ctypes.data, plan.taps.ctypes.data, plan.blocks, DOT_POSITIONS,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _shape_of(
    small: TensorMeta, large: TensorMeta, kernel: tuple[int, ...], stride: tuple[int, ...],
    padding: tuple[int, ...], dilation: tuple[int, ...], groups: int, transposed: bool,
) -> Shape:  # fmt: skip
    """Describe the convolution from `large` to `small`, or back if `transposed`, in three dims."""
    images = large.shape[0]
    wide, narrow = large.shape[1] // groups, small.shape[1] // groups
    spread = _in_three(tuple(large.shape[2:]), 1), _in_three(tuple(small.shape[2:]), 1)
    rest = (
        _in_three(kernel, 1), _in_three(stride, 1), _in_three(padding, 0), _in_three(dilation, 1),
    )  # fmt: skip
    if transposed:
        return Shape(images, groups, narrow, wide, spread[1], spread[0], *rest, True)
    return Shape(images, groups, wide, narrow, spread[0], spread[1], *rest)


def _in_three(values: tuple[int, ...], fill: int) -> Any:
    return (fill,) * (3 - len(values)) + values


def _through_float64(
    kernel: Any, out: TensorImpl, *inputs: TensorImpl | None, **params: Any
) -> None:
    """Run a kernel on integers: exact in float64 up to 2**53."""
    wide = empty_impl(meta_of(out.meta.shape, _dtypes.float64))
    operands = [None if value is None else cast_impl(value, _dtypes.float64) for value in inputs]
    kernel(wide, *operands, **params)
    copy_cpu(out, wide)


@into_contiguous
def convolution_cpu(
    out: TensorImpl, x: TensorImpl, weight: TensorImpl, bias: TensorImpl | None, *, stride: Any,
    padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> None:  # fmt: skip
    """Convolution or transposed convolution in one to three dimensions."""
    if not out.meta.numel:
        return
    if not out.meta.dtype.is_floating_point:
        _through_float64(
            convolution_cpu, out, x, weight, bias, stride=stride, padding=padding,
            dilation=dilation, transposed=transposed, output_padding=output_padding, groups=groups,
        )  # fmt: skip
        return
    x, weight = contiguous_impl(x), contiguous_impl(weight)
    bias = None if bias is None else contiguous_impl(bias)
    small, large = (x.meta, out.meta) if transposed else (out.meta, x.meta)
    kernel = tuple(weight.meta.shape[2:])
    shape = _shape_of(small, large, kernel, stride, padding, dilation, groups, transposed)
    correlate_cpu(out, x, weight, bias, shape)


@into_contiguous
def convolution_weight_cpu(
    out: TensorImpl, g: TensorImpl, x: TensorImpl, *, stride: Any, padding: Any, dilation: Any,
    groups: int, kernel: Any,
) -> None:  # fmt: skip
    """The gradient of a convolution's weight from the small side `g` and the large side `x`."""
    if not (g.meta.numel and x.meta.numel):
        out.array()[...] = 0
        return
    g, x = contiguous_impl(g), contiguous_impl(x)
    shape = _shape_of(g.meta, x.meta, kernel, stride, padding, dilation, groups, False)
    correlate_weight_cpu(out, g, x, shape)


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, GPU


# Side of the square of the result that a block of cuda/conv.cu computes.
_TILE = 64


def _conv_shape(
    small: TensorMeta, large: TensorMeta, kernel: Any, stride: Any, padding: Any, dilation: Any,
    groups: int,
) -> Any:  # fmt: skip
    """Return the struct ``ConvShape`` of cuda/conv.cu."""
    return struct(
        large.shape[0], large.shape[1], small.shape[1], groups,
        *_in_three(tuple(large.shape[2:]), 1), *_in_three(tuple(kernel), 1),
        *_in_three(tuple(stride), 1), *_in_three(tuple(padding), 0),
        *_in_three(tuple(dilation), 1), *_in_three(tuple(small.shape[2:]), 1),
    )  # fmt: skip


@into_contiguous_cuda
def convolution_cuda(
    out: TensorImpl, x: TensorImpl, weight: TensorImpl, bias: TensorImpl | None, *, stride: Any,
    padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> None:  # fmt: skip
    """Convolution or transposed convolution in one to three dimensions, on the GPU."""
    if not out.meta.numel:
        return
    x, weight = packed_cuda(x), packed_cuda(weight)
    bias = None if bias is None else packed_cuda(bias)
    small, large = (x.meta, out.meta) if transposed else (out.meta, x.meta)
    shape = _conv_shape(small, large, weight.meta.shape[2:], stride, padding, dilation, groups)
    columns, rows = out.meta.numel // out.meta.shape[1], out.meta.shape[1] // groups
    launch.raw(
        "conv", "conv", ("Input" if transposed else "Forward", x.meta.dtype.ctype),
        (-(-columns // _TILE), -(-rows // _TILE), groups), (THREADS,),
        (out.address(), weight.address(), x.address(), optional_address(bias), shape, 1),
    )  # fmt: skip


@into_contiguous_cuda
def convolution_weight_cuda(
    out: TensorImpl, g: TensorImpl, x: TensorImpl, *, stride: Any, padding: Any, dilation: Any,
    groups: int, kernel: Any,
) -> None:  # fmt: skip
    """The gradient of a convolution's weight, on the GPU: split by shape, summed in order."""
    count = out.meta.numel
    if not count:
        return
    g, x = packed_cuda(g), packed_cuda(x)
    columns, rows = -(-count // out.meta.shape[0] // _TILE), -(-g.meta.shape[1] // groups // _TILE)
    depth = g.meta.numel // g.meta.shape[1]
    splits, _ = split(depth, columns * rows * groups, least=512)
    partial = scratch(x, (splits, count), x.meta.dtype.compute)
    shape = _conv_shape(g.meta, x.meta, kernel, stride, padding, dilation, groups)
    ctype = x.meta.dtype.ctype
    launch.raw(
        "conv", "conv", ("Weight", ctype), (columns, rows, groups * splits), (THREADS,),
        (partial.address(), g.address(), x.address(), 0, shape, splits),
    )  # fmt: skip
    launch.raw(
        "conv", "conv_weight_finish", (ctype,), (-(-count // THREADS),), (THREADS,),
        (out.address(), partial.address(), splits, count),
    )  # fmt: skip
