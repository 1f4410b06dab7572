// Triangles, rolls, one-hot rows, and sequences: outputs that are a simple function of the
// position. (A flip is copy_bits with a negative stride.)
//
// State: none. Invariants: outputs are contiguous and written entirely.
//
// triangle<UPPER, B>  grid (any), block (256)
//   out, x            contiguous (planes, rows, columns)
//   rows, columns, diagonal, count (elements)
//   (keeps column - row <= diagonal, or >= when UPPER; the rest becomes zero)
// roll_bits<B>        out, x: contiguous (outer, length, inner); length, inner, shift in [0,
//                     length), count
// one_hot             out: long long (positions, classes); index: long long (positions); classes,
//                     count
// sequence<T>         out, count, start, step: out[i] = start + i * step   (start and step are
//                     double)
// integer_sequence<T> the same with start and step long long

#include "common.cuh"

template <bool UPPER, typename B>
__global__ void triangle(B* out, const B* x, index_t rows, index_t columns, index_t diagonal,
                         index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, rows, columns);
        index_t above = at.column - at.row;
        bool kept = UPPER ? above >= diagonal : above <= diagonal;
        out[i] = kept ? x[i] : B{};
    }
}

template <typename B>
__global__ void roll_bits(B* out, const B* x, index_t length, index_t inner, index_t shift,
                          index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Site at = site(i, length, inner);
        index_t from = at.row - shift + (at.row < shift ? length : 0);
        out[i] = x[(at.outer * length + from) * inner + at.column];
    }
}

__global__ void one_hot(index_t* out, const index_t* index, index_t classes, index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        index_t position = quotient(i, classes);
        out[i] = index[position] == i - position * classes;
    }
}

template <typename T> __global__ void sequence(T* out, index_t count, double start, double step) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        out[i] = store<T>(start + static_cast<double>(i) * step);
    }
}

template <typename T>
__global__ void integer_sequence(T* out, index_t count, index_t start, index_t step) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        out[i] = store<T>(start + i * step);
    }
}
