"""Scalar functions as data: the checked subset that pointwise ops are written in, and fusion.

A body is a Python function over numbers that no one runs as Python::

    def leaky_relu(x, *, negative_slope=0.01):
        return x if x > 0 else x * negative_slope

`Body.parse` reads its source into a small expression form. `Graph` composes bodies into a fused
kernel: a list of steps over named inputs; an eager kernel is the fusion of one body. The emitters
(`emit_numba`, `emit_cuda`) turn a graph into source, so there is one generator, not two.

The subset
----------
Assignments to plain names, one ``return`` at the end (of one value or a tuple); numbers; names of
parameters, of earlier assignments, and of numbers at the module level of the function; ``+ - * /
// % **``, unary ``- + ~``, ``& | ^ << >>``, comparisons (chained too), ``and or not``, ``a if c
else b``, and calls of names in `mathtable`. Positional parameters are operands, keyword-only ones
immediates. A docstring is allowed. Everything else is refused with the line.

Invariants
----------
* Bodies, graphs and expressions are immutable and hashable: kernels are cached by them.
* Nothing is evaluated twice or in another order than written, and both arms of a conditional
  expression are computed: a body has no control flow.
* Types are not part of a body. A graph gives each step the dtype it computes in; a value is a
  number of that dtype or a truth value, and is converted where the other is needed.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from refruntime._dtypes import DType
from refruntime.errors import ArgumentValueError
from refruntime.kernels import mathtable


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter or an assigned name."""

    id: str


@dataclass(frozen=True, slots=True)
class Const:
    """A number; two are equal only if also their types are (``1`` is not ``True`` or ``1.0``)."""

    value: int | float | bool
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        # NaN differs from itself and 0.0 equals -0.0: the text tells them apart.
        object.__setattr__(self, "kind", f"{type(self.value).__name__} {self.value!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self.kind == other.kind

    def __hash__(self) -> int:
        return hash(self.kind)


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the math table (operators are functions of it too) applied to arguments."""

    function: str
    args: tuple[Expr, ...]


Expr = Name | Const | Call


@dataclass(frozen=True, slots=True)
class Body:
    """A parsed scalar function.

    Parameters
    ----------
    name : str
        For messages, and for the names of kernels.
    operands : tuple of str
        The positional parameters.
    immediates : tuple of str
        The keyword-only parameters.
    statements : tuple of (str, Expr)
        The assignments in order.
    results : tuple of Expr
        What is returned.
    """

    name: str
    operands: tuple[str, ...]
    immediates: tuple[str, ...]
    statements: tuple[tuple[str, Expr], ...]
    results: tuple[Expr, ...]

    @staticmethod
    def parse(func: Callable[..., Any]) -> Body:
        """Read a function's source.

        Raises
        ------
        ArgumentValueError
            If it leaves the subset; the message has the line.
        """
        lines, first = inspect.getsourcelines(func)
        constants = {
            name: value
            for name, value in getattr(func, "__globals__", {}).items()
            if type(value) in (int, float, bool)
        }
        return _parse(textwrap.dedent("".join(lines)), constants, first)

    @staticmethod
    def from_source(source: str) -> Body:
        """Read the source text of one function."""
        return _parse(textwrap.dedent(source), {}, 1)

    def functions(self) -> Iterator[str]:
        """Yield the names of all functions that the body calls, repeats included."""
        for _, expr in self.statements:
            yield from _functions(expr)
        for expr in self.results:
            yield from _functions(expr)


def _functions(expr: Expr) -> Iterator[str]:
    if isinstance(expr, Call):
        yield expr.function
        for arg in expr.args:
            yield from _functions(arg)


# ---------------------------------------------------------------------------------------------
# Parsing


_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "remainder", ast.Pow: "pow", ast.BitAnd: "bitand", ast.BitOr: "bitor",
    ast.BitXor: "bitxor", ast.LShift: "shl", ast.RShift: "shr",
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], str] = {
    ast.USub: "neg", ast.Invert: "bitnot", ast.Not: "logical_not",
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip
_LOGICAL: dict[type[ast.boolop], str] = {ast.And: "logical_and", ast.Or: "logical_or"}


def _parse(source: str, constants: dict[str, Any], first_line: int) -> Body:
    tree = ast.parse(source)
    func = tree.body[0] if tree.body else None
    if not isinstance(func, ast.FunctionDef):
        raise ArgumentValueError(
            "scalar body", expected="one function defined with def", got=source.split("\n")[0]
        )
    return _Parser(func, constants, first_line).body()


class _Parser:
    """Turns one function definition into a Body."""

    def __init__(
        self, func: ast.FunctionDef, constants: dict[str, Any], first_line: int
    ) -> None:
        self.func = func
        self.constants = {**mathtable.CONSTANTS, **constants}
        self.offset = first_line - 1
        self.known: set[str] = set()

    def body(self) -> Body:
        operands, immediates = self.parameters()
        self.known.update(operands, immediates)
        statements = list(self.func.body)
        if statements and _is_docstring(statements[0]):
            del statements[0]
        if not statements or not isinstance(statements[-1], ast.Return):
            self.refuse(self.func, "a body must end with return")
        assigned = tuple(self.assignment(node) for node in statements[:-1])
        value = statements[-1].value
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        results = tuple(self.expr(node) for node in values)
        return Body(self.func.name, operands, immediates, assigned, results)

    def parameters(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        args = self.func.args
        if args.vararg or args.kwarg or args.defaults:
            self.refuse(self.func, "operands are plain positional parameters without defaults")
        operands = tuple(arg.arg for arg in (*args.posonlyargs, *args.args))
        return operands, tuple(arg.arg for arg in args.kwonlyargs)

    def assignment(self, node: ast.stmt) -> tuple[str, Expr]:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            target: ast.expr = node.target
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        else:
            self.refuse(node, "only assignments to names may come before return")
        if not isinstance(target, ast.Name):
            self.refuse(node, "the target of an assignment must be a name")
        expr = self.expr(node.value)
        self.known.add(target.id)
        return target.id, expr

    def expr(self, node: ast.expr | None) -> Expr:
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None:
            self.refuse(node or self.func, f"{type(node).__name__} is outside the subset")
        result: Expr = handler(node)
        return result

    def _name(self, node: ast.Name) -> Expr:
        if node.id not in self.known and node.id not in self.constants:
            self.refuse(node, f"unknown name {node.id!r}")
        return Name(node.id) if node.id in self.known else Const(self.constants[node.id])

    def _constant(self, node: ast.Constant) -> Expr:
        if type(node.value) not in (int, float, bool):
            self.refuse(node, f"{node.value!r} is not a real number")
        return Const(node.value)  # type: ignore[arg-type]

    def _binop(self, node: ast.BinOp) -> Expr:
        if type(node.op) not in _BINARY:
            self.refuse(node, f"operator {type(node.op).__name__} is outside the subset")
        return Call(_BINARY[type(node.op)], (self.expr(node.left), self.expr(node.right)))

    def _unaryop(self, node: ast.UnaryOp) -> Expr:
        operand = self.expr(node.operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        if isinstance(node.op, ast.USub) and isinstance(operand, Const):
            return Const(-operand.value)
        return Call(_UNARY[type(node.op)], (operand,))

    def _compare(self, node: ast.Compare) -> Expr:
        values = [self.expr(value) for value in (node.left, *node.comparators)]
        result: Expr | None = None
        for op, left, right in zip(node.ops, values, values[1:]):
            if type(op) not in _COMPARE:
                self.refuse(node, f"comparison {type(op).__name__} is outside the subset")
            test = Call(_COMPARE[type(op)], (left, right))
            result = test if result is None else Call("logical_and", (result, test))
        assert result is not None
        return result

    def _boolop(self, node: ast.BoolOp) -> Expr:
        result = self.expr(node.values[0])
        for value in node.values[1:]:
            result = Call(_LOGICAL[type(node.op)], (result, self.expr(value)))
        return result

    def _ifexp(self, node: ast.IfExp) -> Expr:
        return Call("where", (self.expr(node.test), self.expr(node.body), self.expr(node.orelse)))

    def _call(self, node: ast.Call) -> Expr:
        if not isinstance(node.func, ast.Name) or node.keywords:
            self.refuse(node, "only functions of the math table may be called, by position")
        function = mathtable.find(node.func.id)
        if function is None:
            self.refuse(node, f"{node.func.id!r} is not in the math table")
        if len(node.args) != len(function.takes):
            self.refuse(node, f"{function.name} takes {len(function.takes)} argument(s)")
        return Call(function.name, tuple(self.expr(arg) for arg in node.args))

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        line = getattr(node, "lineno", 1) + self.offset
        raise ArgumentValueError(
            "scalar body",
            what=f"{self.func.name}, line {line}: {why}",
            expected="the subset that refruntime.kernels.scalar describes",
            got=ast.unparse(node).split("\n")[0],
        )


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


# ---------------------------------------------------------------------------------------------
# Fusion


@dataclass(frozen=True, slots=True)
class Ref:
    """A value in a graph: an input, an immediate, or an output of a step.

    Parameters
    ----------
    source : {"input", "immediate", "step"}
        Where it comes from.
    index : int
        Which one.
    output : int
        Which result of the step.
    """

    source: str
    index: int
    output: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One body applied to values.

    Parameters
    ----------
    body : Body
        What is computed.
    operands, immediates : tuple of Ref
        One each of the body's parameters.
    compute : DType
        The dtype in which it is computed (half types: float32 stands for them).
    """

    body: Body
    operands: tuple[Ref, ...]
    immediates: tuple[Ref, ...]
    compute: DType


@dataclass(frozen=True, slots=True)
class Graph:
    """A fused pointwise kernel: what is computed, without the dtypes of memory.

    Parameters
    ----------
    inputs : int
        How many arrays are read.
    immediates : str
        A letter each: ``i`` (int64) or ``f`` (float64).
    steps : tuple of Step
        In order; a step reads only earlier ones.
    outputs : tuple of Ref
        What is stored, in order.
    """

    inputs: int
    immediates: str
    steps: tuple[Step, ...]
    outputs: tuple[Ref, ...]

    @property
    def name(self) -> str:
        """A readable stem for kernels: the bodies' names."""
        names = [step.body.name.strip("_") for step in self.steps]
        if len(names) > 4:
            names = [*names[:2], f"{len(names) - 3}_more", names[-1]]
        return "_".join(names)


class GraphBuilder:
    """Builds a graph step by step.

    Examples
    --------
    >>> builder = GraphBuilder()
    >>> x, y = builder.input(), builder.input()
    >>> total = builder.apply(ADD, (x, y), compute=float32)  # doctest: +SKIP
    >>> graph = builder.finish(total)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._inputs = 0
        self._immediates = ""
        self._steps: list[Step] = []

    def input(self) -> Ref:
        """Add an array that is read."""
        self._inputs += 1
        return Ref("input", self._inputs - 1)

    def immediate(self, kind: str = "f") -> Ref:
        """Add a number that is given at the launch: ``"f"`` float64 or ``"i"`` int64."""
        self._immediates += kind
        return Ref("immediate", len(self._immediates) - 1)

    def apply(
        self,
        body: Body,
        operands: tuple[Ref, ...],
        immediates: tuple[Ref, ...] = (),
        *,
        compute: DType,
    ) -> Ref:
        """Add a step and return its (first) result."""
        if len(operands) != len(body.operands) or len(immediates) != len(body.immediates):
            raise ArgumentValueError(
                body.name,
                expected=f"{len(body.operands)} operands and {len(body.immediates)} immediates",
                got=f"{len(operands)} and {len(immediates)}",
            )
        self._steps.append(Step(body, operands, immediates, compute.compute))
        return Ref("step", len(self._steps) - 1)

    def finish(self, *outputs: Ref) -> Graph:
        """Return the graph that stores `outputs`."""
        return Graph(self._inputs, self._immediates, tuple(self._steps), outputs)


def single(body: Body, compute: DType, kinds: str, immediates: str = "") -> Graph:
    """Return the graph of one body, which is what an eager op runs.

    Parameters
    ----------
    body : Body
        The scalar function.
    compute : DType
        The dtype in which it is computed.
    kinds : str
        A letter each operand: ``a`` an array, ``i`` or ``f`` a number given at the launch.
    immediates : str
        A letter each keyword-only parameter: ``i`` or ``f``.
    """
    builder = GraphBuilder()
    operands = tuple(builder.input() if k == "a" else builder.immediate(k) for k in kinds)
    scalars = tuple(builder.immediate(kind) for kind in immediates)
    first = builder.apply(body, operands, scalars, compute=compute)
    outputs = [Ref("step", first.index, i) for i in range(len(body.results))]
    return builder.finish(*outputs)
