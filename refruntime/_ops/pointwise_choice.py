"""Choosing between values: where, masks, bounds, and mixtures.

Invariants
----------
* NaN wins in minimum, maximum and clamp, and gives way in fmin and fmax.
* Where an operand is not chosen, its gradient is zero (at ties of minimum and maximum each operand
  gets half).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorImpl
from refruntime._ops.backward import fused_backward
from refruntime._ops.elementwise import pointwise
from refruntime._ops.opdef import NO_PARAMS, Inplace, front, ops, require_tensor
from refruntime._ops.samples import ErrorSample, Sample, T, binary, unary
from refruntime.errors import ArgumentValueError, DTypeError, ShapeError
from refruntime.kernels.mathtable import (
    copysign,
    fmax,
    fmin,
    isnan,
    maximum,
    minimum,
    nextafter,
    signbit,
)

# ---------------------------------------------------------------------------------------------
# where, masked_fill


def _where_samples() -> Any:
    mask = T((3, 4), _dtypes.bool_)
    yield Sample((mask, T((3, 4)), T((3, 4))))
    yield Sample((T((3, 1), _dtypes.bool_), T((4,)), T((2, 3, 1))))
    yield Sample((mask, T((3, 4), layout="strided"), 0.5), name="number")
    yield Sample((mask, 1.5, T(())), name="number first")
    yield Sample((mask, T((4,), _dtypes.int64), T((4,), _dtypes.float64)), name="promotion")


def _where_errors() -> Any:
    triple = T((2,)), T((2,)), T((2,))
    yield ErrorSample(triple, RuntimeError, "expected condition to be a boolean tensor")


def _where_vjp(g: Any, n: Any) -> Any:
    return (
        None,
        ops.where(n.condition, g, 0) if n.needs[1] else None,
        ops.where(n.condition, 0, g) if n.needs[2] else None,
    )


@pointwise(publish=False, vjp=_where_vjp, saves=("condition",), reference=np.where,
           samples=_where_samples, error_samples=_where_errors, inplace=False)  # fmt: skip
def where_(condition: Any, input: Any, other: Any) -> Any:
    """Choice."""
    return input if condition else other


WHERE: Any = where_


def _mask_of(name: str, mask: Any, what: str) -> Any:
    require_tensor(name, mask, "mask")
    if mask.meta.dtype is _dtypes.bool_:
        return mask
    if mask.meta.dtype is _dtypes.uint8:
        return ops.ne(mask, 0)
    raise DTypeError(
        name, what=what.format(mask.meta.dtype), expected="torch.bool",
        got=str(mask.meta.dtype), remedy="compare it, for example with mask != 0",
    )  # fmt: skip


@front(WHERE, method=False)
def where(condition: Any, input: Any = None, other: Any = None, *, out: Any = None) -> Any:
    """Return `input` where the condition holds, else `other`; alone, the indices where it holds."""
    if input is None and other is None:
        return ops.nonzero(condition, as_tuple=True)
    dtype = condition.meta.dtype.name.capitalize() if isinstance(condition, TensorImpl) else ""
    dtype = {"Float32": "Float", "Float64": "Double", "Int64": "Long"}.get(dtype, dtype)
    what = f"where expected condition to be a boolean tensor, but got a tensor with dtype {dtype}"
    return call(WHERE, (_mask_of("where", condition, what), input, other), NO_PARAMS, out)


@front(WHERE, name="where", method=True)
def _where_method(self: Any, condition: Any, other: Any) -> Any:
    """Return the tensor where the condition holds, else `other`."""
    return where(condition, self, other)


ops.where = where


def _masked_fill_samples() -> Any:
    yield Sample((T((3, 4)), T((3, 4), _dtypes.bool_), 0.5))
    yield Sample((T((3, 4)), T((4,), _dtypes.bool_), -1))
    yield Sample((T((2, 3), layout="transposed"), T((2, 1), _dtypes.bool_), T(())))
    yield Sample((T((5,), _dtypes.int64), T((5,), _dtypes.bool_), 1.5), grad=False, name="int",
                 reference=lambda x, m, v: np.where(m, int(v), x))  # fmt: skip


def _masked_fill_vjp(g: Any, n: Any) -> Any:
    return (
        ops.where(n.mask, 0, g) if n.needs[0] else None,
        None,
        ops.where(n.mask, g, 0) if n.needs[2] else None,
    )


@pointwise(publish=False, vjp=_masked_fill_vjp, saves=("mask",), samples=_masked_fill_samples,
           reference=lambda x, mask, value: np.where(mask, value, x))  # fmt: skip
def masked_fill_(input: Any, mask: Any, value: Any) -> Any:
    """Fill under a mask."""
    return value if mask else input


MASKED_FILL: Any = masked_fill_
_FILLS: dict[str, Callable[[Any], Any]] = {"b": bool, "i": int, "u": int}


@front(MASKED_FILL, inplace=True)
def masked_fill(input: Any, mask: Any, value: Any, *, out: Any = None) -> Any:
    """Return the tensor with `value` (a number or zero-dim tensor) where the mask holds."""
    require_tensor("masked_fill", input)
    what = "masked_fill_ only supports boolean masks, but got mask with dtype {}"
    mask = _mask_of("masked_fill", mask, what)
    if isinstance(value, TensorImpl):
        if value.meta.ndim:
            raise ShapeError(
                "masked_fill", what="masked_fill only supports a 0-dimensional value tensor",
                expected="a number or a zero-dim tensor", got=str(tuple(value.meta.shape)),
                remedy="use where",
            )  # fmt: skip
        value = ops.to(value, input.meta.dtype)
    else:
        # The result has the dtype of the tensor, whatever the number is.
        value = _FILLS.get(input.meta.dtype.kind, lambda number: number)(value)
    return call(MASKED_FILL, (input, mask, value), NO_PARAMS, out)


# ---------------------------------------------------------------------------------------------
# The larger and the smaller


@fused_backward
def larger_backward(grad: Any, input: Any, other: Any) -> Any:
    """Gradient for `input` where it is the larger one; half at ties."""
    return grad * (0.5 if input == other else 0 if input < other else 1)


@fused_backward
def smaller_backward(grad: Any, input: Any, other: Any) -> Any:
    """Gradient for `input` where it is the smaller one; half at ties."""
    return grad * (0.5 if input == other else 0 if input > other else 1)


@fused_backward
def chosen_backward(grad: Any, input: Any, out: Any, other: Any) -> Any:
    """Gradient for `input` where fmin or fmax chose it, the first operand at ties."""
    return grad if input == out or isnan(other) else 0


LARGER: Any = larger_backward
SMALLER: Any = smaller_backward
CHOSEN: Any = chosen_backward


def _both(record: Any) -> Any:
    def vjp(g: Any, n: Any) -> Any:
        return (
            call(record, (g, n.input, n.other)) if n.needs[0] else None,
            call(record, (g, n.other, n.input)) if n.needs[1] else None,
        )

    return vjp


def _chosen_vjp(g: Any, n: Any) -> Any:
    first = call(CHOSEN, (g, n.input, n.out, n.other))
    return first, ops.sub(g, first) if n.needs[1] else None


def _nan_pairs() -> Any:
    yield from binary(number=None)()
    nan = float("nan")
    pair = T((4,), values=[nan, 1.0, nan, 2.0]), T((4,), values=[1.0, nan, nan, 3.0])
    yield Sample(pair, grad=False, name="NaN")
    yield Sample((T((5,), _dtypes.int64), T((5,), _dtypes.int32)), grad=False, name="integers")


_CHOICE: dict[str, Any] = {"saves": ("input", "other"), "samples": _nan_pairs, "inplace": False}


@pointwise(vjp=_both(LARGER), reference=np.maximum, **_CHOICE)
def maximum_(input: Any, other: Any) -> Any:
    """Return the larger of the operands; NaN if either is."""
    return maximum(input, other)


@pointwise(vjp=_both(SMALLER), reference=np.minimum, **_CHOICE)
def minimum_(input: Any, other: Any) -> Any:
    """Return the smaller of the operands; NaN if either is."""
    return minimum(input, other)


_CHOICE["saves"] = ("input", "other", "out")


@pointwise(vjp=_chosen_vjp, reference=np.fmax, **_CHOICE)
def fmax_(input: Any, other: Any) -> Any:
    """Return the larger of the operands; the other one if one is NaN."""
    return fmax(input, other)


@pointwise(vjp=_chosen_vjp, reference=np.fmin, **_CHOICE)
def fmin_(input: Any, other: Any) -> Any:
    """Return the smaller of the operands; the other one if one is NaN."""
    return fmin(input, other)


# ---------------------------------------------------------------------------------------------
# Bounds


@fused_backward
def clamp_backward(grad: Any, input: Any, low: Any, high: Any) -> Any:
    """Gradient of clamp within the bounds."""
    return grad if input >= low and input <= high else 0


@fused_backward
def at_least_backward(grad: Any, input: Any, low: Any) -> Any:
    """Gradient of clamp_min within the bound."""
    return grad if input >= low else 0


@fused_backward
def at_most_backward(grad: Any, input: Any, high: Any) -> Any:
    """Gradient of clamp_max within the bound."""
    return grad if input <= high else 0


CLAMP_BACKWARD: Any = clamp_backward
AT_LEAST_BACKWARD: Any = at_least_backward
AT_MOST_BACKWARD: Any = at_most_backward


def _clamp_vjp(g: Any, n: Any) -> Any:
    low = high = None
    if n.needs[1]:
        below = ops.logical_and(ops.lt(n.input, n.min), ops.lt(n.min, n.max))
        low = ops.mul(g, below)
    if n.needs[2]:
        outside = ops.logical_or(ops.gt(n.input, n.max), ops.lt(n.max, n.min))
        high = ops.mul(g, outside)
    return call(CLAMP_BACKWARD, (g, n.input, n.min, n.max)), low, high


def _clamp_samples() -> Any:
    for sample in unary()():
        yield Sample((*sample.args, -0.7, 1.1), name=sample.name, grad=sample.grad)
    yield Sample((T((3, 4)), T((4,), low=-1.5, high=-0.5), T((3, 1), low=0.5, high=1.5)))
    yield Sample((T((6,)),), {"min": -0.6}, name="min alone")
    yield Sample((T((6,)),), {"max": 0.6}, name="max alone")
    yield Sample((T((6,), _dtypes.int64, low=-5, high=5), -1.5, 2), grad=False, name="numbers")
    yield Sample((T((3,), values=[float("nan"), 5.0, -5.0]), -1.0, 1.0), grad=False, name="NaN")


def _clamp_reference(x: Any, min: Any = None, max: Any = None) -> Any:
    return np.clip(x, min, max)


def _clamp_errors() -> Any:
    yield ErrorSample((T((2,)),), ValueError, "At least one of")


@pointwise(publish=False, vjp=_clamp_vjp, saves=("input", "min", "max"), samples=_clamp_samples,
           error_samples=_clamp_errors, reference=_clamp_reference,
           backward_name="ClampBackward1")  # fmt: skip
def clamp_(input: Any, min: Any, max: Any) -> Any:
    """Put bounds on both sides."""
    return minimum(maximum(input, min), max)


def _at_least_vjp(g: Any, n: Any) -> Any:
    kept = call(AT_LEAST_BACKWARD, (g, n.input, n.min))
    return kept, ops.sub(g, kept) if n.needs[1] else None


def _at_most_vjp(g: Any, n: Any) -> Any:
    kept = call(AT_MOST_BACKWARD, (g, n.input, n.max))
    return kept, ops.sub(g, kept) if n.needs[1] else None


def _one_bound() -> Any:
    yield Sample((T((3, 4)), 0.3))
    yield Sample((T((3, 4)), T((4,))))
    yield Sample((T((5,), _dtypes.int64), 1.5), grad=False, name="int and float")


@pointwise(publish=False, vjp=_at_least_vjp, saves=("input", "min"), samples=_one_bound,
           reference=np.maximum)  # fmt: skip
def clamp_min_(input: Any, min: Any) -> Any:
    """Put a bound below."""
    return maximum(input, min)


@pointwise(publish=False, vjp=_at_most_vjp, saves=("input", "max"), samples=_one_bound,
           reference=np.minimum)  # fmt: skip
def clamp_max_(input: Any, max: Any) -> Any:
    """Put a bound above."""
    return minimum(input, max)


CLAMP: Any = clamp_
CLAMP_MIN: Any = clamp_min_
CLAMP_MAX: Any = clamp_max_


@front(CLAMP, inplace=True, aliases=("clip",))
def clamp(input: Any, min: Any = None, max: Any = None, *, out: Any = None) -> Any:
    """Return the tensor with `min` and `max` (numbers or tensors) as bounds."""
    if min is None and max is None:
        raise ArgumentValueError(
            "clamp", what="torch.clamp: At least one of 'min' or 'max' must not be None",
            expected="a bound", got="none", remedy="pass min= or max=",
        )  # fmt: skip
    if max is None:
        return call(CLAMP_MIN, (input, min), NO_PARAMS, out)
    if min is None:
        return call(CLAMP_MAX, (input, max), NO_PARAMS, out)
    return call(CLAMP, (input, min, max), NO_PARAMS, out)


@front(CLAMP_MIN, inplace=True)
def clamp_min(input: Any, min: Any, *, out: Any = None) -> Any:
    """Return the tensor with `min` as lower bound."""
    return call(CLAMP_MIN, (input, min), NO_PARAMS, out)


@front(CLAMP_MAX, inplace=True)
def clamp_max(input: Any, max: Any, *, out: Any = None) -> Any:
    """Return the tensor with `max` as upper bound."""
    return call(CLAMP_MAX, (input, max), NO_PARAMS, out)


# ---------------------------------------------------------------------------------------------
# Mixtures and repairs


def _lerp_samples() -> Any:
    for weight in (0.3, 0.8, 1.5):
        yield Sample((T((3, 4)), T((3, 4)), weight))
    yield Sample((T((3, 4)), T((4,)), T((3, 1), low=0.0, high=1.0)))
    yield Sample((T((4, 3), layout="transposed"), T((4, 3)), T(())))


def _lerp_vjp(g: Any, n: Any) -> Any:
    end = ops.mul(g, n.weight)
    weight = ops.mul(g, ops.sub(n.end, n.input)) if n.needs[2] else None
    return ops.sub(g, end) if n.needs[0] else None, end if n.needs[1] else None, weight


@pointwise(vjp=_lerp_vjp, saves=("input", "end", "weight"), refuse="biu", samples=_lerp_samples,
           reference=lambda x, y, w: x + w * (y - x), publish=False)  # fmt: skip
def lerp_(input: Any, end: Any, weight: Any) -> Any:
    """Mixture."""
    low = input + weight * (end - input)
    high = end - (end - input) * (1 - weight)
    return low if abs(weight) < 0.5 else high


LERP: Any = lerp_


@front(LERP, inplace=True)
def lerp(input: Any, end: Any, weight: Any, *, out: Any = None) -> Any:
    """Return ``input + weight * (end - input)``."""
    return call(LERP, (input, end, weight), NO_PARAMS, out)


@fused_backward
def nan_to_num_backward(grad: Any, input: Any) -> Any:
    """Gradient where the operand was finite."""
    return grad if abs(input) < inf else 0


inf = float("inf")
NAN_TO_NUM_BACKWARD: Any = nan_to_num_backward


def _repair_samples() -> Any:
    values = [float("nan"), inf, -inf, 1.5, 0.0]
    yield Sample((T((3,), values=[float("nan"), 1.5, 0.0]),), grad=False)
    yield Sample((T((5,), values=values), 1.0, 2.0, -3.0), grad=False)
    yield Sample((T((5,)),), {"nan": 0.5})


@pointwise(publish=False, vjp=lambda g, n: call(NAN_TO_NUM_BACKWARD, (g, n.input)),
           saves=("input",), reference=lambda x, *a, **k: _nan_to_num_reference(x, *a, **k),
           samples=_repair_samples)  # fmt: skip
def nan_to_num_(input: Any, *, nan: Any, posinf: Any, neginf: Any) -> Any:
    """Replace what is not finite."""
    bounded = posinf if input == inf else neginf if input == -inf else input
    return nan if isnan(input) else bounded


def _nan_to_num_reference(x: Any, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    return np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)


NAN_TO_NUM: Any = nan_to_num_


@front(NAN_TO_NUM, inplace=True)
def nan_to_num(
    input: Any, nan: Any = None, posinf: Any = None, neginf: Any = None, *, out: Any = None
) -> Any:
    """Return the tensor with numbers in the places of NaN and the infinities."""
    require_tensor("nan_to_num", input)
    if not input.meta.dtype.is_floating_point:
        return input if isinstance(out, Inplace) else ops.clone(input)
    limits = _dtypes.finfo(input.meta.dtype)
    params = {
        "nan": float(nan or 0.0),
        "posinf": limits.max if posinf is None else float(posinf),
        "neginf": limits.min if neginf is None else float(neginf),
    }
    return call(NAN_TO_NUM, (input,), params, out)


@fused_backward
def copysign_backward(grad: Any, input: Any, other: Any) -> Any:
    """Gradient of copysign with respect to the magnitude."""
    return 0 if input == 0 else grad if signbit(input) == signbit(other) else -grad


COPYSIGN_BACKWARD: Any = copysign_backward


def _copysign_vjp(g: Any, n: Any) -> Any:
    return call(COPYSIGN_BACKWARD, (g, n.input, n.other)), ops.zeros_like(g) if n.needs[1] else None


@pointwise(result="float", vjp=_copysign_vjp, saves=("input", "other"), reference=np.copysign,
           samples=binary(number=-1.0))  # fmt: skip
def copysign_(input: Any, other: Any) -> Any:
    """Return the magnitude of `input` with the sign of `other`."""
    return copysign(input, other)


def _heaviside_samples() -> Any:
    pair = T((4,), values=[-1.5, 0.0, 2.0, 0.0]), T((4,), values=[0.5, 0.25, 0.5, 1.0])
    yield Sample(pair, grad=False)


@pointwise(reference=np.heaviside, samples=_heaviside_samples)
def heaviside(input: Any, values: Any) -> Any:
    """Return 0 below zero, 1 above, and `values` at zero."""
    return values if input == 0 else 1 if input > 0 else 0


def _nextafter_vjp(g: Any, n: Any) -> tuple[Any, Any]:
    # The step has slope one where there is a step; where both are equal, torch gives zero.
    return ops.masked_fill(g, ops.eq(n.input, n.other), 0), None


def _nextafter_samples() -> Any:
    other = T((4,), values=[0.5, 1.0, -2, 3], grad=False)
    yield Sample((T((4,), values=[-1.5, 0.0, 2.0, 0.5]), other))
    yield Sample((T((2,), values=[1.0, 2.0]), T((2,), values=[1.0, 3.0])), grad=False)


@pointwise(vjp=_nextafter_vjp, saves=("input", "other"), reference=np.nextafter, refuse="biu",
           samples=_nextafter_samples)  # fmt: skip
def nextafter_(input: Any, other: Any) -> Any:
    """Return the next number after `input` in the direction of `other`."""
    return nextafter(input, other)
