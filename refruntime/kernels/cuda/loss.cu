// Losses: nll_loss, losses of pairs of tensors, binary cross entropy.
//
// State: a reduced loss is made in two steps: blocks leave partial sums in the computing type, one
// thread merges them in order. Invariants: reproducible sums; a target equal to ignore_index counts
// nothing; any other target outside [0, classes) is treated as ignored and reported in *fault.
// Tensors are contiguous. reduction: 0 none, 1 mean, 2 sum.
//
// nll_loss: x (outer, classes, inner), target (outer, inner) long long. Row p = (sample, position)
// has weight w_p = weight[target_p] (1 without weights) and loss_p = -w_p x[target_p]; the mean is
// the sum of losses over the sum of weights.
//
// nll_loss_rows<T>     grid (any), block (256): reduction none
//   out, x, target, weight (or 0), count = outer * inner, classes, inner, ignore, fault (or 0)
// nll_loss_partial<T>  grid (blocks), block (1, threads: a power of two), shared: threads * 16
//   partial            [blocks] of {loss, weight} in the computing type
//   x, target, weight, count, classes, inner, ignore, fault
// nll_loss_finish<T>   grid (1), block (1)
//   out                the loss (not written for reduction none)
//   total              the sum of the weights, in the computing type
//   partial, blocks, reduction
// nll_loss_backward<T> grid (any), block (256)
//   gx                 written entirely
//   g                  one number, or (outer, inner) for reduction none
//   target, weight, total, count = outer * classes * inner, classes, inner, ignore, reduction
//
// pair_losses<Loss, T>   grid (any), block (256): out, x, t, count, parameter
// pair_partial<Loss, T>  grid (blocks), block (1, threads: a power of two), shared: threads * 8
//   partial              [blocks] in the computing type
//   x, t, count, parameter
// pair_finish<T>         grid (1), block (1): out, partial, blocks, divisor
// binary_losses<T>       grid (any), block (256): out, x, t, count
// logit_losses<T>        grid (any), block (256): out, x, t, weight (or 0), count

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
__global__ void nll_loss_finish(T* out, acc_t<T>* total, const Two<acc_t<T>>* partial,
                                index_t blocks, index_t reduction) {
    Two<acc_t<T>> sums = partial[0];
    for (index_t b = 1; b < blocks; ++b) sums = Two<acc_t<T>>::merge(sums, partial[b]);
    if (reduction != NONE)
        *out = store<T>(reduction == MEAN ? sums.first / sums.second : sums.first);
    *total = sums.second;
}

// What row p's loss is multiplied by on its way into the result, times the incoming gradient.
template <typename T>
DEVICE acc_t<T> row_gradient(const T* g, const acc_t<T>* total, index_t p, index_t reduction) {
    if (reduction == NONE) return load(g[p]);
    return reduction == MEAN ? load(*g) / *total : load(*g);
}

template <typename T>
__global__ void nll_loss_backward(T* gx, const T* g, const index_t* target, const T* weight,
                                  const acc_t<T>* total, index_t count, index_t classes,
                                  index_t inner, index_t ignore, index_t reduction) {
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

// -------------------------------------------------------------------------------- losses of pairs

template <typename A> struct SquaredError {
    static DEVICE A of(A x, A t, A) { return (x - t) * (x - t); }
};

template <typename A> struct AbsoluteError {
    static DEVICE A of(A x, A t, A) { return fabs(x - t); }
};

// Quadratic below the parameter, and continued linearly.
template <typename A> struct SmoothError {
    static DEVICE A of(A x, A t, A beta) {
        A size = fabs(x - t);
        return size < beta ? size * size / (A(2) * beta) : size - beta / A(2);
    }
};

template <typename A> struct HuberError {
    static DEVICE A of(A x, A t, A delta) {
        A size = fabs(x - t);
        return size <= delta ? size * size / A(2) : delta * (size - delta / A(2));
    }
};

template <template <typename> class Loss, typename T>
__global__ void pair_losses(T* out, const T* x, const T* t, index_t count, double parameter) {
    using A = acc_t<T>;
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        out[i] = store<T>(Loss<A>::of(load(x[i]), load(t[i]), static_cast<A>(parameter)));
    }
}

template <template <typename> class Loss, typename T>
__global__ void pair_partial(acc_t<T>* partial, const T* x, const T* t, index_t count,
                             double parameter) {
    using A = acc_t<T>;
    A sum = A(0);
    index_t first = blockIdx.x * static_cast<index_t>(blockDim.y) + threadIdx.y;
    for (index_t i = first; i < count; i += static_cast<index_t>(gridDim.x) * blockDim.y) {
        sum += Loss<A>::of(load(x[i]), load(t[i]), static_cast<A>(parameter));
    }
    sum = combine_y<Plus<A>>(sum, shared_memory<A>());
    if (threadIdx.y == 0) partial[blockIdx.x] = sum;
}

template <typename T>
__global__ void pair_finish(T* out, const acc_t<T>* partial, index_t blocks, double divisor) {
    using A = acc_t<T>;
    A sum = A(0);
    for (index_t b = 0; b < blocks; ++b) sum += partial[b];
    *out = store<T>(sum / static_cast<A>(divisor));
}

// --------------------------------------------------------------------------- binary cross entropy

// -(t log x + (1 - t) log(1 - x)), the logarithms not below -100.
template <typename T> __global__ void binary_losses(T* out, const T* x, const T* t, index_t count) {
    using A = acc_t<T>;
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        A value = load(x[i]), target = load(t[i]);
        A yes = log(value), no = log1p(-value);
        yes = yes < A(-100) ? A(-100) : yes;
        no = no < A(-100) ? A(-100) : no;
        out[i] = store<T>((target - A(1)) * no - target * yes);
    }
}

// (1 - t) x + w (log(1 + exp(-|x|)) + max(-x, 0)) with w = 1 + (weight - 1) t.
template <typename T>
__global__ void logit_losses(T* out, const T* x, const T* t, const T* weight, index_t count) {
    using A = acc_t<T>;
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        A value = load(x[i]), target = load(t[i]);
        A factor = weight ? A(1) + (load(weight[i]) - A(1)) * target : A(1);
        A soft = log1p(exp(-fabs(value))) + larger(-value, A(0));
        out[i] = store<T>((A(1) - target) * value + factor * soft);
    }
}
