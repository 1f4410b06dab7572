"""Products of many small matrices: register tiles over packed operands.

State: none. Invariants: a unit is one product of the stack; the right operand is read in place when
its rows are contiguous and wide enough, and packed otherwise; results are contiguous.

BLAS has to be called once a matrix and shares each small product between threads; here each thread
has products of its own, which is two to three times faster (512 x 64 by 64 x 512, two threads).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime._native import ptr_i64
from refruntime.config import config
from refruntime.kernels import launch
from refruntime.kernels.tiles import outer_tile, tile_shape
from refruntime.kernels.variants import Placeholder, T, load_T, ptr_T, size_T, store_T, template

Array = np.ndarray[Any, Any]

# Fields of the table.
M, K, N = 0, 1, 2
A_ROW, A_COLUMN, B_ROW, B_COLUMN = 3, 4, 5, 6
IN_PLACE = 7
PITCH = 8  # of packed rows of the right operand
OFFSETS = 9  # address of byte offsets of its rows
A_STARTS, B_STARTS = 10, 11  # addresses of each product's operands, in elements
SLOT, SLOTS, COUNT = 12, 13, 14
ROWS = 15
AREA_B, AREA_TILE = 16, 17  # places in a slot, in bytes
SIZE = 18

# A right operand larger than this would not stay in the second-level cache beside the rest.
LARGEST_RIGHT = 512 << 10
WORTH_SHARING = 1_000_000

outer: Any = Placeholder("outer")
WIDTH: Any = Placeholder("WIDTH")


@template("void(" + "int64, " * 6 + "int64)")
def stack_products(out, a, b, table, scratch, start, stop):  # type: ignore[no-untyped-def]
    """Multiply matrix by matrix; slot `s` takes every ``SLOTS``-th product."""
    g = ptr_i64(table)
    m, k, n, rows = g[M], g[K], g[N], g[ROWS]
    a_starts, b_starts = ptr_i64(g[A_STARTS]), ptr_i64(g[B_STARTS])
    p, q, o = ptr_T(a), ptr_T(b), ptr_T(out)
    for slot in range(start, stop):
        left = scratch + slot * g[SLOT]
        tile = left + g[AREA_TILE]
        packed, columns, c = ptr_T(left), ptr_T(left + g[AREA_B]), ptr_T(tile)
        for index in range(slot, g[COUNT], g[SLOTS]):
            right = left + g[AREA_B]
            if g[IN_PLACE] != 0:
                right = b + b_starts[index] * size_T
            else:
                for i in range(k):
                    at = b_starts[index] + i * g[B_ROW]
                    for j in range(n):
                        columns[i * g[PITCH] + j] = load_T(q, at + j * g[B_COLUMN])
                    for j in range(n, g[PITCH]):
                        columns[i * g[PITCH] + j] = T(0)
            for row in range(0, m, rows):
                here = min(rows, m - row)
                at = a_starts[index] + row * g[A_ROW]
                for i in range(k):
                    for r in range(here):
                        packed[i * rows + r] = load_T(p, at + r * g[A_ROW] + i * g[A_COLUMN])
                    for r in range(here, rows):
                        packed[i * rows + r] = T(0)
                first = (index * m + row) * n
                for low in range(0, n, WIDTH):
                    column = max(0, min(low, n - WIDTH))
                    source = right + column * size_T
                    if here == rows and n >= WIDTH:
                        target = out + (first + column) * size_T
                        outer((left, source, g[OFFSETS], k, target, n * size_T))
                    else:
                        outer((left, source, g[OFFSETS], k, tile, WIDTH * size_T))
                        for r in range(here):
                            for j in range(min(WIDTH, n)):
                                store_T(o, first + r * n + column + j, c[r * WIDTH + j])


def fits(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> bool:
    """Whether products of this size and kind are better off here than in BLAS."""
    if out.meta.dtype not in (_dtypes.float32, _dtypes.float64) or out.meta.ndim < 3:
        return False
    m, n = out.meta.shape[-2:]
    k = a.meta.shape[-1]
    count = out.meta.numel // max(1, m * n)
    small = k * n * out.meta.dtype.itemsize <= LARGEST_RIGHT
    return count > 1 and b.meta.ndim > 2 and small and m * n * k > 0


def _starts(x: TensorImpl, batch: tuple[int, ...]) -> Array:
    """Return where each product's matrix starts, in elements; the batch broadcasts."""
    starts = np.zeros(batch, np.int64)
    lead = zip(x.meta.shape[:-2], x.meta.strides[:-2], strict=True)
    for dim, (size, stride) in enumerate(lead, len(batch) - x.meta.ndim + 2):
        if size > 1:
            shape = [1] * len(batch)
            shape[dim] = size
            starts += (np.arange(size) * stride).reshape(shape)
    return np.ascontiguousarray(starts.ravel())


def stack_product_cpu(out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
    """Multiply stacks of matrices (of any strides) into `out` (contiguous)."""
    m, n = out.meta.shape[-2:]
    k, dtype = a.meta.shape[-1], out.meta.dtype
    shape, item = tile_shape(dtype.itemsize), dtype.itemsize
    batch = tuple(out.meta.shape[:-2])
    starts = [_starts(x, batch) for x in (a, b)]
    count = len(starts[0])
    b_row, b_column = b.meta.strides[-2:]
    in_place = b_column == 1 and n >= shape.columns
    pitch = -(-n // shape.columns) * shape.columns
    offsets = np.arange(k, dtype=np.int64) * ((b_row if in_place else pitch) * item)
    left_bytes = -(-shape.rows * k * item // 64) * 64
    right_bytes = 0 if in_place else k * pitch * item
    slot = left_bytes + right_bytes + shape.rows * shape.columns * item
    slots = min(count, config.num_threads)
    table = np.array(
        [m, k, n, *a.meta.strides[-2:], b_row, b_column, in_place, pitch, offsets.ctypes.data,
         starts[0].ctypes.data, starts[1].ctypes.data, slot, slots, count, shape.rows, left_bytes,
         left_bytes + right_bytes],
        np.int64,
    )  # fmt: skip
    scratch = empty_impl(meta_of((slot * slots,), _dtypes.uint8))
    kernel = stack_products.for_dtypes(
        T=dtype, outer=outer_tile(dtype.name), WIDTH=shape.columns
    )
    launch.parallel_for(
        kernel, slots, 1 if 2 * m * n * k * count > WORTH_SHARING else slots, out.address(),
        a.address(), b.address(), table.ctypes.data, scratch.address(),
    )  # fmt: skip
