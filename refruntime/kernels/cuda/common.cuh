// What every kernel of this folder stands on: element types, index tables, block-wide combination.
//
// Subset. The kernels are compiled three ways: by NVRTC (the product), by NVRTC without a card (a
// test) and by g++ as host C++ against a small stand-in for the CUDA built-ins (a test that runs
// them). Hence: no warp intrinsics, no textures, no device-side library; threads of a block meet
// only in __syncthreads(), which every thread of the block reaches, and shared memory is either a
// static array or shared_memory<S>().
//
// Parameters. A kernel takes pointers, `long long`, `double` and structs of `long long` by value,
// nothing else: then a Python int, a float and an array of int64 are always the right argument.
//
// Invariants. Half types are loaded and stored as themselves and computed in float; integers and
// bool accumulate in long long. A launch with no work is never made (the launcher returns first).

#ifndef REFRUNTIME_COMMON_CUH
#define REFRUNTIME_COMMON_CUH

#ifndef REFRUNTIME_HOST
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#define DEVICE __device__ __forceinline__

using index_t = long long;

constexpr int MAX_DIMS = 16;

// ---------------------------------------------------------------------------------- element types

template <typename T> struct Scalar {
    using acc = long long;
};
template <> struct Scalar<float> {
    using acc = float;
};
template <> struct Scalar<double> {
    using acc = double;
};
template <> struct Scalar<__half> {
    using acc = float;
};
template <> struct Scalar<__nv_bfloat16> {
    using acc = float;
};

template <typename T> using acc_t = typename Scalar<T>::acc;

// An element of 16 bytes, for kernels that move elements without looking at them.
struct Wide {
    unsigned long long low, high;
};

// The value of an element in the type that the kernels compute in.
template <typename T> DEVICE acc_t<T> load(T value) { return static_cast<acc_t<T>>(value); }
DEVICE float load(__half value) { return __half2float(value); }
DEVICE float load(__nv_bfloat16 value) { return __bfloat162float(value); }

// The element nearest to a computed value.
template <typename T> struct Element {
    template <typename A> static DEVICE T of(A value) { return static_cast<T>(value); }
};
template <> struct Element<__half> {
    template <typename A> static DEVICE __half of(A value) {
        return __float2half(static_cast<float>(value));
    }
};
template <> struct Element<__nv_bfloat16> {
    template <typename A> static DEVICE __nv_bfloat16 of(A value) {
        return __float2bfloat16(static_cast<float>(value));
    }
};
template <typename T, typename A> DEVICE T store(A value) { return Element<T>::of(value); }

// Limits of the computing types; for integers the type's ends stand for the infinities.
template <typename A> DEVICE A highest();
template <> DEVICE float highest<float>() { return static_cast<float>(1e300 * 1e300); }
template <> DEVICE double highest<double>() { return 1e300 * 1e300; }
template <> DEVICE long long highest<long long>() { return 0x7fffffffffffffffLL; }
template <typename A> DEVICE A lowest() { return -highest<A>(); }
template <> DEVICE long long lowest<long long>() { return -0x7fffffffffffffffLL - 1; }

// x != x is true of NaN alone, and always false of an integer.
template <typename A> DEVICE bool is_nan(A value) { return value != value; }

template <typename A> DEVICE A smaller(A a, A b) { return b < a ? b : a; }
template <typename A> DEVICE A larger(A a, A b) { return a < b ? b : a; }

// ------------------------------------------------------------------------------------- index maths

// Quotient of two non-negative numbers; 32-bit when both fit, for 64-bit division is slow on a GPU.
DEVICE index_t quotient(index_t value, index_t divisor) {
    if (((value | divisor) >> 32) == 0) {
        return static_cast<unsigned int>(value) / static_cast<unsigned int>(divisor);
    }
    return value / divisor;
}

DEVICE index_t remainder(index_t value, index_t divisor) {
    return value - quotient(value, divisor) * divisor;
}

// A position split as (outer, rows, columns): sample, channel or plane; row; column.
struct Site {
    index_t outer, row, column;
};

DEVICE Site site(index_t linear, index_t rows, index_t columns) {
    index_t above = quotient(linear, columns), outer = quotient(above, rows);
    return {outer, above - outer * rows, linear - above * columns};
}

// Index of this thread in the grid, and the number of threads in the grid (x only).
DEVICE index_t global_thread() {
    return static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
DEVICE index_t global_threads() { return static_cast<index_t>(gridDim.x) * blockDim.x; }

// One iteration space and the strides (in elements) of K operands in it, outermost dimension first.
template <int K> struct Table {
    index_t ndim;
    index_t shape[MAX_DIMS];
    index_t strides[K][MAX_DIMS];
};

// Offsets of the K operands at the row-major position `linear` of the table's space.
template <int K> DEVICE void locate(const Table<K>& table, index_t linear, index_t (&offset)[K]) {
    for (int k = 0; k < K; ++k) offset[k] = 0;
    for (int d = static_cast<int>(table.ndim) - 1; d > 0; --d) {
        index_t above = quotient(linear, table.shape[d]);
        index_t position = linear - above * table.shape[d];
        for (int k = 0; k < K; ++k) offset[k] += position * table.strides[k][d];
        linear = above;
    }
    if (table.ndim > 0) {
        for (int k = 0; k < K; ++k) offset[k] += linear * table.strides[k][0];
    }
}

DEVICE index_t locate(const Table<1>& table, index_t linear) {
    index_t offset[1];
    locate(table, linear, offset);
    return offset[0];
}

// Where the block stands in a contiguous (outer, length, inner) tensor that is worked on column by
// column: blocks go along inner first, then outer, all in the x direction of the grid, for the
// others end at 65535.
struct Column {
    index_t outer, inner;  // of this thread's column
    index_t base;          // offset of its first element; the next one is `inner` further
};

DEVICE Column column_of(index_t length, index_t inner) {
    index_t across = (inner + blockDim.x - 1) / blockDim.x;
    index_t outer = quotient(blockIdx.x, across);
    index_t column = (blockIdx.x - outer * across) * blockDim.x + threadIdx.x;
    return {outer, column, outer * length * inner + column};
}

// ------------------------------------------------------------------------------- shared memory use

#ifdef REFRUNTIME_HOST
template <typename S> S* shared_memory() { return reinterpret_cast<S*>(cuda_host::dynamic_shared); }
#else
template <typename S> DEVICE S* shared_memory() {
    extern __shared__ __align__(16) unsigned char dynamic_shared[];
    return reinterpret_cast<S*>(dynamic_shared);
}
#endif

// Combines the states of the threads that share threadIdx.x, over threadIdx.y, in one fixed tree;
// all of them get the result. `cells` holds blockDim.x * blockDim.y states; blockDim.y is a power
// of two. The order of combination depends on the block's shape alone: results are reproducible.
template <typename Merge, typename S> DEVICE S combine_y(S state, S* cells) {
    int cell = threadIdx.y * blockDim.x + threadIdx.x;
    cells[cell] = state;
    __syncthreads();
    for (int half = blockDim.y / 2; half > 0; half /= 2) {
        if (static_cast<int>(threadIdx.y) < half) {
            cells[cell] = Merge::merge(cells[cell], cells[cell + half * blockDim.x]);
        }
        __syncthreads();
    }
    S result = cells[threadIdx.x];
    __syncthreads();
    return result;
}

// Two sums taken together.
template <typename A> struct Two {
    A first, second;
    static DEVICE Two merge(Two a, Two b) { return {a.first + b.first, a.second + b.second}; }
};
template <typename A> struct Plus {
    static DEVICE A merge(A a, A b) { return a + b; }
};
template <typename A> struct Largest {
    static DEVICE A merge(A a, A b) { return is_nan(a) ? a : (is_nan(b) || b > a) ? b : a; }
};
template <typename A> struct Smallest {
    static DEVICE A merge(A a, A b) { return is_nan(a) ? a : (is_nan(b) || b < a) ? b : a; }
};

// Running mean and sum of squared deviations (Welford; merged by Chan's formula).
template <typename A> struct Moments {
    A count, mean, m2;
    static DEVICE Moments none() { return {A(0), A(0), A(0)}; }
    DEVICE void take(A value) {
        count += A(1);
        A delta = value - mean;
        mean += delta / count;
        m2 += delta * (value - mean);
    }
    static DEVICE Moments merge(Moments a, Moments b) {
        if (b.count == A(0)) return a;
        if (a.count == A(0)) return b;
        A count = a.count + b.count;
        A delta = b.mean - a.mean;
        return {count, a.mean + delta * (b.count / count),
                a.m2 + b.m2 + delta * delta * (a.count * b.count / count)};
    }
};

#endif
