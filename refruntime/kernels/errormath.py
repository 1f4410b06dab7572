"""Error functions as straight-line arithmetic; see `vectormath` for how these are written.

Near zero erf is its Taylor series; erfc is exp(-x**2) times a polynomial that this module fits when
first needed, in (x - 3.75) / (x + 3.75), which takes all x >= 0 to [-1, 1] (the mapping of Shepherd
and Laframboise, 1981).

State
-----
The fitted polynomials.

Invariants
----------
* As in `vectormath`: errors below 5 units in the last place.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from refruntime.kernels.vectormath import exp, horner, log, split_constant

TWO_OVER_SQRT_PI = 1.1283791670955126


@cache
def _scaled_erfc_polynomial(wide: bool) -> list[float]:
    """Fit ``(1 + 2 x) exp(x**2) erfc(x)`` for x >= 0 as a polynomial in (x - 3.75) / (x + 3.75)."""
    degree = 25 if wide else 11
    points = np.cos(np.pi * (np.arange(200) + 0.5) / 200)
    x = 3.75 * (1 + points) / (1 - points)
    values = [(1 + 2 * at) * _scaled_erfc(float(at)) for at in x]
    series = np.polynomial.chebyshev.chebfit(points, values, degree)
    return [float(c) for c in np.polynomial.chebyshev.cheb2poly(series)]


def _scaled_erfc(x: float) -> float:
    """Return exp(x**2) erfc(x): from erfc where that is accurate, else by continued fraction."""
    if x < 1.5:
        return math.exp(x * x) * math.erfc(x)
    tail = 0.0
    for k in range(200, 0, -1):
        tail = 0.5 * k / (x + tail)
    return 1.0 / (math.sqrt(math.pi) * (x + tail))


def _erfc_positive(m: Any, x: Any) -> Any:
    """Erfc of x >= 0."""
    square = x * x
    # exp(-x**2) would lose what the rounding of x**2 lost.
    lost = m.fma(x, x, -square)
    position = (x - 3.75) / (x + 3.75)
    shape = horner(m, position, _scaled_erfc_polynomial(m.wide)) / m.fma(x, 2.0, 1.0)
    value = exp(m, -square)
    value = m.fma(value, -lost, value) * shape
    # Beyond this erfc is zero; infinity would have made NaN above.
    return m.select(x > (28.0 if m.wide else 11.0), m.floating(0.0), value)


def _erf_series(m: Any, x: Any) -> Any:
    """Erf for abs(x) <= 1."""
    terms = 20 if m.wide else 11
    series = [
        TWO_OVER_SQRT_PI * (-1.0) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(1, terms)
    ]
    z = x * x
    high, low = split_constant(m, TWO_OVER_SQRT_PI, 0.0)
    return m.fma(x, high, x * m.fma(z, horner(m, z, series), low))


def erf(m: Any, x: Any) -> Any:
    """Error function."""
    size = m.fabs(x)
    far = 1.0 - _erfc_positive(m, size)
    return m.select(size < 1.0, _erf_series(m, x), m.copysign(far, x))


def erfc(m: Any, x: Any) -> Any:
    """Complementary error function."""
    size = m.fabs(x)
    positive = _erfc_positive(m, size)
    value = m.select(x < 0.0, 2.0 - positive, positive)
    return m.select((x > -1.0) & (x < 0.75), 1.0 - _erf_series(m, x), value)


def erfinv(m: Any, x: Any) -> Any:
    """Inverse of erf: Winitzki's closed form, then Halley steps in float64."""
    wide, value = m.to_double(x)
    size = wide.fabs(value)
    rest = 1.0 - size
    logarithm = log(wide, rest * (size + 1.0))
    shape = 0.147
    middle = logarithm * 0.5 + 2.0 / (math.pi * shape)
    y = wide.sqrt(wide.sqrt(middle * middle - logarithm / shape) - middle)
    for _ in range(2):
        slope = exp(wide, -(y * y)) * TWO_OVER_SQRT_PI
        error = wide.select(
            y < 0.5, _erf_series(wide, y) - size, rest - _erfc_positive(wide, y)
        )
        step = error / slope
        y = y - step / wide.fma(y, step, 1.0)
    y = wide.select(size < 1e-9, size * (math.sqrt(math.pi) / 2), y)
    y = wide.select(size == 1.0, wide.floating(math.inf), y)
    y = wide.select(size > 1.0, wide.floating(math.nan), y)
    return m.from_double(wide.copysign(y, value))
