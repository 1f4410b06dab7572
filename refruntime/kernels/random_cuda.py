"""Random fills, dropout and sampling on the GPU: launches of random.cu and sampling.cu.

Invariants
----------
* As in `kernels.random` and `kernels.sampling`: the same numbers from the same stream.
* Chances outside [0, 1] and negative rates are not reported (the host does not wait for the device
  to find them): they sample zeros.
"""

from __future__ import annotations

import math
from typing import Any

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl
from refruntime.kernels import launch
from refruntime.kernels.copy import copy_cuda, fill_cuda
from refruntime.kernels.gpu import cast_cuda, packed_cuda, scratch
from refruntime.kernels.random import (
    RANDOM_BITS,
    blocks_for,
    drawn_dtype,
    fillable,
    index_bits_of,
    threshold_of,
    words_of,
)
from refruntime.kernels.sort import sort_rows_cuda


def signed(value: int) -> int:
    """Return an unsigned 64-bit number as the int64 of the same bits."""
    return value - (1 << 64) if value >> 63 else value


def _launch(
    file: str, kernel: str, ctype: str, target: TensorImpl, n: int, threads: int, seed: int,
    offset: int, *args: Any,
) -> None:  # fmt: skip
    """Launch a kernel on a contiguous target, one thread a block of words (or a sample)."""
    if n:
        grid, block = launch.cover(threads)
        cells = (target.address(), n, signed(seed), signed(offset), *args)
        launch.raw(file, kernel, (ctype,) if ctype else (), grid, block, cells)


def _fill(
    out: TensorImpl, kernel: str, dtype: DType, words: int, seed: int, offset: int, *args: Any
) -> None:
    """Draw into `out` with a kernel of `dtype`; integers and bools have one instance each."""
    target = fillable(out, out.meta.dtype if out.meta.dtype.is_complex else dtype)
    n = target.meta.numel * (2 if target.meta.dtype.is_complex else 1)
    ctype = dtype.ctype if dtype.is_floating_point else ""
    _launch("random", kernel, ctype, target, n, blocks_for(n, words), seed, offset, *args)
    if target is not out:
        copy_cuda(out, target)


def _instance(dtype: DType) -> DType:
    """Return the instance that draws into a dtype: itself, or what is drawn for it."""
    return dtype if dtype.is_floating_point else drawn_dtype(dtype)


def _continuous(
    out: TensorImpl, kernel: str, dtype: DType, seed: int, offset: int, *args: Any
) -> None:
    _fill(out, kernel, dtype, words_of(dtype), seed, offset, *args)


def uniform_cuda(
    out: TensorImpl, *_: Any, low: float, high: float, seed: int, offset: int
) -> None:
    """Fill a floating or complex tensor with numbers in [low, high)."""
    dtype = _instance(out.meta.dtype)
    bits = RANDOM_BITS.get(dtype, 24)
    _continuous(out, "uniform", dtype, seed, offset, low, high, bits)


def normal_cuda(out: TensorImpl, *_: Any, mean: float, std: float, seed: int, offset: int) -> None:
    """Fill with normal numbers; a complex one has variance ``std**2`` in all."""
    share = std / math.sqrt(2.0) if out.meta.dtype.is_complex else std
    _continuous(out, "normal", _instance(out.meta.dtype), seed, offset, mean, share)


def exponential_cuda(out: TensorImpl, *_: Any, rate: float, seed: int, offset: int) -> None:
    """Fill with exponential numbers."""
    _continuous(out, "exponential", out.meta.dtype, seed, offset, rate)


def log_normal_cuda(
    out: TensorImpl, *_: Any, mean: float, std: float, seed: int, offset: int
) -> None:
    """Fill with numbers whose logarithm is normal."""
    _continuous(out, "log_normal", out.meta.dtype, seed, offset, mean, std)


def cauchy_cuda(
    out: TensorImpl, *_: Any, median: float, sigma: float, seed: int, offset: int
) -> None:
    """Fill with Cauchy numbers."""
    _continuous(out, "cauchy", out.meta.dtype, seed, offset, median, sigma)


def geometric_cuda(out: TensorImpl, *_: Any, p: float, seed: int, offset: int) -> None:
    """Fill with the number of trials up to the first success."""
    dtype = out.meta.dtype if out.meta.dtype.is_floating_point else _dtypes.float64
    _continuous(out, "geometric", dtype, seed, offset, -math.log1p(-p))


def integers_cuda(out: TensorImpl, *_: Any, low: int, span: int, seed: int, offset: int) -> None:
    """Fill with integers in [low, low + span); a span of 0 stands for 2**64."""
    _fill(out, "integers", _dtypes.int64, 2, seed, offset, low, signed(span))


def permutation_cuda(out: TensorImpl, *_: Any, seed: int, offset: int) -> None:
    """Fill a vector with the numbers 0 to n - 1 in random order."""
    n = out.meta.numel
    keys = scratch(out, (1, n), _dtypes.int64)
    _launch(
        "random", "permutation_keys", "", keys, n, blocks_for(n, 2), seed, offset, index_bits_of(n)
    )
    if n:
        places = sort_rows_cuda(keys, False)[1]
        copy_cuda(out, places)


def bernoulli_cuda(out: TensorImpl, *_: Any, p: float, seed: int, offset: int) -> None:
    """Fill with ones (with probability `p`) and zeros."""
    _fill(out, "bernoulli", _dtypes.bool_, 1, seed, offset, threshold_of(p))


def _uncounted(out: TensorImpl) -> TensorImpl:
    """Return the cell in which a kernel counts invalid parameters, which nobody reads."""
    cell = scratch(out, (1,), _dtypes.int64)
    fill_cuda(cell, 0)
    return cell


def bernoulli_of_cuda(out: TensorImpl, *operands: TensorImpl, seed: int, offset: int) -> None:
    """Fill with ones (element `i` with probability ``operands[-1][i]``) and zeros."""
    chance = packed_cuda(cast_cuda(operands[-1], _dtypes.float64))
    cell = _uncounted(out)
    _fill(
        out, "bernoulli_of", _dtypes.bool_, 1, seed, offset, chance.address(), cell.address()
    )


def dropout_cuda(out: TensorImpl, x: TensorImpl, *, p: float, seed: int, offset: int) -> None:
    """Zero each element with probability `p` and scale the others by ``1 / (1 - p)``."""
    source = packed_cuda(x)
    keep = 1.0 - p
    _fill(
        out, "dropout", out.meta.dtype, 1, seed, offset, source.address(), threshold_of(keep),
        1.0 / keep if keep else 0.0,
    )  # fmt: skip


def sample_categories_cuda(
    out: TensorImpl, cdf: TensorImpl, *, samples: int, seed: int, offset: int
) -> None:
    """Sample `samples` categories for each row of running sums (float64, last dimension)."""
    sums = packed_cuda(cdf)
    target = fillable(out, _dtypes.int64)
    n = target.meta.numel
    _launch(
        "sampling", "sample_categories", "", target, n, n, seed, offset, sums.address(),
        sums.meta.shape[-1], samples,
    )  # fmt: skip
    if target is not out:
        copy_cuda(out, target)


def poisson_cuda(out: TensorImpl, rate: TensorImpl, *, seed: int, offset: int) -> None:
    """Sample a count for each rate."""
    rates = packed_cuda(cast_cuda(rate, _dtypes.float64))
    counts, cell = scratch(out, tuple(out.meta.shape), _dtypes.float64), _uncounted(out)
    n = counts.meta.numel
    _launch(
        "sampling", "poisson", "", counts, n, n, seed, offset, rates.address(), cell.address()
    )
    copy_cuda(out, counts)
