// batch_norm: moments over samples and positions of each channel.
//
// State: none (running moments are moved by the op, from mean and var). Invariants: tensors are
// contiguous (batch, channels, span); one block owns a channel, so moments and sums are merged in
// an order that depends on the launch alone. Whatever there is one of a channel is in the computing
// type.
//
// batch_norm_statistics<T>   grid (channels), block (1, threads: a power of two), shared: threads *
//                            24
//   x                        input
//   mean, rstd, var          of this batch; var is unbiased, rstd is made of the biased variance
//   batch, channels, span, eps
// batch_norm_recall<T>       grid (ceil(channels / 256)), block (256): evaluation uses the running
//                            moments
//   mean, rstd, var          made of
//   running_mean, running_var, channels, eps
// batch_norm_forward<T>      grid (any), block (256)
//   out, x, weight, bias (each may be 0), mean, rstd, channels, span, count (elements)
// batch_norm_sums<T>         grid (channels), block (1, threads), shared: threads * 16
//   sum_g, sum_gh            sums of g and of g (x - mean) rstd: the gradients of bias and weight
//   g, x, mean, rstd, batch, channels, span
// batch_norm_backward<TRAINING, T>   grid (any), block (256)
//   gx, g, x, weight (may be 0), mean, rstd, sum_g, sum_gh, channels, span, count

#include "common.cuh"

// Offset of the i-th element of a channel, counted over samples and positions.
DEVICE index_t channel_element(index_t i, index_t channel, index_t channels, index_t span) {
    index_t sample = quotient(i, span);
    return (sample * channels + channel) * span + (i - sample * span);
}

template <typename T>
__global__ void batch_norm_statistics(const T* x, acc_t<T>* mean, acc_t<T>* rstd, acc_t<T>* var,
                                      index_t batch, index_t channels, index_t span, double eps) {
    using A = acc_t<T>;
    index_t channel = blockIdx.x, length = batch * span;
    Moments<A> moments = Moments<A>::none();
    for (index_t i = threadIdx.y; i < length; i += blockDim.y) {
        moments.take(load(x[channel_element(i, channel, channels, span)]));
    }
    moments = combine_y<Moments<A>>(moments, shared_memory<Moments<A>>());
    if (threadIdx.y > 0) return;
    A biased = moments.m2 / static_cast<A>(length);
    mean[channel] = moments.mean;
    rstd[channel] = A(1) / sqrt(biased + static_cast<A>(eps));
    var[channel] = length > 1 ? moments.m2 / static_cast<A>(length - 1) : biased;
}

template <typename T>
__global__ void batch_norm_recall(acc_t<T>* mean, acc_t<T>* rstd, acc_t<T>* var,
                                  const acc_t<T>* running_mean, const acc_t<T>* running_var,
                                  index_t channels, double eps) {
    using A = acc_t<T>;
    index_t channel = global_thread();
    if (channel >= channels) return;
    mean[channel] = running_mean[channel];
    var[channel] = running_var[channel];
    rstd[channel] = A(1) / sqrt(running_var[channel] + static_cast<A>(eps));
}

template <typename T>
__global__ void batch_norm_forward(T* out, const T* x, const acc_t<T>* weight, const acc_t<T>* bias,
                                   const acc_t<T>* mean, const acc_t<T>* rstd, index_t channels,
                                   index_t span, index_t count) {
    using A = acc_t<T>;
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        index_t channel = remainder(quotient(i, span), channels);
        A value = (load(x[i]) - mean[channel]) * rstd[channel];
        if (weight) value *= weight[channel];
        if (bias) value += bias[channel];
        out[i] = store<T>(value);
    }
}

template <typename T>
__global__ void batch_norm_sums(acc_t<T>* sum_g, acc_t<T>* sum_gh, const T* g, const T* x,
                                const acc_t<T>* mean, const acc_t<T>* rstd, index_t batch,
                                index_t channels, index_t span) {
    using A = acc_t<T>;
    index_t channel = blockIdx.x, length = batch * span;
    A centre = mean[channel], scale = rstd[channel];
    Two<A> sums = {A(0), A(0)};
    for (index_t i = threadIdx.y; i < length; i += blockDim.y) {
        index_t at = channel_element(i, channel, channels, span);
        A grad = load(g[at]);
        sums.first += grad;
        sums.second += grad * (load(x[at]) - centre) * scale;
    }
    sums = combine_y<Two<A>>(sums, shared_memory<Two<A>>());
    if (threadIdx.y > 0) return;
    sum_g[channel] = sums.first;
    sum_gh[channel] = sums.second;
}

// Training: the moments depend on x, so gx = w rstd (g - mean(g) - h mean(g h)); evaluation: w rstd
// g.
template <bool TRAINING, typename T>
__global__ void batch_norm_backward(T* gx, const T* g, const T* x, const acc_t<T>* weight,
                                    const acc_t<T>* mean, const acc_t<T>* rstd,
                                    const acc_t<T>* sum_g, const acc_t<T>* sum_gh, index_t channels,
                                    index_t span, index_t count) {
    using A = acc_t<T>;
    A length = static_cast<A>(count / channels);
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        index_t channel = remainder(quotient(i, span), channels);
        A scale = rstd[channel] * (weight ? weight[channel] : A(1));
        A grad = load(g[i]);
        if (TRAINING) {
            A h = (load(x[i]) - mean[channel]) * rstd[channel];
            grad -= (sum_g[channel] + h * sum_gh[channel]) / length;
        }
        gx[i] = store<T>(grad * scale);
    }
}
