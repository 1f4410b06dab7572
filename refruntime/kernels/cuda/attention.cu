// Scaled dot-product attention: out = softmax(scale q k^T + mask) v, forward and backward.
//
// The score matrix is never stored. A block owns ROWS = SIDE * PATCH queries of one head and walks
// over the keys, ROWS at a time, with a running maximum and sum for each query (online softmax).
// Backward recomputes the probabilities from the saved log-sum-exp: one kernel walks over keys for
// the gradient of q, one over queries for those of k and v, so nothing is added atomically.
//
// State: tiles in dynamic shared memory; the patch of a product that a thread owns, in its
// registers.
// Invariants: thread (tx, ty) of the SIDE x SIDE block owns rows ty + SIDE * i and columns tx +
// SIDE * j of every tile product; sums run in order of the key (or query), so results are
// reproducible. A query that sees no key at all gets zeros and an lse of -inf. Tiles are HEAD wide:
// at least `width` and `value_width`, the rest is zero.
//
// Arguments shared by the kernels
//   q, out           contiguous (heads, queries, width or value_width), all samples' heads in a row
//   k, v             contiguous (heads / group, keys, width or value_width): grouped queries share
//                    one
//   g, gq, gk, gv    gradients, shaped as out, q, k, v
//   lse, delta       (heads, queries) in the computing type
//   added, allowed   mask added to the scores (T), mask of allowed pairs (bool); each may be 0
//   shape            AttentionShape, with the strides of the mask that is given
//   scale, causal    factor of the scores; 1 when query i sees keys 0..i only
// attention_forward<T, HEAD, SIDE, PATCH>   grid (ceil(queries / ROWS) * heads), block (SIDE, SIDE)
//   out, lse, q, k, v, added, allowed, shape, scale, causal
//   shared: 2 * ROWS * (HEAD + PAD) * sizeof(T) + ROWS * (ROWS + 4) * sizeof(A)
//   (A is the computing type; PAD is 2 for half types, else 1)
// attention_delta<T>    grid (heads * queries), block (1, threads: a power of two)
//   shared: threads * sizeof(A)
//   delta, g, out, value_width: delta = sum over the width of g * out
// attention_backward_q<T, HEAD, SIDE, PATCH>   grid and block of attention_forward
//   gq, g, q, k, v, lse, delta, added, allowed, shape, scale, causal
//   shared: 4 * ROWS * (HEAD + PAD) * sizeof(T) + 2 * ROWS * (ROWS + 1) * sizeof(A)
// attention_backward_kv<T, HEAD, SIDE, PATCH>  grid (ceil(keys / ROWS) * heads / group), block
//                                              (SIDE, SIDE), shared of attention_backward_q
//   gk, gv, g, q, k, v, lse, delta, added, allowed, shape, scale, causal

#include "common.cuh"

struct AttentionShape {
    index_t queries, keys, width, value_width, group;
    // Heads of a sample: head h is (h / mask_inner, h % mask_inner) of the mask.
    index_t mask_inner;
    index_t mask_batch, mask_head, mask_query, mask_key;
};

template <typename T> struct Masks {
    const T* added;
    const bool* allowed;
    index_t causal;
};

// The score of a pair with its mask; -inf when the query does not see the key.
template <typename T>
DEVICE acc_t<T> masked(acc_t<T> score, const Masks<T>& masks, const AttentionShape& s, index_t head,
                       index_t query, index_t key) {
    if (query >= s.queries || key >= s.keys || (masks.causal && key > query))
        return lowest<acc_t<T>>();
    index_t sample = quotient(head, s.mask_inner), inner = head - sample * s.mask_inner;
    index_t at =
        sample * s.mask_batch + inner * s.mask_head + query * s.mask_query + key * s.mask_key;
    if (masks.allowed && !masks.allowed[at]) return lowest<acc_t<T>>();
    return masks.added ? score + load(masks.added[at]) : score;
}

// The geometry of an instance, and the work that its kernels share.
template <typename T, int HEAD, int SIDE, int PATCH> struct Tiles {
    using A = acc_t<T>;
    static constexpr int ROWS = SIDE * PATCH, PAD = sizeof(T) == 2 ? 2 : 1, PITCH = HEAD + PAD;
    static constexpr int SCORES = ROWS + 1, CELLS = ROWS * PITCH, COLUMNS = HEAD / SIDE;

    // Rows first .. first + ROWS of a (rows, width) matrix, zero where it has none.
    static DEVICE void read(T* tile, const T* matrix, index_t first, index_t rows, index_t width) {
        for (int i = threadIdx.y * SIDE + threadIdx.x; i < ROWS * HEAD; i += SIDE * SIDE) {
            int row = i / HEAD, column = i % HEAD;
            bool inside = first + row < rows && column < width;
            tile[row * PITCH + column] =
                inside ? matrix[(first + row) * width + column] : store<T>(A(0));
        }
    }

    // One element of a b^T, of rows r and c of two tiles.
    static DEVICE A dot(const T* a, int r, const T* b, int c) {
        A sum = A(0);
        for (int d = 0; d < HEAD; ++d) sum += load(a[r * PITCH + d]) * load(b[c * PITCH + d]);
        return sum;
    }

    // sums[i][c] += row r_i of the scores (or column, when TURNED) times column c of a tile.
    template <bool TURNED>
    static DEVICE void add_product(A (&sums)[PATCH][COLUMNS], const A* scores, const T* tile) {
        for (int k = 0; k < ROWS; ++k) {
            for (int i = 0; i < PATCH; ++i) {
                int r = threadIdx.y + SIDE * i;
                A left = TURNED ? scores[k * SCORES + r] : scores[r * SCORES + k];
                for (int c = 0; c < COLUMNS; ++c) {
                    sums[i][c] += left * load(tile[k * PITCH + threadIdx.x + SIDE * c]);
                }
            }
        }
    }

    static DEVICE void write(T* matrix, A (&sums)[PATCH][COLUMNS], index_t first, index_t rows,
                             index_t width) {
        for (int i = 0; i < PATCH; ++i) {
            index_t row = first + threadIdx.y + SIDE * i;
            for (int c = 0; c < COLUMNS; ++c) {
                index_t column = threadIdx.x + SIDE * c;
                if (row < rows && column < width)
                    matrix[row * width + column] = store<T>(sums[i][c]);
            }
        }
    }
};

template <typename T, int HEAD, int SIDE, int PATCH>
__global__ void __launch_bounds__(SIDE* SIDE)
    attention_forward(T* out, acc_t<T>* lse, const T* q, const T* k, const T* v, const T* added,
                      const bool* allowed, const AttentionShape s, double scale, index_t causal) {
    using G = Tiles<T, HEAD, SIDE, PATCH>;
    using A = acc_t<T>;
    A* scores = shared_memory<A>();
    A *tops = scores + G::ROWS * G::SCORES, *sums = tops + G::ROWS, *factors = sums + G::ROWS;
    T *q_tile = reinterpret_cast<T*>(factors + G::ROWS), *kv_tile = q_tile + G::CELLS;
    index_t tiles = (s.queries + G::ROWS - 1) / G::ROWS, head = quotient(blockIdx.x, tiles);
    index_t first = (blockIdx.x - head * tiles) * G::ROWS, shared_head = quotient(head, s.group);
    index_t key_end = causal ? smaller(first + G::ROWS, s.keys) : s.keys;
    Masks<T> masks = {added, allowed, causal};
    int thread = threadIdx.y * SIDE + threadIdx.x;

    G::read(q_tile, q + head * s.queries * s.width, first, s.queries, s.width);
    for (int r = thread; r < G::ROWS; r += SIDE * SIDE) {
        tops[r] = lowest<A>();
        sums[r] = A(0);
    }
    A results[PATCH][G::COLUMNS] = {};
    for (index_t key = 0; key < key_end; key += G::ROWS) {
        G::read(kv_tile, k + shared_head * s.keys * s.width, key, s.keys, s.width);
        __syncthreads();
        for (int i = 0; i < PATCH; ++i) {
            for (int j = 0; j < PATCH; ++j) {
                int r = threadIdx.y + SIDE * i, c = threadIdx.x + SIDE * j;
                A score = G::dot(q_tile, r, kv_tile, c) * static_cast<A>(scale);
                scores[r * G::SCORES + c] = masked(score, masks, s, head, first + r, key + c);
            }
        }
        __syncthreads();
        G::read(kv_tile, v + shared_head * s.keys * s.value_width, key, s.keys, s.value_width);
        for (int r = thread; r < G::ROWS; r += SIDE * SIDE) {
            A* row = scores + r * G::SCORES;
            A top = tops[r], sum = A(0);
            for (int c = 0; c < G::ROWS; ++c) top = Largest<A>::merge(top, row[c]);
            // Nothing seen yet: every score is -inf and stands for a probability of zero.
            A base = top == lowest<A>() ? A(0) : top;
            for (int c = 0; c < G::ROWS; ++c) {
                row[c] = exp(row[c] - base);
                sum += row[c];
            }
            factors[r] = exp(tops[r] - base);
            sums[r] = sums[r] * factors[r] + sum;
            tops[r] = top;
        }
        __syncthreads();
        for (int i = 0; i < PATCH; ++i) {
            for (int c = 0; c < G::COLUMNS; ++c) results[i][c] *= factors[threadIdx.y + SIDE * i];
        }
        G::template add_product<false>(results, scores, kv_tile);
        __syncthreads();
    }
    for (int i = 0; i < PATCH; ++i) {
        A sum = sums[threadIdx.y + SIDE * i];
        for (int c = 0; c < G::COLUMNS; ++c)
            results[i][c] = sum == A(0) ? A(0) : results[i][c] / sum;
    }
    G::write(out + head * s.queries * s.value_width, results, first, s.queries, s.value_width);
    for (int r = thread; r < G::ROWS && first + r < s.queries; r += SIDE * SIDE) {
        lse[head * s.queries + first + r] = sums[r] == A(0) ? lowest<A>() : tops[r] + log(sums[r]);
    }
}

template <typename T>
__global__ void attention_delta(acc_t<T>* delta, const T* g, const T* out, index_t value_width) {
    using A = acc_t<T>;
    index_t base = blockIdx.x * value_width;
    A sum = A(0);
    for (index_t c = threadIdx.y; c < value_width; c += blockDim.y) {
        sum += load(g[base + c]) * load(out[base + c]);
    }
    sum = combine_y<Plus<A>>(sum, shared_memory<A>());
    if (threadIdx.y == 0) delta[blockIdx.x] = sum;
}

// What the two backward kernels read, and the products they make of it.
template <typename T, int HEAD, int SIDE, int PATCH> struct Backward {
    using G = Tiles<T, HEAD, SIDE, PATCH>;
    using A = acc_t<T>;
    A *p, *ds;  // probabilities, gradient of the scores
    T *q_tile, *g_tile, *k_tile, *v_tile;

    DEVICE Backward() {
        p = shared_memory<A>();
        ds = p + G::ROWS * G::SCORES;
        q_tile = reinterpret_cast<T*>(ds + G::ROWS * G::SCORES);
        g_tile = q_tile + G::CELLS;
        k_tile = g_tile + G::CELLS;
        v_tile = k_tile + G::CELLS;
    }

    // ds = scale p (g v^T - delta) for the pairs of the tiles at hand.
    DEVICE void score(const A* lse, const A* delta, const Masks<T>& masks, const AttentionShape& s,
                      index_t head, index_t query, index_t key, double scale) {
        for (int i = 0; i < PATCH; ++i) {
            for (int j = 0; j < PATCH; ++j) {
                int r = threadIdx.y + SIDE * i, c = threadIdx.x + SIDE * j;
                A value = G::dot(q_tile, r, k_tile, c) * static_cast<A>(scale);
                value = masked(value, masks, s, head, query + r, key + c);
                A probability = A(0), slope = A(0);
                if (value != lowest<A>()) {
                    index_t at = head * s.queries + query + r;
                    probability = exp(value - lse[at]);
                    slope = probability * (G::dot(g_tile, r, v_tile, c) - delta[at]);
                }
                p[r * G::SCORES + c] = probability;
                ds[r * G::SCORES + c] = slope * static_cast<A>(scale);
            }
        }
    }
};

template <typename T, int HEAD, int SIDE, int PATCH>
__global__ void __launch_bounds__(SIDE* SIDE)
    attention_backward_q(T* gq, const T* g, const T* q, const T* k, const T* v, const acc_t<T>* lse,
                         const acc_t<T>* delta, const T* added, const bool* allowed,
                         const AttentionShape s, double scale, index_t causal) {
    using G = Tiles<T, HEAD, SIDE, PATCH>;
    Backward<T, HEAD, SIDE, PATCH> work;
    Masks<T> masks = {added, allowed, causal};
    index_t tiles = (s.queries + G::ROWS - 1) / G::ROWS, head = quotient(blockIdx.x, tiles);
    index_t first = (blockIdx.x - head * tiles) * G::ROWS, shared_head = quotient(head, s.group);
    index_t key_end = causal ? smaller(first + G::ROWS, s.keys) : s.keys;
    G::read(work.q_tile, q + head * s.queries * s.width, first, s.queries, s.width);
    G::read(work.g_tile, g + head * s.queries * s.value_width, first, s.queries, s.value_width);
    acc_t<T> sums[PATCH][G::COLUMNS] = {};
    for (index_t key = 0; key < key_end; key += G::ROWS) {
        G::read(work.k_tile, k + shared_head * s.keys * s.width, key, s.keys, s.width);
        G::read(work.v_tile, v + shared_head * s.keys * s.value_width, key, s.keys, s.value_width);
        __syncthreads();
        work.score(lse, delta, masks, s, head, first, key, scale);
        __syncthreads();
        G::template add_product<false>(sums, work.ds, work.k_tile);
        __syncthreads();
    }
    G::write(gq + head * s.queries * s.width, sums, first, s.queries, s.width);
}

template <typename T, int HEAD, int SIDE, int PATCH>
__global__ void __launch_bounds__(SIDE* SIDE)
    attention_backward_kv(T* gk, T* gv, const T* g, const T* q, const T* k, const T* v,
                          const acc_t<T>* lse, const acc_t<T>* delta, const T* added,
                          const bool* allowed, const AttentionShape s, double scale,
                          index_t causal) {
    using G = Tiles<T, HEAD, SIDE, PATCH>;
    Backward<T, HEAD, SIDE, PATCH> work;
    Masks<T> masks = {added, allowed, causal};
    index_t tiles = (s.keys + G::ROWS - 1) / G::ROWS, shared_head = quotient(blockIdx.x, tiles);
    index_t first = (blockIdx.x - shared_head * tiles) * G::ROWS;
    index_t query_begin = causal ? first : 0;
    G::read(work.k_tile, k + shared_head * s.keys * s.width, first, s.keys, s.width);
    G::read(work.v_tile, v + shared_head * s.keys * s.value_width, first, s.keys, s.value_width);
    acc_t<T> k_sums[PATCH][G::COLUMNS] = {}, v_sums[PATCH][G::COLUMNS] = {};
    for (index_t head = shared_head * s.group; head < (shared_head + 1) * s.group; ++head) {
        for (index_t query = query_begin; query < s.queries; query += G::ROWS) {
            G::read(work.q_tile, q + head * s.queries * s.width, query, s.queries, s.width);
            G::read(work.g_tile, g + head * s.queries * s.value_width, query, s.queries,
                    s.value_width);
            __syncthreads();
            work.score(lse, delta, masks, s, head, query, first, scale);
            __syncthreads();
            G::template add_product<true>(v_sums, work.p, work.g_tile);
            G::template add_product<true>(k_sums, work.ds, work.q_tile);
            __syncthreads();
        }
    }
    G::write(gk + shared_head * s.keys * s.width, k_sums, first, s.keys, s.width);
    G::write(gv + shared_head * s.keys * s.value_width, v_sums, first, s.keys, s.value_width);
}
