// Pooling over two dimensions: max (with places), average, adaptive average and adaptive max.
//
// State: none. Invariants: tensors are contiguous (planes, height, width), a plane being a channel
// of a sample; backward gathers (one thread an input element looks at every window over it), so no
// atomics are needed and results are reproducible. A place is row * width + column within the
// plane. Padding never wins a maximum; NaN does; of equal elements the first in the window wins.
//
// max_pool2d_forward<T>    grid (any), block (256)
//   out, where             results and their places (long long)
//   x, shape, count        PoolShape; count = planes * out_h * out_w
// max_pool2d_backward<T>   grid (any), block (256)
//   gx, g, where, shape, count   count = planes * height * width
// avg_pool2d_forward<T>    grid (any), block (256)
//   out, x, shape, count, include_padding, divisor   divisor 0: the window's own size
// avg_pool2d_backward<T>   gx, g, shape, count, include_padding, divisor
// adaptive_avg_pool2d_forward<T>, adaptive_avg_pool2d_backward<T>   out, x, shape, count; gx, g,
//                      shape, count
// adaptive_max_pool2d_forward<T>   out, where, x, shape, count
//   (adaptive pools read height, width, out_h and out_w of the shape)
// adaptive_max_pool2d_backward<T>  gx, g, where, shape, count

#include "common.cuh"

struct PoolShape {
    index_t height, width, out_h, out_w;
    index_t kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
};

// Half-open range of positions.
struct Range {
    index_t begin, end;
};

// The windows over position p: those o with o * stride - padding + tap * dilation == p for some
// tap. The range is the tightest for dilation 1 and a superset otherwise.
DEVICE Range windows_over(index_t p, index_t kernel, index_t stride, index_t padding,
                          index_t dilation, index_t outputs) {
    index_t reach = (kernel - 1) * dilation, shifted = p + padding;
    index_t begin = shifted > reach ? quotient(shifted - reach + stride - 1, stride) : 0;
    return {begin, smaller(quotient(shifted, stride) + 1, outputs)};
}

// ------------------------------------------------------------------------------------ max pooling

template <typename A> struct Best {
    A value;
    index_t place;
    DEVICE void take(A candidate, index_t at) {
        if (place < 0 || candidate > value || is_nan(candidate)) {
            value = candidate;
            place = at;
        }
    }
};

template <typename T>
__global__ void max_pool2d_forward(T* out, index_t* where, const T* x, const PoolShape s,
                                   index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, s.out_h, s.out_w);
        const T* plane = x + at.outer * s.height * s.width;
        index_t top = at.row * s.stride_h - s.padding_h,
                left = at.column * s.stride_w - s.padding_w;
        Best<acc_t<T>> best = {acc_t<T>(0), -1};
        for (index_t r = 0; r < s.kernel_h; ++r) {
            index_t row = top + r * s.dilation_h;
            if (row < 0 || row >= s.height) continue;
            for (index_t c = 0; c < s.kernel_w; ++c) {
                index_t column = left + c * s.dilation_w;
                if (column < 0 || column >= s.width) continue;
                best.take(load(plane[row * s.width + column]), row * s.width + column);
            }
        }
        out[i] = store<T>(best.value);
        where[i] = best.place;
    }
}

// Sum of the gradients of those outputs in the two ranges whose place is `me`.
template <typename T>
DEVICE acc_t<T> gather_won(const T* g, const index_t* where, Range rows, Range columns,
                           index_t out_w, index_t me) {
    acc_t<T> sum = acc_t<T>(0);
    for (index_t row = rows.begin; row < rows.end; ++row) {
        for (index_t column = columns.begin; column < columns.end; ++column) {
            index_t at = row * out_w + column;
            if (where[at] == me) sum += load(g[at]);
        }
    }
    return sum;
}

template <typename T>
__global__ void max_pool2d_backward(T* gx, const T* g, const index_t* where, const PoolShape s,
                                    index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, s.height, s.width);
        Range rows =
            windows_over(at.row, s.kernel_h, s.stride_h, s.padding_h, s.dilation_h, s.out_h);
        Range columns =
            windows_over(at.column, s.kernel_w, s.stride_w, s.padding_w, s.dilation_w, s.out_w);
        index_t plane = at.outer * s.out_h * s.out_w;
        gx[i] = store<T>(gather_won(g + plane, where + plane, rows, columns, s.out_w,
                                    at.row * s.width + at.column));
    }
}

// -------------------------------------------------------------------------------- average pooling

// What the sum over window (row, column) is divided by. The window is first cut to the padded
// plane.
DEVICE index_t window_divisor(const PoolShape& s, index_t row, index_t column,
                              index_t include_padding, index_t divisor) {
    if (divisor) return divisor;
    index_t top = row * s.stride_h - s.padding_h, left = column * s.stride_w - s.padding_w;
    index_t bottom = smaller(top + s.kernel_h, s.height + s.padding_h);
    index_t right = smaller(left + s.kernel_w, s.width + s.padding_w);
    if (include_padding) return (bottom - top) * (right - left);
    top = larger(top, index_t(0)), left = larger(left, index_t(0));
    return (smaller(bottom, s.height) - top) * (smaller(right, s.width) - left);
}

template <typename T>
__global__ void avg_pool2d_forward(T* out, const T* x, const PoolShape s, index_t count,
                                   index_t include_padding, index_t divisor) {
    using A = acc_t<T>;
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, s.out_h, s.out_w);
        const T* plane = x + at.outer * s.height * s.width;
        index_t top = at.row * s.stride_h - s.padding_h,
                left = at.column * s.stride_w - s.padding_w;
        A sum = A(0);
        for (index_t row = larger(top, index_t(0)); row < smaller(top + s.kernel_h, s.height);
             ++row) {
            for (index_t c = larger(left, index_t(0)); c < smaller(left + s.kernel_w, s.width);
                 ++c) {
                sum += load(plane[row * s.width + c]);
            }
        }
        index_t size = window_divisor(s, at.row, at.column, include_padding, divisor);
        out[i] = store<T>(sum / static_cast<A>(size));
    }
}

template <typename T>
__global__ void avg_pool2d_backward(T* gx, const T* g, const PoolShape s, index_t count,
                                    index_t include_padding, index_t divisor) {
    using A = acc_t<T>;
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, s.height, s.width);
        Range rows = windows_over(at.row, s.kernel_h, s.stride_h, s.padding_h, 1, s.out_h);
        Range columns = windows_over(at.column, s.kernel_w, s.stride_w, s.padding_w, 1, s.out_w);
        const T* plane = g + at.outer * s.out_h * s.out_w;
        A sum = A(0);
        for (index_t row = rows.begin; row < rows.end; ++row) {
            for (index_t column = columns.begin; column < columns.end; ++column) {
                index_t size = window_divisor(s, row, column, include_padding, divisor);
                sum += load(plane[row * s.out_w + column]) / static_cast<A>(size);
            }
        }
        gx[i] = store<T>(sum);
    }
}

// -------------------------------------------------------------------------------- adaptive pooling

// Inputs of output o when `inputs` positions are shared among `outputs`: floor(o I / O) ..
// ceil((o+1) I / O).
DEVICE Range share_of(index_t o, index_t inputs, index_t outputs) {
    return {quotient(o * inputs, outputs), quotient((o + 1) * inputs + outputs - 1, outputs)};
}

// Outputs that input p contributes to: the inverse of share_of.
DEVICE Range shares_with(index_t p, index_t inputs, index_t outputs) {
    return {quotient(p * outputs, inputs), quotient((p + 1) * outputs + inputs - 1, inputs)};
}

template <typename T>
__global__ void adaptive_avg_pool2d_forward(T* out, const T* x, const PoolShape s, index_t count) {
    using A = acc_t<T>;
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, s.out_h, s.out_w);
        Range rows = share_of(at.row, s.height, s.out_h),
              columns = share_of(at.column, s.width, s.out_w);
        const T* plane = x + at.outer * s.height * s.width;
        A sum = A(0);
        for (index_t row = rows.begin; row < rows.end; ++row) {
            for (index_t c = columns.begin; c < columns.end; ++c)
                sum += load(plane[row * s.width + c]);
        }
        index_t size = (rows.end - rows.begin) * (columns.end - columns.begin);
        out[i] = store<T>(sum / static_cast<A>(size));
    }
}

template <typename T>
__global__ void adaptive_avg_pool2d_backward(T* gx, const T* g, const PoolShape s, index_t count) {
    using A = acc_t<T>;
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, s.height, s.width);
        Range rows = shares_with(at.row, s.height, s.out_h);
        Range columns = shares_with(at.column, s.width, s.out_w);
        const T* plane = g + at.outer * s.out_h * s.out_w;
        A sum = A(0);
        for (index_t row = rows.begin; row < rows.end; ++row) {
            Range of_row = share_of(row, s.height, s.out_h);
            for (index_t c = columns.begin; c < columns.end; ++c) {
                Range of_column = share_of(c, s.width, s.out_w);
                index_t size = (of_row.end - of_row.begin) * (of_column.end - of_column.begin);
                sum += load(plane[row * s.out_w + c]) / static_cast<A>(size);
            }
        }
        gx[i] = store<T>(sum);
    }
}

template <typename T>
__global__ void adaptive_max_pool2d_forward(T* out, index_t* where, const T* x, const PoolShape s,
                                            index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, s.out_h, s.out_w);
        Range rows = share_of(at.row, s.height, s.out_h),
              columns = share_of(at.column, s.width, s.out_w);
        const T* plane = x + at.outer * s.height * s.width;
        Best<acc_t<T>> best = {acc_t<T>(0), -1};
        for (index_t row = rows.begin; row < rows.end; ++row) {
            for (index_t c = columns.begin; c < columns.end; ++c) {
                best.take(load(plane[row * s.width + c]), row * s.width + c);
            }
        }
        out[i] = store<T>(best.value);
        where[i] = best.place;
    }
}

template <typename T>
__global__ void adaptive_max_pool2d_backward(T* gx, const T* g, const index_t* where,
                                             const PoolShape s, index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, s.height, s.width);
        Range rows = shares_with(at.row, s.height, s.out_h);
        Range columns = shares_with(at.column, s.width, s.out_w);
        index_t plane = at.outer * s.out_h * s.out_w;
        gx[i] = store<T>(gather_won(g + plane, where + plane, rows, columns, s.out_w,
                                    at.row * s.width + at.column));
    }
}
