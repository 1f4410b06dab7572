// The CUDA built-ins that refruntime's kernels use, as host C++: enough to run a .cu file on a CPU.
//
// State: one block runs at a time. Each of its threads is a fiber with its own stack; a fiber runs
// until it returns or reaches __syncthreads(), then the scheduler resumes the next one. threadIdx
// and the other built-in variables are globals that the scheduler sets before it resumes a fiber.
//
// Invariants: a barrier is reached by every thread of the block or by none: a thread that has
// returned while others wait is reported as an error, not forgiven. The order in which threads are
// resumed and blocks are run is a parameter: a kernel whose result depends on it has a race.
// Dynamic shared memory is filled with a byte of the caller's choice before each block.

#ifndef CUDA_HOST_H
#define CUDA_HOST_H

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <type_traits>
#include <utility>

#include "half_host.h"

#define REFRUNTIME_HOST 1
#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
    unsigned int x, y, z;
};

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

// ---------------------------------------------------------------------------------------- fibers

namespace cuda_host {

enum Order { ASCENDING = 0, DESCENDING = 1, SHUFFLED = 2 };
enum Status { OK = 0, DIVERGED = 1, TOO_LARGE = 2 };

constexpr int MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 128 * 1024;
constexpr size_t SHARED_BYTES = 48 * 1024;  // what every card gives without being asked

struct Fiber {
    ucontext_t entry;
    jmp_buf place;
    bool started, waiting, done;
};

struct Launch {
    void (*call)(void (*)(), void**);
    void (*kernel)();
    void** arguments;
};

inline Fiber fibers[MAX_THREADS];
inline Fiber* running;
inline jmp_buf scheduler;
inline Launch launched;
alignas(16) inline unsigned char dynamic_shared[SHARED_BYTES];

__attribute__((noinline)) inline void suspend() {
    if (_setjmp(running->place) == 0) _longjmp(scheduler, 1);
}

inline void body() {
    for (;;) {
        launched.call(launched.kernel, launched.arguments);
        running->done = true;
        suspend();
    }
}

inline void begin(Fiber& fiber) {
    getcontext(&fiber.entry);
    fiber.entry.uc_stack.ss_sp = malloc(STACK_BYTES);
    fiber.entry.uc_stack.ss_size = STACK_BYTES;
    fiber.entry.uc_link = nullptr;
    makecontext(&fiber.entry, body, 0);
    fiber.started = true;
    setcontext(&fiber.entry);
}

__attribute__((noinline)) inline void resume(Fiber& fiber) {
    running = &fiber;
    if (_setjmp(scheduler) != 0) return;
    if (fiber.started) _longjmp(fiber.place, 1);
    begin(fiber);
}

inline unsigned int scramble(unsigned int value) { return value * 1664525u + 1013904223u; }

inline void order_threads(int order, int count, int* turn) {
    for (int i = 0; i < count; ++i) turn[i] = order == DESCENDING ? count - 1 - i : i;
    if (order != SHUFFLED) return;
    unsigned int random = 12345u + count;
    for (int i = count - 1; i > 0; --i) {
        random = scramble(random);
        int other = static_cast<int>((random >> 8) % (i + 1));
        int kept = turn[i];
        turn[i] = turn[other];
        turn[other] = kept;
    }
}

inline void run_thread(int thread) {
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / (blockDim.x * blockDim.y);
    resume(fibers[thread]);
}

// Runs the current block until all its threads have returned. A round gives a turn to each thread
// that can run; when none can, they stand at a barrier, and it opens.
inline int run_block(int count, const int* turn) {
    for (int i = 0; i < count; ++i) fibers[i].waiting = fibers[i].done = false;
    for (;;) {
        int finished = 0, waiting = 0;
        for (int i = 0; i < count; ++i) {
            Fiber& fiber = fibers[turn[i]];
            if (!fiber.waiting && !fiber.done) run_thread(turn[i]);
            finished += fiber.done;
            waiting += fiber.waiting;
        }
        if (finished == count) return OK;
        if (finished + waiting < count) continue;
        if (finished > 0) return DIVERGED;
        for (int i = 0; i < count; ++i) fibers[i].waiting = false;
    }
}

inline int run_grid(const Launch& launch, dim3 grid, dim3 block, size_t shared, int order,
                    int fill) {
    static int turn[MAX_THREADS];
    int count = static_cast<int>(block.x * block.y * block.z);
    if (count > MAX_THREADS || shared > SHARED_BYTES) return TOO_LARGE;
    if (grid.y > 65535 || grid.z > 65535) return TOO_LARGE;
    launched = launch;
    gridDim = grid;
    blockDim = block;
    order_threads(order, count, turn);
    unsigned int blocks = grid.x * grid.y * grid.z;
    for (unsigned int i = 0; i < blocks; ++i) {
        unsigned int at = order == ASCENDING ? i : blocks - 1 - i;
        blockIdx = {at % grid.x, at / grid.x % grid.y, at / (grid.x * grid.y)};
        memset(dynamic_shared, fill, shared);
        int status = run_block(count, turn);
        if (status != OK) {
            // The stacks of the stranded fibers are abandoned: they would resume mid-kernel.
            for (int k = 0; k < count; ++k) fibers[k].started = false;
            return status;
        }
    }
    return OK;
}

// ------------------------------------------------------------- a table of kernels, by expression

struct Entry {
    const char* expression;
    void (*call)(void (*)(), void**);
    void (*kernel)();
    int count;
    const char* kinds;  // one letter a parameter: pointer, integer, floating, struct
    const int* sizes;
};

template <typename A> constexpr char kind_of() {
    if constexpr (std::is_pointer_v<A>) return 'p';
    else if constexpr (std::is_integral_v<A>) return 'i';
    else if constexpr (std::is_floating_point_v<A>) return 'f';
    else return 's';
}

template <typename... A> struct Signature {
    static constexpr char kinds[] = {kind_of<A>()..., 0};
    static constexpr int sizes[] = {static_cast<int>(sizeof(A))..., 0};

    template <size_t... I>
    static void spread(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_const_t<A>*>(arguments[I])...);
    }

    static void call(void (*kernel)(), void** arguments) {
        spread(reinterpret_cast<void (*)(A...)>(kernel), arguments,
               std::index_sequence_for<A...>());
    }
};

template <typename... A> Entry entry(const char* expression, void (*kernel)(A...)) {
    using S = Signature<A...>;
    return {expression,   S::call,  reinterpret_cast<void (*)()>(kernel),
            sizeof...(A), S::kinds, S::sizes};
}

}  // namespace cuda_host

inline void __syncthreads() {
    cuda_host::running->waiting = true;
    cuda_host::suspend();
}

// ----------------------------------------------------------------------------------------- atomics

// One fiber runs at a time, so a plain read and write is atomic. Before it, the others get a turn:
// what a thread read earlier may have changed, as on a card, and a loop of atomicCAS must retry.
template <typename A> inline A atomicAdd(A* place, A value) {
    cuda_host::suspend();
    A before = *place;
    *place = before + value;
    return before;
}
template <typename A> inline A atomicCAS(A* place, A expected, A desired) {
    cuda_host::suspend();
    A before = *place;
    if (before == expected) *place = desired;
    return before;
}

#endif
