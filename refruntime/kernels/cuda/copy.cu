// Copy, cast, fill and transpose.
//
// State: none. Invariants: `table` is the common iteration space, collapsed by the launcher;
// operand 0 is the destination, operand 1 the source; every destination element is written exactly
// once.
//
// copy_bits<B>    grid (any), block (256)   any strides, no change of type; B is a type of the
//                 item's size
//   out, x        destination, source
//   table         Table<2>: shape and strides of (out, x)
//   count         number of elements
// convert<D, S>   the same, with a cast from S to D
// fill_bits<B>    grid (any), block (256)
//   out, table    destination, Table<1>
//   count         number of elements
//   low, high     the element's bits (high: the upper half of a 16-byte element)
// transpose_bits<B>  grid (ceil(columns/32) * ceil(rows/32) * batch), block (32, 8)
//   out           contiguous (batch, rows, columns)
//   x             element (b, r, c) stands at b * batch_step + r + c * column_step
//   rows, columns, batch_step, column_step

#include "common.cuh"

template <typename B> DEVICE B from_bits(index_t low, index_t) { return static_cast<B>(low); }
template <> DEVICE Wide from_bits<Wide>(index_t low, index_t high) {
    return {static_cast<unsigned long long>(low), static_cast<unsigned long long>(high)};
}

template <typename B>
__global__ void copy_bits(B* out, const B* x, const Table<2> table, index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        index_t at[2];
        locate(table, i, at);
        out[at[0]] = x[at[1]];
    }
}

template <typename D, typename S>
__global__ void convert(D* out, const S* x, const Table<2> table, index_t count) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        index_t at[2];
        locate(table, i, at);
        out[at[0]] = store<D>(load(x[at[1]]));
    }
}

template <typename B>
__global__ void fill_bits(B* out, const Table<1> table, index_t count, index_t low, index_t high) {
    B value = from_bits<B>(low, high);
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        out[locate(table, i)] = value;
    }
}

// A 32 x 32 tile is read along the source's rows and written along the destination's, so that both
// sides touch memory in order; the extra column keeps the turned reads on different banks.
template <typename B>
__global__ void transpose_bits(B* out, const B* x, index_t rows, index_t columns,
                               index_t batch_step, index_t column_step) {
    __shared__ B tile[32][33];
    Site at = site(blockIdx.x, (rows + 31) / 32, (columns + 31) / 32);
    const B* source = x + at.outer * batch_step;
    B* target = out + at.outer * rows * columns;
    index_t row = at.row * 32, column = at.column * 32;
    for (int c = threadIdx.y; c < 32; c += blockDim.y) {
        if (row + threadIdx.x < rows && column + c < columns) {
            tile[c][threadIdx.x] = source[row + threadIdx.x + (column + c) * column_step];
        }
    }
    __syncthreads();
    for (int r = threadIdx.y; r < 32; r += blockDim.y) {
        if (row + r < rows && column + threadIdx.x < columns) {
            target[(row + r) * columns + column + threadIdx.x] = tile[threadIdx.x][r];
        }
    }
}
