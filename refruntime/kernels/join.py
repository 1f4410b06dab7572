"""Joining along a dimension: each part is one strided copy into its place.

Invariants
----------
* A part is converted while it is copied, when its dtype is not the result's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from refruntime._impl import TensorImpl, TensorMeta, alias, meta_of
from refruntime.kernels import launch
from refruntime.kernels.copy import copy_cpu, copy_cuda
from refruntime.kernels.gpu import bits_of, sides, struct


def join_cpu(out: TensorImpl, tensors: Sequence[TensorImpl], dim: int) -> None:
    """Copy `tensors` into `out`, one behind the other along `dim`."""
    places = _places(out.meta, tuple([tensor.meta for tensor in tensors]), dim)
    for tensor, (meta, offset) in zip(tensors, places, strict=True):
        copy_cpu(alias(out, meta, out.byte_offset + offset), tensor)


@lru_cache(maxsize=4096)
def _places(
    out: TensorMeta, tensors: tuple[TensorMeta, ...], dim: int
) -> tuple[tuple[TensorMeta, int], ...]:
    """Return where each part goes: the meta of its place in `out` and the byte offset."""
    places = []
    offset = 0
    for meta in tensors:
        places.append((meta_of(tuple(meta.shape), out.dtype, out.device, out.strides), offset))
        offset += meta.shape[dim] * out.strides[dim] * out.dtype.itemsize
    return tuple(places)


# ---------------------------------------------------------------------------------------------
# The kernels of the ops, GPU


# As in cuda/join.cu.
_MAX_PIECES = 64


def join_cuda(out: TensorImpl, tensors: Sequence[TensorImpl], dim: int) -> None:
    """Copy `tensors` into `out`, one behind the other along `dim`, on the GPU.

    Contiguous parts of the result's dtype go many to a launch; others are strided copies.
    """
    meta = out.meta
    if not all(t.meta.contiguous and t.meta.dtype is meta.dtype for t in (out, *tensors)):
        _join_one_by_one(out, tensors, dim)
        return
    outer, _, inner = sides(tuple(meta.shape), dim)
    total = meta.shape[dim] * inner if meta.ndim else 1
    pieces = [(t.address(), t.meta.numel // outer) for t in tensors if t.meta.numel]
    start = 0
    for first in range(0, len(pieces), _MAX_PIECES):
        part = pieces[first : first + _MAX_PIECES]
        starts = [start]
        for _, width in part:
            starts.append(starts[-1] + width)
        start = starts.pop()
        columns = [address for address, _ in part], [width for _, width in part], starts
        rest = [0] * (_MAX_PIECES - len(part))
        padded = [number for column in columns for number in (*column, *rest)]
        (blocks,), block = launch.cover(outer * max(width for _, width in part))
        launch.raw(
            "join", "cat_bits", (bits_of(meta.dtype),), (blocks, len(part)), block,
            (out.address(), struct(*padded), outer, total),
        )  # fmt: skip


def _join_one_by_one(out: TensorImpl, tensors: Sequence[TensorImpl], dim: int) -> None:
    meta = out.meta
    step = meta.strides[dim] * meta.dtype.itemsize if meta.ndim else 0
    offset = out.byte_offset
    for tensor in tensors:
        place = meta_of(tuple(tensor.meta.shape), meta.dtype, meta.device, meta.strides)
        copy_cuda(alias(out, place, offset), tensor)
        offset += tensor.meta.shape[dim] * step
