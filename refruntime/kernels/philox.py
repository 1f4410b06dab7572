"""Philox4x32-10 on the CPU: blocks of random words, and what turns words into numbers.

State
-----
None. A *tile* is a scratch array of up to `TILE` words that a kernel fills for up to `TILE // 4`
consecutive blocks and then maps to numbers; both loops vectorise, a fused one would not.

Invariants
----------
* Word ``w`` of a tile is word ``w % 4`` of block ``first + w // 4``, so element `i` of a draw reads
  the same word whatever the tile, the thread or the device.
* Nothing here may be reassociated or contracted (`EXACT`): with ``cuda/philox.cuh`` doing the same
  operations in the same order, the CPU and the GPU give the same float32 numbers, bit for bit.
  Float64 logarithms and sines come from each platform's library and agree to rounding.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11, 2011.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime._native import DeviceFunction, bits_f32, f32_bits

EXACT: frozenset[str] = frozenset()
# Words in a tile: small enough to stay in the first-level cache with what is made of it.
TILE = 256
BLOCKS = TILE // 4
SCRATCH = 2 * TILE

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def exact(func: Callable[..., Any]) -> DeviceFunction:
    """Make `func` callable from kernel bodies, compiled without fast-math."""
    return DeviceFunction(func, EXACT, force=True)


@exact
def philox_round(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Return the four words after one round under the round key ``(k0, k1)``."""
    p0 = np.uint64(c0) * _MULTIPLIER_0
    p1 = np.uint64(c2) * _MULTIPLIER_1
    return (
        np.uint32(np.uint32(np.uint32(p1 >> _32) ^ c1) ^ k0),
        np.uint32(p1 & _LOW),
        np.uint32(np.uint32(np.uint32(p0 >> _32) ^ c3) ^ k1),
        np.uint32(p0 & _LOW),
    )


@exact
def philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Return the block of counter ``(c0, c1, c2, c3)`` under key ``(k0, k1)``; all are uint32."""
    for _ in range(9):
        c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0, k1)
        k0 = np.uint32((np.uint64(k0) + _WEYL_0) & _LOW)
        k1 = np.uint32((np.uint64(k1) + _WEYL_1) & _LOW)
    return philox_round(c0, c1, c2, c3, k0, k1)


@exact
def fill_words(words, seed, first, blocks):  # type: ignore[no-untyped-def]
    """Write the words of `blocks` blocks from number `first` of the stream `seed` into `words`.

    Behind its `TILE` words, `words` has as many again of scratch: the rounds write each of the four
    words of a block to a row of its own, which vectorises, and a second loop interleaves the rows.
    """
    k0 = np.uint32(seed & _LOW)
    k1 = np.uint32(seed >> _32)
    zero = np.uint32(0)
    for b in range(blocks):
        c = first + np.uint64(b)
        r0, r1, r2, r3 = philox(np.uint32(c & _LOW), np.uint32(c >> _32), zero, zero, k0, k1)
        words[TILE + b] = r0
        words[TILE + BLOCKS + b] = r1
        words[TILE + 2 * BLOCKS + b] = r2
        words[TILE + 3 * BLOCKS + b] = r3
    for b in range(blocks):
        words[4 * b] = words[TILE + b]
        words[4 * b + 1] = words[TILE + BLOCKS + b]
        words[4 * b + 2] = words[TILE + 2 * BLOCKS + b]
        words[4 * b + 3] = words[TILE + 3 * BLOCKS + b]


@exact
def word_pair(words, i):  # type: ignore[no-untyped-def]
    """Return 64-bit value `i` of a tile: words ``2 i`` (low half) and ``2 i + 1``."""
    return np.uint64(words[2 * i]) | (np.uint64(words[2 * i + 1]) << _32)


# ---------------------------------------------------------------------------------------------
# Words as numbers


_UNIT_53 = 2.0**-53
_HALF_UNIT = np.float32(2.0**-24)
_11 = np.uint64(11)
_8 = np.uint32(8)


@exact
def unit_f32(word):  # type: ignore[no-untyped-def]
    """Return a float32 in [0, 1): a multiple of 2**-24."""
    return np.float32(word >> _8) * _HALF_UNIT


@exact
def unit_f64(value):  # type: ignore[no-untyped-def]
    """Return a float64 in [0, 1): a multiple of 2**-53."""
    return np.float64(value >> _11) * _UNIT_53


@exact
def multiply_high(a, b):  # type: ignore[no-untyped-def]
    """Return the upper 64 bits of the product of two uint64: `a` scaled into [0, b)."""
    low_low = (a & _LOW) * (b & _LOW)
    high_low = (a >> _32) * (b & _LOW)
    low_high = (a & _LOW) * (b >> _32)
    middle = (low_low >> _32) + (high_low & _LOW) + (low_high & _LOW)
    return (a >> _32) * (b >> _32) + (high_low >> _32) + (low_high >> _32) + (middle >> _32)


_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_HALF = np.float32(0.5)
_SQRT_2 = np.float32(math.sqrt(2.0))
_LN_2 = np.float32(math.log(2.0))
_A3, _A5, _A7, _A9 = (np.float32(2.0 / k) for k in (3, 5, 7, 9))
_MANTISSA = np.uint32(0x7FFFFF)
_EXPONENT_0 = np.uint32(0x3F800000)
_23 = np.uint32(23)
_EXPONENT_OF_2_32 = np.int32(127 + 32)


@exact
def minus_log_f32(word):  # type: ignore[no-untyped-def]
    """Return ``-ln((word + 1) / 2**32)`` as float32, in [0, 22.2].

    ``x = word + 1`` is ``m 2**e`` with `m` in [sqrt(1/2), sqrt(2)), and ``ln m = 2 artanh(s)`` with
    ``s = (m - 1) / (m + 1)``, of which four terms of the series reach float32's precision.
    """
    bits = f32_bits(np.float32(np.float32(word) + _ONE))
    mantissa = bits_f32(np.uint32(np.uint32(bits & _MANTISSA) | _EXPONENT_0))
    above = mantissa > _SQRT_2
    m = np.float32(mantissa * _HALF) if above else mantissa
    e = np.int32(bits >> _23) + (np.int32(1) if above else np.int32(0))
    s = (m - _ONE) / (m + _ONE)
    z = s * s
    log_m = _TWO * s + s * z * (_A3 + z * (_A5 + z * (_A7 + z * _A9)))
    return np.float32(np.int32(_EXPONENT_OF_2_32 - e)) * _LN_2 - log_m


_TURN = np.float32(math.pi / 2.0**33)
_S3, _S5, _S7, _S9 = (np.float32(c) for c in (-1 / 6, 1 / 120, -1 / 5040, 1 / 362880))
_C2, _C4, _C6, _C8 = (np.float32(c) for c in (-1 / 2, 1 / 24, -1 / 720, 1 / 40320))
_2 = np.uint32(2)
_30 = np.uint32(30)
_1 = np.uint32(1)


@exact
def cos_sin_f32(word):  # type: ignore[no-untyped-def]
    """Return the cosine and sine of a random angle: `word` over the whole circle.

    The upper two bits choose the quarter; the rest is an angle in [-pi/4, pi/4), where the Taylor
    series of degree 9 and 8 are exact to float32's precision.
    """
    t = np.float32(np.int32(np.uint32(word << _2))) * _TURN
    z = t * t
    sine = t + t * z * (_S3 + z * (_S5 + z * (_S7 + z * _S9)))
    cosine = _ONE + z * (_C2 + z * (_C4 + z * (_C6 + z * _C8)))
    quarter = word >> _30
    odd = np.uint32(quarter & _1) != np.uint32(0)
    x = -sine if odd else cosine
    y = cosine if odd else sine
    return (-x, -y) if quarter >= _2 else (x, y)


_UNIT_64 = 2.0**-64
_TURN_64 = math.pi / 2.0**63


@exact
def minus_log_f64(value):  # type: ignore[no-untyped-def]
    """Return ``-ln((value + 1) / 2**64)`` as float64, in [0, 44.4]."""
    return -math.log((np.float64(value) + 1.0) * _UNIT_64)


@exact
def cos_sin_f64(value):  # type: ignore[no-untyped-def]
    """Return the cosine and sine of the angle ``2 pi value / 2**64``."""
    angle = np.float64(value) * _TURN_64
    return math.cos(angle), math.sin(angle)
