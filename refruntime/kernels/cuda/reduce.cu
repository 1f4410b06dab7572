// Reductions over any set of dimensions: sum, mean, prod, amax, amin, argmax, argmin, max and min
// with their places, var, std, all, any, norm, logsumexp, count_nonzero.
//
// State: when one output is reduced by several blocks (gridDim.y > 1), each leaves its state in
// `partial` ([split][output], STATE_BYTES each) and `finish` merges them in order of the split.
// Invariants: every output is the merge of its elements in an order that depends on the launch's
// shape alone, so a result is reproducible bit for bit; no atomics. NaN wins max and min; of equal
// extremes the first place wins, whatever the order of merging.
//
// reduce<Op, T, Out>   grid (ceil(outputs / block.x), splits), block (outputs side by side, threads
//                      an
//                      output: a power of two), shared: block.x * block.y * STATE_BYTES
//   x                  input
//   out, where         contiguous results; `where` (places, long long) only for MaxAt and MinAt,
//                      else 0
//   partial            workspace of splits * outputs * STATE_BYTES when splits > 1, else 0
//   kept               Table<1>: shape of the outputs, strides of the input over them
//   reduced            Table<1>: shape and strides of the reduced dimensions
//   outputs, length    number of outputs, number of elements reduced for each
//   chunk              elements a split takes: ceil(length / splits)
//   parameter          correction for Var and Std, exponent for PNorm; else ignored
// finish<Op, T, Out>   grid (ceil(outputs / 256)), block (256)
//   partial, splits, out, where, outputs, length, parameter

#include "operations.cuh"

constexpr int STATE_BYTES = 32;

template <template <typename> class Op, typename T, typename Out>
__global__ void reduce(const T* x, Out* out, index_t* where, void* partial, const Table<1> kept,
                       const Table<1> reduced, index_t outputs, index_t length, index_t chunk,
                       double parameter) {
    using State = typename Op<T>::State;
    index_t o = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    index_t begin = blockIdx.y * chunk, end = smaller(begin + chunk, length);
    State state = Op<T>::identity();
    if (o < outputs) {
        const T* base = x + locate(kept, o);
        for (index_t i = begin + threadIdx.y; i < end; i += blockDim.y) {
            Op<T>::take(state, load(base[locate(reduced, i)]), i, parameter);
        }
    }
    state = combine_y<Op<T>>(state, shared_memory<State>());
    if (o >= outputs || threadIdx.y > 0) return;
    if (gridDim.y > 1) {
        static_cast<State*>(partial)[blockIdx.y * outputs + o] = state;
        return;
    }
    out[o] = store<Out>(Op<T>::result(state, length, parameter));
    write_place(where, o, state);
}

template <template <typename> class Op, typename T, typename Out>
__global__ void finish(const void* partial, index_t splits, Out* out, index_t* where,
                       index_t outputs, index_t length, double parameter) {
    using State = typename Op<T>::State;
    static_assert(sizeof(State) <= STATE_BYTES, "the launcher reserves STATE_BYTES a state");
    index_t o = global_thread();
    if (o >= outputs) return;
    const State* states = static_cast<const State*>(partial);
    State state = states[o];
    for (index_t s = 1; s < splits; ++s) state = Op<T>::merge(state, states[s * outputs + o]);
    out[o] = store<Out>(Op<T>::result(state, length, parameter));
    write_place(where, o, state);
}
