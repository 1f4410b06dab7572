// Convolution in one to three dimensions: forward, gradient of the input (also the forward of the
// transposed convolution), gradient of the weight.
//
// All three are one matrix product A (M x K) times B (K x N) a group, whose operands are read in
// place by index arithmetic (implicit GEMM): no unfolded copy exists. A Problem says what M, N, K
// are, how to read an element of A and of B, and where an element of the result goes.
//
// State: two tiles in shared memory, a 4 x 4 patch of the result in registers of each thread.
// Invariants: tensors are contiguous (batch, channels, depth, height, width), with sizes of 1 where
// there are fewer dimensions; elements outside a matrix read as zero and are never stored; each
// result element is summed in order of k by one thread (weight gradient: by one thread a split,
// then in order of the split), so results are reproducible.
//
// conv<Problem, T>       grid (ceil(N / 64), ceil(M / 64), groups * splits), block (256)
//   out                  Forward, Input: T; Weight: workspace [split][out_channels * N] in the
//                        computing type
//   a, b                 Forward: weight, input. Input: weight, gradient. Weight: gradient, input
//   bias                 one number a row of M over all groups, or 0 (Weight: 0)
//   shape                ConvShape
//   splits               parts that K is cut into; 1 but for Weight
// conv_weight_finish<T>  grid (ceil(count / 256)), block (256)
//   out, partial, splits, count

#include "common.cuh"

struct ConvShape {
    index_t batch, in_channels, out_channels, groups;
    index_t in[3], kernel[3], stride[3], padding[3], dilation[3], out[3];  // depth, height, width

    DEVICE index_t group_in() const { return in_channels / groups; }
    DEVICE index_t group_out() const { return out_channels / groups; }
    DEVICE index_t window() const { return kernel[0] * kernel[1] * kernel[2]; }
    DEVICE index_t in_volume() const { return in[0] * in[1] * in[2]; }
    DEVICE index_t out_volume() const { return out[0] * out[1] * out[2]; }
};

// A position split as (sample or channel, depth, height, width).
struct Point {
    index_t outer, at[3];
};

DEVICE Point point(index_t linear, const index_t (&sizes)[3]) {
    Point p;
    for (int d = 2; d >= 0; --d) {
        index_t above = quotient(linear, sizes[d]);
        p.at[d] = linear - above * sizes[d];
        linear = above;
    }
    p.outer = linear;
    return p;
}

DEVICE index_t flat(const Point& p, const index_t (&sizes)[3]) {
    return (p.at[0] * sizes[1] + p.at[1]) * sizes[2] + p.at[2];
}

// Input element under a tap of the window at an output place, or zero.
template <typename T>
DEVICE acc_t<T> input_under(const T* input, const ConvShape& s, index_t sample, index_t channel,
                            const Point& out, const Point& tap) {
    Point p;
    for (int d = 0; d < 3; ++d) {
        p.at[d] = out.at[d] * s.stride[d] - s.padding[d] + tap.at[d] * s.dilation[d];
        if (p.at[d] < 0 || p.at[d] >= s.in[d]) return acc_t<T>(0);
    }
    return load(input[(sample * s.in_channels + channel) * s.in_volume() + flat(p, s.in)]);
}

// out[o, (n, place)] = sum over (c, tap) of weight[o, (c, tap)] * input under it.
template <typename T> struct Forward {
    using Result = T;
    static DEVICE index_t rows(const ConvShape& s) { return s.group_out(); }
    static DEVICE index_t columns(const ConvShape& s) { return s.batch * s.out_volume(); }
    static DEVICE index_t depth(const ConvShape& s) { return s.group_in() * s.window(); }
    static DEVICE Point column(const ConvShape& s, index_t n) { return point(n, s.out); }
    static DEVICE acc_t<T> a(const T* weight, const ConvShape& s, index_t group, index_t m,
                             index_t k) {
        return load(weight[(group * s.group_out() + m) * depth(s) + k]);
    }
    static DEVICE acc_t<T> b(const T* input, const ConvShape& s, index_t group, index_t k,
                             const Point& n) {
        Point tap = point(k, s.kernel);
        return input_under(input, s, n.outer, group * s.group_in() + tap.outer, n, tap);
    }
    static DEVICE index_t place(const ConvShape& s, index_t group, index_t m, const Point& n,
                                index_t) {
        return (n.outer * s.out_channels + group * s.group_out() + m) * s.out_volume() +
               flat(n, s.out);
    }
};

// gx[c, (n, place)] = sum over (o, tap) of weight[o, c, tap] * g at the window that has the place
// under the tap.
template <typename T> struct Input {
    using Result = T;
    static DEVICE index_t rows(const ConvShape& s) { return s.group_in(); }
    static DEVICE index_t columns(const ConvShape& s) { return s.batch * s.in_volume(); }
    static DEVICE index_t depth(const ConvShape& s) { return s.group_out() * s.window(); }
    static DEVICE Point column(const ConvShape& s, index_t n) { return point(n, s.in); }
    static DEVICE acc_t<T> a(const T* weight, const ConvShape& s, index_t group, index_t m,
                             index_t k) {
        index_t o = quotient(k, s.window()), tap = k - o * s.window();
        return load(weight[((group * s.group_out() + o) * s.group_in() + m) * s.window() + tap]);
    }
    static DEVICE acc_t<T> b(const T* g, const ConvShape& s, index_t group, index_t k,
                             const Point& n) {
        Point tap = point(k, s.kernel), p;
        for (int d = 0; d < 3; ++d) {
            index_t shifted = n.at[d] + s.padding[d] - tap.at[d] * s.dilation[d];
            if (shifted < 0) return acc_t<T>(0);
            p.at[d] = quotient(shifted, s.stride[d]);
            if (p.at[d] * s.stride[d] != shifted || p.at[d] >= s.out[d]) return acc_t<T>(0);
        }
        index_t channel = group * s.group_out() + tap.outer;
        return load(g[(n.outer * s.out_channels + channel) * s.out_volume() + flat(p, s.out)]);
    }
    static DEVICE index_t place(const ConvShape& s, index_t group, index_t m, const Point& n,
                                index_t) {
        return (n.outer * s.in_channels + group * s.group_in() + m) * s.in_volume() + flat(n, s.in);
    }
};

// gw[o, (c, tap)] = sum over (n, place) of g[n, o, place] * input under the tap there.
template <typename T> struct Weight {
    using Result = acc_t<T>;
    static DEVICE index_t rows(const ConvShape& s) { return s.group_out(); }
    static DEVICE index_t columns(const ConvShape& s) { return s.group_in() * s.window(); }
    static DEVICE index_t depth(const ConvShape& s) { return s.batch * s.out_volume(); }
    static DEVICE Point column(const ConvShape& s, index_t n) { return point(n, s.kernel); }
    static DEVICE acc_t<T> a(const T* g, const ConvShape& s, index_t group, index_t m, index_t k) {
        index_t volume = s.out_volume(), sample = quotient(k, volume);
        index_t channel = group * s.group_out() + m;
        return load(g[(sample * s.out_channels + channel) * volume + (k - sample * volume)]);
    }
    static DEVICE acc_t<T> b(const T* input, const ConvShape& s, index_t group, index_t k,
                             const Point& n) {
        Point out = point(k, s.out);
        return input_under(input, s, out.outer, group * s.group_in() + n.outer, out, n);
    }
    static DEVICE index_t place(const ConvShape& s, index_t group, index_t m, const Point& n,
                                index_t split) {
        index_t row = split * s.out_channels + group * s.group_out() + m;
        return (row * s.group_in() + n.outer) * s.window() + flat(n, s.kernel);
    }
};

constexpr int TILE = 64, DEPTH = 8, PATCH = 4, THREADS = 256;

template <template <typename> class Problem, typename T>
__global__ void __launch_bounds__(THREADS)
    conv(typename Problem<T>::Result* out, const T* a, const T* b, const T* bias,
         const ConvShape shape, index_t splits) {
    using P = Problem<T>;
    using A = acc_t<T>;
    __shared__ A a_tile[DEPTH][TILE + 1];
    __shared__ A b_tile[DEPTH][TILE];
    index_t m_first = static_cast<index_t>(blockIdx.y) * TILE,
            n_first = static_cast<index_t>(blockIdx.x) * TILE;
    index_t group = blockIdx.z / splits, split = blockIdx.z % splits;
    index_t rows = P::rows(shape), columns = P::columns(shape), depth = P::depth(shape);
    index_t chunk = (depth + splits - 1) / splits, k_end = smaller((split + 1) * chunk, depth);

    int thread = threadIdx.x, lane = thread % TILE;
    index_t n_read = n_first + lane;
    Point column_read = P::column(shape, smaller(n_read, columns - 1));
    A sums[PATCH][PATCH] = {};
    for (index_t k = split * chunk; k < k_end; k += DEPTH) {
        for (int i = thread; i < TILE * DEPTH; i += THREADS) {
            index_t m = m_first + i / DEPTH, ka = k + i % DEPTH;
            a_tile[i % DEPTH][i / DEPTH] =
                m < rows && ka < k_end ? P::a(a, shape, group, m, ka) : A(0);
        }
        for (int d = thread / TILE; d < DEPTH; d += THREADS / TILE) {
            bool inside = n_read < columns && k + d < k_end;
            b_tile[d][lane] = inside ? P::b(b, shape, group, k + d, column_read) : A(0);
        }
        __syncthreads();
        for (int d = 0; d < DEPTH; ++d) {
            for (int i = 0; i < PATCH; ++i) {
                A left = a_tile[d][thread / 16 + 16 * i];
                for (int j = 0; j < PATCH; ++j)
                    sums[i][j] += left * b_tile[d][thread % 16 + 16 * j];
            }
        }
        __syncthreads();
    }
    for (int j = 0; j < PATCH; ++j) {
        index_t n = n_first + thread % 16 + 16 * j;
        if (n >= columns) continue;
        Point column = P::column(shape, n);
        for (int i = 0; i < PATCH; ++i) {
            index_t m = m_first + thread / 16 + 16 * i;
            if (m >= rows) continue;
            A value = sums[i][j] + (bias ? load(bias[group * rows + m]) : A(0));
            out[P::place(shape, group, m, column, split)] = store<typename P::Result>(value);
        }
    }
}

template <typename T>
__global__ void conv_weight_finish(T* out, const acc_t<T>* partial, index_t splits, index_t count) {
    index_t i = global_thread();
    if (i >= count) return;
    acc_t<T> sum = partial[i];
    for (index_t s = 1; s < splits; ++s) sum += partial[s * count + i];
    out[i] = store<T>(sum);
}
