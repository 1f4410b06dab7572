"""Scaled dot-product attention on the CPU, forward and backward, without the score matrix.

State
-----
None; `_table` caches what depends on shapes alone.

Invariants
----------
* Heads of all samples are one leading dimension: q ``(heads, queries, width)``, k and v ``(heads /
  group, keys, width)``.
* Scores exist for a block of keys and a strip of queries at a time, in scratch memory of each slot.
* What a query may not see at all gives zero. Results do not depend on the number of threads.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime.config import config
from refruntime.kernels import attention_loops as loops
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl
from refruntime.kernels.intrinsics import INTRINSICS
from refruntime.kernels.reduce import into_contiguous
from refruntime.kernels.tiles import DotTile, OuterTile, TileShape, tile_shape

Array = np.ndarray[Any, Any]

# Keys that are scored together: a block times a strip stays in the second-level cache.
FORWARD_KEYS = 1024
BACKWARD_KEYS = 256
# Tiles of queries in a strip of the backward: long enough for dot products along them.
STRIP_TILES = 4


@cache
def _bindings(dtype: DType) -> dict[str, Any]:
    name = dtype.compute.name
    suffix = "f64" if dtype is _dtypes.float64 else "f32"
    return {
        "T": dtype, "ACC": dtype.compute, "WIDTH": tile_shape(dtype.compute.itemsize).columns,
        "outer": OuterTile(name), "dot": DotTile(name), "exp": INTRINSICS[f"exp_{suffix}"],
        "log": INTRINSICS[f"log_{suffix}"],
    }  # fmt: skip


def _rounded(value: int, step: int) -> int:
    return -(-value // step) * step


@lru_cache(maxsize=1024)
def _table(
    heads: int, shared: int, queries: int, keys: int, width_e: int, width_v: int, itemsize: int,
    threads: int, backward: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the table of a call, with neither mask nor causality, and the offsets of rows."""
    shape = tile_shape(itemsize)
    table = np.zeros(loops.SIZE, np.int64)
    block = min(BACKWARD_KEYS if backward else FORWARD_KEYS, _rounded(keys, shape.rows))
    parts = 1
    if not backward:
        tiles = -(-queries // shape.columns) * (heads // shared)
        parts = max(1, min(tiles, -(-4 * threads // shared)))
    areas = _backward_areas if backward else _forward_areas
    sizes = areas(shape, keys, width_e, width_v, block)
    starts = np.cumsum([0, *(_rounded(size * itemsize, 64) for size in sizes)])
    pitch = shape.columns * (STRIP_TILES if backward else 1)
    count = max(width_e, width_v, block) + 2 * shape.rows + shape.vectors
    offsets = np.arange(count, dtype=np.int64) * pitch * itemsize
    table[loops.SHARED], table[loops.GROUP] = shared, heads // shared
    table[loops.QUERIES], table[loops.KEYS] = queries, keys
    table[loops.WIDTH_E], table[loops.WIDTH_V] = width_e, width_v
    table[loops.ROWS], table[loops.BLOCK], table[loops.PARTS] = shape.rows, block, parts
    table[loops.SLOT] = starts[-1]
    table[loops.SLOTS] = max(1, min(threads, shared * parts))
    table[loops.OFFSETS] = offsets.ctypes.data
    table[loops.AREAS : loops.AREAS + len(sizes)] = starts[:-1]
    return table, offsets


def _forward_areas(
    shape: TileShape, keys: int, width_e: int, width_v: int, block: int
) -> tuple[int, ...]:
    """Queries turned, scores, sums, partial sums, statistics, keys by row, values by column."""
    columns, rows = shape.columns, shape.rows
    high = _rounded(width_v, rows)
    return (
        width_e * columns, _rounded(block, rows) * columns, high * columns, high * columns,
        4 * columns, _rounded(keys, rows) * width_e, keys * high,
    )  # fmt: skip


def _backward_areas(
    shape: TileShape, keys: int, width_e: int, width_v: int, block: int
) -> tuple[int, ...]:
    """The areas of the backward, in the order of `attention_loops.back_block`."""
    strip, rows, step = shape.columns * STRIP_TILES, shape.rows, shape.vectors
    pitch_e, pitch_v = _rounded(width_e, step), _rounded(width_v, step)
    padded, high = _rounded(keys, rows), _rounded(width_e, rows)
    return (
        pitch_e * strip, pitch_v * strip, _rounded(block, rows) * strip,
        _rounded(block, rows) * strip, high * strip, high * strip, 2 * strip, padded * width_e,
        padded * width_v, keys * high, padded * pitch_e, padded * pitch_v,
    )  # fmt: skip


def _call_table(
    q: TensorImpl, k: TensorImpl, v: TensorImpl, mask: TensorImpl | None, causal: bool,
    heads: int, backward: bool,
) -> tuple[Array, Array]:  # fmt: skip
    (count, queries, width_e), (shared, keys, width_v) = q.meta.shape, v.meta.shape
    itemsize = q.meta.dtype.compute.itemsize
    shapes = (count, shared, queries, keys, width_e, width_v)
    table, offsets = _table(*shapes, itemsize, config.num_threads, backward)
    table = table.copy()
    table[loops.CAUSAL], table[loops.HEADS] = causal, heads
    if mask is not None:
        meta = mask.meta
        table[loops.MASK_KIND] = 1 if meta.dtype is _dtypes.bool_ else 2
        table[loops.MASK] = mask.address()
        steps = [0 if n == 1 else s for n, s in zip(meta.shape, meta.strides, strict=True)]
        table[loops.MASK_STEP : loops.MASK_STEP + 4] = steps
    return table, offsets


def _scratch(table: Array) -> TensorImpl:
    nbytes = int(table[loops.SLOT] * table[loops.SLOTS])
    return empty_impl(meta_of((nbytes,), _dtypes.uint8))


@into_contiguous
def attention_cpu(
    out: tuple[TensorImpl, TensorImpl], q: TensorImpl, k: TensorImpl, v: TensorImpl,
    mask: TensorImpl | None = None, *, scale: float, causal: bool, heads: int,
) -> None:  # fmt: skip
    """Write attention and each query's log-sum-exp (in the computing type).

    Parameters
    ----------
    mask : tensor, optional
        bool (pairs that count) or added, of shape ``(samples or 1, heads or 1, queries or 1, keys
        or 1)`` and any strides.
    heads : int
        Query heads of a sample.
    """
    if not out[0].meta.numel:
        return
    q, k, v = contiguous_impl(q), contiguous_impl(k), contiguous_impl(v)
    table, offsets = _call_table(q, k, v, mask, causal, heads, False)
    scratch = _scratch(table)
    launch.parallel_for(
        loops.attention_forward.for_dtypes(**_bindings(q.meta.dtype)), int(table[loops.SLOTS]), 1,
        out[0].address(), out[1].address(), q.address(), k.address(), v.address(),
        table.ctypes.data, scratch.address(), scale,
    )  # fmt: skip
    assert offsets is not None


@into_contiguous
def attention_backward_cpu(
    out: tuple[TensorImpl, TensorImpl, TensorImpl], g: TensorImpl, q: TensorImpl, k: TensorImpl,
    v: TensorImpl, result: TensorImpl, lse: TensorImpl, mask: TensorImpl | None = None, *,
    scale: float, causal: bool, heads: int,
) -> None:  # fmt: skip
    """Write the gradients of q, k and v from that of the result."""
    if not (q.meta.numel and v.meta.numel):
        for gradient in out:
            gradient.array()[...] = 0
        return
    g, q, k, v = (contiguous_impl(value) for value in (g, q, k, v))
    result, lse = contiguous_impl(result), contiguous_impl(lse)
    table, offsets = _call_table(q, k, v, mask, causal, heads, True)
    shape = tile_shape(q.meta.dtype.compute.itemsize)
    scratch = _scratch(table)
    launch.parallel_for(
        loops.attention_backward.for_dtypes(**_bindings(q.meta.dtype)), int(table[loops.SLOTS]), 1,
        *[value.address() for value in out], g.address(), q.address(), k.address(), v.address(),
        result.address(), lse.address(), table.ctypes.data, scratch.address(),
        shape.columns * STRIP_TILES, shape.vectors, scale,
    )  # fmt: skip
    assert offsets is not None
