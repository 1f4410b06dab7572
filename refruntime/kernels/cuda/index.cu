// Reading and writing through index tensors: x[i, j, ...], gather, scatter, index_select,
// index_put, index_add, scatter_reduce and their kin are all one map from a space of positions to
// elements of x.
//
// At position p of the space, x's element is at
//   table.strides[1] . p + sum over index tensors t of wrapped(index_t[stride_t . p]) * step[t]
// gather along dim: the space is the index's shape, one index tensor, x's stride of dim is 0 in the
// table and `step` here. index_select: the same, the index's strides are 0 but along dim. x[i, j]:
// one entry a tensor, strides 0 along x's own dimensions.
//
// State: none. Invariants: an index outside [-size, size) (or [0, size) when wrapping is off) moves
// nothing and is reported in *fault; nothing outside x is touched. With repeated places,
// index_put's winner is unspecified, index_combine is exact for integers and otherwise in
// unspecified order.
//
// index_get<B>          grid (any), block (256)
//   out, x              destination, source
//   table               Table<2>: the space, strides of (out, x)
//   indices             Indices
//   count               number of positions
//   wrap                1: negative indices count from the end
//   fault               one long long on the device, or 0: set to 1 when an index is out of range
// index_put<B>          the same with (x, values, table (values, x), ...): x[...] = values
// index_combine<Op, T>  the same: x[...] = Op(x[...], values), atomically; Op is one of Add,
//                       Multiply,
//                       Maximum, Minimum

#include "common.cuh"

constexpr int MAX_INDICES = 8;

struct Indices {
    index_t count;
    const index_t* data[MAX_INDICES];
    index_t size[MAX_INDICES];
    index_t step[MAX_INDICES];
    index_t strides[MAX_INDICES][MAX_DIMS];
};

// Where a position leads: offsets of the plain operand and of x; false when an index is out of
// range.
struct Route {
    index_t plain, x;
    bool valid;
};

DEVICE Route route(const Table<2>& table, const Indices& indices, index_t linear, index_t wrap,
                   index_t* fault) {
    Route found = {0, 0, true};
    index_t entry[MAX_INDICES] = {};
    for (int d = static_cast<int>(table.ndim) - 1; d >= 0; --d) {
        index_t above = quotient(linear, table.shape[d]),
                position = linear - above * table.shape[d];
        found.plain += position * table.strides[0][d];
        found.x += position * table.strides[1][d];
        for (int t = 0; t < indices.count; ++t) entry[t] += position * indices.strides[t][d];
        linear = above;
    }
    for (int t = 0; t < indices.count; ++t) {
        index_t index = indices.data[t][entry[t]];
        if (wrap && index < 0) index += indices.size[t];
        found.valid = found.valid && index >= 0 && index < indices.size[t];
        found.x += index * indices.step[t];
    }
    if (!found.valid && fault) *fault = 1;
    return found;
}

template <typename B>
__global__ void index_get(B* out, const B* x, const Table<2> table, const Indices indices,
                          index_t count, index_t wrap, index_t* fault) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Route to = route(table, indices, i, wrap, fault);
        if (to.valid) out[to.plain] = x[to.x];
    }
}

template <typename B>
__global__ void index_put(B* x, const B* values, const Table<2> table, const Indices indices,
                          index_t count, index_t wrap, index_t* fault) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Route to = route(table, indices, i, wrap, fault);
        if (to.valid) x[to.x] = values[to.plain];
    }
}

// -------------------------------------------------------------------------------- atomic updates

template <typename A> struct Add {
    static DEVICE A of(A a, A b) { return a + b; }
};
template <typename A> struct Multiply {
    static DEVICE A of(A a, A b) { return a * b; }
};
template <typename A> struct Maximum {
    static DEVICE A of(A a, A b) { return Largest<A>::merge(a, b); }
};
template <typename A> struct Minimum {
    static DEVICE A of(A a, A b) { return Smallest<A>::merge(a, b); }
};

// The hardware swaps words of 4 or 8 bytes; a smaller element is changed inside the word around it.
// Word is the word, and an element at `place` is its `slot`-th part.
template <int BYTES> struct WordOf {
    using type = unsigned int;
};
template <> struct WordOf<8> {
    using type = unsigned long long;
};

template <typename T> union Word {
    typename WordOf<sizeof(T)>::type bits;
    T parts[sizeof(typename WordOf<sizeof(T)>::type) / sizeof(T)];
    DEVICE Word() {}
};

template <template <typename> class Op, typename T> DEVICE void combine_at(T* place, T value) {
    using Bits = typename WordOf<sizeof(T)>::type;
    unsigned long long address = reinterpret_cast<unsigned long long>(place);
    Bits* home =
        reinterpret_cast<Bits*>(address & ~static_cast<unsigned long long>(sizeof(Bits) - 1));
    int slot = static_cast<int>((address & (sizeof(Bits) - 1)) / sizeof(T));
    Word<T> before, after;
    Bits seen = *reinterpret_cast<volatile Bits*>(home), expected;
    do {
        expected = seen;
        before.bits = seen;
        after.bits = seen;
        after.parts[slot] = store<T>(Op<acc_t<T>>::of(load(before.parts[slot]), load(value)));
        seen = atomicCAS(home, expected, after.bits);
    } while (seen != expected);
}

template <template <typename> class Op, typename T>
__global__ void index_combine(T* x, const T* values, const Table<2> table, const Indices indices,
                              index_t count, index_t wrap, index_t* fault) {
    for (index_t i = global_thread(); i < count; i += global_threads()) {
        Route to = route(table, indices, i, wrap, fault);
        if (to.valid) combine_at<Op, T>(x + to.x, values[to.plain]);
    }
}
