"""The GPU half of `kernels.conv`: launches of conv.cu.

State
-----
None.

Invariants
----------
* Signatures are those of the CPU kernels: contiguous tensors and a `Shape`, which says whether the
  result is the smaller side (a forward) or the larger one (a gradient of the input, or a transposed
  convolution).
* The weight's gradient is cut into splits by shape alone and summed in order of the split.
"""

from __future__ import annotations

from math import prod
from typing import Any

from refruntime._impl import TensorImpl
from refruntime.kernels import launch
from refruntime.kernels.conv_plan import Shape
from refruntime.kernels.gpu import THREADS, optional_address, packed_cuda, scratch, split, struct

# Side of the square of the result that a block computes.
_TILE = 64


def _conv_shape(s: Shape) -> Any:
    """Return the struct ``ConvShape`` of cuda/conv.cu, whose `in` is always the larger side."""
    near, far = (s.channels, s.rows), (s.source, s.result)
    (inputs, outputs), (large, small) = (near[::-1], far[::-1]) if s.transposed else (near, far)
    return struct(
        s.images, s.groups * inputs, s.groups * outputs, s.groups, *large, *s.kernel, *s.stride,
        *s.padding, *s.dilation, *small,
    )  # fmt: skip


def _grid(columns: int, rows: int, depth: int) -> tuple[int, int, int]:
    return -(-columns // _TILE), -(-rows // _TILE), depth


def correlate_cuda(
    out: TensorImpl, x: TensorImpl, weight: TensorImpl, bias: TensorImpl | None, shape: Shape
) -> None:
    """Convolve `x` with `weight` into `out` (contiguous)."""
    if not out.meta.numel:
        return
    x, weight = packed_cuda(x), packed_cuda(weight)
    bias = None if bias is None else packed_cuda(bias)
    grid = _grid(shape.images * prod(shape.result), shape.rows, shape.groups)
    launch.raw(
        "conv", "conv", ("Input" if shape.transposed else "Forward", x.meta.dtype.ctype), grid,
        (THREADS,),
        (out.address(), weight.address(), x.address(), optional_address(bias), _conv_shape(shape),
         1),
    )  # fmt: skip


def correlate_weight_cuda(out: TensorImpl, g: TensorImpl, x: TensorImpl, shape: Shape) -> None:
    """Write the gradient of the weight of a forward convolution into `out` (contiguous)."""
    count = out.meta.numel
    if not count:
        return
    g, x = packed_cuda(g), packed_cuda(x)
    columns, rows, _ = _grid(shape.channels * prod(shape.kernel), shape.rows, 0)
    depth = shape.images * prod(shape.result)
    splits, _ = split(depth, columns * rows * shape.groups, least=512)
    partial = scratch(x, (splits, count), x.meta.dtype.compute)
    ctype = x.meta.dtype.ctype
    launch.raw(
        "conv", "conv", ("Weight", ctype), (columns, rows, shape.groups * splits), (THREADS,),
        (partial.address(), g.address(), x.address(), 0, _conv_shape(shape), splits),
    )  # fmt: skip
    launch.raw(
        "conv", "conv_weight_finish", (ctype,), (-(-count // THREADS),), (THREADS,),
        (out.address(), partial.address(), splits, count),
    )  # fmt: skip
