"""Comparisons, logic, tests for special values, and bits.

Invariants
----------
* Comparisons and logic give bool; none of these ops has a derivative.
* Bit ops take integers and bool only. Shift distances outside the width give 0 (or the sign).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorImpl
from refruntime._ops.elementwise import pointwise
from refruntime._ops.opdef import NO_PARAMS, front, ops, require_tensor
from refruntime._ops.samples import ErrorSample, Sample, T, binary, unary
from refruntime.errors import DTypeError, KernelMissingError
from refruntime.kernels.mathtable import (
    bitand,
    bitnot,
    bitor,
    bitxor,
    gcd,
    isfinite,
    isinf,
    isnan,
    logical_xor,
    shl,
    shr,
    signbit,
)


def _pairs() -> Any:
    """Return pairs that agree in some elements and differ in others."""
    for sample in binary()():
        yield Sample(sample.args, grad=False, name=sample.name)
    values = [1.0, 2.0, float("nan"), float("inf")], [1.0, 3.0, float("nan"), float("inf")]
    yield Sample(tuple(T((4,), values=v) for v in values), grad=False, name="special values")
    kinds = ((_dtypes.int32, _dtypes.float32), (_dtypes.uint8, _dtypes.int8),
             (_dtypes.bool_, _dtypes.int64))  # fmt: skip
    for one, two in kinds:
        pair = T((6,), one, low=0, high=2), T((6,), two, low=0, high=2)
        yield Sample(pair, grad=False, name=f"{one.name}-{two.name}")
    yield Sample((T((3,), _dtypes.int64, values=[1, 2, 3]), 1.5), grad=False, name="int with float")


def _mismatch() -> Any:
    yield ErrorSample((T((2,)), T((3,))), RuntimeError, "must match the size")


_COMPARISON: dict[str, Any] = {"result": "bool", "samples": _pairs, "error_samples": _mismatch}


@pointwise(reference=np.equal, **_COMPARISON)
def eq(input: Any, other: Any) -> Any:
    """Return where the operands are equal."""
    return input == other


@pointwise(reference=np.not_equal, aliases=("not_equal",), **_COMPARISON)
def ne(input: Any, other: Any) -> Any:
    """Return where the operands differ."""
    return input != other


@pointwise(reference=np.less, aliases=("less",), **_COMPARISON)
def lt(input: Any, other: Any) -> Any:
    """Return where ``input < other``."""
    return input < other


@pointwise(reference=np.less_equal, aliases=("less_equal",), **_COMPARISON)
def le(input: Any, other: Any) -> Any:
    """Return where ``input <= other``."""
    return input <= other


@pointwise(reference=np.greater, aliases=("greater",), **_COMPARISON)
def gt(input: Any, other: Any) -> Any:
    """Return where ``input > other``."""
    return input > other


@pointwise(reference=np.greater_equal, aliases=("greater_equal",), **_COMPARISON)
def ge(input: Any, other: Any) -> Any:
    """Return where ``input >= other``."""
    return input >= other


# ---------------------------------------------------------------------------------------------
# Logic


@pointwise(reference=np.logical_and, **_COMPARISON)
def logical_and(input: Any, other: Any) -> Any:
    """Return where both operands differ from zero."""
    return input and other


@pointwise(reference=np.logical_or, **_COMPARISON)
def logical_or(input: Any, other: Any) -> Any:
    """Return where an operand differs from zero."""
    return input or other


@pointwise(reference=np.logical_xor, **_COMPARISON)
def logical_xor_(input: Any, other: Any) -> Any:
    """Return where exactly one operand differs from zero."""
    return logical_xor(input, other)


def _single() -> Any:
    for sample in unary()():
        yield Sample(sample.args, grad=False, name=sample.name)
    values = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), -1.5]
    for dtype in (_dtypes.float32, _dtypes.float64):
        yield Sample((T((6,), dtype, values=values),), grad=False, name="special values")
    yield Sample((T((4,), _dtypes.int32, values=[0, 1, -2, 3]),), grad=False, name="int32")


_TEST: dict[str, Any] = {"result": "bool", "samples": _single, "inplace": False}


@pointwise(reference=np.logical_not, result="bool", samples=_single)
def logical_not(input: Any) -> Any:
    """Return where the operand is zero."""
    return not input


@pointwise(reference=np.isnan, **_TEST)
def isnan_(input: Any) -> Any:
    """Return where the operand is NaN."""
    return isnan(input)


@pointwise(reference=np.isinf, **_TEST)
def isinf_(input: Any) -> Any:
    """Return where the operand is infinite."""
    return isinf(input)


@pointwise(reference=np.isfinite, **_TEST)
def isfinite_(input: Any) -> Any:
    """Return where the operand is neither infinite nor NaN."""
    return isfinite(input)


@pointwise(reference=np.isposinf, **_TEST)
def isposinf(input: Any) -> Any:
    """Return where the operand is plus infinity."""
    return isinf(input) and input > 0


@pointwise(reference=np.isneginf, **_TEST)
def isneginf(input: Any) -> Any:
    """Return where the operand is minus infinity."""
    return isinf(input) and input < 0


@pointwise(reference=np.signbit, **_TEST)
def signbit_(input: Any) -> Any:
    """Return where the sign bit is set."""
    return signbit(input)


@front()
def isreal(input: Any) -> Any:
    """Return where the operand is a real number: everywhere, for real dtypes."""
    return ops.ones_like(input, dtype=_dtypes.bool_)


def _close_samples() -> Any:
    values = [1.0, 1.0, 2.0, float("nan"), float("inf"), float("inf")], [
        1.0, 1.00001, 2.1, float("nan"), float("inf"), -float("inf")]  # fmt: skip
    pair = tuple(T((6,), values=v) for v in values)
    yield Sample(pair, grad=False)
    yield Sample(pair, {"equal_nan": True}, grad=False)
    yield Sample(pair, {"rtol": 0.1, "atol": 0.0}, grad=False)


def _close_errors() -> Any:
    pair = T((2,)), T((2,), _dtypes.float64)
    yield ErrorSample(pair, RuntimeError, "Float did not match Double")


def _close_reference(
    x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    return np.isclose(x, y, rtol, atol, equal_nan)


@pointwise(publish=False, result="bool", samples=_close_samples, error_samples=_close_errors,
           reference=_close_reference, inplace=False)  # fmt: skip
def isclose_(input: Any, other: Any, *, rtol: Any, atol: Any, equal_nan: Any) -> Any:
    """Closeness."""
    near = isfinite(input) and isfinite(other) and abs(input - other) <= atol + rtol * abs(other)
    nans = equal_nan != 0 and isnan(input) and isnan(other)
    return input == other or near or nans


ISCLOSE: Any = isclose_


@front(ISCLOSE)
def isclose(
    input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Return where ``abs(input - other) <= atol + rtol * abs(other)``."""
    if isinstance(other, TensorImpl) and input.meta.dtype is not other.meta.dtype:
        names = [v.meta.dtype.name for v in (input, other)]
        raise DTypeError(
            "isclose", what=f"{_scalar_name(names[0])} did not match {_scalar_name(names[1])}",
            expected="two tensors of one dtype", got=" and ".join(names),
            remedy="convert one of them",
        )  # fmt: skip
    if not input.meta.dtype.is_floating_point:
        input, other = ops.to(input, _dtypes.float64), ops.to(other, _dtypes.float64)
    params = {"rtol": float(rtol), "atol": float(atol), "equal_nan": bool(equal_nan)}
    return call(ISCLOSE, (input, other), params)


@front()
def allclose(
    input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Say whether `isclose` holds everywhere."""
    return bool(ops.all(isclose(input, other, rtol, atol, equal_nan)))


@front()
def equal(input: Any, other: Any) -> bool:
    """Say whether two tensors have one shape and equal elements."""
    require_tensor("equal", input)
    require_tensor("equal", other, "other")
    if input.meta.shape != other.meta.shape:
        return False
    return bool(ops.all(eq(input, other)))


_SCALAR_NAMES = {
    "float32": "Float", "float64": "Double", "int64": "Long", "int32": "Int", "int16": "Short",
    "int8": "Char", "uint8": "Byte", "bool": "Bool", "float16": "Half", "bfloat16": "BFloat16",
}  # fmt: skip


def _scalar_name(name: str) -> str:
    return _SCALAR_NAMES.get(name, name)


# ---------------------------------------------------------------------------------------------
# Bits


def _bit_pairs() -> Any:
    for dtype in (_dtypes.int64, _dtypes.int32, _dtypes.uint8, _dtypes.bool_):
        pair = T((8,), dtype, low=-5, high=5), T((8,), dtype, low=-5, high=5)
        yield Sample(pair, grad=False, name=dtype.name)
    yield Sample((T((2, 3), _dtypes.int64), 3), grad=False, name="number")


def _bit_errors() -> Any:
    yield ErrorSample((T((2,)), T((2,))), KernelMissingError, "not implemented for 'Float")


_BITS: dict[str, Any] = {"samples": _bit_pairs, "error_samples": _bit_errors, "refuse": "f"}


@pointwise(reference=np.bitwise_and, **_BITS)
def bitwise_and(input: Any, other: Any) -> Any:
    """Return the bits that both operands have."""
    return bitand(input, other)


@pointwise(reference=np.bitwise_or, **_BITS)
def bitwise_or(input: Any, other: Any) -> Any:
    """Return the bits that an operand has."""
    return bitor(input, other)


@pointwise(reference=np.bitwise_xor, **_BITS)
def bitwise_xor(input: Any, other: Any) -> Any:
    """Return the bits that exactly one operand has."""
    return bitxor(input, other)


def _not_samples() -> Any:
    for dtype in (_dtypes.int64, _dtypes.uint8, _dtypes.bool_):
        yield Sample((T((6,), dtype, low=-5, high=5),), grad=False, name=dtype.name)


@pointwise(publish=False, reference=np.invert, refuse="f", samples=_not_samples)
def bitwise_not_(input: Any) -> Any:
    """Other bits."""
    return bitnot(input)


BITWISE_NOT: Any = bitwise_not_


@front(BITWISE_NOT, inplace=True)
def bitwise_not(input: Any, *, out: Any = None) -> Any:
    """Return the other bits; of bool, the other truth value."""
    if isinstance(input, TensorImpl) and input.meta.dtype is _dtypes.bool_:
        return logical_not(input, out=out)
    return call(BITWISE_NOT, (input,), NO_PARAMS, out)


def _shift_pairs() -> Any:
    for dtype in (_dtypes.int64, _dtypes.int32, _dtypes.uint8):
        pair = T((8,), dtype, low=-9, high=9), T((8,), dtype, low=0, high=4)
        yield Sample(pair, grad=False, name=dtype.name)
    yield Sample((T((3,), _dtypes.int64), 2), grad=False, name="number")


@pointwise(reference=np.left_shift, refuse="fb", samples=_shift_pairs)
def bitwise_left_shift(input: Any, other: Any) -> Any:
    """Return the bits moved up by `other` places."""
    return shl(input, other)


@pointwise(reference=np.right_shift, refuse="fb", samples=_shift_pairs)
def bitwise_right_shift(input: Any, other: Any) -> Any:
    """Return the bits moved down by `other` places, keeping the sign."""
    return shr(input, other)


def _gcd_samples() -> Any:
    pair = T((8,), _dtypes.int64, low=-60, high=60), T((8,), _dtypes.int64, low=-60, high=60)
    yield Sample(pair, grad=False)
    yield Sample((T((3,), _dtypes.int32, values=[0, 12, -8]), T((1,), _dtypes.int32, values=[18])),
                 grad=False)  # fmt: skip


@pointwise(reference=np.gcd, refuse="fb", samples=_gcd_samples)
def gcd_(input: Any, other: Any) -> Any:
    """Return the greatest common divisor."""
    return gcd(input, other)


@pointwise(reference=np.lcm, refuse="fb", samples=_gcd_samples)
def lcm(input: Any, other: Any) -> Any:
    """Return the least common multiple."""
    divisor = gcd(input, other)
    return 0 if divisor == 0 else abs(input // (1 if divisor == 0 else divisor) * other)
