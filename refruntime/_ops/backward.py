"""Fused backwards of pointwise ops: one kernel of the gradient and what was saved.

A backward such as ``grad * (1 - out * out)`` is a scalar body, so it runs as one loop. It has no
derivative rule of its own: where one is needed, `decompose` runs the body's expressions as ops,
whose histories make the result differentiable to any order.

State
-----
None.

Invariants
----------
* A decomposition computes what the body computes, operation by operation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.elementwise import pointwise
from refruntime._ops.opdef import OpDef, ops
from refruntime.kernels.scalar import Body, Call, Const, Expr, Name

# Functions of the math table whose op has another name.
_OP_NAMES = {
    "floordiv": "floor_divide", "bitand": "bitwise_and", "bitor": "bitwise_or",
    "bitxor": "bitwise_xor", "bitnot": "bitwise_not", "shl": "bitwise_left_shift",
    "shr": "bitwise_right_shift",
}  # fmt: skip

# The same functions of Python numbers, for parts of a body that have immediates alone.
_NUMBERS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "neg": operator.neg, "pow": operator.pow, "abs": abs, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "logical_and": lambda a, b: bool(a) and bool(b), "logical_or": lambda a, b: bool(a) or bool(b),
    "logical_not": operator.not_, "maximum": max, "minimum": min, "exp": math.exp, "log": math.log,
    "sqrt": math.sqrt, "isfinite": math.isfinite, "isnan": math.isnan, "isinf": math.isinf,
    "signbit": lambda x: math.copysign(1.0, x) < 0,
}  # fmt: skip


def fused_backward(func: Callable[..., Any]) -> OpDef:
    """Register the body `func` as an op without a public name, and return its record."""
    body = Body.parse(func)
    record: OpDef = pointwise(publish=False, inplace=False, decomposition=decompose(body))(func)  # type: ignore[assignment]
    return record


def decompose(body: Body) -> Callable[..., Any]:
    """Return a function of tensors and numbers that runs a body's expressions as ops."""

    def run(*operands: Any, **immediates: Any) -> Any:
        scope: dict[str, Any] = dict(zip(body.operands, operands, strict=True))
        scope.update(immediates)
        for name, expr in body.statements:
            scope[name] = _evaluate(expr, scope)
        if len(body.results) > 1:
            return tuple([_evaluate(result, scope) for result in body.results])
        result = _evaluate(body.results[0], scope)
        if isinstance(result, TensorImpl):
            return result
        # Numbers decided it alone: a gradient that is the same everywhere.
        return ops.full_like(operands[0], result)

    return run


def _evaluate(expr: Expr, scope: dict[str, Any]) -> Any:
    if isinstance(expr, Name):
        return scope[expr.id]
    if isinstance(expr, Const):
        return expr.value
    args = [_evaluate(arg, scope) for arg in expr.args]
    return _apply(expr, args)


def _apply(expr: Call, args: list[Any]) -> Any:
    if expr.function == "where" and not isinstance(args[0], TensorImpl):
        return args[1] if args[0] else args[2]
    if not any(isinstance(arg, TensorImpl) for arg in args):
        return _NUMBERS[expr.function](*args)
    return getattr(ops, _OP_NAMES.get(expr.function, expr.function))(*args)
