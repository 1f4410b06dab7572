// Running results along one dimension: cumsum, cumprod, logcumsumexp, cummax and cummin with
// places.
//
// State: the carry from tile to tile, in registers of every thread of a column.
// Invariants: position i of the output depends on positions 0..i of the input only; the order of
// merging depends on the launch's shape alone. Of equal extremes the last place is reported.
//
// scan<Op, T, Out>   grid (ceil(inner / block.x) * outer), block (columns side by side, positions
//                    of
//                    a tile: a power of two), shared: block.x * block.y * STATE_BYTES
//   x, out           contiguous (outer, length, inner)
//   where            places (long long), the shape of out, or 0
//   length, inner

#include "operations.cuh"

constexpr int STATE_BYTES = 32;

// Inclusive scan over threadIdx.y for each threadIdx.x; the shift doubles from step to step.
template <typename Op, typename State> DEVICE State scan_y(State state, State* cells) {
    int cell = threadIdx.y * blockDim.x + threadIdx.x;
    cells[cell] = state;
    __syncthreads();
    for (int shift = 1; shift < static_cast<int>(blockDim.y); shift *= 2) {
        bool reaches = static_cast<int>(threadIdx.y) >= shift;
        if (reaches) state = Op::merge(cells[cell - shift * blockDim.x], state);
        __syncthreads();
        cells[cell] = state;
        __syncthreads();
    }
    return state;
}

template <template <typename> class Op, typename T, typename Out>
__global__ void scan(const T* x, Out* out, index_t* where, index_t length, index_t inner) {
    using State = typename Op<T>::State;
    static_assert(sizeof(State) <= STATE_BYTES, "the launcher reserves STATE_BYTES a state");
    State* cells = shared_memory<State>();
    Column column = column_of(length, inner);
    index_t base = column.base;
    int last = (blockDim.y - 1) * blockDim.x + threadIdx.x;
    State carry = Op<T>::identity();
    for (index_t tile = 0; tile < length; tile += blockDim.y) {
        index_t i = tile + threadIdx.y;
        bool inside = column.inner < inner && i < length;
        State state = Op<T>::identity();
        if (inside) Op<T>::take(state, load(x[base + i * inner]), i, 0.0);
        state = Op<T>::merge(carry, scan_y<Op<T>>(state, cells));
        carry = Op<T>::merge(carry, cells[last]);
        if (inside) {
            out[base + i * inner] = store<Out>(Op<T>::result(state, i + 1, 0.0));
            write_place(where, base + i * inner, state);
        }
        __syncthreads();
    }
}
