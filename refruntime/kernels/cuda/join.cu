// Concatenation of contiguous tensors along one dimension.
//
// State: none. Invariants: every output element is written by exactly one piece; a launch joins up
// to MAX_PIECES pieces (a longer list takes several launches on the same output).
//
// cat_bits<B>       grid (any, pieces), block (256)
//   out             contiguous (outer, width of all): a row holds the rows of the pieces one after
//                   another
//   pieces          Pieces: contiguous (outer, width[p]) each, and where its part of a row starts
//   outer, total    number of rows, width of all

#include "common.cuh"

constexpr int MAX_PIECES = 64;

template <typename B> struct Pieces {
    const B* data[MAX_PIECES];
    index_t width[MAX_PIECES];
    index_t start[MAX_PIECES];
};

template <typename B>
__global__ void cat_bits(B* out, const Pieces<B> pieces, index_t outer, index_t total) {
    index_t width = pieces.width[blockIdx.y], start = pieces.start[blockIdx.y];
    const B* piece = pieces.data[blockIdx.y];
    for (index_t i = global_thread(); i < outer * width; i += global_threads()) {
        index_t row = quotient(i, width);
        out[row * total + start + (i - row * width)] = piece[i];
    }
}
