"""Scalar functions that kernels call one element at a time: integer arithmetic and special
functions.

What vectorises stands in `vectormath`; here are loops, branches and libm.

State
-----
None.

Invariants
----------
* Integer division and remainder never trap: a zero divisor gives 0 (the kernel reports it through
  its status), and the most negative number divided by -1 wraps.
* Arguments of one call have one type; results are of the widest type of their kind and the caller
  casts them back.
"""

from __future__ import annotations

import math

import numpy as np

from refruntime._native import bits_f32, bits_f64, device_function, f32_bits, f64_bits

# ---------------------------------------------------------------------------------------------
# Integers


@device_function
def floordiv_signed(a, b):  # type: ignore[no-untyped-def]
    """Quotient rounded down."""
    if b == 0:
        return np.int64(0)
    if b == -1:
        return np.int64(-np.int64(a))
    return np.int64(np.int64(a) // np.int64(b))


@device_function
def truncdiv_signed(a, b):  # type: ignore[no-untyped-def]
    """Quotient rounded towards zero."""
    if b == 0:
        return np.int64(0)
    if b == -1:
        return np.int64(-np.int64(a))
    quotient = np.int64(np.int64(a) // np.int64(b))
    # Rounding down and towards zero differ where a negative quotient is not whole.
    if quotient < 0 and quotient * np.int64(b) != np.int64(a):
        quotient += 1
    return np.int64(quotient)


@device_function
def remainder_signed(a, b):  # type: ignore[no-untyped-def]
    """Remainder with the sign of the divisor."""
    if b == 0 or b == -1:
        return np.int64(0)
    return np.int64(np.int64(a) % np.int64(b))


@device_function
def fmod_signed(a, b):  # type: ignore[no-untyped-def]
    """Remainder with the sign of the dividend."""
    if b == 0 or b == -1:
        return np.int64(0)
    rest = np.int64(np.int64(a) % np.int64(b))
    if rest != 0 and (np.int64(a) < 0) != (np.int64(b) < 0):
        rest -= np.int64(b)
    return np.int64(rest)


@device_function
def floordiv_unsigned(a, b):  # type: ignore[no-untyped-def]
    """Quotient of unsigned integers."""
    return np.uint64(0) if b == 0 else np.uint64(np.uint64(a) // np.uint64(b))


@device_function
def remainder_unsigned(a, b):  # type: ignore[no-untyped-def]
    """Remainder of unsigned integers."""
    return np.uint64(0) if b == 0 else np.uint64(np.uint64(a) % np.uint64(b))


@device_function
def pow_int(a, b):  # type: ignore[no-untyped-def]
    """Integer power, wrapping; a negative exponent gives what rounding 1/x**n down to 0 leaves."""
    base = np.int64(a)
    exponent = np.int64(b)
    if exponent < 0:
        if base == 1:
            return np.int64(1)
        if base == -1:
            return np.int64(-1) if exponent & 1 else np.int64(1)
        return np.int64(0)
    result = np.int64(1)
    while exponent > 0:
        if exponent & 1:
            result = np.int64(result * base)
        base = np.int64(base * base)
        exponent >>= 1
    return result


@device_function
def shl_int(a, b, bits):  # type: ignore[no-untyped-def]
    """Shift left; distances outside the type's width give 0."""
    inside = b >= 0 and b < bits
    return np.int64(a) << np.int64(b) if inside else np.int64(0)


@device_function
def shr_int(a, b, bits):  # type: ignore[no-untyped-def]
    """Shift right, keeping the sign; distances outside the type's width keep only the sign."""
    inside = b >= 0 and b < bits
    return np.int64(a) >> (np.int64(b) if inside else np.int64(bits - 1))


@device_function
def gcd_int(a, b):  # type: ignore[no-untyped-def]
    """Greatest common divisor (of magnitudes)."""
    x = abs(np.int64(a))
    y = abs(np.int64(b))
    while y != 0:
        x, y = y, x % y
    return np.int64(x)


# ---------------------------------------------------------------------------------------------
# Floats


@device_function
def fmod_float(a, b):  # type: ignore[no-untyped-def]
    """Remainder with the sign of the dividend."""
    return np.fmod(a, b)


@device_function
def remainder_float(a, b):  # type: ignore[no-untyped-def]
    """Remainder with the sign of the divisor."""
    rest = np.fmod(a, b)
    if rest != 0 and (b < 0) != (rest < 0):
        rest += b
    return rest


@device_function
def floordiv_float(a, b):  # type: ignore[no-untyped-def]
    """Quotient rounded down, consistent with the remainder (as Python's ``//``)."""
    if b == 0:
        return a / b
    rest = np.fmod(a, b)
    quotient = (a - rest) / b
    if rest != 0 and (b < 0) != (rest < 0):
        quotient -= 1
    if quotient == 0:
        return math.copysign(quotient, a / b)
    # The division above may have been rounded just below the whole number that it should be.
    whole = np.floor(quotient)
    return whole + 1 if quotient - whole > 0.5 else whole


@device_function
def sin_f64(x):  # type: ignore[no-untyped-def]
    """Sine by libm."""
    return math.sin(x)


@device_function
def cos_f64(x):  # type: ignore[no-untyped-def]
    """Cosine by libm."""
    return math.cos(x)


@device_function
def tan_f64(x):  # type: ignore[no-untyped-def]
    """Tangent by libm."""
    return math.tan(x)


@device_function
def next_after_f64(a, b):  # type: ignore[no-untyped-def]
    """Next float64 after `a` towards `b`."""
    if a != a or b != b:
        return a + b
    if a == b:
        return b
    if a == 0:
        return math.copysign(bits_f64(np.uint64(1)), b)
    bits = f64_bits(a)
    away = (a < b) == (a > 0)
    return bits_f64(np.uint64(bits + np.uint64(1)) if away else np.uint64(bits - np.uint64(1)))


@device_function
def next_after_f32(a, b):  # type: ignore[no-untyped-def]
    """Next float32 after `a` towards `b`."""
    if a != a or b != b:
        return a + b
    if a == b:
        return b
    if a == 0:
        return math.copysign(bits_f32(np.uint32(1)), b)
    bits = f32_bits(a)
    away = (a < b) == (a > 0)
    return bits_f32(np.uint32(bits + np.uint32(1)) if away else np.uint32(bits - np.uint32(1)))


@device_function
def digamma(x):  # type: ignore[no-untyped-def]
    """Derivative of lgamma, in float64: reflection, recurrence, then the asymptotic series."""
    x = np.float64(x)
    if x == 0.0:
        return math.copysign(math.inf, -x)
    result = 0.0
    if x < 0.0:
        if x == np.floor(x):
            return math.nan
        result = -math.pi / math.tan(math.pi * (x - np.floor(x)))
        x = 1.0 - x
    while x < 10.0:
        result -= 1.0 / x
        x += 1.0
    if x == math.inf:
        return x
    z = 1.0 / (x * x)
    series = z * (
        1 / 12
        - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * (1 / 132 - z * (691 / 32760 - z / 12)))))
    )
    return result + math.log(x) - 0.5 / x - series


@device_function
def hurwitz_zeta(s, q):  # type: ignore[no-untyped-def]
    """Sum of (q + k)**-s over k >= 0, in float64: terms up to q = 10, then Euler and Maclaurin."""
    s = np.float64(s)
    q = np.float64(q)
    if s <= 1.0:
        return math.inf if s == 1.0 else math.nan
    if q <= 0.0:
        if q == np.floor(q):
            return math.inf
        if s != np.floor(s):
            return math.nan
    total = 0.0
    while q < 10.0:
        total += math.pow(q, -s)
        q += 1.0
    if q == math.inf:
        return 0.0
    last = math.pow(q, -s)
    total += last * (q / (s - 1.0) + 0.5)
    # B(2 j) / (2 j)! times the rising product s (s + 1) ... over powers of q.
    step = 1.0 / (q * q)
    product = last * s / q
    total += product / 12
    product *= (s + 1) * (s + 2) * step
    total -= product / 720
    product *= (s + 3) * (s + 4) * step
    total += product / 30240
    product *= (s + 5) * (s + 6) * step
    total -= product / 1209600
    product *= (s + 7) * (s + 8) * step
    total += product / 47900160
    product *= (s + 9) * (s + 10) * step
    return total - product * 691 / 1307674368000


@device_function
def lgamma_float(x):  # type: ignore[no-untyped-def]
    """Logarithm of the magnitude of gamma."""
    if x == -math.inf:
        return math.inf
    if x <= 0 and x == np.floor(x):
        return math.inf
    return math.lgamma(x)


@device_function
def bessel_i0e(x):  # type: ignore[no-untyped-def]
    """exp(-abs(x)) I0(x), in float64: the power series, or Hankel's expansion for large x."""
    x = abs(np.float64(x))
    if x == math.inf:
        return 0.0
    if x < 20.0:
        quarter = x * x / 4
        term = 1.0
        total = 1.0
        for k in range(1, 60):
            term *= quarter / (k * k)
            total += term
        return total * math.exp(-x)
    term = 1.0
    total = 1.0
    for k in range(1, 20):
        term *= (2 * k - 1) * (2 * k - 1) / (8.0 * k * x)
        total += term
    return total / math.sqrt(2 * math.pi * x)


@device_function
def bessel_i1e(x):  # type: ignore[no-untyped-def]
    """exp(-abs(x)) I1(x), in float64: the power series, or Hankel's expansion for large x."""
    size = abs(np.float64(x))
    if size == math.inf:
        return 0.0
    term = 1.0
    total = 1.0
    if size < 20.0:
        quarter = size * size / 4
        for k in range(1, 60):
            term *= quarter / (k * (k + 1.0))
            total += term
        total *= size / 2 * math.exp(-size)
    else:
        for k in range(1, 20):
            term *= ((2 * k - 1) * (2 * k - 1) - 4) / (8.0 * k * size)
            total += term
        total /= math.sqrt(2 * math.pi * size)
    return math.copysign(total, np.float64(x))


@device_function
def scaled_erfc(x):  # type: ignore[no-untyped-def]
    """exp(x**2) erfc(x), in float64: the product itself, or a continued fraction for large x."""
    x = np.float64(x)
    if not x > 5.0:
        return math.exp(x * x) * math.erfc(x)
    below = x
    for k in range(40, 0, -1):
        below = x + 0.5 * k / below
    return 1.0 / (math.sqrt(math.pi) * below)
