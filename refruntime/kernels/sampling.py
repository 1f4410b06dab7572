"""Kernels that sample by given weights: categories of a distribution, Poisson counts.

Invariants
----------
* Sample `i` in row-major order reads value pair `i` of its draw (categories), or block `i` of as
  many consecutive streams as it needs (Poisson: the upper half of the counter tells them apart), so
  results do not depend on the number of threads.
* A category of weight zero is never sampled.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime._native import native, ptr_f64, ptr_i64
from refruntime.kernels import launch
from refruntime.kernels.copy import contiguous_impl, copy_cpu
from refruntime.kernels.philox import EXACT, exact, philox, unit_f64

GRAIN = 1024
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_BELOW_ONE = 1.0 - 2.0**-53


@exact
def _unit_at(seed, block, stream, half):  # type: ignore[no-untyped-def]
    """Return the number in [0, 1) made of value `half` of one block of a numbered stream."""
    k0 = np.uint32(seed & _LOW)
    k1 = np.uint32(seed >> _32)
    c0 = np.uint32(block & _LOW)
    c1 = np.uint32(block >> _32)
    r0, r1, r2, r3 = philox(c0, c1, np.uint32(stream), np.uint32(0), k0, k1)
    low = r0 if half == 0 else r2
    high = r1 if half == 0 else r3
    return unit_f64(np.uint64(low) | (np.uint64(high) << _32))


@native(
    "void(int64, int64, int64, int64, uint64, uint64, int64, int64)", fastmath=EXACT
)
def sample_categories(out, cdf, categories, samples, seed, offset, start, stop):  # type: ignore[no-untyped-def]
    """Sample rows of running sums: out[i] is the first category whose sum exceeds a random part."""
    p = ptr_i64(out)
    q = ptr_f64(cdf)
    for i in range(start, stop):
        row = (i // samples) * categories
        u = _unit_at(seed, offset + np.uint64(i // 2), 0, i % 2)
        total = q[row + categories - 1]
        goal = u * total
        if goal >= total:
            goal = total * _BELOW_ONE
        low = 0
        high = categories - 1
        while low < high:
            middle = (low + high) // 2
            if q[row + middle] > goal:
                high = middle
            else:
                low = middle + 1
        p[i] = low


def sample_categories_cpu(
    out: TensorImpl, cdf: TensorImpl, *, samples: int, seed: int, offset: int
) -> None:
    """Sample `samples` categories for each row of running sums (float64, last dimension)."""
    sums = contiguous_impl(cdf)
    target = out if out.meta.contiguous else empty_impl(meta_of(out.meta.shape, out.meta.dtype))
    launch.parallel_for(
        sample_categories, target.meta.numel, GRAIN, target.address(), sums.address(),
        sums.meta.shape[-1], samples, seed, offset,
    )  # fmt: skip
    if target is not out:
        copy_cpu(out, target)


# ---------------------------------------------------------------------------------------------
# Poisson. Small rates count exponential waiting times in a product of uniforms (Knuth); from 10 on
# the transformed rejection of Hormann, "The transformed rejection method for generating Poisson
# random variables", Insurance: Mathematics and Economics 12, 1993 (PTRS).

_SMALL_RATE = 10.0
_MAX_TRIES = 1 << 16


@exact
def _poisson_small(rate, seed, block):  # type: ignore[no-untyped-def]
    limit = math.exp(-rate)
    product = 1.0
    count = -1
    for stream in range(_MAX_TRIES):
        product *= _unit_at(seed, block, stream, 0)
        count += 1
        if product <= limit:
            break
    return count


@exact
def _poisson_large(rate, seed, block):  # type: ignore[no-untyped-def]
    log_rate = math.log(rate)
    b = 0.931 + 2.53 * math.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    squeeze = 0.9277 - 3.6224 / (b - 2.0)
    k = 0.0
    for stream in range(_MAX_TRIES):
        u = _unit_at(seed, block, stream, 0) - 0.5
        v = 1.0 - _unit_at(seed, block, stream, 1)
        us = 0.5 - abs(u)
        k = math.floor((2.0 * a / us + b) * u + rate + 0.43)
        if us >= 0.07 and v <= squeeze:
            break
        if k < 0.0 or (us < 0.013 and v > us):
            continue
        left = math.log(v) + math.log(inverse_alpha) - math.log(a / (us * us) + b)
        if left <= k * log_rate - rate - math.lgamma(k + 1.0):
            break
    return np.int64(k)


@native("int64(int64, int64, uint64, uint64, int64, int64)", fastmath=EXACT)
def poisson_f64(out, rates, seed, offset, start, stop):  # type: ignore[no-untyped-def]
    """Sample counts with the given rates; return how many rates are negative."""
    p = ptr_f64(out)
    q = ptr_f64(rates)
    invalid = 0
    for i in range(start, stop):
        rate = q[i]
        block = offset + np.uint64(i)
        if not rate >= 0.0:
            invalid += 1
            p[i] = 0.0
        elif rate < _SMALL_RATE:
            p[i] = np.float64(_poisson_small(rate, seed, block))
        else:
            p[i] = np.float64(_poisson_large(rate, seed, block))
    return invalid


def poisson_cpu(out: TensorImpl, rate: TensorImpl, *, seed: int, offset: int) -> int:
    """Sample a count for each rate; returns how many rates were negative or NaN."""
    meta = meta_of(out.meta.shape, _dtypes.float64)
    rates, counts = empty_impl(meta), empty_impl(meta)
    copy_cpu(rates, rate)
    args: tuple[Any, ...] = (counts.address(), rates.address(), seed, offset)
    invalid: int = poisson_f64(*args, 0, meta.numel)
    copy_cpu(out, counts)
    return invalid
