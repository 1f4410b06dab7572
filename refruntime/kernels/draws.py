"""The compiled bodies of random fills and dropout on the CPU: tiles of words to numbers.

Each kernel covers blocks [start, stop) of a draw of `n` elements from block `offset` of the stream
of `seed`; a float32 element takes one word of a block, a 64-bit one two.

Invariants
----------
* Element `i` is made of the same words wherever the range is split.
* Nothing is written behind element ``n - 1``.
"""

from __future__ import annotations

import math

import numpy as np

from refruntime._native import native, ptr_f32, ptr_f64, ptr_i64, ptr_u8, ptr_u64
from refruntime.kernels.philox import (
    BLOCKS,
    EXACT,
    SCRATCH,
    TILE,
    cos_sin_f32,
    cos_sin_f64,
    exact,
    fill_words,
    minus_log_f32,
    minus_log_f64,
    multiply_high,
    unit_f32,
    unit_f64,
    word_pair,
)
from refruntime.kernels.variants import T, load_T, ptr_T, store_T, template

_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@exact
def _blocks_here(block, stop):  # type: ignore[no-untyped-def]
    return min(BLOCKS, stop - block)


@native(
    "void(int64, int64, uint64, uint64, float64, float64, int64, int64, int64)", fastmath=EXACT
)
def uniform_f32(out, n, seed, offset, low, high, bits, start, stop):  # type: ignore[no-untyped-def]
    """Fill with float32 in [low, high), of which `bits` upper bits are random."""
    p = ptr_f32(out)
    words = np.empty(SCRATCH, np.uint32)
    floor = np.float32(low)
    span = np.float32(high - low)
    ceiling = np.float32(high)
    keep = np.uint32((0xFFFFFFFF >> (32 - bits)) << (32 - bits))
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        base = 4 * block
        for i in range(min(4 * blocks, n - base)):
            x = unit_f32(np.uint32(words[i] & keep)) * span + floor
            # Rounding may reach the upper end, which the interval excludes.
            p[base + i] = x if x < ceiling else floor


@native("void(int64, int64, uint64, uint64, float64, float64, int64, int64)", fastmath=EXACT)
def uniform_f64(out, n, seed, offset, low, high, start, stop):  # type: ignore[no-untyped-def]
    """Fill with float64 in [low, high)."""
    p = ptr_f64(out)
    words = np.empty(SCRATCH, np.uint32)
    span = high - low
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        base = 2 * block
        for i in range(min(2 * blocks, n - base)):
            x = unit_f64(word_pair(words, i)) * span + low
            p[base + i] = x if x < high else low


@native("void(int64, int64, uint64, uint64, float64, float64, int64, int64)", fastmath=EXACT)
def normal_f32(out, n, seed, offset, mean, std, start, stop):  # type: ignore[no-untyped-def]
    """Fill with normal float32: a pair of words gives a pair of numbers (Box and Muller, 1958)."""
    p = ptr_f32(out)
    words = np.empty(SCRATCH, np.uint32)
    numbers = np.empty(TILE, np.float32)
    centre = np.float32(mean)
    scale = np.float32(std)
    two = np.float32(2.0)
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        for i in range(2 * blocks):
            radius = math.sqrt(two * minus_log_f32(words[2 * i])) * scale
            x, y = cos_sin_f32(words[2 * i + 1])
            numbers[2 * i] = radius * x + centre
            numbers[2 * i + 1] = radius * y + centre
        base = 4 * block
        for i in range(min(4 * blocks, n - base)):
            p[base + i] = numbers[i]


@native("void(int64, int64, uint64, uint64, float64, float64, int64, int64)", fastmath=EXACT)
def normal_f64(out, n, seed, offset, mean, std, start, stop):  # type: ignore[no-untyped-def]
    """Fill with normal float64: a block gives a pair of numbers."""
    p = ptr_f64(out)
    words = np.empty(SCRATCH, np.uint32)
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        for i in range(blocks):
            radius = math.sqrt(2.0 * minus_log_f64(word_pair(words, 2 * i))) * std
            x, y = cos_sin_f64(word_pair(words, 2 * i + 1))
            at = 2 * (block + i)
            p[at] = radius * x + mean
            if at + 1 < n:
                p[at + 1] = radius * y + mean


@native("void(int64, int64, uint64, uint64, int64, uint64, int64, int64)", fastmath=EXACT)
def integers_i64(out, n, seed, offset, low, span, start, stop):  # type: ignore[no-untyped-def]
    """Fill with int64 in [low, low + span); a span of 0 stands for 2**64.

    A 64-bit value is scaled by its upper product half, whose bias is below ``span / 2**64``.
    """
    p = ptr_i64(out)
    words = np.empty(SCRATCH, np.uint32)
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        base = 2 * block
        for i in range(min(2 * blocks, n - base)):
            value = word_pair(words, i)
            step = value if span == _ZERO else multiply_high(value, span)
            p[base + i] = low + np.int64(step)


@native("void(int64, int64, uint64, uint64, uint64, int64, int64)", fastmath=EXACT)
def bernoulli_u8(out, n, seed, offset, threshold, start, stop):  # type: ignore[no-untyped-def]
    """Fill with 1 where a word is below `threshold` (the probability times 2**32), else 0."""
    p = ptr_u8(out)
    words = np.empty(SCRATCH, np.uint32)
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        base = 4 * block
        for i in range(min(4 * blocks, n - base)):
            p[base + i] = np.uint8(np.uint64(words[i]) < threshold)


@native("int64(int64, int64, int64, uint64, uint64, int64, int64)", fastmath=EXACT)
def bernoulli_of_f64(out, chance, n, seed, offset, start, stop):  # type: ignore[no-untyped-def]
    """Fill with 1 with probability ``chance[i]``; return how many chances are outside [0, 1]."""
    p = ptr_u8(out)
    q = ptr_f64(chance)
    words = np.empty(SCRATCH, np.uint32)
    invalid = 0
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        base = 4 * block
        for i in range(min(4 * blocks, n - base)):
            x = q[base + i]
            invalid += 0 if (x >= 0.0 and x <= 1.0) else 1
            p[base + i] = np.uint8(np.float64(words[i]) < x * 4294967296.0)
    return invalid


@native("void(int64, int64, uint64, uint64, float64, int64, int64)", fastmath=EXACT)
def exponential_f32(out, n, seed, offset, rate, start, stop):  # type: ignore[no-untyped-def]
    """Fill with exponential float32; zero, which the support excludes, becomes 2**-24 / rate."""
    p = ptr_f32(out)
    words = np.empty(SCRATCH, np.uint32)
    scale = np.float32(1.0 / rate)
    least = np.float32(2.0**-24)
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        base = 4 * block
        for i in range(min(4 * blocks, n - base)):
            x = minus_log_f32(words[i])
            p[base + i] = (x if x > least else least) * scale


@native("void(int64, int64, uint64, uint64, float64, int64, int64)", fastmath=EXACT)
def exponential_f64(out, n, seed, offset, rate, start, stop):  # type: ignore[no-untyped-def]
    """Fill with exponential float64; zero becomes 2**-53 / rate."""
    p = ptr_f64(out)
    words = np.empty(SCRATCH, np.uint32)
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        base = 2 * block
        for i in range(min(2 * blocks, n - base)):
            x = minus_log_f64(word_pair(words, i))
            p[base + i] = (x if x > 2.0**-53 else 2.0**-53) / rate


@native("void(int64, int64, uint64, uint64, uint64, int64, int64)", fastmath=EXACT)
def permutation_keys(out, n, seed, offset, index_bits, start, stop):  # type: ignore[no-untyped-def]
    """Fill with keys whose lower bits are the position and whose upper bits are random.

    All keys differ and none is negative, so every sort gives the same order.
    """
    p = ptr_u64(out)
    words = np.empty(SCRATCH, np.uint32)
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        base = 2 * block
        for i in range(min(2 * blocks, n - base)):
            value = word_pair(words, i) >> (index_bits + _ONE)
            p[base + i] = (value << index_bits) | np.uint64(base + i)


# ---------------------------------------------------------------------------------------------
# Dropout. The mask is not kept: forward and backward both read it off the stream.


@template(
    "void(int64, int64, int64, uint64, uint64, uint64, float64, int64, int64)", fastmath=EXACT
)
def dropout(out, x, n, seed, offset, threshold, scale, start, stop):  # type: ignore[no-untyped-def]
    """Keep and scale ``x[i]`` where word `i` is below `threshold`, else write 0."""
    p = ptr_T(out)
    q = ptr_T(x)
    words = np.empty(SCRATCH, np.uint32)
    factor = T(scale)
    for block in range(start, stop, BLOCKS):
        blocks = _blocks_here(block, stop)
        fill_words(words, seed, offset + np.uint64(block), blocks)
        base = 4 * block
        for i in range(min(4 * blocks, n - base)):
            value = load_T(q, base + i) * factor
            store_T(p, base + i, value if np.uint64(words[i]) < threshold else T(0))
