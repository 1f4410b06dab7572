"""Kernels that fill memory with random numbers, and dropout, on the CPU; the GPU's: `random_cuda`.

State
-----
None: `seed` and `offset` say which blocks of which Philox stream a call draws (see
`refruntime.random`); `blocks_for` says how many it needs.

Invariants
----------
* Element `i` in row-major order of the tensor's shape is made of the same words whatever its
  strides, the number of threads, or the device.
* Half types draw fewer bits (as many as their mantissa holds) through float32, so that a number
  below 1 is never rounded to 1.
* Targets that are not contiguous, or whose dtype has no kernel of its own, are drawn into a
  temporary and copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime._native import NativeKernel
from refruntime.errors import ShapeError
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl, copy_cpu
from refruntime.kernels.draws import (
    bernoulli_of_f64,
    bernoulli_u8,
    dropout,
    exponential_f32,
    exponential_f64,
    integers_i64,
    normal_f32,
    normal_f64,
    permutation_keys,
    uniform_f32,
    uniform_f64,
)

# Blocks that one thread should have before a draw is split: about 30 microseconds of work.
GRAIN = 8192
RANDOM_BITS = {_dtypes.float16: 11, _dtypes.bfloat16: 8}


def words_of(dtype: DType) -> int:
    """Return how many 32-bit words an element of a continuous draw takes: 1, or 2 for float64."""
    return 2 if dtype in (_dtypes.float64, _dtypes.complex128) else 1


def blocks_for(numel: int, words: int) -> int:
    """Return how many blocks of four words `numel` elements of `words` words take."""
    return -(-numel * words // 4)


def threshold_of(chance: float) -> int:
    """Return a probability as a bound on 32-bit words."""
    return round(chance * 4294967296.0)


# ---------------------------------------------------------------------------------------------
# CPU


def drawn_dtype(dtype: DType) -> DType:
    """Return the dtype that a continuous draw computes in."""
    return _dtypes.float64 if words_of(dtype) == 2 else _dtypes.float32


def fillable(out: TensorImpl, dtype: DType) -> TensorImpl:
    """Return `out` if a kernel of `dtype` can fill it directly, else a contiguous temporary."""
    if out.meta.dtype is dtype and out.meta.contiguous:
        return out
    return empty_impl(meta_of(out.meta.shape, dtype, out.meta.device))


def _fill(
    out: TensorImpl, kernel: NativeKernel, dtype: DType, words: int, seed: int, offset: int,
    *args: Any,
) -> None:  # fmt: skip
    """Draw into `out` with a kernel that takes ``(address, n, seed, offset, *args, start, stop)``.

    Each half of a complex number is an element of the draw.
    """
    target = fillable(out, out.meta.dtype if out.meta.dtype.is_complex else dtype)
    n = target.meta.numel * (2 if target.meta.dtype.is_complex else 1)
    blocks = blocks_for(n, words)
    launch.parallel_for(kernel, blocks, GRAIN, target.address(), n, seed, offset, *args)
    if target is not out:
        copy_cpu(out, target)


def uniform_cpu(
    out: TensorImpl, *_: Any, low: float, high: float, seed: int, offset: int
) -> None:
    """Fill a floating or complex tensor with numbers in [low, high)."""
    dtype = drawn_dtype(out.meta.dtype)
    if dtype is _dtypes.float64:
        _fill(out, uniform_f64, dtype, 2, seed, offset, low, high)
    else:
        bits = RANDOM_BITS.get(out.meta.dtype, 24)
        _fill(out, uniform_f32, dtype, 1, seed, offset, low, high, bits)


def normal_cpu(out: TensorImpl, *_: Any, mean: float, std: float, seed: int, offset: int) -> None:
    """Fill with normal numbers; a complex one has variance ``std**2`` in all."""
    dtype = drawn_dtype(out.meta.dtype)
    kernel = normal_f64 if dtype is _dtypes.float64 else normal_f32
    share = std / math.sqrt(2.0) if out.meta.dtype.is_complex else std
    _fill(out, kernel, dtype, words_of(dtype), seed, offset, mean, share)


def integers_cpu(out: TensorImpl, *_: Any, low: int, span: int, seed: int, offset: int) -> None:
    """Fill with integers in [low, low + span); a span of 0 stands for 2**64."""
    _fill(out, integers_i64, _dtypes.int64, 2, seed, offset, low, span)


def bernoulli_cpu(out: TensorImpl, *_: Any, p: float, seed: int, offset: int) -> None:
    """Fill with ones (with probability `p`) and zeros."""
    _fill(out, bernoulli_u8, _dtypes.bool_, 1, seed, offset, threshold_of(p))


def bernoulli_of_cpu(
    out: TensorImpl, *operands: TensorImpl, seed: int, offset: int
) -> None:
    """Fill with ones (element `i` with probability ``operands[-1][i]``) and zeros."""
    target = fillable(out, _dtypes.bool_)
    chance = empty_impl(meta_of(out.meta.shape, _dtypes.float64, out.meta.device))
    copy_cpu(chance, operands[-1])
    n = target.meta.numel
    invalid = bernoulli_of_f64(
        target.address(), chance.address(), n, seed, offset, 0, blocks_for(n, 1)
    )
    if invalid:
        raise ShapeError(
            "bernoulli",
            what="Expected p_in >= 0 && p_in <= 1 to be true, but got false",
            expected="probabilities in [0, 1]",
            got=f"{invalid} of {n} elements outside",
            remedy="apply sigmoid or clamp first",
        )
    if target is not out:
        copy_cpu(out, target)


def exponential_cpu(out: TensorImpl, *_: Any, rate: float, seed: int, offset: int) -> None:
    """Fill with exponential numbers."""
    dtype = drawn_dtype(out.meta.dtype)
    kernel = exponential_f64 if dtype is _dtypes.float64 else exponential_f32
    _fill(out, kernel, dtype, words_of(dtype), seed, offset, rate)


Transform = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def _transformed(out: TensorImpl, transform: Transform, fill: Any, **draw: Any) -> None:
    """Fill a temporary of the drawing dtype, transform it with NumPy, and copy it into `out`.

    For distributions that few programs draw from: two more passes over memory, no kernel.
    """
    floating = out.meta.dtype.is_floating_point
    dtype = drawn_dtype(out.meta.dtype) if floating else _dtypes.float64
    target = empty_impl(meta_of(out.meta.shape, dtype, out.meta.device))
    fill(target, **draw)
    values = target.array()
    values[...] = transform(values)
    copy_cpu(out, target)


def log_normal_cpu(
    out: TensorImpl, *_: Any, mean: float, std: float, seed: int, offset: int
) -> None:
    """Fill with numbers whose logarithm is normal."""
    _transformed(out, np.exp, normal_cpu, mean=mean, std=std, seed=seed, offset=offset)


def cauchy_cpu(
    out: TensorImpl, *_: Any, median: float, sigma: float, seed: int, offset: int
) -> None:
    """Fill with Cauchy numbers, by the inverse of the distribution function."""

    def invert(u: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return median + sigma * np.tan(np.pi * (u - 0.5))

    _transformed(out, invert, uniform_cpu, low=0.0, high=1.0, seed=seed, offset=offset)


def geometric_cpu(out: TensorImpl, *_: Any, p: float, seed: int, offset: int) -> None:
    """Fill with the number of trials up to the first success: an exponential, rounded up."""
    rate = -math.log1p(-p)
    _transformed(out, np.ceil, exponential_cpu, rate=rate, seed=seed, offset=offset)


def index_bits_of(n: int) -> int:
    """Return how many lower bits of a sorting key hold the position among `n`."""
    return max(1, (n - 1).bit_length()) if n else 1


def permutation_cpu(out: TensorImpl, *_: Any, seed: int, offset: int) -> None:
    """Fill a vector with the numbers 0 to n - 1 in random order."""
    n = out.meta.numel
    index_bits = index_bits_of(n)
    keys = empty_impl(meta_of((n,), _dtypes.int64, out.meta.device))
    blocks = blocks_for(n, 2)
    launch.parallel_for(
        permutation_keys, blocks, GRAIN, keys.address(), n, seed, offset, index_bits
    )
    values = keys.array()
    values.sort()
    np.bitwise_and(values, (1 << index_bits) - 1, out=values)
    copy_cpu(out, keys)


def dropout_cpu(out: TensorImpl, x: TensorImpl, *, p: float, seed: int, offset: int) -> None:
    """Zero each element with probability `p` and scale the others by ``1 / (1 - p)``."""
    target = fillable(out, out.meta.dtype)
    source = contiguous_impl(x)
    n = target.meta.numel
    keep = 1.0 - p
    kernel = dropout.for_dtypes(T=out.meta.dtype)
    launch.parallel_for(
        kernel, blocks_for(n, 1), GRAIN, target.address(), source.address(), n, seed, offset,
        threshold_of(keep), 1.0 / keep if keep else 0.0,
    )  # fmt: skip
    if target is not out:
        copy_cpu(out, target)
