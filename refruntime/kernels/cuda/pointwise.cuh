// What generated pointwise kernels call besides CUDA's own functions.
//
// Invariants: integer division never traps (a zero divisor gives 0, the most negative number divided
// by -1 wraps); arithmetic that may overflow runs in unsigned types. Names agree with the CPU's table
// (refruntime/kernels/mathtable.py).

#ifndef REFRUNTIME_POINTWISE_CUH
#define REFRUNTIME_POINTWISE_CUH

#include "common.cuh"

using int8 = signed char;
using int16 = short;
using int32 = int;
using int64 = long long;
using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
using float32 = float;
using float64 = double;

// Not constexpr: in C++ an overflow is no constant expression.
#define INFINITE (1e300 * 1e300)
constexpr double PI = 3.14159265358979323846;

// ----------------------------------------------------------------------------------------- integers

template <typename C> DEVICE bool is_signed() { return C(-1) < C(0); }

template <typename C> DEVICE C wrapping_add(C a, C b) { return C(uint64(a) + uint64(b)); }
template <typename C> DEVICE C wrapping_sub(C a, C b) { return C(uint64(a) - uint64(b)); }
template <typename C> DEVICE C wrapping_mul(C a, C b) { return C(uint64(a) * uint64(b)); }

template <typename C> DEVICE C trunc_divide_int(C a, C b) {
    if (b == C(0)) return C(0);
    if (is_signed<C>() && b == C(-1)) return wrapping_sub(C(0), a);
    return C(a / b);
}

template <typename C> DEVICE C fmod_int(C a, C b) {
    if (b == C(0) || (is_signed<C>() && b == C(-1))) return C(0);
    return C(a % b);
}

template <typename C> DEVICE C floor_divide_int(C a, C b) {
    C quotient = trunc_divide_int(a, b);
    bool inexact = b != C(0) && wrapping_mul(quotient, b) != a;
    return inexact && (a < C(0)) != (b < C(0)) ? C(quotient - C(1)) : quotient;
}

template <typename C> DEVICE C python_remainder_int(C a, C b) {
    C rest = fmod_int(a, b);
    return rest != C(0) && (rest < C(0)) != (b < C(0)) ? C(rest + b) : rest;
}

template <typename C> DEVICE C pow_int(C base, C exponent) {
    if (exponent < C(0)) {
        if (base == C(1)) return C(1);
        if (base == C(-1)) return exponent & C(1) ? C(-1) : C(1);
        return C(0);
    }
    C result = C(1);
    for (; exponent > C(0); exponent = C(exponent >> 1)) {
        if (exponent & C(1)) result = wrapping_mul(result, base);
        base = wrapping_mul(base, base);
    }
    return result;
}

template <typename C> DEVICE C gcd_int(C a, C b) {
    a = a < C(0) ? wrapping_sub(C(0), a) : a;
    b = b < C(0) ? wrapping_sub(C(0), b) : b;
    while (b != C(0)) {
        C rest = C(a % b);
        a = b;
        b = rest;
    }
    return a;
}

template <typename C> DEVICE C shift_left(C a, C b) {
    bool inside = b >= C(0) && b < C(8 * sizeof(C));
    return inside ? C(uint64(a) << b) : C(0);
}

template <typename C> DEVICE C shift_right(C a, C b) {
    bool inside = b >= C(0) && b < C(8 * sizeof(C));
    return C(a >> (inside ? b : C(8 * sizeof(C) - 1)));
}

// ------------------------------------------------------------------------------------------- floats

template <typename C> DEVICE C python_remainder(C a, C b) {
    C rest = fmod(a, b);
    return rest != C(0) && (rest < C(0)) != (b < C(0)) ? rest + b : rest;
}

template <typename C> DEVICE C floor_divide(C a, C b) {
    if (b == C(0)) return a / b;
    C rest = fmod(a, b);
    C quotient = (a - rest) / b;
    if (rest != C(0) && (b < C(0)) != (rest < C(0))) quotient -= C(1);
    if (quotient == C(0)) return copysign(quotient, a / b);
    C whole = floor(quotient);
    return quotient - whole > C(0.5) ? whole + C(1) : whole;
}

template <typename C> DEVICE C sigmoid(C x) {
    C e = exp(-fabs(x));
    return (x < C(0) ? e : C(1)) / (C(1) + e);
}

// NaN wins in the first pair, gives way in the second.
template <typename C> DEVICE C maximum(C a, C b) { return a != a || a > b ? a : b; }
template <typename C> DEVICE C minimum(C a, C b) { return a != a || a < b ? a : b; }
template <typename C> DEVICE C larger_number(C a, C b) { return b != b || a > b ? a : b; }
template <typename C> DEVICE C smaller_number(C a, C b) { return b != b || a < b ? a : b; }

// Reflection, recurrence, asymptotic series; as the CPU's.
DEVICE double digamma(double x) {
    if (x == 0.0) return copysign(INFINITE, -x);
    double result = 0.0;
    if (x < 0.0) {
        if (x == floor(x)) return INFINITE - INFINITE;
        result = -PI / tan(PI * (x - floor(x)));
        x = 1.0 - x;
    }
    for (; x < 10.0; x += 1.0) result -= 1.0 / x;
    if (x == INFINITE) return x;
    double z = 1.0 / (x * x);
    double series = z * (1 / 12.0 - z * (1 / 120.0 - z * (1 / 252.0 - z * (1 / 240.0 -
                    z * (1 / 132.0 - z * (691 / 32760.0 - z / 12.0))))));
    return result + log(x) - 0.5 / x - series;
}

// Sum of (q + k)^-s over k >= 0: terms up to q = 10, then Euler and Maclaurin.
DEVICE double hurwitz_zeta(double s, double q) {
    if (s <= 1.0) return s == 1.0 ? INFINITE : INFINITE - INFINITE;
    if (q <= 0.0 && q == floor(q)) return INFINITE;
    if (q <= 0.0 && s != floor(s)) return INFINITE - INFINITE;
    double total = 0.0;
    for (; q < 10.0; q += 1.0) total += pow(q, -s);
    if (q == INFINITE) return 0.0;
    double last = pow(q, -s), step = 1.0 / (q * q), product = last * s / q;
    total += last * (q / (s - 1.0) + 0.5) + product / 12.0;
    total -= (product *= (s + 1.0) * (s + 2.0) * step) / 720.0;
    total += (product *= (s + 3.0) * (s + 4.0) * step) / 30240.0;
    total -= (product *= (s + 5.0) * (s + 6.0) * step) / 1209600.0;
    total += (product *= (s + 7.0) * (s + 8.0) * step) / 47900160.0;
    return total - (product *= (s + 9.0) * (s + 10.0) * step) * 691.0 / 1307674368000.0;
}

// exp(-|x|) I0(x): the power series, or Hankel's expansion for large x.
DEVICE double bessel_i0e(double x) {
    x = fabs(x);
    if (x == INFINITE) return 0.0;
    double term = 1.0, total = 1.0;
    if (x < 20.0) {
        double quarter = x * x / 4.0;
        for (int k = 1; k < 60; ++k) {
            term *= quarter / (k * k);
            total += term;
        }
        return total * exp(-x);
    }
    for (int k = 1; k < 20; ++k) {
        term *= (2 * k - 1) * (2 * k - 1) / (8.0 * k * x);
        total += term;
    }
    return total / sqrt(2.0 * PI * x);
}

DEVICE double bessel_i1e(double x) {
    double size = fabs(x);
    if (size == INFINITE) return 0.0;
    double term = 1.0, total = 1.0;
    if (size < 20.0) {
        double quarter = size * size / 4.0;
        for (int k = 1; k < 60; ++k) {
            term *= quarter / (k * (k + 1.0));
            total += term;
        }
        return copysign(total * size / 2.0 * exp(-size), x);
    }
    for (int k = 1; k < 20; ++k) {
        term *= ((2 * k - 1) * (2 * k - 1) - 4) / (8.0 * k * size);
        total += term;
    }
    return copysign(total / sqrt(2.0 * PI * size), x);
}

DEVICE double scaled_erfc(double x) {
    if (!(x > 5.0)) return exp(x * x) * erfc(x);
    double below = x;
    for (int k = 40; k > 0; --k) below = x + 0.5 * k / below;
    return 1.0 / (sqrt(PI) * below);
}

#ifdef REFRUNTIME_HOST
// CUDA has these; the host's library has not.
template <typename C> C rsqrt(C x) { return C(1) / sqrt(x); }
template <typename C> C erfinv(C value) {
    double size = fabs(double(value));
    if (!(size < 1.0)) return size == 1.0 ? C(copysign(INFINITE, double(value))) : C(INFINITE - INFINITE);
    double low = 0.0, high = 6.0;
    for (int k = 0; k < 100; ++k) {
        double middle = 0.5 * (low + high);
        bool below = middle < 0.5 ? erf(middle) < size : erfc(middle) > 1.0 - size;
        (below ? low : high) = middle;
    }
    return C(copysign(0.5 * (low + high), double(value)));
}
#endif

#endif
