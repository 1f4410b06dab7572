"""The four operations, remainders, signs, and sums with a factor.

Invariants
----------
* Integers wrap. An integer division or remainder by zero raises torch's ``ZeroDivisionError`` (a
  RuntimeError); of floats it gives inf or NaN.
* Remainder has the sign of the divisor, fmod that of the dividend; floor_divide rounds down.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorImpl
from refruntime._ops import samples_inner as inner
from refruntime._ops.backward import fused_backward
from refruntime._ops.elementwise import pointwise
from refruntime._ops.opdef import NO_PARAMS, front, ops, require_tensor
from refruntime._ops.samples import ErrorSample, Sample, T, binary, unary
from refruntime.errors import ArgumentValueError, DTypeError, KernelMissingError, ShapeError
from refruntime.kernels.mathtable import fmod, truncdiv

_INTEGERS = ((_dtypes.int64, 7, -2), (_dtypes.int32, -7, 2), (_dtypes.uint8, 7, 2))


def _mismatch() -> tuple[ErrorSample, ...]:
    return (ErrorSample((T((2,)), T((3,))), ShapeError, "must match the size"),)


# ---------------------------------------------------------------------------------------------
# Sums


def _factor_type(name: str, input: Any, other: Any, alpha: Any) -> None:
    """Refuse a float factor of integers."""
    if not isinstance(alpha, float):
        return
    if any(isinstance(v, TensorImpl) and v.meta.dtype.kind not in "iub" for v in (input, other)):
        return
    if isinstance(other, float) or isinstance(input, float):
        return
    raise DTypeError(
        name,
        what="For integral input tensors, argument alpha must not be a floating point number.",
        expected="an integer",
        got=repr(alpha),
        remedy="convert the tensors with .float()",
    )


@pointwise(publish=False, vjp=lambda g, n: (g, g), reference=np.add, backward_name="AddBackward0",
           samples=binary(), error_samples=_mismatch)  # fmt: skip
def add_(input: Any, other: Any) -> Any:
    """Sum."""
    return input + other


@pointwise(publish=False, name="add_scaled", **inner.ADD_SCALED, backward_name="AddBackward0",
           vjp=lambda g, n: (g, ops.mul(g, n.alpha)))  # fmt: skip
def _add_scaled(input: Any, other: Any, *, alpha: Any) -> Any:
    return input + alpha * other


ADD: Any = add_
ADD_SCALED: Any = _add_scaled


@front(ADD, inplace=True)
def add(input: Any, other: Any, *, alpha: Any = 1, out: Any = None) -> Any:
    """Return ``input + alpha * other``."""
    if alpha == 1:
        return call(ADD, (input, other), NO_PARAMS, out)
    _factor_type("add", input, other, alpha)
    return call(ADD_SCALED, (input, other), {"alpha": alpha}, out)


@pointwise(publish=False, vjp=lambda g, n: (g, ops.neg(g) if n.needs[1] else None),
           reference=np.subtract, refuse="b", samples=binary(),
           error_samples=_mismatch)  # fmt: skip
def sub_(input: Any, other: Any) -> Any:
    """Difference."""
    return input - other


@pointwise(
    publish=False,
    name="sub_scaled",
    **inner.SUB_SCALED,
    backward_name="SubBackward0",
    refuse="b",
    vjp=lambda g, n: (g, ops.mul(g, -n.alpha)),
)
def _sub_scaled(input: Any, other: Any, *, alpha: Any) -> Any:
    return input - alpha * other


SUB: Any = sub_
SUB_SCALED: Any = _sub_scaled


@front(SUB, inplace=True, aliases=("subtract",))
def sub(input: Any, other: Any, *, alpha: Any = 1, out: Any = None) -> Any:
    """Return ``input - alpha * other``."""
    if alpha == 1:
        return call(SUB, (input, other), NO_PARAMS, out)
    _factor_type("sub", input, other, alpha)
    return call(SUB_SCALED, (input, other), {"alpha": alpha}, out)


@front(SUB)
def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return ``other - alpha * input``."""
    return sub(other, input, alpha=alpha)


# ---------------------------------------------------------------------------------------------
# Products and quotients


def _mul_vjp(g: Any, n: Any) -> Any:
    return (
        ops.mul(g, n.other) if n.needs[0] else None,
        ops.mul(g, n.input) if n.needs[1] else None,
    )


@pointwise(vjp=_mul_vjp, saves=("input", "other"), reference=np.multiply, aliases=("multiply",),
           samples=binary(), error_samples=_mismatch)  # fmt: skip
def mul(input: Any, other: Any) -> Any:
    """Return ``input * other``."""
    return input * other


@fused_backward
def div_backward_other(grad: Any, input: Any, other: Any) -> Any:
    """Gradient of a quotient with respect to its divisor."""
    return -grad * (input / other) / other


DIV_BACKWARD_OTHER: Any = div_backward_other


def _div_vjp(g: Any, n: Any) -> Any:
    return (
        ops.div(g, n.other) if n.needs[0] else None,
        call(DIV_BACKWARD_OTHER, (g, n.input, n.other)) if n.needs[1] else None,
    )


@pointwise(publish=False, result="float", vjp=_div_vjp, saves=("input", "other"),
           reference=np.divide, samples=binary(right=(0.5, 3.0)),
           error_samples=_mismatch)  # fmt: skip
def div_(input: Any, other: Any) -> Any:
    """Quotient."""
    return input / other


def _integers(*rest: Any) -> Any:
    def samples() -> Any:
        for dtype, one, two in _INTEGERS:
            pair = T((3,), dtype, values=[one, 5, 0]), T((3,), dtype, values=[two, 3, 1])
            yield Sample((*pair, *rest), grad=False)
        yield Sample((T((5,), low=-6, high=6), T((5,), low=1, high=3), *rest), gradgrad=False)
        yield Sample((T((4,), low=-6, high=6), 2.0, *rest), gradgrad=False, name="number")

    return samples


def _zero_division() -> tuple[ErrorSample, ...]:
    pair = T((1,), _dtypes.int64, values=[1]), T((1,), _dtypes.int64, values=[0])
    return (ErrorSample(pair, RuntimeError, "ZeroDivisionError"), *_mismatch())


def _zero_vjp(g: Any, n: Any) -> Any:
    zero = ops.zeros_like(g)
    return zero, zero


@pointwise(
    vjp=_zero_vjp,
    reference=np.floor_divide,
    samples=_integers(),
    error_samples=_zero_division,
    refuse="b",
)
def floor_divide(input: Any, other: Any) -> Any:
    """Return the quotient rounded down."""
    return input // other


@pointwise(publish=False, name="trunc_divide", **inner.TRUNC_DIVIDE, refuse="b",
           backward_name="DivBackward2", vjp=_zero_vjp)  # fmt: skip
def _trunc_divide(input: Any, other: Any) -> Any:
    return truncdiv(input, other)


DIV: Any = div_
TRUNC_DIVIDE: Any = _trunc_divide


@front(DIV, inplace=True, aliases=("divide",))
def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: Any = None) -> Any:
    """Return the quotient; `rounding_mode` is None, ``"trunc"`` or ``"floor"``."""
    if rounding_mode is None:
        return call(DIV, (input, other), NO_PARAMS, out)
    if rounding_mode == "floor":
        return floor_divide(input, other, out=out)
    if rounding_mode == "trunc":
        return call(TRUNC_DIVIDE, (input, other), NO_PARAMS, out)
    raise ArgumentValueError(
        "div", expected="rounding_mode None, 'trunc' or 'floor'", got=repr(rounding_mode)
    )


@front(DIV, inplace=True)
def true_divide(input: Any, other: Any, *, out: Any = None) -> Any:
    """Return the quotient as floating-point numbers."""
    return call(DIV, (input, other), NO_PARAMS, out)


def _remainder_vjp(g: Any, n: Any) -> Any:
    other = ops.neg(ops.mul(g, ops.floor_divide(n.input, n.other))) if n.needs[1] else None
    return g, other


@pointwise(vjp=_remainder_vjp, saves=("input", "other"), reference=np.mod, samples=_integers(),
           error_samples=_zero_division, refuse="b")  # fmt: skip
def remainder(input: Any, other: Any) -> Any:
    """Return the remainder that has the sign of `other`."""
    return input % other


def _fmod_vjp(g: Any, n: Any) -> Any:
    if not n.needs[1]:
        return g, None
    return g, ops.neg(ops.mul(g, ops.div(n.input, n.other, rounding_mode="trunc")))


@pointwise(vjp=_fmod_vjp, saves=("input", "other"), reference=np.fmod, samples=_integers(),
           error_samples=_zero_division, refuse="b")  # fmt: skip
def fmod_(input: Any, other: Any) -> Any:
    """Return the remainder that has the sign of `input`."""
    return fmod(input, other)


@pointwise(result="float", vjp=lambda g, n: ops.neg(ops.mul(g, ops.mul(n.out, n.out))),
           saves=("out",), reference=np.reciprocal, samples=unary(0.5, 3.0))  # fmt: skip
def reciprocal(input: Any) -> Any:
    """Return ``1 / input``."""
    return 1 / input


# ---------------------------------------------------------------------------------------------
# Signs


@pointwise(vjp=lambda g, n: ops.neg(g), reference=np.negative, refuse="b", aliases=("negative",),
           samples=unary())  # fmt: skip
def neg(input: Any) -> Any:
    """Return ``-input``."""
    return -input


@pointwise(vjp=lambda g, n: ops.mul(g, ops.sgn(n.input)), saves=("input",), reference=np.absolute,
           refuse="b", aliases=("absolute",), result="real", samples=unary())  # fmt: skip
def abs_(input: Any) -> Any:
    """Return the magnitude."""
    return abs(input)


def _sign_reference(x: Any) -> Any:
    return np.nan_to_num(np.sign(x))


@pointwise(vjp=lambda g, n: ops.zeros_like(g), reference=_sign_reference, samples=unary())
def sign(input: Any) -> Any:
    """Return -1, 0 or 1, the sign."""
    return (1 if input > 0 else 0) - (1 if input < 0 else 0)


@pointwise(name="sgn", publish=False, vjp=lambda g, n: ops.zeros_like(g),
           reference=_sign_reference, samples=unary())  # fmt: skip
def _sgn(input: Any) -> Any:
    return (1 if input > 0 else 0) - (1 if input < 0 else 0)


SGN: Any = _sgn


@front(SGN, inplace=True)
def sgn(input: Any, *, out: Any = None) -> Any:
    """Return -1, 0 or 1, the sign; of a complex number the number over its magnitude."""
    require_tensor("sgn", input)
    if not input.meta.dtype.is_complex:
        return call(SGN, (input,), NO_PARAMS, out)
    size = ops.abs(input)
    return ops.div(input, ops.masked_fill(size, ops.eq(size, 0), 1), out=out)


@front()
def positive(input: Any) -> Any:
    """Return the tensor itself."""
    if input.meta.dtype is _dtypes.bool_:
        raise KernelMissingError(
            "positive", what="The `+` operator, on a bool tensor is not supported.",
            expected="numbers", got="torch.bool", remedy="convert with .int()",
        )  # fmt: skip
    return input


# ---------------------------------------------------------------------------------------------
# Sums with a product


def _addcmul_samples() -> Any:
    for shapes in (((3,), (3,), (3,)), ((2, 3), (3,), (2, 1))):
        yield Sample(tuple(T(shape, low=0.5) for shape in shapes), {"value": 0.5})
    yield Sample((T((4, 3), layout="transposed"), T((4, 3)), T((4, 3), low=1.0)))


def _addcmul_vjp(g: Any, n: Any) -> Any:
    scaled = g if n.value == 1 else ops.mul(g, n.value)
    return (
        g,
        ops.mul(scaled, n.tensor2) if n.needs[1] else None,
        ops.mul(scaled, n.tensor1) if n.needs[2] else None,
    )


@pointwise(publish=False, vjp=_addcmul_vjp, saves=("tensor1", "tensor2"), samples=_addcmul_samples,
           reference=lambda x, a, b, value=1: x + value * a * b)  # fmt: skip
def addcmul_(input: Any, tensor1: Any, tensor2: Any, *, value: Any) -> Any:
    """Sum with a scaled product."""
    return input + value * tensor1 * tensor2


def _addcdiv_vjp(g: Any, n: Any) -> Any:
    scaled = ops.div(g if n.value == 1 else ops.mul(g, n.value), n.tensor2)
    second = None
    if n.needs[2]:
        second = ops.neg(ops.mul(scaled, ops.div(n.tensor1, n.tensor2)))
    return g, scaled, second


@pointwise(publish=False, result="float", vjp=_addcdiv_vjp, saves=("tensor1", "tensor2"),
           samples=_addcmul_samples,
           reference=lambda x, a, b, value=1: x + value * a / b)  # fmt: skip
def addcdiv_(input: Any, tensor1: Any, tensor2: Any, *, value: Any) -> Any:
    """Sum with a scaled quotient."""
    return input + value * (tensor1 / tensor2)


ADDCMUL: Any = addcmul_
ADDCDIV: Any = addcdiv_


@front(ADDCMUL, inplace=True)
def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1, out: Any = None) -> Any:
    """Return ``input + value * tensor1 * tensor2``."""
    return call(ADDCMUL, (input, tensor1, tensor2), {"value": value}, out)


@front(ADDCDIV, inplace=True)
def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1, out: Any = None) -> Any:
    """Return ``input + value * tensor1 / tensor2``."""
    return call(ADDCDIV, (input, tensor1, tensor2), {"value": value}, out)
