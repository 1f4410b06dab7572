"""Elementary functions as straight-line arithmetic, which vectorises where a libm call does not.

Each function is written once over a machine (`machine`) and serves float32 and float64; the number
of terms follows from the width. `intrinsics` makes of each what kernels call.

Methods: exponentials reduce by multiples of ln 2 and sum Taylor's series; logarithms sum the series
of artanh; arcus functions halve the angle twice; sines of float32 reduce in float64 by a table of
2/pi at each exponent, which is exact enough for every float32.

State
-----
The table of 2/pi, made when first needed.

Invariants
----------
* NaN gives NaN, infinities and overflow give the limits, subnormal arguments and results are right.
* Errors stay below 5 units in the last place (tests/kernels/test_vectormath.py measures them).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

# ln 2 as a double and the rest of it.
LN2 = 0.6931471805599453
LN2_REST = 2.3190468138462996e-17
LOG2_E = 1.4426950408889634
LOG10_E = 0.4342944819032518
LOG10_2 = 0.3010299956639812


def horner(m: Any, x: Any, coefficients: list[float]) -> Any:
    """Return the polynomial with the given coefficients, constant first."""
    total = m.floating(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = m.fma(total, x, m.floating(coefficient))
    return total


def split_constant(m: Any, high: float, rest: float) -> tuple[float, float]:
    """Return a constant as two floats of the machine's width."""
    if m.wide:
        return high, rest
    single = float(np.float32(high))
    return single, high - single + rest


def _power_of_two(m: Any, n: Any) -> Any:
    """Return 2**n for an integer n in the range of normal exponents."""
    return m.from_bits((n + m.bias) << m.mantissa_bits)


def _scale(m: Any, x: Any, n: Any) -> Any:
    """Return ``x * 2**n``, in two steps, so that overflow and subnormal results come out right."""
    half = n >> 1
    return x * _power_of_two(m, half) * _power_of_two(m, n - half)


def _clamped(m: Any, x: Any, low: float, high: float) -> Any:
    # Written so that NaN stays NaN.
    x = m.select(x > high, m.floating(high), x)
    return m.select(x < low, m.floating(low), x)


# ---------------------------------------------------------------------------------------------
# Exponentials


def _reduced_exponent(m: Any, x: Any) -> tuple[Any, Any]:
    """Return n and r with ``x = n * ln 2 + r`` and ``abs(r) <= ln 2 / 2``."""
    high, rest = split_constant(m, LN2, LN2_REST)
    shifted = m.fma(x, LOG2_E, m.round_magic)
    n = m.bits(shifted) - m.round_magic_bits
    whole = shifted - m.round_magic
    r = m.fma(whole, -high, x)
    return n, m.fma(whole, -rest, r)


def _expm1_series(m: Any, r: Any) -> Any:
    """Return ``exp(r) - 1`` for small r by Taylor's series."""
    terms = 14 if m.wide else 8
    tail = [1.0 / math.factorial(k) for k in range(2, terms)]
    return m.fma(r * r, horner(m, r, tail), r)


def exp(m: Any, x: Any) -> Any:
    """e**x."""
    low, high = (-746.0, 710.0) if m.wide else (-104.0, 89.0)
    n, r = _reduced_exponent(m, _clamped(m, x, low, high))
    return _scale(m, _expm1_series(m, r) + 1.0, n)


def exp2(m: Any, x: Any) -> Any:
    """2**x."""
    low, high = (-1076.0, 1025.0) if m.wide else (-151.0, 129.0)
    x = _clamped(m, x, low, high)
    shifted = x + m.round_magic
    fraction = x - (shifted - m.round_magic)
    n = m.bits(shifted) - m.round_magic_bits
    high, rest = split_constant(m, LN2, LN2_REST)
    r = m.fma(fraction, high, fraction * rest)
    return _scale(m, _expm1_series(m, r) + 1.0, n)


def expm1(m: Any, x: Any) -> Any:
    """e**x - 1, accurate near zero."""
    low, high = (-40.0, 710.0) if m.wide else (-20.0, 89.0)
    n, r = _reduced_exponent(m, _clamped(m, x, low, high))
    # Half of the result first: 2**n itself may overflow.
    half = _power_of_two(m, n - 1)
    result = m.fma(half, _expm1_series(m, r), half - 0.5) * 2.0
    return m.select(m.fabs(x) < m.epsilon, x, result)


def sigmoid(m: Any, x: Any) -> Any:
    """1 / (1 + e**-x)."""
    # e**-abs(x) never overflows, and small results keep their digits.
    e = exp(m, -m.fabs(x))
    return m.select(x < 0.0, e, m.floating(1.0)) / (e + 1.0)


def tanh(m: Any, x: Any) -> Any:
    """Hyperbolic tangent."""
    limit = 20.0 if m.wide else 10.0
    size = m.fabs(x)
    size = m.select(size > limit, m.floating(limit), size)
    t = expm1(m, size * 2.0)
    return m.copysign(t / (t + 2.0), x)


def sinh(m: Any, x: Any) -> Any:
    """Hyperbolic sine."""
    size = m.fabs(x)
    t = expm1(m, size)
    near = (t + t / (t + 1.0)) * 0.5
    root = exp(m, size * 0.5)
    far = root * 0.5 * root
    limit = 700.0 if m.wide else 80.0
    return m.copysign(m.select(size > limit, far, near), x)


def cosh(m: Any, x: Any) -> Any:
    """Hyperbolic cosine."""
    root = exp(m, m.fabs(x) * 0.5)
    return root * 0.5 * root + 0.5 / root / root


# ---------------------------------------------------------------------------------------------
# Logarithms


def _log_parts(m: Any, x: Any, correction: Any = None) -> tuple[Any, Any, Any]:
    """Return e, f, r with ``log(x) = e * ln 2 + (f - r)``; x is positive and finite.

    `correction` is a relative correction of x: the result is ``log(x) + correction``.
    """
    shift = 54 if m.wide else 25
    tiny = x < m.smallest_normal
    x = m.select(tiny, x * 2.0**shift, x)
    bits = m.bits(x)
    root_half = int(np.array(math.sqrt(0.5), _dtype_name(m)).view(f"i{m.width // 8}"))
    exponent = (bits - root_half) >> m.mantissa_bits
    f = m.from_bits(bits - (exponent << m.mantissa_bits)) - 1.0
    e = m.to_float(exponent) - m.select(tiny, m.floating(float(shift)), m.floating(0.0))
    # log(1 + f) = 2 artanh(s), s = f / (2 + f), summed so that f itself enters exactly.
    s = f / (f + 2.0)
    z = s * s
    terms = 12 if m.wide else 6
    series = z * horner(m, z, [2.0 / (2 * k + 1) for k in range(1, terms)])
    half_square = f * f * 0.5
    small = s * (half_square + series)
    if correction is not None:
        small = small + correction
    return e, f, (half_square, small)


def _dtype_name(m: Any) -> str:
    """Return the NumPy name of a machine's float type."""
    return f"f{m.width // 8}"


def _log_specials(m: Any, x: Any, result: Any) -> Any:
    """Put the limits where x is not a positive finite number."""
    infinity = m.floating(math.inf)
    special = m.select(x < 0.0, m.floating(math.nan), x)
    special = m.select(x == 0.0, -infinity, special)
    return m.select((x > 0.0) & (x < infinity), result, special)


def _log_sum(m: Any, e: Any, f: Any, rest: Any) -> Any:
    high, low = split_constant(m, LN2, LN2_REST)
    half_square, small = rest
    inner = f - (half_square - m.fma(e, low, small))
    return m.fma(e, high, inner)


def log(m: Any, x: Any) -> Any:
    """Natural logarithm."""
    return _log_specials(m, x, _log_sum(m, *_log_parts(m, x)))


def log2(m: Any, x: Any) -> Any:
    """Logarithm to base 2."""
    e, f, (half_square, small) = _log_parts(m, x)
    inner = f - (half_square - small)
    high, low = split_constant(m, LOG2_E, 0.0)
    return _log_specials(m, x, m.fma(inner, high, m.fma(inner, low, e)))


def log10(m: Any, x: Any) -> Any:
    """Logarithm to base 10."""
    e, f, (half_square, small) = _log_parts(m, x)
    inner = f - (half_square - small)
    high, low = split_constant(m, LOG10_2, 0.0)
    return _log_specials(m, x, m.fma(e, high, m.fma(inner, LOG10_E, e * low)))


def log1p(m: Any, x: Any) -> Any:
    """log(1 + x), accurate near zero."""
    u = x + 1.0
    lost = m.select(x > 1.0, 1.0 - (u - x), x - (u - 1.0))
    result = _log_sum(m, *_log_parts(m, u, lost / u))
    result = _log_specials(m, u, result)
    return m.select(m.fabs(x) < m.epsilon * 0.25, x, result)


def asinh(m: Any, x: Any) -> Any:
    """Inverse hyperbolic sine."""
    size = m.fabs(x)
    large = size > (2.0**28 if m.wide else 2.0**12)
    square = size * size
    near = size + square / (m.sqrt(square + 1.0) + 1.0)
    result = log1p(m, m.select(large, size - 1.0, near))
    return m.copysign(m.select(large, result + LN2, result), x)


def acosh(m: Any, x: Any) -> Any:
    """Inverse hyperbolic cosine."""
    large = x > (2.0**28 if m.wide else 2.0**12)
    t = x - 1.0
    near = t + m.sqrt(m.fma(t, t, t * 2.0))
    result = log1p(m, m.select(large, t, near))
    result = m.select(large, result + LN2, result)
    return m.select(x < 1.0, m.floating(math.nan), result)


def atanh(m: Any, x: Any) -> Any:
    """Inverse hyperbolic tangent."""
    size = m.fabs(x)
    return m.copysign(log1p(m, size * 2.0 / (1.0 - size)) * 0.5, x)


# ---------------------------------------------------------------------------------------------
# Angles


def _atan_positive(m: Any, x: Any) -> Any:
    """Arc tangent of x >= 0 (or NaN)."""
    far, middle = x > 1.0 + math.sqrt(2.0), x > math.sqrt(2.0) - 1.0
    above = m.select(far, m.floating(-1.0), m.select(middle, x - 1.0, x))
    below = m.select(far, x, m.select(middle, x + 1.0, m.floating(1.0)))
    base = m.select(far, m.floating(math.pi / 2), m.select(middle, math.pi / 4, m.floating(0.0)))
    r = above / below
    z = r * r
    terms = 21 if m.wide else 10
    series = horner(m, z, [(-1.0) ** k / (2 * k + 1) for k in range(1, terms)])
    return base + m.fma(r * z, series, r)


def atan(m: Any, x: Any) -> Any:
    """Arc tangent."""
    return m.copysign(_atan_positive(m, m.fabs(x)), x)


def atan2(m: Any, y: Any, x: Any) -> Any:
    """Angle of the point (x, y)."""
    height, width = m.fabs(y), m.fabs(x)
    steep = height > width
    above, below = m.select(steep, width, height), m.select(steep, height, width)
    ratio = above / m.select(below == 0.0, m.floating(1.0), below)
    ratio = m.select((above == below) & (below == math.inf), m.floating(1.0), ratio)
    angle = _atan_positive(m, ratio)
    angle = m.select(steep, math.pi / 2 - angle, angle)
    angle = m.select(m.copysign(1.0, x) < 0.0, math.pi - angle, angle)
    unknown = (x != x) | (y != y)
    return m.select(unknown, m.floating(math.nan), m.copysign(angle, y))


def asin(m: Any, x: Any) -> Any:
    """Arc sine."""
    root = m.sqrt((1.0 - x) * (x + 1.0))
    return m.copysign(_atan_positive(m, m.fabs(x) / (root + 1.0)) * 2.0, x)


def acos(m: Any, x: Any) -> Any:
    """Arc cosine."""
    return _atan_positive(m, m.sqrt((1.0 - x) / (x + 1.0))) * 2.0


@cache
def _quarter_turns() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return ``2**(E - 150) * 2 / pi`` modulo 4 at each float32 exponent E, as high and low part.

    The high part has 26 bits, so that its product with a 24-bit mantissa is exact.
    """
    bits = 512
    quotient = (2 << (2 * bits)) // _pi_scaled(bits)
    high, low = [0.0], [0.0]
    for exponent in range(1, 255):
        shift = exponent - 150
        scaled = quotient << shift if shift >= 0 else quotient >> -shift
        scaled %= 4 << bits
        drop = max(scaled.bit_length() - 26, 0)
        first = (scaled >> drop) << drop
        high.append(math.ldexp(float(first >> drop), drop - bits))
        low.append(_ratio(scaled - first, bits))
    return (*high, math.nan), (*low, math.nan)


def _ratio(numerator: int, bits: int) -> float:
    drop = max(numerator.bit_length() - 60, 0)
    return math.ldexp(float(numerator >> drop), drop - bits)


def _pi_scaled(bits: int) -> int:
    """Return pi * 2**bits by Machin's formula."""
    guard = 1 << (bits + 16)

    def arctan_inverse(n: int) -> int:
        total, power, k = 0, guard // n, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    return (16 * arctan_inverse(5) - 4 * arctan_inverse(239)) >> 16


def _turned(m: Any, x: Any) -> tuple[Any, Any]:
    """Return the nearest number of quarter turns in x (an integer), and the angle left over."""
    high, low = _quarter_turns()
    bits = m.bits(x)
    exponent = (bits >> 23) & 255
    # The mantissa as a whole number of 24 bits, with the sign of x. As an integer the mask is
    # negative: it keeps the sign bit.
    whole = m.from_bits((bits & (0x007FFFFF - (1 << 31))) | (150 << 23))
    wide, mantissa = m.to_double(whole)
    product = mantissa * wide.lookup(high, exponent)
    shifted = product + wide.round_magic
    fraction = product - (shifted - wide.round_magic)
    # The low part may add almost one more turn.
    fraction = wide.fma(mantissa, wide.lookup(low, exponent), fraction)
    again = fraction + wide.round_magic
    fraction = fraction - (again - wide.round_magic)
    turns = wide.bits(shifted) + wide.bits(again)
    return m.to_narrow_int(turns), m.from_double(fraction * (math.pi / 2))


def _sin_series(m: Any, r: Any) -> Any:
    z = r * r
    series = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(1, 6)]
    return m.fma(r * z, horner(m, z, series), r)


def _cos_series(m: Any, r: Any) -> Any:
    z = r * r
    return horner(m, z, [(-1.0) ** k / math.factorial(2 * k) for k in range(6)])


def sin(m: Any, x: Any) -> Any:
    """Sine (float32)."""
    turns, r = _turned(m, x)
    value = m.select((turns & 1) == 0, _sin_series(m, r), _cos_series(m, r))
    value = m.select((turns & 2) == 0, value, -value)
    return m.select(m.fabs(x) < 2.0**-12, x, value)


def cos(m: Any, x: Any) -> Any:
    """Cosine (float32)."""
    turns, r = _turned(m, x)
    value = m.select((turns & 1) == 0, _cos_series(m, r), _sin_series(m, r))
    return m.select(((turns + 1) & 2) == 0, value, -value)


def tan(m: Any, x: Any) -> Any:
    """Tangent (float32)."""
    turns, r = _turned(m, x)
    sine, cosine = _sin_series(m, r), _cos_series(m, r)
    even = (turns & 1) == 0
    value = m.select(even, sine, -cosine) / m.select(even, cosine, sine)
    return m.select(m.fabs(x) < 2.0**-12, x, value)
