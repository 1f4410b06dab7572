"""The loops of reductions: a `Fold` says what is folded, three templates say in which order.

State
-----
A plan table of eleven int64, made by `kernels.reduce`, describes one reduction: kept dimensions
``(k0, k1)`` with strides ``(s0, s1)``, reduced dimensions ``(r0, r1)`` with strides ``(t0, t1)``,
the number of elements that are reduced (`limit`, at most ``r0 * r1``), how many of the `r0` rows
one split takes (`per`), and the number of outputs (`kept`).

Invariants
----------
* Floats are folded in float64 and integers in int64, whatever the element type; sums of float32 add
  up `CHUNK` elements in float32 first (a few dozen additions in each vector lane).
* The order of folding depends on shape and strides alone: splits have a fixed size and are merged
  in order, so a result does not depend on the number of threads.
* A split writes its total as a partial (`final` = 0); `combine` merges and finishes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._native import NativeKernel, device_function, ptr_f64, ptr_i64
from refruntime.kernels.intrinsics import INTRINSICS
from refruntime.kernels.tiles import maximum, minimum, stack_array
from refruntime.kernels.variants import (
    ACC,
    Placeholder,
    device_template,
    load_T,
    ptr_ACC,
    ptr_D,
    ptr_T,
    store_D,
    template,
)

# Outputs that the column loop folds at a time: their totals stay in the first-level cache.
TILE = 256
# Elements that are folded in their own type before their total joins the wider one: a few dozen
# additions in each vector lane.
CHUNK = 2048

_stack_f64 = stack_array("float64", TILE)
_stack_i64 = stack_array("int64", TILE)


@device_function
def _as_it_is(total, parameter, point):  # type: ignore[no-untyped-def]
    return total


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction: ``finish(merge(take(take(first, x0), x1), ...))``.

    Parameters
    ----------
    name : str
        Unique; names the machine code.
    first : float
        The value of an empty fold.
    take : callable
        ``take(total, x, point)`` adds an element; `point` is a float64 of the output, or the
        kernel's parameter.
    merge : callable
        ``merge(total, total)``.
    finish : callable
        ``finish(total, parameter, point)`` gives the output.
    counts : bool
        Whether totals are int64 for float elements too.
    narrow : bool
        Whether float32 (and half) elements may be folded in float32 for `CHUNK` elements at a time.
    """

    name: str
    first: float
    take: Any
    merge: Any
    finish: Any = _as_it_is
    counts: bool = False
    narrow: bool = False


@device_function
def _add(total, other):  # type: ignore[no-untyped-def]
    return total + other


@device_function
def _take_sum(total, x, point):  # type: ignore[no-untyped-def]
    return total + x


@device_function
def _scaled(total, parameter, point):  # type: ignore[no-untyped-def]
    return total * parameter


@device_function
def _take_number(total, x, point):  # type: ignore[no-untyped-def]
    return total + (x if x == x else 0.0)


@device_function
def _take_present(total, x, point):  # type: ignore[no-untyped-def]
    return total + (1 if x == x else 0)


@device_function
def _multiply(total, other):  # type: ignore[no-untyped-def]
    return total * other


@device_function
def _take_product(total, x, point):  # type: ignore[no-untyped-def]
    return total * x


@device_function
def _take_max(total, x, point):  # type: ignore[no-untyped-def]
    return maximum(total, x)


@device_function
def _merge_max(total, other):  # type: ignore[no-untyped-def]
    return maximum(total, other)


@device_function
def _merge_min(total, other):  # type: ignore[no-untyped-def]
    return minimum(total, other)


@device_function
def _take_min(total, x, point):  # type: ignore[no-untyped-def]
    return minimum(total, x)


@device_function
def _larger(total, other):  # type: ignore[no-untyped-def]
    return total if total > other else other


@device_function
def _take_larger(total, x, point):  # type: ignore[no-untyped-def]
    return total if total > x else x


@device_function
def _smaller(total, other):  # type: ignore[no-untyped-def]
    return total if total < other else other


@device_function
def _take_smaller(total, x, point):  # type: ignore[no-untyped-def]
    return total if total < x else x


@device_function
def _take_any(total, x, point):  # type: ignore[no-untyped-def]
    return total | (1 if x != 0 else 0)


@device_function
def _or(total, other):  # type: ignore[no-untyped-def]
    return total | other


@device_function
def _take_all(total, x, point):  # type: ignore[no-untyped-def]
    return total & (1 if x != 0 else 0)


@device_function
def _and(total, other):  # type: ignore[no-untyped-def]
    return total & other


@device_function
def _take_nonzero(total, x, point):  # type: ignore[no-untyped-def]
    return total + (1 if x != 0 else 0)


@device_function
def _take_square(total, x, point):  # type: ignore[no-untyped-def]
    return total + (x - point) * (x - point)


@device_function
def _root(total, parameter, point):  # type: ignore[no-untyped-def]
    return math.sqrt(total)


@device_function
def _scaled_root(total, parameter, point):  # type: ignore[no-untyped-def]
    return math.sqrt(total * parameter)


@device_function
def _take_absolute(total, x, point):  # type: ignore[no-untyped-def]
    return total + abs(x)


@device_function
def _take_max_absolute(total, x, point):  # type: ignore[no-untyped-def]
    return maximum(total, abs(x))


@device_function
def _take_min_absolute(total, x, point):  # type: ignore[no-untyped-def]
    return minimum(total, abs(x))


@device_function
def _take_power(total, x, point):  # type: ignore[no-untyped-def]
    return total + abs(x) ** point


@device_function
def _power_root(total, parameter, point):  # type: ignore[no-untyped-def]
    return total ** (1.0 / parameter)


_exp_f32 = INTRINSICS["exp_f32"]
_exp_f64 = INTRINSICS["exp_f64"]


@device_function
def _take_exponential_f32(total, x, point):  # type: ignore[no-untyped-def]
    return total + np.float64(_exp_f32(np.float32(x - point)))


@device_function
def _take_exponential_f64(total, x, point):  # type: ignore[no-untyped-def]
    return total + _exp_f64(x - point)


@device_function
def _log_at(total, parameter, point):  # type: ignore[no-untyped-def]
    return math.log(total) + point


_INF = math.inf

SUM = Fold("sum", 0.0, _take_sum, _add, narrow=True)
MEAN = Fold("mean", 0.0, _take_sum, _add, _scaled, narrow=True)
NANSUM = Fold("nansum", 0.0, _take_number, _add)
PRESENT = Fold("present", 0, _take_present, _add, counts=True)
PROD = Fold("prod", 1.0, _take_product, _multiply)
AMAX = Fold("amax", -_INF, _take_max, _merge_max, narrow=True)
AMIN = Fold("amin", _INF, _take_min, _merge_min, narrow=True)
AMAX_INT = Fold("amax_int", -(2**63), _take_larger, _larger)
AMIN_INT = Fold("amin_int", 2**63 - 1, _take_smaller, _smaller)
ANY = Fold("any", 0, _take_any, _or, counts=True)
ALL = Fold("all", 1, _take_all, _and, counts=True)
NONZERO = Fold("nonzero", 0, _take_nonzero, _add, counts=True)
NORM_1 = Fold("norm_1", 0.0, _take_absolute, _add, narrow=True)
NORM_2 = Fold("norm_2", 0.0, _take_square, _add, _root)
NORM_INF = Fold("norm_inf", 0.0, _take_max_absolute, _merge_max, narrow=True)
NORM_MINUS_INF = Fold("norm_minus_inf", _INF, _take_min_absolute, _merge_min, narrow=True)
NORM_P = Fold("norm_p", 0.0, _take_power, _add, _power_root)
VAR = Fold("var", 0.0, _take_square, _add, _scaled)
STD = Fold("std", 0.0, _take_square, _add, _scaled_root)
LOGSUMEXP = Fold("logsumexp", 0.0, _take_exponential_f32, _add, _log_at)
LOGSUMEXP_64 = Fold("logsumexp_64", 0.0, _take_exponential_f64, _add, _log_at)


# ---------------------------------------------------------------------------------------------
# Templates: T is the element type, D the result's, ACC the type of totals.

FIRST: Any = Placeholder("FIRST")
take: Any = Placeholder("take")
merge: Any = Placeholder("merge")
finish: Any = Placeholder("finish")
stack: Any = Placeholder("stack")
widen: Any = Placeholder("widen")
# In chunks of rows: the type of a chunk's total, and what elements are cast to.
PART: Any = Placeholder("PART")
number: Any = Placeholder("number")

_RANGED = "void(int64, int64, int64, int64, float64, int64, int64, int64)"


@template(_RANGED)
def fold_rows(out, x, anchor, table, parameter, final, start, stop):  # type: ignore[no-untyped-def]
    """Fold outputs one after the other: reduced elements are near each other in memory."""
    g = ptr_i64(table)
    k1, s0, s1, r0, r1, t0, t1 = g[1], g[2], g[3], g[4], g[5], g[6], g[7]
    limit, per, kept = g[8], g[9], g[10]
    p = ptr_T(x)
    o = ptr_D(out)
    partial = ptr_ACC(out)
    anchors = ptr_f64(anchor)
    for u in range(start, stop):
        k = u % kept
        split = u // kept
        base = (k // k1) * s0 + (k % k1) * s1
        point = anchors[k] if anchor != 0 else parameter
        total = ACC(FIRST)
        for i in range(split * per, min(r0, split * per + per)):
            row = base + i * t0
            n = min(r1, limit - i * r1)
            for low in range(0, n, CHUNK):
                part = PART(FIRST)
                if t1 == 1:
                    for j in range(low, min(n, low + CHUNK)):
                        part = take(part, number(load_T(p, row + j)), point)
                else:
                    for j in range(low, min(n, low + CHUNK)):
                        part = take(part, number(load_T(p, row + j * t1)), point)
                total = merge(total, ACC(part))
        if final != 0:
            store_D(o, u, finish(total, parameter, point))
        else:
            partial[u] = total


@device_template
def _eight_rows(total, p, at, step, point):  # type: ignore[no-untyped-def]
    """Fold eight elements `step` apart; unrolled, so that the loop around it vectorises."""
    total = take(total, widen(load_T(p, at)), point)
    total = take(total, widen(load_T(p, at + step)), point)
    total = take(total, widen(load_T(p, at + 2 * step)), point)
    total = take(total, widen(load_T(p, at + 3 * step)), point)
    total = take(total, widen(load_T(p, at + 4 * step)), point)
    total = take(total, widen(load_T(p, at + 5 * step)), point)
    total = take(total, widen(load_T(p, at + 6 * step)), point)
    return take(total, widen(load_T(p, at + 7 * step)), point)


@device_template
def _fold_block(p, at, n, width, t1, sums, points):  # type: ignore[no-untyped-def]
    """Fold `n` elements, `t1` apart, into each of `width` totals of neighbouring elements."""
    whole = n - n % 8
    for j in range(0, whole, 8):
        q = at + j * t1
        for c in range(width):
            sums[c] = _eight_rows(sums[c], p, q + c, t1, points[c])
    for j in range(whole, n):
        q = at + j * t1
        for c in range(width):
            sums[c] = take(sums[c], widen(load_T(p, q + c)), points[c])


@template(_RANGED)
def fold_columns(out, x, anchor, table, parameter, final, start, stop):  # type: ignore[no-untyped-def]
    """Fold `TILE` neighbouring outputs at a time; the inner kept stride is one."""
    g = ptr_i64(table)
    k0, k1, s0, r0, r1, t0, t1 = g[0], g[1], g[2], g[4], g[5], g[6], g[7]
    limit, per, kept = g[8], g[9], g[10]
    p = ptr_T(x)
    o = ptr_D(out)
    partial = ptr_ACC(out)
    anchors = ptr_f64(anchor)
    sums = stack()
    points = _stack_f64()
    tiles = (k1 + TILE - 1) // TILE
    for u in range(start, stop):
        low = (u % tiles) * TILE
        outer = (u // tiles) % k0
        split = u // (tiles * k0)
        width = min(TILE, k1 - low)
        first = outer * k1 + low
        base = outer * s0 + low
        for c in range(width):
            sums[c] = ACC(FIRST)
            points[c] = parameter
        if anchor != 0:
            for c in range(width):
                points[c] = anchors[first + c]
        for i in range(split * per, min(r0, split * per + per)):
            n = min(r1, limit - i * r1)
            _fold_block(p, base + i * t0, n, width, t1, sums, points)
        if final != 0:
            for c in range(width):
                store_D(o, first + c, finish(sums[c], parameter, points[c]))
        else:
            for c in range(width):
                partial[split * kept + first + c] = sums[c]


@template("void(int64, int64, int64, int64, int64, float64, int64, int64)")
def fold_combine(out, partials, anchor, splits, kept, parameter, start, stop):  # type: ignore[no-untyped-def]
    """Merge the partials of each output in order, and finish it."""
    o = ptr_D(out)
    partial = ptr_ACC(partials)
    anchors = ptr_f64(anchor)
    for k in range(start, stop):
        point = anchors[k] if anchor != 0 else parameter
        total = ACC(FIRST)
        for split in range(splits):
            total = merge(total, partial[split * kept + k])
        store_D(o, k, finish(total, parameter, point))


@dataclass(frozen=True, slots=True)
class FoldKernels:
    """The compiled loops of one fold over one pair of dtypes."""

    rows: NativeKernel
    columns: NativeKernel
    combine: NativeKernel


_cache: dict[tuple[str, DType, DType], FoldKernels] = {}


def fold_kernels(fold: Fold, element: DType, result: DType) -> FoldKernels:
    """Return the loops of `fold` that read `element` and write `result`."""
    key = (fold.name, element, result)
    found = _cache.get(key)
    if found is None:
        found = _cache[key] = _specialised(fold, element, result)
    return found


def _specialised(fold: Fold, element: DType, result: DType) -> FoldKernels:
    floating = element.is_floating_point and not fold.counts
    wide = np.float64 if element.is_floating_point else np.int64
    # A float64 result, such as the mean that a variance is taken from, wants all digits.
    narrow = fold.narrow and floating and _dtypes.float64 not in (element, result)
    bound: dict[str, Any] = {
        "T": element,
        "D": result,
        "ACC": _dtypes.float64 if floating else _dtypes.int64,
        "FIRST": fold.first if floating else int(fold.first),
        "take": fold.take,
        "merge": fold.merge,
        "finish": fold.finish,
        "widen": wide,
        "number": np.float32 if narrow else wide,
        "PART": np.float32 if narrow else np.float64 if floating else np.int64,
        "stack": _stack_f64 if floating else _stack_i64,
    }
    return FoldKernels(
        fold_rows.for_dtypes(**bound),
        fold_columns.for_dtypes(**bound),
        fold_combine.for_dtypes(**bound),
    )


def is_integral(dtype: DType) -> bool:
    """Whether a dtype is folded in int64."""
    return dtype.kind in "biu"


def extreme_fold(largest: bool, dtype: DType) -> Fold:
    """Return the fold of max or min for a dtype."""
    if is_integral(dtype):
        return AMAX_INT if largest else AMIN_INT
    return AMAX if largest else AMIN


__all__ = ["TILE", "Fold", "FoldKernels", "extreme_fold", "fold_kernels"]
