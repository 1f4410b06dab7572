// Triangles of matrices. (Flips, rolls and repeats are copies between views.)
//
// State: none. Invariants: the output is contiguous and written entirely.
//
// triangle<UPPER, B>  grid (any), block (256)
//   out, x            contiguous (planes, rows, columns)
//   rows, columns, diagonal, count (elements)
//   (keeps column - row <= diagonal, or >= when UPPER; the rest becomes zero)

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
