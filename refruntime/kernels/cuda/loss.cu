// nll_loss and fused cross entropy (log_softmax and nll_loss in one), forward and backward.
//
// State: mean and sum are made in two steps: blocks leave {loss, weight} in `partial`, one block
// merges them in order. Invariants: reproducible sums; a target equal to ignore_index counts
// nothing; any other target outside [0, classes) is treated as ignored and reported in *fault.
// Tensors are contiguous: x (outer, classes, inner), target (outer, inner) long long.
//
// Row p = (sample, position) has weight w_p = weight[target_p] (1 without weights), loss_p = -w_p
// x[target_p]. reduction: 0 none, 1 mean (sum loss / sum w), 2 sum.
//
// nll_loss_rows<T>     grid (any), block (256): reduction none
//   out, x, target, weight (or 0), count = outer * inner, classes, inner, ignore, fault (or 0)
// nll_loss_partial<T>  grid (blocks), block (1, threads: a power of two), shared: threads * 16
//   partial            [blocks] of {loss, weight} in the computing type
//   x, target, weight, count, classes, inner, ignore, fault
// loss_finish<T>       grid (1), block (1)
//   out, total         the loss; the sum of weights (one number of type T)
//   partial, blocks, reduction
// nll_loss_backward<T> grid (any), block (256)
//   gx                 written entirely
//   g                  one number, or (outer, inner) for reduction none
//   target, weight, total, count = outer * classes * inner, classes, inner, ignore, reduction
// cross_entropy_rows<T>  grid (ceil(inner / block.x) * outer), block (columns side by side, threads
//                        a
//                      column: a power of two), shared: block.x * block.y * 24
//   out                loss of each row (outer, inner), smoothed
//   weights            w_p of each row, or 0
//   lse                log(sum(exp(x))) of each row in the computing type: what backward needs
//   x, target, weight, classes, inner, ignore, smoothing, fault
// cross_entropy_backward<T>  grid (any), block (256)
//   gx, g, x, lse, target, weight, total, count, classes, inner, ignore, smoothing
//   weight_sum       sum of weight, or classes
//   reduction
// (mean of cross entropy: reduce.cu sums out and weights; total is the sum of weights)

#include "common.cuh"

enum Reduction { NONE = 0, MEAN = 1, SUM = 2 };

// The class of a row, or -1 when the row does not count.
DEVICE index_t class_of(index_t target, index_t classes, index_t ignore, index_t* fault) {
    if (target == ignore) return -1;
    if (target >= 0 && target < classes) return target;
    if (fault) *fault = 1;
    return -1;
}

// {loss, weight} of row p.
template <typename T>
DEVICE Two<acc_t<T>> row_loss(const T* x, const index_t* target, const T* weight, index_t p,
                              index_t classes, index_t inner, index_t ignore, index_t* fault) {
    using A = acc_t<T>;
    index_t chosen = class_of(target[p], classes, ignore, fault);
    if (chosen < 0) return {A(0), A(0)};
    A w = weight ? load(weight[chosen]) : A(1);
    index_t sample = quotient(p, inner);
    return {-w * load(x[(sample * classes + chosen) * inner + (p - sample * inner)]), w};
}

template <typename T>
__global__ void nll_loss_rows(T* out, const T* x, const index_t* target, const T* weight,
                              index_t count, index_t classes, index_t inner, index_t ignore,
                              index_t* fault) {
    for (index_t p = global_thread(); p < count; p += global_threads()) {
        out[p] = store<T>(row_loss(x, target, weight, p, classes, inner, ignore, fault).first);
    }
}

template <typename T>
__global__ void nll_loss_partial(Two<acc_t<T>>* partial, const T* x, const index_t* target,
                                 const T* weight, index_t count, index_t classes, index_t inner,
                                 index_t ignore, index_t* fault) {
    using A = acc_t<T>;
    Two<A> sums = {A(0), A(0)};
    index_t step = static_cast<index_t>(gridDim.x) * blockDim.y;
    for (index_t p = blockIdx.x * static_cast<index_t>(blockDim.y) + threadIdx.y; p < count;
         p += step) {
        sums = Two<A>::merge(sums, row_loss(x, target, weight, p, classes, inner, ignore, fault));
    }
    sums = combine_y<Two<A>>(sums, shared_memory<Two<A>>());
    if (threadIdx.y == 0) partial[blockIdx.x] = sums;
}

template <typename T>
__global__ void loss_finish(T* out, T* total, const Two<acc_t<T>>* partial, index_t blocks,
                            index_t reduction) {
    Two<acc_t<T>> sums = partial[0];
    for (index_t b = 1; b < blocks; ++b) sums = Two<acc_t<T>>::merge(sums, partial[b]);
    *out = store<T>(reduction == MEAN ? sums.first / sums.second : sums.first);
    *total = store<T>(sums.second);
}

// What row p's loss is multiplied by on its way into the result, times the incoming gradient.
template <typename T>
DEVICE acc_t<T> row_gradient(const T* g, const T* total, index_t p, index_t reduction) {
    if (reduction == NONE) return load(g[p]);
    return reduction == MEAN ? load(*g) / load(*total) : load(*g);
}

template <typename T>
__global__ void nll_loss_backward(T* gx, const T* g, const index_t* target, const T* weight,
                                  const T* total, index_t count, index_t classes, index_t inner,
                                  index_t ignore, index_t reduction) {
    using A = acc_t<T>;
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, classes, inner);
        index_t p = at.outer * inner + at.column;
        index_t chosen = class_of(target[p], classes, ignore, nullptr);
        A value = A(0);
        if (chosen == at.row) {
            value = -(weight ? load(weight[chosen]) : A(1)) * row_gradient(g, total, p, reduction);
        }
        gx[i] = store<T>(value);
    }
}

// ----------------------------------------------------------------------------- fused cross entropy

// Running maximum, sum of exp(x - maximum), and the weighted sum of x that smoothing needs.
template <typename A> struct Spread {
    A top, sum, mix;
    DEVICE A below(A newer) const { return top == newer ? sum : sum * exp(top - newer); }
    static DEVICE Spread merge(Spread a, Spread b) {
        if (b.sum == A(0)) return a;
        if (a.sum == A(0)) return b;
        A top = larger(a.top, b.top);
        return {top, a.below(top) + b.below(top), a.mix + b.mix};
    }
};

// loss = (1 - s) w_t (lse - x_t) + s / classes * sum over c of w_c (lse - x_c)
template <typename T>
__global__ void cross_entropy_rows(T* out, T* weights, acc_t<T>* lse, const T* x,
                                   const index_t* target, const T* weight, index_t classes,
                                   index_t inner, index_t ignore, double smoothing,
                                   index_t* fault) {
    using A = acc_t<T>;
    Column column = column_of(classes, inner);
    const T* base = x + column.base;
    Spread<A> state = {A(0), A(0), A(0)};
    A weight_sum = A(0);
    if (column.inner < inner) {
        for (index_t c = threadIdx.y; c < classes; c += blockDim.y) {
            A value = load(base[c * inner]), w = weight ? load(weight[c]) : A(1);
            state = Spread<A>::merge(state, {value, A(1), w * value});
        }
        for (index_t c = 0; weight && smoothing != 0.0 && c < classes; ++c)
            weight_sum += load(weight[c]);
    }
    if (!weight) weight_sum = static_cast<A>(classes);
    state = combine_y<Spread<A>>(state, shared_memory<Spread<A>>());
    if (column.inner >= inner || threadIdx.y > 0) return;
    index_t p = column.outer * inner + column.inner,
            chosen = class_of(target[p], classes, ignore, fault);
    A log_sum = state.top + log(state.sum), loss = A(0), w = A(0);
    if (chosen >= 0) {
        w = weight ? load(weight[chosen]) : A(1);
        loss = w * (log_sum - load(base[chosen * inner]));
        if (smoothing != 0.0) {
            A s = static_cast<A>(smoothing);
            loss = (A(1) - s) * loss +
                   s / static_cast<A>(classes) * (weight_sum * log_sum - state.mix);
        }
    }
    out[p] = store<T>(loss);
    lse[p] = log_sum;
    if (weights) weights[p] = store<T>(w);
}

template <typename T>
__global__ void cross_entropy_backward(T* gx, const T* g, const T* x, const acc_t<T>* lse,
                                       const index_t* target, const T* weight, const T* total,
                                       index_t count, index_t classes, index_t inner,
                                       index_t ignore, double smoothing, double weight_sum,
                                       index_t reduction) {
    using A = acc_t<T>;
    A s = static_cast<A>(smoothing), share = s / static_cast<A>(classes);
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, classes, inner);
        index_t p = at.outer * inner + at.column;
        index_t chosen = class_of(target[p], classes, ignore, nullptr);
        A value = A(0);
        if (chosen >= 0) {
            A w = weight ? load(weight[chosen]) : A(1), mine = weight ? load(weight[at.row]) : A(1);
            A probability = exp(load(x[i]) - lse[p]);
            value = (A(1) - s) * w * (probability - A(chosen == at.row));
            value += share * (static_cast<A>(weight_sum) * probability - mine);
            value *= row_gradient(g, total, p, reduction);
        }
        gx[i] = store<T>(value);
    }
}
