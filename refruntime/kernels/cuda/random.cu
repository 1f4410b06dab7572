// Random fills and dropout: one thread takes whole blocks of a Philox stream.
//
// State: none; `seed` and `offset` (bits of unsigned 64-bit numbers) say which blocks are drawn.
// Invariants: element i is made of the same words as on the CPU (kernels/random.py), whatever the
// launch. Targets are contiguous.
//
// All kernels       grid (any), block (any): the grid strides over ceil(n words / 4) blocks
//   out             contiguous, n elements
//   n, seed, offset
// uniform<T>        low, high (doubles), bits: how many upper bits of a word are random (24; halves fewer)
// normal<T>         mean, std
// exponential<T>    rate
// log_normal<T>     mean, std
// cauchy<T>         median, sigma
// geometric<T>      rate: -ln(1 - p)
// integers          low, span (0 stands for 2^64)
// bernoulli         threshold: the probability times 2^32
// bernoulli_of      chance: doubles, contiguous; invalid: counts the chances outside [0, 1]
// permutation_keys  index_bits: the lower bits, which hold the position
// dropout<T>        x, threshold, scale

#include "philox.cuh"

template <typename F> DEVICE void each_block(index_t n, int per_block, index_t seed, index_t offset, F&& use) {
    index_t blocks = (n + per_block - 1) / per_block;
    for (index_t b = global_thread(); b < blocks; b += global_threads()) {
        use(block_of(seed, static_cast<pair_t>(offset) + static_cast<pair_t>(b)), b * per_block);
    }
}

DEVICE float scaled(float unit, float low, float high) {
    float x = add(mul(unit, add(high, -low)), low);
    return x < high ? x : low;
}
DEVICE double scaled(double unit, double low, double high) {
    double x = unit * (high - low) + low;
    return x < high ? x : low;
}

template <typename T>
__global__ void uniform(T* out, index_t n, index_t seed, index_t offset, double low, double high, index_t bits) {
    using A = acc_t<T>;
    constexpr int PER = Draw<A>::PER_BLOCK;
    word_t keep = ~0u << (32 - static_cast<int>(bits));
    each_block(n, PER, seed, offset, [&](Words words, index_t at) {
        for (int i = 0; i < 4 && PER == 4; ++i) words.w[i] &= keep;
        for (int i = 0; i < PER && at + i < n; ++i) {
            A u = unit(Draw<A>::take(words, i));
            out[at + i] = store<T>(scaled(u, static_cast<A>(low), static_cast<A>(high)));
        }
    });
}

DEVICE float shifted(float z, float mean) { return add(z, mean); }
DEVICE double shifted(double z, double mean) { return z + mean; }
DEVICE float times(float a, float b) { return mul(a, b); }
DEVICE double times(double a, double b) { return a * b; }

template <typename T>
__global__ void normal(T* out, index_t n, index_t seed, index_t offset, double mean, double std) {
    using A = acc_t<T>;
    constexpr int PER = Draw<A>::PER_BLOCK;
    each_block(n, PER, seed, offset, [&](const Words& words, index_t at) {
        for (int i = 0; i < PER; i += 2) {
            A x, y;
            A radius = times(sqrt(times(A(2), minus_log(Draw<A>::take(words, i)))), static_cast<A>(std));
            cos_sin(Draw<A>::take(words, i + 1), x, y);
            if (at + i < n) out[at + i] = store<T>(shifted(times(radius, x), static_cast<A>(mean)));
            if (at + i + 1 < n) out[at + i + 1] = store<T>(shifted(times(radius, y), static_cast<A>(mean)));
        }
    });
}

DEVICE float exponential_of(word_t word, double rate) {
    return mul(larger(minus_log(word), 1.0f / 16777216.0f), static_cast<float>(1.0 / rate));
}
DEVICE double exponential_of(pair_t value, double rate) {
    return larger(minus_log(value), 1.0 / 9007199254740992.0) / rate;
}

template <typename T>
__global__ void exponential(T* out, index_t n, index_t seed, index_t offset, double rate) {
    using A = acc_t<T>;
    each_block(n, Draw<A>::PER_BLOCK, seed, offset, [&](const Words& words, index_t at) {
        for (int i = 0; i < Draw<A>::PER_BLOCK && at + i < n; ++i) {
            out[at + i] = store<T>(exponential_of(Draw<A>::take(words, i), rate));
        }
    });
}

template <typename T>
__global__ void log_normal(T* out, index_t n, index_t seed, index_t offset, double mean, double std) {
    using A = acc_t<T>;
    constexpr int PER = Draw<A>::PER_BLOCK;
    each_block(n, PER, seed, offset, [&](const Words& words, index_t at) {
        for (int i = 0; i < PER; i += 2) {
            A x, y;
            A radius = times(sqrt(times(A(2), minus_log(Draw<A>::take(words, i)))), static_cast<A>(std));
            cos_sin(Draw<A>::take(words, i + 1), x, y);
            if (at + i < n) out[at + i] = store<T>(exp(shifted(times(radius, x), static_cast<A>(mean))));
            if (at + i + 1 < n) out[at + i + 1] = store<T>(exp(shifted(times(radius, y), static_cast<A>(mean))));
        }
    });
}

template <typename T>
__global__ void cauchy(T* out, index_t n, index_t seed, index_t offset, double median, double sigma) {
    using A = acc_t<T>;
    each_block(n, Draw<A>::PER_BLOCK, seed, offset, [&](const Words& words, index_t at) {
        for (int i = 0; i < Draw<A>::PER_BLOCK && at + i < n; ++i) {
            A angle = static_cast<A>(3.141592653589793) * (unit(Draw<A>::take(words, i)) - A(0.5));
            out[at + i] = store<T>(static_cast<A>(median) + static_cast<A>(sigma) * tan(angle));
        }
    });
}

template <typename T>
__global__ void geometric(T* out, index_t n, index_t seed, index_t offset, double rate) {
    using A = acc_t<T>;
    each_block(n, Draw<A>::PER_BLOCK, seed, offset, [&](const Words& words, index_t at) {
        for (int i = 0; i < Draw<A>::PER_BLOCK && at + i < n; ++i) {
            out[at + i] = store<T>(ceil(exponential_of(Draw<A>::take(words, i), rate)));
        }
    });
}

__global__ void integers(index_t* out, index_t n, index_t seed, index_t offset, index_t low, index_t span) {
    pair_t range = static_cast<pair_t>(span);
    each_block(n, 2, seed, offset, [&](const Words& words, index_t at) {
        for (int i = 0; i < 2 && at + i < n; ++i) {
            pair_t value = words.pair(i);
            pair_t step = range == 0 ? value : multiply_high(value, range);
            out[at + i] = static_cast<index_t>(static_cast<pair_t>(low) + step);
        }
    });
}

__global__ void bernoulli(bool* out, index_t n, index_t seed, index_t offset, index_t threshold) {
    each_block(n, 4, seed, offset, [&](const Words& words, index_t at) {
        for (int i = 0; i < 4 && at + i < n; ++i) out[at + i] = words.w[i] < static_cast<pair_t>(threshold);
    });
}

__global__ void bernoulli_of(bool* out, index_t n, index_t seed, index_t offset, const double* chance,
                             unsigned long long* invalid) {
    each_block(n, 4, seed, offset, [&](const Words& words, index_t at) {
        for (int i = 0; i < 4 && at + i < n; ++i) {
            double p = chance[at + i];
            if (!(p >= 0.0 && p <= 1.0)) atomicAdd(invalid, 1ull);
            out[at + i] = static_cast<double>(words.w[i]) < p * 4294967296.0;
        }
    });
}

__global__ void permutation_keys(pair_t* out, index_t n, index_t seed, index_t offset, index_t index_bits) {
    each_block(n, 2, seed, offset, [&](const Words& words, index_t at) {
        for (int i = 0; i < 2 && at + i < n; ++i) {
            out[at + i] = (words.pair(i) >> (index_bits + 1) << index_bits) | static_cast<pair_t>(at + i);
        }
    });
}

template <typename T>
__global__ void dropout(T* out, index_t n, index_t seed, index_t offset, const T* x, index_t threshold, double scale) {
    using A = acc_t<T>;
    each_block(n, 4, seed, offset, [&](const Words& words, index_t at) {
        for (int i = 0; i < 4 && at + i < n; ++i) {
            A value = load(x[at + i]) * static_cast<A>(scale);
            out[at + i] = store<T>(words.w[i] < static_cast<pair_t>(threshold) ? value : A(0));
        }
    });
}
