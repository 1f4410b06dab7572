"""From a fused graph to straight-line statements of a target language.

A `Dialect` says how one target spells a cast, a literal and a function; `Lowering` walks the graph
and gives one statement an operation. `emit_numba` and `emit_cuda` put loops around the result.

State
-----
A `Lowering` holds the lines so far, and the variable of each value.

Invariants
----------
* Every intermediate value has a name of its own, so a template may repeat its arguments.
* A value has a dtype: a computing dtype, or bool for a truth value of the target language. It is
  converted exactly where a step or an output needs another one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime.errors import DTypeError
from refruntime.kernels import mathtable
from refruntime.kernels.scalar import Call, Const, Expr, Graph, Name, Ref, Step


@dataclass(frozen=True, slots=True)
class Var:
    """A name or literal in the target language, and its dtype (bool: a truth value)."""

    text: str
    dtype: DType


def number_dtype(compute: DType) -> DType:
    """Return the dtype of numbers in a step: that of the step, uint8 for a step in bool."""
    return _dtypes.uint8 if compute is _dtypes.bool_ else compute.compute


class Dialect(ABC):
    """How a target language spells things."""

    target: str

    @abstractmethod
    def cast(self, text: str, source: DType, to: DType) -> str:
        """Convert a number or truth value to a number, or (`to` bool) to a truth value."""

    @abstractmethod
    def literal(self, value: float | bool, dtype: DType) -> str:
        """Spell a constant."""

    @abstractmethod
    def declare(self, name: str, dtype: DType, text: str) -> str:
        """Spell the statement that names a value."""

    @abstractmethod
    def type_name(self, dtype: DType) -> str:
        """Spell a computing type."""

    @abstractmethod
    def fail(self, condition: str) -> str:
        """Spell the statement that notes a division by zero."""


class Lowering:
    """Lowers the steps of one graph; see the module docstring.

    Parameters
    ----------
    graph : Graph
        What to compute.
    dialect : Dialect
        The target.
    inputs : list of Var
        The loaded elements.
    immediates : list of Var
        The numbers given at the launch (int64 or float64).
    """

    def __init__(
        self, graph: Graph, dialect: Dialect, inputs: list[Var], immediates: list[Var]
    ) -> None:
        self.graph = graph
        self.dialect = dialect
        self.inputs = inputs
        self.immediates = immediates
        self.lines: list[str] = []
        # Casts of immediates do not change in the loop: they stand before it.
        self.preamble: list[str] = []
        self.fails = False
        self._steps: list[tuple[Var, ...]] = []
        self._hoisted: dict[tuple[int, DType], Var] = {}
        self._taken: set[str] = set()
        for step in graph.steps:
            self._steps.append(self._lower_step(step))

    def output(self, index: int, dtype: DType) -> str:
        """Return the text of an output, as a number of `dtype` (bool: a truth value)."""
        ref = self.graph.outputs[index]
        return self._convert(self._value(ref, dtype), dtype).text

    def _value(self, ref: Ref, dtype: DType) -> Var:
        if ref.source == "input":
            return self.inputs[ref.index]
        if ref.source == "step":
            return self._steps[ref.index][ref.output]
        return self._immediate(ref.index, number_dtype(dtype))

    def _immediate(self, index: int, dtype: DType) -> Var:
        key = (index, dtype)
        if key not in self._hoisted:
            source = self.immediates[index]
            name = self._fresh(f"c{index}_{dtype.name}")
            text = self.dialect.cast(source.text, source.dtype, dtype)
            self.preamble.append(self.dialect.declare(name, dtype, text))
            self._hoisted[key] = Var(name, dtype)
        return self._hoisted[key]

    def _fresh(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self._taken:
            candidate, number = f"{name}_{number}", number + 1
        self._taken.add(candidate)
        return candidate

    def _assign(self, name: str, text: str, dtype: DType) -> Var:
        fresh = self._fresh(name)
        self.lines.append(self.dialect.declare(fresh, dtype, text))
        return Var(fresh, dtype)

    def _convert(self, value: Var, dtype: DType) -> Var:
        if value.dtype is dtype:
            return value
        return Var(self.dialect.cast(value.text, value.dtype, dtype), dtype)

    def _named(self, value: Var, dtype: DType, name: str) -> Var:
        """Return the value as a name or literal of `dtype`."""
        if value.dtype is dtype:
            return value
        return self._assign(name, self._convert(value, dtype).text, dtype)

    def _lower_step(self, step: Step) -> tuple[Var, ...]:
        number = number_dtype(step.compute)
        scope: dict[str, Var] = {}
        for name, ref in zip(step.body.operands, step.operands, strict=True):
            scope[name] = self._value(ref, number)
        for name, ref in zip(step.body.immediates, step.immediates, strict=True):
            scope[name] = self._value(ref, number)
        for name, expr in step.body.statements:
            scope[name] = self._expr(expr, scope, number, name + "_")
        return tuple(self._result(expr, scope, number) for expr in step.body.results)

    def _result(self, expr: Expr, scope: dict[str, Var], number: DType) -> Var:
        value = self._expr(expr, scope, number, "r")
        # A bare operand may still have the dtype of memory: the step's result has the step's.
        return value if value.dtype is _dtypes.bool_ else self._named(value, number, "r")

    def _expr(self, expr: Expr, scope: dict[str, Var], number: DType, name: str) -> Var:
        if isinstance(expr, Name):
            return scope[expr.id]
        if isinstance(expr, Const):
            is_truth = isinstance(expr.value, bool)
            dtype = _dtypes.bool_ if is_truth else number
            return Var(self._literal(expr, dtype), dtype)
        return self._call(expr, scope, number, name)

    def _literal(self, expr: Const, dtype: DType) -> str:
        if dtype.kind in "iu" and expr.value != expr.value // 1:
            raise DTypeError(
                "scalar body", what=f"the constant {expr.value!r} in a step of integers",
                expected="whole numbers", got=repr(dtype), remedy="use result='float'",
            )  # fmt: skip
        return self.dialect.literal(expr.value, dtype)

    def _call(self, expr: Call, scope: dict[str, Var], number: DType, name: str) -> Var:
        function = mathtable.TABLE[expr.function]
        template = function.template(self.dialect.target, number.kind)
        if not template:
            raise DTypeError(
                "scalar body", what=f"{function.name} does not exist for {number.name}",
                expected="a floating-point dtype" if function.cpu else "an integer dtype",
                got=repr(number), remedy="convert the operand",
            )  # fmt: skip
        args = []
        for arg, kind in zip(expr.args, function.takes, strict=True):
            value = self._expr(arg, scope, number, "t")
            wanted = number if kind == "n" else _dtypes.bool_
            args.append(self._named(value, wanted, "t").text)
        fields = {"C": self.dialect.type_name(number), "w": number.itemsize * 8}
        if function.fails_if and number.kind != "f":
            self.fails = True
            self.lines.append(self.dialect.fail(function.fails_if.format(*args)))
        gives = number if function.gives == "n" else _dtypes.bool_
        return self._assign(name, template.format(*args, **fields), gives)
