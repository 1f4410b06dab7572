"""Sequences on the GPU: launches of sequence.cu, and the identity as two fills.

State
-----
None.

Invariants
----------
* Each element is computed from its place in float64 (or int64) and rounded once.
"""

from __future__ import annotations

from typing import Any

from refruntime._impl import TensorImpl, alias, meta_of
from refruntime.kernels import launch
from refruntime.kernels.copy import fill_cuda
from refruntime.kernels.gpu import into_contiguous_cuda


def _run(kernel: str, out: TensorImpl, *args: Any) -> None:
    count = out.meta.numel
    if count:
        names = (out.meta.dtype.ctype,)
        launch.raw("sequence", kernel, names, *launch.cover(count), (out.address(), count, *args))


@into_contiguous_cuda
def arange_cuda(out: TensorImpl, *, start: Any, step: Any, **_: Any) -> None:
    """Write ``start + i * step``, in integers if both are."""
    if isinstance(start, int) and isinstance(step, int):
        _run("arange_integers", out, start, step)
    else:
        _run("arange", out, float(start), float(step))


def _step(count: int, start: float, end: float) -> float:
    return (end - start) / (count - 1) if count > 1 else 0.0


def _line(out: TensorImpl, start: Any, end: Any) -> tuple[float, float, float]:
    """Return start, end and step; a single element is the start."""
    first, last = float(start), float(start if out.meta.numel == 1 else end)
    return first, last, _step(out.meta.numel, first, last)


@into_contiguous_cuda
def linspace_cuda(out: TensorImpl, *, start: Any, end: Any, **_: Any) -> None:
    """Write evenly spaced numbers from `start` to `end`, both met exactly."""
    _run("linspace", out, *_line(out, start, end))


@into_contiguous_cuda
def logspace_cuda(out: TensorImpl, *, start: Any, end: Any, base: Any, **_: Any) -> None:
    """Write `base` to the power of evenly spaced numbers."""
    _run("logspace", out, *_line(out, start, end), float(base))


def eye_cuda(out: TensorImpl, **_: Any) -> None:
    """Write ones on the diagonal and zeros elsewhere."""
    fill_cuda(out, 0)
    meta = out.meta
    length = min(meta.shape)
    diagonal = meta_of((length,), meta.dtype, meta.device, (sum(meta.strides),))
    fill_cuda(alias(out, diagonal, out.byte_offset), 1)
