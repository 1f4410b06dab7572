"""Compaction and embedding on the GPU: launches of select.cu and embedding.cu.

State
-----
None.

Invariants
----------
* What is found is in row-major order. The number of found elements decides the result's shape, so
  these functions return a tensor that they made, after waiting for the device once.
* The gradient of an embedding is summed row by row in order of position, without atomics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from refruntime import _dtypes
from refruntime._impl import TensorImpl, alias, meta_of
from refruntime._layout import broadcast_shapes, broadcast_strides, collapse
from refruntime.kernels import launch
from refruntime.kernels.copy import fill_cuda
from refruntime.kernels.gpu import (
    THREADS,
    bits_of,
    fault_cell,
    into_contiguous_cuda,
    packed_cuda,
    read_integer,
    scratch,
)
from refruntime.kernels.sort import sort_rows_cuda

# Positions that a block of select.cu owns.
_CHUNK = 2048
_SHARED = THREADS * 8


def _starts(x: TensorImpl, table: Any, count: int) -> tuple[TensorImpl, int, int]:
    """Return where each block's output starts, the number of blocks, and the total."""
    blocks = -(-count // _CHUNK)
    counts = scratch(x, (blocks + 1,), _dtypes.int64)
    names = (x.meta.dtype.ctype,)
    args = (counts.address(), x.address(), table, count)
    launch.raw("select", "count_true", names, (blocks,), (THREADS,), args, _SHARED)
    launch.raw("select", "offsets", (), (1,), (THREADS,), (counts.address(), blocks), _SHARED)
    return counts, blocks, read_integer(counts, blocks)


def _space(shape: Sequence[int], *strides: Sequence[int]) -> Any:
    return launch.table_argument(*collapse(shape, strides))


def nonzero_cuda(x: TensorImpl) -> TensorImpl:
    """Return the coordinates of elements that are not zero, one row each.

    A zero-dim operand counts as a vector of one element that has no coordinates.
    """
    shape, count = tuple(x.meta.shape), x.meta.numel
    if not count:
        return scratch(x, (0, len(shape)), _dtypes.int64)
    table = _space(shape, x.meta.strides)
    counts, blocks, total = _starts(x, table, count)
    out = scratch(x, (total, len(shape)), _dtypes.int64)
    if out.meta.numel:
        own = launch.table_argument(shape, [[0] * len(shape)])
        args = (out.address(), counts.address(), x.address(), table, count, own)
        names = (x.meta.dtype.ctype,)
        launch.raw("select", "nonzero", names, (blocks,), (THREADS,), args, _SHARED)
    return out


def _masked(x: TensorImpl, mask: TensorImpl) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the common shape of a mask and an operand, and their strides in it."""
    shape = tuple(broadcast_shapes(x.meta.shape, mask.meta.shape, op="mask"))
    both = [broadcast_strides(t.meta.shape, t.meta.strides, shape) for t in (mask, x)]
    return shape, [tuple(strides) for strides in both]


def masked_select_cuda(x: TensorImpl, mask: TensorImpl) -> TensorImpl:
    """Return the elements of `x` where `mask` (bool) holds, both broadcast, in one dimension."""
    shape, strides = _masked(x, mask)
    count = math.prod(shape)
    if not count:
        return scratch(x, (0,), x.meta.dtype)
    counts, blocks, total = _starts(mask, _space(shape, strides[0]), count)
    out = scratch(x, (total,), x.meta.dtype)
    if total:
        table = _space(shape, *strides)
        args = (out.address(), counts.address(), x.address(), mask.address(), table, count)
        names = (bits_of(x.meta.dtype),)
        launch.raw("select", "masked_select", names, (blocks,), (THREADS,), args, _SHARED)
    return out


def masked_scatter_cuda(out: TensorImpl, mask: TensorImpl, source: TensorImpl) -> int:
    """Write the elements of `source`, in order, where `mask` holds; returns how many it asks for.

    When there are fewer, the places that are left keep what they have.
    """
    shape, strides = _masked(out, mask)
    count = math.prod(shape)
    if not count:
        return 0
    source = packed_cuda(source)
    counts, blocks, total = _starts(mask, _space(shape, strides[0]), count)
    if total:
        launch.raw(
            "select", "masked_scatter", (bits_of(out.meta.dtype),), (blocks,), (THREADS,),
            (out.address(), counts.address(), source.address(), mask.address(),
             _space(shape, *strides), count, source.meta.numel),
            _SHARED,
        )  # fmt: skip
    return total


# ---------------------------------------------------------------------------------------------
# Embedding


@into_contiguous_cuda
def embedding_cuda(out: TensorImpl, weight: TensorImpl, indices: TensorImpl, **_: Any) -> None:
    """Write the rows of `weight` at `indices` (int64); the fault cell reports a bad index."""
    if not out.meta.numel:
        return
    rows, width = weight.meta.shape
    weight, indices = packed_cuda(weight), packed_cuda(indices)
    launch.raw(
        "embedding", "embedding_forward", (bits_of(weight.meta.dtype),),
        *launch.cover(out.meta.numel),
        (out.address(), weight.address(), indices.address(), indices.meta.numel, rows, width,
         fault_cell(out).address()),
    )  # fmt: skip


@into_contiguous_cuda
def embedding_backward_cuda(
    out: TensorImpl, g: TensorImpl, indices: TensorImpl, *, rows: int, padding_idx: int,
    by_freq: bool,
) -> None:  # fmt: skip
    """Write the gradient of the table: rows of `g` added where their index points."""
    fill_cuda(out, 0)
    count, width = indices.meta.numel, out.meta.shape[1]
    if not count or not width:
        return
    g, indices = packed_cuda(g), packed_cuda(indices)
    row = alias(
        indices, meta_of((1, count), indices.meta.dtype, indices.meta.device), indices.byte_offset
    )
    ordered, places = sort_rows_cuda(row, descending=False)
    launch.raw(
        "embedding", "embedding_backward", (out.meta.dtype.ctype,),
        (count, -(-width // THREADS)), (THREADS,),
        (out.address(), g.address(), ordered.address(), places.address(), count, rows, width,
         padding_idx, int(by_freq)),
    )  # fmt: skip

