// __half and __nv_bfloat16 as host C++: 16 bits of storage, and the conversions the kernels use.
// Both roundings are to nearest, ties to even, as on the card; NaN stays NaN.

#ifndef HALF_HOST_H
#define HALF_HOST_H

#include <string.h>

struct __half {
    unsigned short bits;
};

struct __nv_bfloat16 {
    unsigned short bits;
};

namespace cuda_host {

inline unsigned int bits_of(float value) {
    unsigned int bits;
    memcpy(&bits, &value, 4);
    return bits;
}

inline float float_of(unsigned int bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Drops the lowest `count` bits of a number, rounding to nearest even.
inline unsigned int round_off(unsigned int value, int count) {
    unsigned int half = 1u << (count - 1);
    unsigned int rest = value & ((1u << count) - 1);
    unsigned int kept = value >> count;
    return kept + (rest > half || (rest == half && (kept & 1u)));
}

}  // namespace cuda_host

inline float __bfloat162float(__nv_bfloat16 value) {
    return cuda_host::float_of(static_cast<unsigned int>(value.bits) << 16);
}

inline __nv_bfloat16 __float2bfloat16(float value) {
    if (value != value) return {0x7fff};
    return {static_cast<unsigned short>(cuda_host::round_off(cuda_host::bits_of(value), 16))};
}

inline float __half2float(__half value) {
    unsigned int sign = static_cast<unsigned int>(value.bits & 0x8000u) << 16;
    unsigned int exponent = value.bits >> 10 & 0x1fu, fraction = value.bits & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float
        float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;
        return sign ? -magnitude : magnitude;
    }
    unsigned int widened = exponent == 31 ? 255u : exponent + 112u;
    return cuda_host::float_of(sign | widened << 23 | fraction << 13);
}

inline __half __float2half(float value) {
    unsigned int bits = cuda_host::bits_of(value);
    unsigned int sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    unsigned int half;
    if (magnitude > 0x7f800000u) half = 0x7fffu;        // NaN
    else if (magnitude >= 0x47800000u) half = 0x7c00u;  // 2^16 and above: infinity
    else if (magnitude >= 0x38800000u) {                // normal; may round up to infinity
        half = cuda_host::round_off(magnitude - 0x38000000u, 13);
    } else if (magnitude >= 0x33000000u) {  // subnormal
        int shift = 126 - static_cast<int>(magnitude >> 23);
        half = cuda_host::round_off((magnitude & 0x7fffffu) | 0x800000u, shift);
    } else half = 0;
    return {static_cast<unsigned short>(sign | half)};
}

#endif
