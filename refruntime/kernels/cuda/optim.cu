// Optimizer steps fused into one pass over a parameter: SGD and Adam (AdamW).
//
// State: the optimizer's own tensors (momentum, moments), updated in place. Invariants: all tensors
// of a step are contiguous, of one type and `count` elements; arithmetic is in the computing type.
// Formulas and the order of operations are those of torch.optim's documentation.
//
// sgd<T>    grid (any), block (256)
//   param, grad
//   momentum_buffer   or 0 without momentum
//   count, lr, momentum, dampening, weight_decay
//   nesterov, maximize, first   flags; first: the buffer starts as the gradient
// adam<T>   grid (any), block (256)
//   param, grad, mean, square   first and second moment
//   largest_square    running maximum of the second moment (amsgrad), or 0
//   count, lr, beta1, beta2, eps, weight_decay
//   correction1, correction2    1 - beta^step of each moment
//   decoupled, maximize         flags; decoupled: AdamW's weight decay

#include "common.cuh"

template <typename T>
__global__ void sgd(T* param, const T* grad, T* momentum_buffer, index_t count, double lr,
                    double momentum, double dampening, double weight_decay, index_t nesterov,
                    index_t maximize, index_t first) {
    using A = acc_t<T>;
    A decay = static_cast<A>(weight_decay), keep = static_cast<A>(momentum);
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        A value = load(param[i]), g = load(grad[i]);
        if (maximize) g = -g;
        g += decay * value;
        if (momentum_buffer) {
            A buffer =
                first ? g : keep * load(momentum_buffer[i]) + static_cast<A>(1.0 - dampening) * g;
            momentum_buffer[i] = store<T>(buffer);
            g = nesterov ? g + keep * buffer : buffer;
        }
        param[i] = store<T>(value - static_cast<A>(lr) * g);
    }
}

template <typename T>
__global__ void adam(T* param, const T* grad, T* mean, T* square, T* largest_square, index_t count,
                     double lr, double beta1, double beta2, double eps, double weight_decay,
                     double correction1, double correction2, index_t decoupled, index_t maximize) {
    using A = acc_t<T>;
    A b1 = static_cast<A>(beta1), b2 = static_cast<A>(beta2), decay = static_cast<A>(weight_decay);
    A step = static_cast<A>(lr / correction1), root = static_cast<A>(sqrt(correction2));
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        A value = load(param[i]), g = load(grad[i]);
        if (maximize) g = -g;
        if (decoupled) value *= A(1) - static_cast<A>(lr) * decay;
        else g += decay * value;
        A m = load(mean[i]) + (A(1) - b1) * (g - load(mean[i]));
        A v = b2 * load(square[i]) + (A(1) - b2) * g * g;
        mean[i] = store<T>(m);
        square[i] = store<T>(v);
        if (largest_square) {
            v = larger(load(largest_square[i]), v);
            largest_square[i] = store<T>(v);
        }
        param[i] = store<T>(value - step * m / (sqrt(v) / root + static_cast<A>(eps)));
    }
}
