// Embedding: rows of a table by number; the gradient summed row by row without atomics.
//
// State: none. Invariants: backward is given the indices in stable sorted order with their original
// positions (sort.cu makes both), so one block owns a row of the table and adds its gradients in
// order of position: reproducible bit for bit. An index outside [0, rows) is skipped and reported
// in *fault.
//
// embedding_forward<B>    grid (any), block (256)
//   out                   contiguous (count, width)
//   weight, index         contiguous (rows, width); long long (count)
//   count, rows, width
//   fault                 one long long on the device, or 0: set to 1 when an index is out of range
// embedding_backward<T>   grid (count, ceil(width / 256)), block (256)
//   gweight               contiguous (rows, width), zero before
//   g                     contiguous (count, width)
//   sorted, position      long long (count): the indices in order, and where each stood
//   count, rows, width
//   padding               row that gets no gradient, or -1
//   by_frequency          1: a row's gradient is divided by how often it was asked for

#include "common.cuh"

template <typename B>
__global__ void embedding_forward(B* out, const B* weight, const index_t* index, index_t count,
                                  index_t rows, index_t width, index_t* fault) {
    for (index_t i = global_thread(); i < count * width; i += global_threads()) {
        index_t at = quotient(i, width), row = index[at];
        if (row >= 0 && row < rows) out[i] = weight[row * width + (i - at * width)];
        else if (fault) *fault = 1;
    }
}

template <typename T>
__global__ void embedding_backward(T* gweight, const T* g, const index_t* sorted,
                                   const index_t* position, index_t count, index_t rows,
                                   index_t width, index_t padding, index_t by_frequency) {
    using A = acc_t<T>;
    index_t first = blockIdx.x, row = sorted[first];
    index_t column = static_cast<index_t>(blockIdx.y) * blockDim.x + threadIdx.x;
    bool starts_run = first == 0 || sorted[first - 1] != row;
    if (!starts_run || row == padding || row < 0 || row >= rows || column >= width) return;
    A sum = A(0);
    index_t i = first;
    for (; i < count && sorted[i] == row; ++i) sum += load(g[position[i] * width + column]);
    if (by_frequency) sum /= static_cast<A>(i - first);
    gweight[row * width + column] = store<T>(sum);
}
