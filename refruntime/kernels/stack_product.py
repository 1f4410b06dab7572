"""Products of small matrices, and of stacks of them: register tiles over packed operands.

State: `_plans` keeps what a product of given metas needs. Invariants: a unit is one product of the
stack; the right operand is read in place when its rows are contiguous and wide enough, and packed
otherwise; results are contiguous.

BLAS has to be called once a matrix and shares each small product between threads; here each thread
has products of its own, which is two to three times faster (512 x 64 by 64 x 512, two threads). A
single small product spares the arrays that NumPy needs to be called with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._impl import TensorImpl, TensorMeta, empty_impl, meta_of
from refruntime._native import NativeKernel, ptr_i64
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
# A single product up to this size is finished before NumPy would have called BLAS; packing its
# right operand must not be the larger part of the work.
LARGEST_SINGLE = 1 << 19
LITTLE = 8192
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


@dataclass(slots=True)
class Plan:
    """The table of a product of these metas, what it points to, and how it is launched."""

    kernel: NativeKernel
    table: Array
    address: int
    scratch: TensorMeta
    slots: int
    grain: int
    owned: tuple[Array, ...]

    def run(self, out: TensorImpl, a: TensorImpl, b: TensorImpl) -> None:
        """Multiply `a` and `b` (of any strides) into `out` (contiguous)."""
        scratch = empty_impl(self.scratch)
        launch.parallel_for(
            self.kernel, self.slots, self.grain, out.address(), a.address(), b.address(),
            self.address, scratch.address(),
        )  # fmt: skip


_plans: dict[tuple[Any, ...], Plan | None] = {}
_MAX_PLANS = 4096


def plan_of(out: TensorMeta, a: TensorMeta, b: TensorMeta, turned: bool = False) -> Plan | None:
    """Return the plan of a product, or None if BLAS serves it better.

    Parameters
    ----------
    out, a, b : TensorMeta
        ``[..., m, n]``, ``[..., m, k]`` and ``[..., k, n]``; or, if `turned`, contiguous rows of
        width `n` and `k`, and a matrix ``[n, k]``.
    """
    key = (out, a, b, turned, config.num_threads)
    if key not in _plans:
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        _plans[key] = _make_plan(out, a, b, turned)
    return _plans[key]


def _make_plan(out: TensorMeta, a: TensorMeta, b: TensorMeta, turned: bool) -> Plan | None:
    if out.dtype not in (_dtypes.float32, _dtypes.float64) or not (out.contiguous and out.numel):
        return None
    n, k = out.shape[-1], a.shape[-1]
    b_row, b_column = b.strides[-2:]
    if turned:
        if not a.contiguous or k == 0:
            return None
        return _assemble(out, out.numel // n, k, n, (k, 1), (b_column, b_row), ((0,), (0,)))
    if k == 0 or out.ndim < 2:
        return None
    batch = tuple(out.shape[:-2])
    starts = _starts(a, batch), _starts(b, batch)
    if len(starts[0]) > 1 and b.ndim == 2:
        return None
    return _assemble(out, out.shape[-2], k, n, a.strides[-2:], (b_row, b_column), starts)


def _pays(m: int, k: int, n: int, count: int, in_place: bool, item: int) -> bool:
    """Whether the product is better off here than in BLAS."""
    shape = tile_shape(item)
    wide = max(n, shape.columns)
    if count > 1:
        return k * wide * item <= LARGEST_RIGHT
    packs_little = in_place or k * wide <= LITTLE or m >= 4 * shape.rows
    return m * k * wide <= LARGEST_SINGLE and packs_little


def _assemble(
    out: TensorMeta, m: int, k: int, n: int, a_steps: tuple[int, ...], b_steps: tuple[int, ...],
    starts: tuple[Any, Any],
) -> Plan | None:  # fmt: skip
    item = out.dtype.itemsize
    shape = tile_shape(item)
    count = len(starts[0])
    in_place = b_steps[1] == 1 and n >= shape.columns
    if not _pays(m, k, n, count, in_place, item):
        return None
    pitch = -(-n // shape.columns) * shape.columns
    offsets = np.arange(k, dtype=np.int64) * ((b_steps[0] if in_place else pitch) * item)
    left_bytes = -(-shape.rows * k * item // 64) * 64
    right_bytes = 0 if in_place else k * pitch * item
    slot = left_bytes + right_bytes + shape.rows * shape.columns * item
    slots = min(count, config.num_threads)
    lists = [np.ascontiguousarray(values, np.int64) for values in starts]
    table = np.array(
        [m, k, n, *a_steps, *b_steps, in_place, pitch, offsets.ctypes.data,
         lists[0].ctypes.data, lists[1].ctypes.data, slot, slots, count, shape.rows, left_bytes,
         left_bytes + right_bytes],
        np.int64,
    )  # fmt: skip
    kernel = stack_products.for_dtypes(
        T=out.dtype, outer=outer_tile(out.dtype.name), WIDTH=shape.columns
    )
    grain = 1 if 2 * m * n * k * count > WORTH_SHARING else slots
    scratch = meta_of((slot * slots,), _dtypes.uint8)
    return Plan(kernel, table, table.ctypes.data, scratch, slots, grain, (offsets, *lists))


def _starts(meta: TensorMeta, batch: tuple[int, ...]) -> Array:
    """Return where each product's matrix starts, in elements; the batch broadcasts."""
    starts = np.zeros(batch, np.int64)
    lead = zip(meta.shape[:-2], meta.strides[:-2], strict=True)
    for dim, (size, stride) in enumerate(lead, len(batch) - meta.ndim + 2):
        if size > 1:
            shape = [1] * len(batch)
            shape[dim] = size
            starts += (np.arange(size) * stride).reshape(shape)
    return np.ascontiguousarray(starts.ravel())
