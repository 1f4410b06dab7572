"""Discrete Fourier transforms: NumPy's on the CPU, cuFFT through CuPy on a GPU.

State
-----
None.

Invariants
----------
* `scale` says what a transform is multiplied by: ``one``, ``root`` (1/sqrt(n)) or ``n`` (1/n), with
  n the product of the transformed sizes. It is the same word for both directions.
* float32 and complex64 are transformed in their own precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _optional
from refruntime._impl import TensorImpl
from refruntime.kernels.gpu import gpu_array

# NumPy names scales by the direction that has them.
_FORWARD = {"one": "backward", "root": "ortho", "n": "forward"}
_INVERSE = {"one": "forward", "root": "ortho", "n": "backward"}


def _library(out: TensorImpl, x: TensorImpl) -> tuple[Any, Any, Any]:
    """Return the module that transforms, and both tensors as its arrays."""
    if out.meta.device.type == "cpu":
        return np.fft, out.array(), x.array()
    return _optional.cupy.fft, gpu_array(out), gpu_array(x)


def complex_transform(
    out: TensorImpl, x: TensorImpl, *, dim: tuple[int, ...], scale: str, inverse: bool
) -> None:
    """Transform complex numbers over `dim`."""
    fft, target, source = _library(out, x)
    if inverse:
        target[...] = fft.ifftn(source, axes=dim, norm=_INVERSE[scale])
    else:
        target[...] = fft.fftn(source, axes=dim, norm=_FORWARD[scale])


def real_transform(out: TensorImpl, x: TensorImpl, *, dim: tuple[int, ...], scale: str) -> None:
    """Transform real numbers over `dim`; of the last of them, keep the half that tells all."""
    fft, target, source = _library(out, x)
    target[...] = fft.rfftn(source, axes=dim, norm=_FORWARD[scale])


def to_real_transform(
    out: TensorImpl, x: TensorImpl, *, dim: tuple[int, ...], scale: str, size: int
) -> None:
    """Transform back over `dim` to real numbers, `size` of them in the last dimension."""
    fft, target, source = _library(out, x)
    sizes = [source.shape[d] for d in dim[:-1]] + [size]
    target[...] = fft.irfftn(source, s=sizes, axes=dim, norm=_INVERSE[scale])
