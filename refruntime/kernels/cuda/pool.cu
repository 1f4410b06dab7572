// Pooling and resampling of planes: maxima with places, weighted sums along both dimensions,
// windows as columns and back.
//
// State: none. Invariants: tensors are contiguous planes; backwards gather (one thread an element
// looks at every window over it), so no atomics are needed and results are reproducible. Of equal
// elements the first in row-major order wins; NaN wins over all numbers. A place is counted in its
// plane.
//
// All kernels           grid (any), block (256); count: elements of the first argument
// max_pool<T>           windows in up to three dimensions, as tables of bounds
//   out, where          results and their places (long long)
//   x, shape            PoolShape
//   bounds              long long, on the device: first and end of each window along depth, then
//                       of each along height, then along width
//   count
// max_pool_backward<T>
//   gx, g, where, shape
//   covers              as bounds, but for each position of the source: first and end of the
//                       results whose windows may have it
//   count
// resample<T>
//   out, x, height, width, high, wide   planes of x and of out
//   rows, columns       Taps
//   count
// im2col<T>             out (planes, kernel h, kernel w, result h, result w), x, shape, count
// col2im<T>             out (planes, height, width), columns, shape (ColumnShape), count

#include "common.cuh"

struct PoolShape {
    index_t source[3], result[3], steps[3];  // depth, height, width; steps: elements of a window

    DEVICE index_t source_size() const { return source[0] * source[1] * source[2]; }
    DEVICE index_t result_size() const { return result[0] * result[1] * result[2]; }
};

struct Position {
    index_t plane, at[3];
};

DEVICE Position position(index_t linear, const index_t (&sizes)[3]) {
    Position p;
    for (int d = 2; d >= 0; --d) {
        index_t above = quotient(linear, sizes[d]);
        p.at[d] = linear - above * sizes[d];
        linear = above;
    }
    p.plane = linear;
    return p;
}

// Half-open ranges along the three dimensions, from a table of pairs.
struct Box {
    index_t begin[3], end[3];
};

DEVICE Box box_of(const index_t* pairs, const Position& p, const index_t (&sizes)[3]) {
    Box box;
    for (int d = 0; d < 3; ++d) {
        box.begin[d] = pairs[2 * p.at[d]];
        box.end[d] = pairs[2 * p.at[d] + 1];
        pairs += 2 * sizes[d];
    }
    return box;
}

template <typename T>
__global__ void max_pool(T* out, index_t* where, const T* x, const PoolShape s,
                         const index_t* bounds, index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Position p = position(i, s.result);
        Box window = box_of(bounds, p, s.result);
        const T* plane = x + p.plane * s.source_size();
        acc_t<T> best = acc_t<T>(0);
        index_t place = -1;
        for (index_t z = window.begin[0]; z < window.end[0]; z += s.steps[0]) {
            for (index_t y = window.begin[1]; y < window.end[1]; y += s.steps[1]) {
                index_t row = (z * s.source[1] + y) * s.source[2];
                for (index_t c = window.begin[2]; c < window.end[2]; c += s.steps[2]) {
                    acc_t<T> value = load(plane[row + c]);
                    if (place < 0 || value > best || is_nan(value)) {
                        best = value;
                        place = row + c;
                    }
                }
            }
        }
        out[i] = store<T>(best);
        where[i] = place;
    }
}

template <typename T>
__global__ void max_pool_backward(T* gx, const T* g, const index_t* where, const PoolShape s,
                                  const index_t* covers, index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Position p = position(i, s.source);
        Box box = box_of(covers, p, s.source);
        index_t me = (p.at[0] * s.source[1] + p.at[1]) * s.source[2] + p.at[2];
        index_t plane = p.plane * s.result_size();
        acc_t<T> sum = acc_t<T>(0);
        for (index_t z = box.begin[0]; z < box.end[0]; ++z) {
            for (index_t y = box.begin[1]; y < box.end[1]; ++y) {
                index_t row = plane + (z * s.result[1] + y) * s.result[2];
                for (index_t c = box.begin[2]; c < box.end[2]; ++c) {
                    if (where[row + c] == me) sum += load(g[row + c]);
                }
            }
        }
        gx[i] = store<T>(sum);
    }
}

// ---------------------------------------------------------------------------------- weighted sums

// Inputs and weights of output o are entries starts[o] to starts[o + 1].
struct Taps {
    const index_t* starts;
    const index_t* index;
    const double* weight;
};

template <typename T>
__global__ void resample(T* out, const T* x, index_t height, index_t width, index_t high,
                         index_t wide, const Taps rows, const Taps columns, index_t count) {
    using A = acc_t<T>;
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, high, wide);
        const T* plane = x + at.outer * height * width;
        A total = A(0);
        for (index_t c = columns.starts[at.column]; c < columns.starts[at.column + 1]; ++c) {
            A sum = A(0);
            for (index_t r = rows.starts[at.row]; r < rows.starts[at.row + 1]; ++r) {
                A weight = static_cast<A>(rows.weight[r]);
                sum += weight * load(plane[rows.index[r] * width + columns.index[c]]);
            }
            total += sum * static_cast<A>(columns.weight[c]);
        }
        out[i] = store<T>(total);
    }
}

// ----------------------------------------------------------------------------- windows as columns

struct ColumnShape {
    index_t height, width;
    index_t kernel[2], result[2], stride[2], padding[2], dilation[2];
};

template <typename T>
__global__ void im2col(T* out, const T* x, const ColumnShape s, index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site window = site(i, s.result[0], s.result[1]);
        Site tap = site(window.outer, s.kernel[0], s.kernel[1]);
        index_t row = window.row * s.stride[0] - s.padding[0] + tap.row * s.dilation[0];
        index_t column = window.column * s.stride[1] - s.padding[1] + tap.column * s.dilation[1];
        bool inside = row >= 0 && row < s.height && column >= 0 && column < s.width;
        index_t at = (tap.outer * s.height + row) * s.width + column;
        out[i] = inside ? x[at] : store<T>(acc_t<T>(0));
    }
}

// The window that has `position` under tap `t` along dimension d, or -1.
DEVICE index_t window_at(const ColumnShape& s, int d, index_t position, index_t t) {
    index_t shifted = position + s.padding[d] - t * s.dilation[d];
    if (shifted < 0) return -1;
    index_t window = quotient(shifted, s.stride[d]);
    return window * s.stride[d] == shifted && window < s.result[d] ? window : -1;
}

template <typename T>
__global__ void col2im(T* out, const T* columns, const ColumnShape s, index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, s.height, s.width);
        acc_t<T> sum = acc_t<T>(0);
        for (index_t r = 0; r < s.kernel[0]; ++r) {
            index_t y = window_at(s, 0, at.row, r);
            for (index_t c = 0; y >= 0 && c < s.kernel[1]; ++c) {
                index_t x = window_at(s, 1, at.column, c);
                index_t tap = (at.outer * s.kernel[0] + r) * s.kernel[1] + c;
                if (x >= 0) sum += load(columns[(tap * s.result[0] + y) * s.result[1] + x]);
            }
        }
        out[i] = store<T>(sum);
    }
}
