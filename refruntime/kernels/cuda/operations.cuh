// The associative operations that reductions and scans are made of.
//
// An operation Op<T> has a State, identity(), take(state, value, place, parameter) which adds one
// element (place: its position in the reduced space), merge(earlier, later), and
// result(state, length, parameter). Invariants: merge is associative up to rounding, identity is
// neutral, and of equal extremes the winner does not depend on the order of merging. NaN wins every
// maximum and minimum, as in NumPy.

#ifndef REFRUNTIME_OPERATIONS_CUH
#define REFRUNTIME_OPERATIONS_CUH

#include "common.cuh"

template <typename T> struct Sum {
    using A = acc_t<T>;
    using State = A;
    static DEVICE State identity() { return A(0); }
    static DEVICE void take(State& state, A value, index_t, double) { state += value; }
    static DEVICE State merge(State a, State b) { return a + b; }
    static DEVICE A result(State state, index_t, double) { return state; }
};

template <typename T> struct Mean : Sum<T> {
    using A = acc_t<T>;
    static DEVICE A result(A state, index_t length, double) {
        return state / static_cast<A>(length);
    }
};

template <typename T> struct Prod {
    using A = acc_t<T>;
    using State = A;
    static DEVICE State identity() { return A(1); }
    static DEVICE void take(State& state, A value, index_t, double) { state *= value; }
    static DEVICE State merge(State a, State b) { return a * b; }
    static DEVICE A result(State state, index_t, double) { return state; }
};

template <typename T> struct Amax : Largest<acc_t<T>> {
    using A = acc_t<T>;
    using State = A;
    static DEVICE State identity() { return lowest<A>(); }
    static DEVICE void take(State& state, A value, index_t, double) {
        state = Largest<A>::merge(state, value);
    }
    static DEVICE A result(State state, index_t, double) { return state; }
};

template <typename T> struct Amin : Smallest<acc_t<T>> {
    using A = acc_t<T>;
    using State = A;
    static DEVICE State identity() { return highest<A>(); }
    static DEVICE void take(State& state, A value, index_t, double) {
        state = Smallest<A>::merge(state, value);
    }
    static DEVICE A result(State state, index_t, double) { return state; }
};

template <typename A> struct Placed {
    A value;
    index_t place;
};

// SIGN is 1 for the largest, -1 for the smallest; EARLIER says which place wins among equals. A
// candidate beats the state when it is NaN and the state is not, or is further out, or equal and
// better placed. No place at all is -1, which every place beats.
template <typename T, int SIGN, bool EARLIER> struct ExtremeAt {
    using A = acc_t<T>;
    using State = Placed<A>;
    static DEVICE State identity() { return {SIGN > 0 ? lowest<A>() : highest<A>(), -1}; }
    static DEVICE bool placed_better(index_t a, index_t b) {
        if (a < 0 || b < 0) return b < 0;
        return EARLIER ? a < b : a > b;
    }
    static DEVICE bool beats(State a, State b) {
        bool a_nan = is_nan(a.value), b_nan = is_nan(b.value);
        if (a_nan != b_nan) return a_nan;
        if (a_nan || a.value == b.value) return placed_better(a.place, b.place);
        return SIGN > 0 ? a.value > b.value : a.value < b.value;
    }
    static DEVICE State merge(State a, State b) { return beats(b, a) ? b : a; }
    static DEVICE void take(State& state, A value, index_t place, double) {
        state = merge(state, State{value, place});
    }
};

template <typename T> struct MaxAt : ExtremeAt<T, 1, true> {
    static DEVICE acc_t<T> result(Placed<acc_t<T>> state, index_t, double) { return state.value; }
};
template <typename T> struct MinAt : ExtremeAt<T, -1, true> {
    static DEVICE acc_t<T> result(Placed<acc_t<T>> state, index_t, double) { return state.value; }
};
template <typename T> struct CumulativeMax : ExtremeAt<T, 1, false> {
    static DEVICE acc_t<T> result(Placed<acc_t<T>> state, index_t, double) { return state.value; }
};
template <typename T> struct CumulativeMin : ExtremeAt<T, -1, false> {
    static DEVICE acc_t<T> result(Placed<acc_t<T>> state, index_t, double) { return state.value; }
};
template <typename T> struct Argmax : ExtremeAt<T, 1, true> {
    static DEVICE index_t result(Placed<acc_t<T>> state, index_t, double) { return state.place; }
};
template <typename T> struct Argmin : ExtremeAt<T, -1, true> {
    static DEVICE index_t result(Placed<acc_t<T>> state, index_t, double) { return state.place; }
};

// Sum of squared deviations over (length - correction); NaN or infinity where that is not positive.
template <typename T> struct Var {
    using A = acc_t<T>;
    using State = Moments<A>;
    static DEVICE State identity() { return State::none(); }
    static DEVICE void take(State& state, A value, index_t, double) { state.take(value); }
    static DEVICE State merge(State a, State b) { return State::merge(a, b); }
    static DEVICE A result(State state, index_t length, double correction) {
        double freedom = static_cast<double>(length) - correction;
        return state.m2 / static_cast<A>(freedom > 0.0 ? freedom : 0.0);
    }
};
template <typename T> struct Std : Var<T> {
    using A = acc_t<T>;
    static DEVICE A result(Moments<A> state, index_t length, double correction) {
        return sqrt(Var<T>::result(state, length, correction));
    }
};

template <typename T> struct All {
    using State = bool;
    static DEVICE State identity() { return true; }
    static DEVICE void take(State& state, acc_t<T> value, index_t, double) {
        state = state && value != acc_t<T>(0);
    }
    static DEVICE State merge(State a, State b) { return a && b; }
    static DEVICE bool result(State state, index_t, double) { return state; }
};

template <typename T> struct Any {
    using State = bool;
    static DEVICE State identity() { return false; }
    static DEVICE void take(State& state, acc_t<T> value, index_t, double) {
        state = state || value != acc_t<T>(0);
    }
    static DEVICE State merge(State a, State b) { return a || b; }
    static DEVICE bool result(State state, index_t, double) { return state; }
};

template <typename T> struct CountNonzero {
    using State = index_t;
    static DEVICE State identity() { return 0; }
    static DEVICE void take(State& state, acc_t<T> value, index_t, double) {
        state += value != acc_t<T>(0);
    }
    static DEVICE State merge(State a, State b) { return a + b; }
    static DEVICE index_t result(State state, index_t, double) { return state; }
};

// (sum |x|^p)^(1/p) for a finite p other than 0.
template <typename T> struct PNorm : Sum<T> {
    using A = acc_t<T>;
    static DEVICE void take(A& state, A value, index_t, double p) {
        if (p == 2.0) state += value * value;
        else if (p == 1.0) state += fabs(value);
        else state += pow(fabs(value), static_cast<A>(p));
    }
    static DEVICE A result(A state, index_t, double p) {
        if (p == 2.0) return sqrt(state);
        if (p == 1.0) return state;
        return pow(state, static_cast<A>(1.0 / p));
    }
};

// The p-norm for p of 0, infinity and -infinity.
template <typename T> struct NonzeroNorm {
    using A = acc_t<T>;
    using State = index_t;
    static DEVICE State identity() { return 0; }
    static DEVICE void take(State& state, A value, index_t, double) { state += value != A(0); }
    static DEVICE State merge(State a, State b) { return a + b; }
    static DEVICE A result(State state, index_t, double) { return static_cast<A>(state); }
};
template <typename T> struct LargestNorm : Amax<T> {
    using A = acc_t<T>;
    static DEVICE A identity() { return A(0); }
    static DEVICE void take(A& state, A value, index_t, double) {
        state = Largest<A>::merge(state, fabs(value));
    }
};
template <typename T> struct SmallestNorm : Amin<T> {
    using A = acc_t<T>;
    static DEVICE void take(A& state, A value, index_t, double) {
        state = Smallest<A>::merge(state, fabs(value));
    }
};

template <typename T> struct NanSum : Sum<T> {
    using A = acc_t<T>;
    static DEVICE void take(A& state, A value, index_t, double) {
        state += is_nan(value) ? A(0) : value;
    }
};

// log(sum(exp(x))) around the running maximum.
template <typename T> struct LogSumExp {
    using A = acc_t<T>;
    struct State {
        A top, sum;
    };
    static DEVICE State identity() { return {lowest<A>(), A(0)}; }
    static DEVICE State merge(State a, State b) {
        A top = Largest<A>::merge(a.top, b.top);
        if (top == highest<A>() || top == lowest<A>()) return {top, a.sum + b.sum};
        return {top, a.sum * exp(a.top - top) + b.sum * exp(b.top - top)};
    }
    static DEVICE void take(State& state, A value, index_t, double) {
        state = merge(state, State{value, A(1)});
    }
    static DEVICE A result(State state, index_t, double) {
        if (state.top == highest<A>() || state.top == lowest<A>()) return state.top;
        return state.top + log(state.sum);
    }
};

// The place in a state, for the operations that keep one.
template <typename State> DEVICE void write_place(index_t*, index_t, const State&) {}
template <typename A> DEVICE void write_place(index_t* where, index_t at, const Placed<A>& state) {
    if (where) where[at] = state.place;
}

#endif
