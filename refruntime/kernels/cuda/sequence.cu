// Sequences: elements that follow from their position.
//
// State: none. Invariants: each element is computed from its position in double (or long long) and
// rounded once, so that errors do not add up.
//
// All kernels           grid (any), block (256)
//   out, count          contiguous
// arange<T>             start, step (doubles): start + i * step
// arange_integers<T>    start, step (long long)
// linspace<T>           start, end, step: from the nearer end, so that both are met exactly
// logspace<T>           start, end, step, base: base to the power of linspace

#include "common.cuh"

template <typename T> __global__ void arange(T* out, index_t count, double start, double step) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        out[i] = store<T>(start + static_cast<double>(i) * step);
    }
}

template <typename T>
__global__ void arange_integers(T* out, index_t count, index_t start, index_t step) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        out[i] = store<T>(start + i * step);
    }
}

DEVICE double on_line(index_t i, index_t count, double start, double end, double step) {
    if (i < count / 2) return start + static_cast<double>(i) * step;
    return end - static_cast<double>(count - 1 - i) * step;
}

template <typename T>
__global__ void linspace(T* out, index_t count, double start, double end, double step) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        out[i] = store<T>(on_line(i, count, start, end, step));
    }
}

template <typename T>
__global__ void logspace(T* out, index_t count, double start, double end, double step,
                         double base) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        out[i] = store<T>(pow(base, on_line(i, count, start, end, step)));
    }
}
