// softmax and log_softmax along one dimension, forward and backward.
//
// State: none between launches. Invariants: a column's maximum is taken off before exp, so nothing
// overflows; maximum and sum are found in one pass (the sum is rescaled when the maximum moves). A
// column of -inf alone gives NaN. Sums are merged in an order that depends on the launch alone.
//
// softmax_forward<LOG, T>    grid (ceil(inner / block.x) * outer), block (columns side by side,
//                            threads
//                            a column: a power of two), shared: block.x * block.y * 16
//   out, x                   contiguous (outer, length, inner)
//   length, inner
// softmax_backward<LOG, T>   the same grid and block
//   gx                       gradient of the input
//   g, y                     gradient of the output, the output
//   length, inner
//   (LOG is true for log_softmax)

#include "common.cuh"

// Maximum so far and sum of exp(value - maximum).
template <typename A> struct ScaledSum {
    A top, sum;
    static DEVICE ScaledSum merge(ScaledSum a, ScaledSum b) {
        if (b.sum == A(0)) return a;
        if (a.sum == A(0)) return b;
        A top = larger(a.top, b.top);
        return {top, a.below(top) + b.below(top)};
    }
    // Equal tops need no rescaling, and must have none: -inf - -inf is NaN.
    DEVICE A below(A newer) const { return top == newer ? sum : sum * exp(top - newer); }
};

template <bool LOG, typename T>
__global__ void softmax_forward(T* out, const T* x, index_t length, index_t inner) {
    using A = acc_t<T>;
    Column column = column_of(length, inner);
    index_t base = column.base;
    ScaledSum<A> state = {A(0), A(0)};
    if (column.inner < inner) {
        for (index_t i = threadIdx.y; i < length; i += blockDim.y) {
            state = ScaledSum<A>::merge(state, {load(x[base + i * inner]), A(1)});
        }
    }
    state = combine_y<ScaledSum<A>>(state, shared_memory<ScaledSum<A>>());
    if (column.inner >= inner) return;
    // +inf among the elements makes all of them NaN, as exp(x - maximum) does.
    if (state.top == highest<A>()) state.sum = state.top - state.top;
    A log_sum = log(state.sum), scale = A(1) / state.sum;
    for (index_t i = threadIdx.y; i < length; i += blockDim.y) {
        A value = load(x[base + i * inner]) - state.top;
        out[base + i * inner] = store<T>(LOG ? value - log_sum : exp(value) * scale);
    }
}

// softmax: gx = y (g - sum(g y)); log_softmax: gx = g - exp(y) sum(g).
template <bool LOG, typename T>
__global__ void softmax_backward(T* gx, const T* g, const T* y, index_t length, index_t inner) {
    using A = acc_t<T>;
    Column column = column_of(length, inner);
    index_t base = column.base;
    A sum = A(0);
    if (column.inner < inner) {
        for (index_t i = threadIdx.y; i < length; i += blockDim.y) {
            A grad = load(g[base + i * inner]);
            sum += LOG ? grad : grad * load(y[base + i * inner]);
        }
    }
    sum = combine_y<Plus<A>>(sum, shared_memory<A>());
    if (column.inner >= inner) return;
    for (index_t i = threadIdx.y; i < length; i += blockDim.y) {
        A grad = load(g[base + i * inner]), value = load(y[base + i * inner]);
        gx[base + i * inner] = store<T>(LOG ? grad - exp(value) * sum : value * (grad - sum));
    }
}
