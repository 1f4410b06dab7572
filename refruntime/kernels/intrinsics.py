"""The elementary functions as kernels call them: one intrinsic a function and width.

`INTRINSICS` maps a name such as ``exp_f32`` to the intrinsic; generated kernels import them from
here by that name. When compiled an intrinsic is a run of LLVM instructions, when run as plain
Python the same arithmetic in NumPy.

State
-----
None.

Invariants
----------
* No call, no branch: a loop around any of these vectorises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime._native import Intrinsic
from refruntime.kernels import errormath, machine, vectormath
from refruntime.kernels.machine import IrMachine, PlainMachine, Value

Function = Callable[..., Any]

# ---------------------------------------------------------------------------------------------
# Rounding, choice, and tests


def fabs(m: Any, x: Any) -> Any:
    """Magnitude."""
    return m.fabs(x)


def sqrt(m: Any, x: Any) -> Any:
    """Square root."""
    return m.sqrt(x)


def rsqrt(m: Any, x: Any) -> Any:
    """1 / square root."""
    return 1.0 / m.sqrt(x)


def floor(m: Any, x: Any) -> Any:
    """Largest whole number not above x."""
    return m.floor(x)


def ceil(m: Any, x: Any) -> Any:
    """Smallest whole number not below x."""
    return m.ceil(x)


def trunc(m: Any, x: Any) -> Any:
    """Whole part, towards zero."""
    return m.trunc(x)


def rint(m: Any, x: Any) -> Any:
    """Nearest whole number, ties to even."""
    return m.rint(x)


def copysign(m: Any, x: Any, y: Any) -> Any:
    """Magnitude of x with the sign of y."""
    return m.copysign(x, y)


def signbit(m: Any, x: Any) -> Any:
    """Whether the sign bit is set, that of -0.0 included."""
    return m.bits(x) < 0


def maximum(m: Any, a: Any, b: Any) -> Any:
    """The larger number; NaN if either is NaN."""
    return m.select(a != a, a, m.select(a > b, a, b))


def minimum(m: Any, a: Any, b: Any) -> Any:
    """The smaller number; NaN if either is NaN."""
    return m.select(a != a, a, m.select(a < b, a, b))


def fmax(m: Any, a: Any, b: Any) -> Any:
    """The larger number; a NaN gives way."""
    return m.select(b != b, a, m.select(a > b, a, b))


def fmin(m: Any, a: Any, b: Any) -> Any:
    """The smaller number; a NaN gives way."""
    return m.select(b != b, a, m.select(a < b, a, b))


# ---------------------------------------------------------------------------------------------
# Intrinsics


class MathIntrinsic(Intrinsic):
    """One function at one width, as kernels call it."""

    def __init__(self, function: Function, width: int, arity: int, gives: str = "f") -> None:
        self.function = function
        self.width = width
        self.arity = arity
        self.gives = gives
        # Variants of templates are told apart, on disk too, by the names of what they bind.
        self.__name__ = f"{function.__name__}_f{width}"
        super().__init__(self._compile, self._compute)

    def sources(self) -> set[str]:
        """Return the files whose change invalidates code that uses this."""
        files = (machine.__file__, vectormath.__file__, errormath.__file__)
        return super().sources() | {__file__, *map(str, files)}

    def _compile(self) -> Any:
        from numba import types as nb
        from numba.extending import intrinsic

        number = nb.float32 if self.width == 32 else nb.float64
        result = nb.boolean if self.gives == "b" else number
        function, width = self.function, self.width

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            m = IrMachine(builder, width)
            return function(m, *map(m.floating, map(_wrapped(m), args))).ir

        if self.arity == 1:

            @intrinsic
            def unary(typingctx: Any, x: Any) -> Any:
                return result(number), codegen

            return unary

        @intrinsic
        def binary(typingctx: Any, x: Any, y: Any) -> Any:
            return result(number, number), codegen

        return binary

    def _compute(self, *args: Any) -> Any:
        m = PlainMachine(self.width)
        with np.errstate(all="ignore"):
            return self.function(m, *map(m.floating, args))


def _wrapped(m: IrMachine) -> Callable[[Any], Any]:
    return lambda ir: Value(m, ir, "f")


ELEMENTARY = (
    "exp", "exp2", "expm1", "sigmoid", "tanh", "sinh", "cosh", "log", "log2", "log10", "log1p",
    "asinh", "acosh", "atanh", "atan", "asin", "acos",
)  # fmt: skip
UNARY: tuple[Function, ...] = (
    *[getattr(vectormath, name) for name in ELEMENTARY], errormath.erf, errormath.erfc,
    errormath.erfinv, fabs, sqrt, rsqrt, floor, ceil, trunc, rint,
)  # fmt: skip
BINARY: tuple[Function, ...] = (vectormath.atan2, copysign, maximum, minimum, fmax, fmin)
SINGLE: tuple[Function, ...] = (vectormath.sin, vectormath.cos, vectormath.tan)

INTRINSICS: dict[str, MathIntrinsic] = {
    **{f"{f.__name__}_f{w}": MathIntrinsic(f, w, 1) for f in UNARY for w in (32, 64)},
    **{f"{f.__name__}_f{w}": MathIntrinsic(f, w, 2) for f in BINARY for w in (32, 64)},
    **{f"{f.__name__}_f32": MathIntrinsic(f, 32, 1) for f in SINGLE},
    **{f"signbit_f{w}": MathIntrinsic(signbit, w, 1, "b") for w in (32, 64)},
}

globals().update(INTRINSICS)


class _Select(Intrinsic):
    """``select(condition, yes, no)`` over two values of one type: never a branch."""

    def __init__(self) -> None:
        super().__init__(self._compile, lambda condition, yes, no: yes if condition else no)

    def sources(self) -> set[str]:
        """Return the files whose change invalidates code that uses this."""
        return super().sources() | {__file__}

    def _compile(self) -> Any:
        from numba import types as nb
        from numba.extending import intrinsic

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            condition = context.cast(builder, args[0], nb.boolean, nb.boolean)
            return builder.select(condition, args[1], args[2])

        @intrinsic
        def select(typingctx: Any, condition: Any, yes: Any, no: Any) -> Any:
            return yes(nb.boolean, yes, yes), codegen

        return select


select = _Select()
