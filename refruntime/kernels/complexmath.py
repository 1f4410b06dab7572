"""Pointwise bodies over complex numbers: NumPy's functions (CuPy's on a GPU), one after another.

State
-----
None.

Invariants
----------
* A body exists for complex numbers when each function it calls is in `FUNCTIONS`; an ordering is
  then still refused where it meets numbers that are complex.
* Intermediates are whole arrays. Complex programs are few, so one short code for both devices is
  worth more here than fused loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime import _optional
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl
from refruntime.errors import KernelMissingError
from refruntime.kernels import mathtable
from refruntime.kernels.gpu import gpu_array
from refruntime.kernels.scalar import Body, Call, Const, Expr, Name

# Function -> NumPy's name, where one NumPy function does it.
FUNCTIONS = {
    "abs": "absolute", "acos": "arccos", "acosh": "arccosh", "add": "add", "asin": "arcsin",
    "asinh": "arcsinh", "atan": "arctan", "atanh": "arctanh", "cos": "cos", "cosh": "cosh",
    "div": "divide", "eq": "equal", "exp": "exp", "exp2": "exp2", "expm1": "expm1",
    "ge": "greater_equal", "gt": "greater", "isfinite": "isfinite", "isinf": "isinf",
    "isnan": "isnan", "le": "less_equal", "log": "log", "log10": "log10", "log1p": "log1p",
    "log2": "log2", "logical_and": "logical_and", "logical_not": "logical_not",
    "logical_or": "logical_or", "logical_xor": "logical_xor", "lt": "less", "mul": "multiply",
    "ne": "not_equal", "neg": "negative", "pow": "power", "rsqrt": "", "sigmoid": "", "sin": "sin",
    "sinh": "sinh", "sqrt": "sqrt", "sub": "subtract", "tan": "tan", "tanh": "tanh", "truth": "",
    "where": "where",
}  # fmt: skip
_ORDERINGS = ("lt", "le", "gt", "ge")
_COMPOSED: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda xp, x: 1 / xp.sqrt(x),
    "sigmoid": lambda xp, x: 1 / (1 + xp.exp(-x)),
    "truth": lambda xp, x: x,
}


def exists(body: Body) -> bool:
    """Whether a body may be asked for on complex numbers."""
    return all(function in FUNCTIONS for function in body.functions())


def bind_complex(
    name: str, body: Body, compute: DType
) -> Callable[[TensorImpl, tuple[Any, ...], dict[str, Any]], None]:
    """Return the launch of a body over complex numbers; it serves both devices."""

    def launch(out: TensorImpl, inputs: tuple[Any, ...], params: dict[str, Any]) -> None:
        on_cpu = out.meta.device.type == "cpu"
        xp = np if on_cpu else _optional.cupy
        arrays = [_array(value, on_cpu) for value in inputs]
        names = dict(zip(body.operands, arrays, strict=True))
        names.update((immediate, params[immediate]) for immediate in body.immediates)
        evaluation = _Evaluation(name, xp, compute.np, names)
        with np.errstate(all="ignore"):
            result = evaluation.result(body)
            _array(out, on_cpu)[...] = result

    return launch


def _array(value: Any, on_cpu: bool) -> Any:
    if not isinstance(value, TensorImpl):
        return value
    if on_cpu:
        return value.array()
    return gpu_array(value)


def conj(out: TensorImpl, x: TensorImpl) -> None:
    """Conjugate complex numbers, on either device."""
    on_cpu = out.meta.device.type == "cpu"
    xp = np if on_cpu else _optional.cupy
    xp.conjugate(_array(x, on_cpu), out=_array(out, on_cpu))


class _Evaluation:
    """The values of one body's names, while it is evaluated."""

    def __init__(self, op: str, xp: Any, compute: Any, names: dict[str, Any]) -> None:
        self.op = op
        self.xp = xp
        self.compute = compute
        self.names = names

    def result(self, body: Body) -> Any:
        for target, expr in body.statements:
            self.names[target] = self.value(expr, "n")
        return self.value(body.results[0], "n")

    def value(self, expr: Expr, kind: str) -> Any:
        """Return an expression as numbers (``n``) or truth values (``b``)."""
        if isinstance(expr, Const):
            return expr.value
        found = self.names[expr.id] if isinstance(expr, Name) else self.called(expr)
        if kind == "b":
            return found if getattr(found, "dtype", None) == np.bool_ else found != 0
        if getattr(found, "dtype", self.compute).kind in "biu":
            return found.astype(self.compute)
        return found

    def called(self, expr: Call) -> Any:
        function = mathtable.TABLE[expr.function]
        args = [self.value(arg, kind) for arg, kind in zip(expr.args, function.takes, strict=True)]
        if expr.function in _ORDERINGS and any(map(self.xp.iscomplexobj, args)):
            raise KernelMissingError(
                self.op, what=f'"{self.op}" not implemented for complex numbers',
                expected="numbers that are ordered", got="complex ones",
                remedy="compare their absolute values",
            )  # fmt: skip
        composed = _COMPOSED.get(expr.function)
        if composed is not None:
            return composed(self.xp, *args)
        return getattr(self.xp, FUNCTIONS[expr.function])(*args)
