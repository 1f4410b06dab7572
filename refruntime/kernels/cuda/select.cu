// Compaction: the elements, or the places, of those positions where a condition holds, in order.
//
// A block owns CHUNK consecutive positions. Three launches: `count_true` leaves each block's number
// in counts[block]; `offsets` turns the counts into starts, and leaves the total in counts[blocks]
// (which the host reads to size the output); then one of the writers ranks its positions within the
// chunk.
//
// State: counts, one long long a block and one for the total. Invariants: the order of the output
// is the row-major order of the input; no atomics.
//
// count_true<T>        grid (blocks = ceil(count / 2048)), block (256), shared: 256 * 8
//   counts             long long (blocks + 1)
//   x, table, count    condition: an element that is not zero; Table<1>; number of positions
// offsets              grid (1), block (256), shared: 256 * 8
//   counts, blocks
// nonzero<T>           grid and block of count_true, shared: 256 * 8
//   out                contiguous (total, shape.ndim) long long: coordinates in the original shape
//   counts, x, table, count
//   shape              Table<1>: the original shape (the table may be collapsed)
// masked_select<B>     out (total), counts, x, mask, table (Table<2>: mask, x), count
// masked_scatter<B>    out, counts, source (contiguous), mask, table (Table<2>: mask, out), count,
//                      available:
//                      out where mask = the next of source; positions past `available` keep theirs
//   (mask is bool)

#include "common.cuh"

constexpr int THREADS = 256, CHUNK = 2048;

// Exclusive prefix sum over the block; total gets the sum. All threads call it.
DEVICE index_t exclusive_sum(index_t value, index_t* cells, index_t* total) {
    int thread = threadIdx.x;
    index_t sum = value;
    cells[thread] = sum;
    __syncthreads();
    for (int shift = 1; shift < THREADS; shift *= 2) {
        if (thread >= shift) sum += cells[thread - shift];
        __syncthreads();
        cells[thread] = sum;
        __syncthreads();
    }
    *total = cells[THREADS - 1];
    __syncthreads();
    return sum - value;
}

template <typename T>
__global__ void count_true(index_t* counts, const T* x, const Table<1> table, index_t count) {
    index_t begin = static_cast<index_t>(blockIdx.x) * CHUNK, end = smaller(begin + CHUNK, count);
    index_t found = 0, total;
    for (index_t i = begin + threadIdx.x; i < end; i += THREADS) {
        found += load(x[locate(table, i)]) != acc_t<T>(0);
    }
    exclusive_sum(found, shared_memory<index_t>(), &total);
    if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

__global__ void offsets(index_t* counts, index_t blocks) {
    index_t carry = 0, total;
    for (index_t tile = 0; tile < blocks; tile += THREADS) {
        index_t i = tile + threadIdx.x;
        index_t start = exclusive_sum(i < blocks ? counts[i] : 0, shared_memory<index_t>(), &total);
        if (i < blocks) counts[i] = carry + start;
        carry += total;
    }
    if (threadIdx.x == 0) counts[blocks] = carry;
}

// Calls write(position, rank) for every position of the block's chunk where holds(position).
template <typename Holds, typename Write>
DEVICE void rank_chunk(const index_t* counts, index_t count, Holds holds, Write write) {
    index_t begin = static_cast<index_t>(blockIdx.x) * CHUNK, carry = counts[blockIdx.x], total;
    for (int tile = 0; tile < CHUNK; tile += THREADS) {
        index_t i = begin + tile + threadIdx.x;
        bool here = i < count && holds(i);
        index_t rank = exclusive_sum(here, shared_memory<index_t>(), &total);
        if (here) write(i, carry + rank);
        carry += total;
    }
}

template <typename T>
__global__ void nonzero(index_t* out, const index_t* counts, const T* x, const Table<1> table,
                        index_t count, const Table<1> shape) {
    rank_chunk(
        counts, count, [&](index_t i) { return load(x[locate(table, i)]) != acc_t<T>(0); },
        [&](index_t i, index_t rank) {
            for (int d = static_cast<int>(shape.ndim) - 1; d >= 0; --d) {
                index_t above = quotient(i, shape.shape[d]);
                out[rank * shape.ndim + d] = i - above * shape.shape[d];
                i = above;
            }
        });
}

DEVICE bool masked(const bool* mask, const Table<2>& table, index_t i, index_t* other) {
    index_t at[2];
    locate(table, i, at);
    *other = at[1];
    return mask[at[0]];
}

template <typename B>
__global__ void masked_select(B* out, const index_t* counts, const B* x, const bool* mask,
                              const Table<2> table, index_t count) {
    index_t from;
    rank_chunk(
        counts, count, [&](index_t i) { return masked(mask, table, i, &from); },
        [&](index_t, index_t rank) { out[rank] = x[from]; });
}

template <typename B>
__global__ void masked_scatter(B* out, const index_t* counts, const B* source, const bool* mask,
                               const Table<2> table, index_t count, index_t available) {
    index_t to;
    rank_chunk(
        counts, count, [&](index_t i) { return masked(mask, table, i, &to); },
        [&](index_t, index_t rank) {
            if (rank < available) out[to] = source[rank];
        });
}
