// Stable sort of rows, with the permutation: tiles in shared memory, then merges of ever longer
// runs.
//
// `sort_tiles` sorts runs of up to 2 * THREADS = 512 elements by a bitonic network; each launch of
// `merge_runs` doubles the length of the sorted runs, from one pair of buffers to another. A merge
// needs no cooperation: an element's place in the merged run is its place in its own run plus the
// number of elements of the other run that go before it, found by bisection.
//
// State: the two pairs of buffers. Invariants: elements are compared as (key, place), so every
// element has one rank and the sort is stable both ways; NaN is larger than every number, as in
// torch.sort; a row is `length` contiguous elements.
//
// sort_tiles<T>    grid (ceil(length / 512) * rows), block (256), shared: 512 * (size of T's
//                  computing type + 8)
//   keys, places   results (rows, length); places are long long, 0 .. length - 1
//   x              contiguous (rows, length)
//   length, descending
// merge_runs<T>    grid (ceil(rows * length / 256)), block (256)
//   keys, places   results
//   from_keys, from_places   runs of `run` sorted elements
//   rows, length, run, descending

#include "common.cuh"

constexpr int THREADS = 256, TILE = 2 * THREADS;

// Does (a, at place i) go before (b, at place j)?
template <typename A> DEVICE bool before(A a, index_t i, A b, index_t j, index_t descending) {
    bool a_nan = is_nan(a), b_nan = is_nan(b);
    if (a_nan || b_nan) {
        if (a_nan && b_nan) return i < j;
        return descending ? a_nan : b_nan;
    }
    if (a == b) return i < j;
    return descending ? a > b : a < b;
}

template <typename T>
__global__ void sort_tiles(T* keys, index_t* places, const T* x, index_t length,
                           index_t descending) {
    using A = acc_t<T>;
    index_t* spots = shared_memory<index_t>();
    A* cells = reinterpret_cast<A*>(spots + TILE);
    index_t tiles = (length + TILE - 1) / TILE, number = quotient(blockIdx.x, tiles);
    index_t row = number * length, first = (blockIdx.x - number * tiles) * TILE;
    for (int i = threadIdx.x; i < TILE; i += THREADS) {
        // Empty cells go last: their place is past every real one, and nothing else is looked at.
        spots[i] = first + i;
        cells[i] = first + i < length ? load(x[row + first + i]) : A(0);
    }
    __syncthreads();
    for (int size = 2; size <= TILE; size *= 2) {
        for (int gap = size / 2; gap > 0; gap /= 2) {
            int low = 2 * threadIdx.x - (threadIdx.x & (gap - 1)), high = low + gap;
            bool forward = (low & size) == 0;
            bool low_absent = spots[low] >= length, high_absent = spots[high] >= length;
            bool ordered =
                low_absent || high_absent
                    ? (low_absent == high_absent ? spots[low] < spots[high] : high_absent)
                    : before(cells[low], spots[low], cells[high], spots[high], descending);
            if (ordered != forward) {
                A cell = cells[low];
                cells[low] = cells[high];
                cells[high] = cell;
                index_t spot = spots[low];
                spots[low] = spots[high];
                spots[high] = spot;
            }
            __syncthreads();
        }
    }
    for (int i = threadIdx.x; i < TILE && first + i < length; i += THREADS) {
        keys[row + first + i] = store<T>(cells[i]);
        places[row + first + i] = spots[i];
    }
}

template <typename T>
__global__ void merge_runs(T* keys, index_t* places, const T* from_keys, const index_t* from_places,
                           index_t rows, index_t length, index_t run, index_t descending) {
    if (global_thread() >= rows * length) return;
    index_t row = quotient(global_thread(), length) * length, i = global_thread() - row;
    index_t mine = quotient(i, run) * run, pair = quotient(i, 2 * run) * 2 * run;
    index_t other = mine == pair ? pair + run : pair;
    acc_t<T> key = load(from_keys[row + i]);
    index_t place = from_places[row + i];
    index_t low = smaller(other, length), high = smaller(other + run, length), start = low;
    while (low < high) {
        index_t middle = (low + high) / 2;
        if (before(load(from_keys[row + middle]), from_places[row + middle], key, place,
                   descending)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    index_t target = row + pair + (i - mine) + (low - start);
    keys[target] = store<T>(key);
    places[target] = place;
}
