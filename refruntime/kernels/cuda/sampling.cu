// Sampling by given weights: categories of running sums, Poisson counts.
//
// State: none. Invariants: the samples of kernels/sampling.py: category i reads value pair i of its
// draw, count i the block `offset + i` of as many streams as it needs (the upper half of the counter
// tells them apart). All arithmetic is double.
//
// Both              grid (any), block (any): the grid strides over n samples
//   out             contiguous, n elements
//   n, seed, offset
// sample_categories cdf (rows, categories), categories, samples (a row; n = rows * samples)
// poisson           rates (n); invalid: counts rates that are negative or NaN

#include "philox.cuh"

DEVICE double unit_at(index_t seed, pair_t block, word_t stream, int half) {
    pair_t key = static_cast<pair_t>(seed);
    Words counter = {{static_cast<word_t>(block), static_cast<word_t>(block >> 32), stream, 0u}};
    return unit(philox(counter, static_cast<word_t>(key), static_cast<word_t>(key >> 32)).pair(half));
}

__global__ void sample_categories(index_t* out, index_t n, index_t seed, index_t offset, const double* cdf,
                                  index_t categories, index_t samples) {
    for (index_t i = global_thread(); i < n; i += global_threads()) {
        const double* row = cdf + i / samples * categories;
        double u = unit_at(seed, static_cast<pair_t>(offset) + static_cast<pair_t>(i / 2), 0u, static_cast<int>(i % 2));
        double total = row[categories - 1], goal = u * total;
        if (goal >= total) goal = total * (1.0 - 1.0 / 9007199254740992.0);
        index_t low = 0, high = categories - 1;
        while (low < high) {
            index_t middle = (low + high) / 2;
            if (row[middle] > goal) high = middle;
            else low = middle + 1;
        }
        out[i] = low;
    }
}

constexpr word_t MAX_TRIES = 1u << 16;

// Exponential waiting times as a product of uniforms (Knuth).
DEVICE double poisson_small(double rate, index_t seed, pair_t block) {
    double limit = exp(-rate), product = 1.0;
    double count = -1.0;
    for (word_t stream = 0; stream < MAX_TRIES; ++stream) {
        product *= unit_at(seed, block, stream, 0);
        count += 1.0;
        if (product <= limit) break;
    }
    return count;
}

// Transformed rejection (Hormann, 1993: PTRS).
DEVICE double poisson_large(double rate, index_t seed, pair_t block) {
    double log_rate = log(rate), b = 0.931 + 2.53 * sqrt(rate), a = -0.059 + 0.02483 * b;
    double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), squeeze = 0.9277 - 3.6224 / (b - 2.0);
    double k = 0.0;
    for (word_t stream = 0; stream < MAX_TRIES; ++stream) {
        double u = unit_at(seed, block, stream, 0) - 0.5, v = 1.0 - unit_at(seed, block, stream, 1);
        double us = 0.5 - fabs(u);
        k = floor((2.0 * a / us + b) * u + rate + 0.43);
        if (us >= 0.07 && v <= squeeze) break;
        if (k < 0.0 || (us < 0.013 && v > us)) continue;
        double left = log(v) + log(inverse_alpha) - log(a / (us * us) + b);
        if (left <= k * log_rate - rate - lgamma(k + 1.0)) break;
    }
    return k;
}

__global__ void poisson(double* out, index_t n, index_t seed, index_t offset, const double* rates,
                        unsigned long long* invalid) {
    for (index_t i = global_thread(); i < n; i += global_threads()) {
        pair_t block = static_cast<pair_t>(offset) + static_cast<pair_t>(i);
        if (!(rates[i] >= 0.0)) {
            atomicAdd(invalid, 1ull);
            out[i] = 0.0;
        } else {
            out[i] = rates[i] < 10.0 ? poisson_small(rates[i], seed, block) : poisson_large(rates[i], seed, block);
        }
    }
}
