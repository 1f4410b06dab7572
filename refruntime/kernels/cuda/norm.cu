// layer_norm, group_norm and rms_norm: rows normalised by their own moments, then an affine map.
//
// State: forward leaves each row's mean and reciprocal deviation (in the computing type), which is
// all that backward needs besides the input.
// Invariants: moments by Welford's recurrence, merged in an order that depends on the launch alone.
// Column j of row r is scaled by weight[affine(r, j)] where
//   affine(r, j) = (r % groups) * (columns / span) + j / span
// layer_norm and rms_norm: groups = 1, span = 1. group_norm: a row is one group of one sample,
// groups is their number and span the number of positions of a channel.
//
// row_norm_forward<CENTRED, T>   grid (rows), block (1, threads: a power of two)
//   shared                    threads * 24
//   out, x                    contiguous (rows, columns); CENTRED is false for rms_norm
//   weight, bias              one number an affine index, in the computing type; each may be 0
//   mean, rstd                one number a row; mean is 0 when not CENTRED
//   columns, groups, span, eps
// row_norm_backward<CENTRED, T>  grid (rows), block (1, threads), shared: threads * 16
//   gx, g, x, weight, mean, rstd, columns, groups, span
// affine_norm_backward<CENTRED, T>  groups = 1, span = 1; grid (ceil(columns / block.x), splits),
//                                   block (columns side by side, threads: a power of two),
//                                   shared: threads of the block * 16
//   partial                   [2][splits][columns] in the computing type
//   g, x, mean, rstd, rows, columns, chunk (rows a split takes)
// channel_norm_backward<T>    group_norm; grid (groups * columns / span), block (1, threads),
//                             shared: threads * 16
//   gweight, gbias            one number a channel, in the computing type
//   g, x, mean, rstd, rows, columns, groups, span
// affine_finish<T>            grid (ceil(columns / 256)), block (256)
//   gweight, gbias            in the computing type; gbias may be 0
//   partial, splits, columns

#include "common.cuh"

struct Affine {
    index_t columns, groups, span;
    DEVICE index_t at(index_t row, index_t column) const {
        if (span == 1 && groups == 1) return column;
        return remainder(row, groups) * (columns / span) + quotient(column, span);
    }
};

template <bool CENTRED, typename T>
__global__ void row_norm_forward(T* out, const T* x, const acc_t<T>* weight, const acc_t<T>* bias,
                                 acc_t<T>* mean, acc_t<T>* rstd, index_t columns, index_t groups,
                                 index_t span, double eps) {
    using A = acc_t<T>;
    index_t row = blockIdx.x;
    const T* source = x + row * columns;
    A centre = A(0), square;
    if (CENTRED) {
        Moments<A> moments = Moments<A>::none();
        for (index_t j = threadIdx.y; j < columns; j += blockDim.y) moments.take(load(source[j]));
        moments = combine_y<Moments<A>>(moments, shared_memory<Moments<A>>());
        centre = moments.mean;
        square = moments.m2;
    } else {
        square = A(0);
        for (index_t j = threadIdx.y; j < columns; j += blockDim.y) {
            A value = load(source[j]);
            square += value * value;
        }
        square = combine_y<Plus<A>>(square, shared_memory<A>());
    }
    A scale = A(1) / sqrt(square / static_cast<A>(columns) + static_cast<A>(eps));
    Affine affine = {columns, groups, span};
    for (index_t j = threadIdx.y; j < columns; j += blockDim.y) {
        A value = (load(source[j]) - centre) * scale;
        index_t k = affine.at(row, j);
        if (weight) value *= weight[k];
        if (bias) value += bias[k];
        out[row * columns + j] = store<T>(value);
    }
    if (threadIdx.y == 0) {
        if (CENTRED) mean[row] = centre;
        rstd[row] = scale;
    }
}

// With h = (x - mean) rstd and d = g weight:  gx = rstd (d - [mean(d)] - h mean(d h)), the middle
// term only when CENTRED.
template <bool CENTRED, typename T>
__global__ void row_norm_backward(T* gx, const T* g, const T* x, const acc_t<T>* weight,
                                  const acc_t<T>* mean, const acc_t<T>* rstd, index_t columns,
                                  index_t groups, index_t span) {
    using A = acc_t<T>;
    index_t row = blockIdx.x, base = row * columns;
    A centre = CENTRED ? mean[row] : A(0), scale = rstd[row];
    Affine affine = {columns, groups, span};
    Two<A> sums = {A(0), A(0)};
    for (index_t j = threadIdx.y; j < columns; j += blockDim.y) {
        A d = load(g[base + j]) * (weight ? weight[affine.at(row, j)] : A(1));
        sums.first += d;
        sums.second += d * (load(x[base + j]) - centre) * scale;
    }
    sums = combine_y<Two<A>>(sums, shared_memory<Two<A>>());
    A shift = CENTRED ? sums.first / static_cast<A>(columns) : A(0);
    A slope = sums.second / static_cast<A>(columns);
    for (index_t j = threadIdx.y; j < columns; j += blockDim.y) {
        A d = load(g[base + j]) * (weight ? weight[affine.at(row, j)] : A(1));
        A h = (load(x[base + j]) - centre) * scale;
        gx[base + j] = store<T>(scale * (d - shift - h * slope));
    }
}

template <bool CENTRED, typename T>
__global__ void affine_norm_backward(acc_t<T>* partial, const T* g, const T* x,
                                     const acc_t<T>* mean, const acc_t<T>* rstd, index_t rows,
                                     index_t columns, index_t chunk) {
    using A = acc_t<T>;
    index_t j = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    index_t begin = blockIdx.y * chunk, end = smaller(begin + chunk, rows);
    Two<A> sums = {A(0), A(0)};
    if (j < columns) {
        for (index_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
            A grad = load(g[row * columns + j]);
            A centre = CENTRED ? mean[row] : A(0);
            sums.first += grad * (load(x[row * columns + j]) - centre) * rstd[row];
            sums.second += grad;
        }
    }
    sums = combine_y<Two<A>>(sums, shared_memory<Two<A>>());
    if (j >= columns || threadIdx.y > 0) return;
    partial[blockIdx.y * columns + j] = sums.first;
    partial[(gridDim.y + blockIdx.y) * columns + j] = sums.second;
}

template <typename T>
__global__ void affine_finish(acc_t<T>* gweight, acc_t<T>* gbias, const acc_t<T>* partial,
                              index_t splits, index_t columns) {
    using A = acc_t<T>;
    index_t j = global_thread();
    if (j >= columns) return;
    A weight = A(0), bias = A(0);
    for (index_t s = 0; s < splits; ++s) {
        weight += partial[s * columns + j];
        bias += partial[(splits + s) * columns + j];
    }
    gweight[j] = weight;
    if (gbias) gbias[j] = bias;
}

template <typename T>
__global__ void channel_norm_backward(acc_t<T>* gweight, acc_t<T>* gbias, const T* g, const T* x,
                                      const acc_t<T>* mean, const acc_t<T>* rstd, index_t rows,
                                      index_t columns, index_t groups, index_t span) {
    using A = acc_t<T>;
    index_t channel = blockIdx.x, in_group = columns / span;
    index_t group = channel / in_group, first = (channel % in_group) * span;
    index_t samples = rows / groups;
    Two<A> sums = {A(0), A(0)};
    for (index_t i = threadIdx.y; i < samples * span; i += blockDim.y) {
        index_t sample = quotient(i, span), row = sample * groups + group;
        index_t at = row * columns + first + (i - sample * span);
        A grad = load(g[at]);
        sums.first += grad * (load(x[at]) - mean[row]) * rstd[row];
        sums.second += grad;
    }
    sums = combine_y<Two<A>>(sums, shared_memory<Two<A>>());
    if (threadIdx.y > 0) return;
    gweight[channel] = sums.first;
    gbias[channel] = sums.second;
}
