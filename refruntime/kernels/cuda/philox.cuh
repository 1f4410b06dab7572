// Philox4x32-10 and what turns its words into numbers: the twin of kernels/philox.py.
//
// Invariants. The same words as on the CPU, and for float the same numbers bit for bit: sums and
// products go through add() and mul(), which are never contracted into one rounding. Double
// logarithms and sines come from the platform and agree to rounding.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11, 2011.

#ifndef REFRUNTIME_PHILOX_CUH
#define REFRUNTIME_PHILOX_CUH

#include "common.cuh"

using word_t = unsigned int;
using pair_t = unsigned long long;

#ifdef REFRUNTIME_HOST
DEVICE float add(float a, float b) { return a + b; }
DEVICE float mul(float a, float b) { return a * b; }
#else
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
#endif

union Bits {
    float number;
    word_t word;
};

struct Words {
    word_t w[4];
    // 64-bit value `half` of the block: its words 2 half (low) and 2 half + 1.
    DEVICE pair_t pair(int half) const { return w[2 * half] | static_cast<pair_t>(w[2 * half + 1]) << 32; }
};

DEVICE Words philox_round(Words c, word_t k0, word_t k1) {
    pair_t p0 = static_cast<pair_t>(c.w[0]) * 0xD2511F53u;
    pair_t p1 = static_cast<pair_t>(c.w[2]) * 0xCD9E8D57u;
    return {{static_cast<word_t>(p1 >> 32) ^ c.w[1] ^ k0, static_cast<word_t>(p1),
             static_cast<word_t>(p0 >> 32) ^ c.w[3] ^ k1, static_cast<word_t>(p0)}};
}

DEVICE Words philox(Words counter, word_t k0, word_t k1) {
    for (int i = 0; i < 9; ++i) {
        counter = philox_round(counter, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return philox_round(counter, k0, k1);
}

// Block `number` of the stream of `seed`; both are the bits of unsigned 64-bit numbers.
DEVICE Words block_of(index_t seed, pair_t number) {
    pair_t key = static_cast<pair_t>(seed);
    return philox({{static_cast<word_t>(number), static_cast<word_t>(number >> 32), 0u, 0u}},
                  static_cast<word_t>(key), static_cast<word_t>(key >> 32));
}

// ------------------------------------------------------------------------------- words as numbers

DEVICE float unit(word_t word) { return mul(static_cast<float>(word >> 8), 1.0f / 16777216.0f); }
DEVICE double unit(pair_t value) { return static_cast<double>(value >> 11) * (1.0 / 9007199254740992.0); }

// The upper 64 bits of a product: `a` scaled into [0, b).
DEVICE pair_t multiply_high(pair_t a, pair_t b) {
    const pair_t low = 0xFFFFFFFFull;
    pair_t low_low = (a & low) * (b & low), high_low = (a >> 32) * (b & low);
    pair_t low_high = (a & low) * (b >> 32);
    pair_t middle = (low_low >> 32) + (high_low & low) + (low_high & low);
    return (a >> 32) * (b >> 32) + (high_low >> 32) + (low_high >> 32) + (middle >> 32);
}

// -ln((word + 1) / 2^32): x = m 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m + 1)).
DEVICE float minus_log(word_t word) {
    Bits x;
    x.number = add(static_cast<float>(word), 1.0f);
    int e = static_cast<int>(x.word >> 23);
    x.word = (x.word & 0x7FFFFFu) | 0x3F800000u;
    bool above = x.number > static_cast<float>(1.4142135623730951);
    float m = above ? mul(x.number, 0.5f) : x.number;
    e += above ? 1 : 0;
    float s = add(m, -1.0f) / add(m, 1.0f);
    float z = mul(s, s);
    float tail = static_cast<float>(2.0 / 9.0);
    tail = add(static_cast<float>(2.0 / 7.0), mul(z, tail));
    tail = add(static_cast<float>(2.0 / 5.0), mul(z, tail));
    tail = add(static_cast<float>(2.0 / 3.0), mul(z, tail));
    float log_m = add(mul(2.0f, s), mul(mul(s, z), tail));
    return add(mul(static_cast<float>(159 - e), static_cast<float>(0.6931471805599453)), -log_m);
}
DEVICE double minus_log(pair_t value) {
    return -log((static_cast<double>(value) + 1.0) * (1.0 / 18446744073709551616.0));
}

// Cosine and sine of a random angle: the upper bits choose the quarter, the rest lies in [-pi/4, pi/4).
DEVICE void cos_sin(word_t word, float& x, float& y) {
    float t = mul(static_cast<float>(static_cast<int>(word << 2)), static_cast<float>(3.141592653589793 / 8589934592.0));
    float z = mul(t, t);
    float s = static_cast<float>(1.0 / 362880.0);
    s = add(static_cast<float>(-1.0 / 5040.0), mul(z, s));
    s = add(static_cast<float>(1.0 / 120.0), mul(z, s));
    s = add(static_cast<float>(-1.0 / 6.0), mul(z, s));
    s = add(t, mul(mul(t, z), s));
    float c = static_cast<float>(1.0 / 40320.0);
    c = add(static_cast<float>(-1.0 / 720.0), mul(z, c));
    c = add(static_cast<float>(1.0 / 24.0), mul(z, c));
    c = add(-0.5f, mul(z, c));
    c = add(1.0f, mul(z, c));
    word_t quarter = word >> 30;
    x = quarter & 1u ? -s : c;
    y = quarter & 1u ? c : s;
    if (quarter >= 2u) {
        x = -x;
        y = -y;
    }
}
DEVICE void cos_sin(pair_t value, double& x, double& y) {
    double angle = static_cast<double>(value) * (3.141592653589793 / 9223372036854775808.0);
    x = cos(angle);
    y = sin(angle);
}

// How a type draws: `number` is what it computes in, `PER_BLOCK` how many a block gives, and draw(i)
// the word or pair of element i.
template <typename A> struct Draw;
template <> struct Draw<float> {
    static constexpr int PER_BLOCK = 4;
    static DEVICE word_t take(const Words& words, int i) { return words.w[i]; }
};
template <> struct Draw<double> {
    static constexpr int PER_BLOCK = 2;
    static DEVICE pair_t take(const Words& words, int i) { return words.pair(i); }
};

#endif
