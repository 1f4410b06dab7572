"""Pointwise kernels for the CPU: Numba source from a fused graph.

`kernel_for(graph, in_dtypes, out_dtypes)` gives a `PointwiseKernel`, whose entries are generated,
compiled and cached on disk when first called:

``flat(out..., in..., immediates..., start, stop)``
    All operands are dense spans in one order: a loop over elements that vectorises.
``strided(table, out..., in..., immediates..., start, stop)``
    Any strides. `table` is the address of int64 ``[ndim, sizes..., byte strides of each operand]``,
    outputs first, outermost dimension first, dimensions merged where possible. `start` and `stop`
    count elements.
``for_table(table)``
    The strided entry for one table: if along the innermost dimension every operand is dense or
    constant, a variant whose inner loop vectorises.

Addresses and ranges are int64, immediates int64 or float64; the result is a status (0: done).

State
-----
`kernel_for` keeps kernels by graph and dtypes.

Invariants
----------
* Generated source depends on the arguments alone, so its file, named by its content, is shared by
  processes and runs.
* In an inner loop, letters say how an operand moves: ``u`` unit stride, ``z`` stride zero (loaded
  once a row), ``s`` any stride.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._native import NativeKernel, generated_module
from refruntime.kernels import intrinsics, scalarmath
from refruntime.kernels.elements import element_of
from refruntime.kernels.lower import Dialect, Lowering, Var
from refruntime.kernels.scalar import Graph

# Elements up to which the general variant is fast enough: compiling another one takes longer than
# thousands of such calls gain.
_SMALL = 2048

_HALVES = {_dtypes.float16: "f16", _dtypes.bfloat16: "bf16"}
_IMMEDIATE_DTYPES = {"f": _dtypes.float64, "i": _dtypes.int64}


class NumbaDialect(Dialect):
    """Python as Numba compiles it, with NumPy's scalar types as casts."""

    target = "cpu"

    def cast(self, text: str, source: DType, to: DType) -> str:
        """Convert, to a truth value by comparing with zero."""
        if to is _dtypes.bool_:
            return f"{text} != {self.literal(0, source)}"
        if source.kind == "f" and to.kind in "iu" and to.itemsize < 4:
            # Converting to a narrow type at once would leave numbers outside it undefined.
            return f"{to.name}(int32({text}))"
        return f"{to.name}({text})"

    def literal(self, value: float | bool, dtype: DType) -> str:
        """Spell a constant of the type."""
        if dtype is _dtypes.bool_:
            return str(bool(value))
        if dtype.kind != "f":
            return f"{dtype.name}({int(value)})"
        text = repr(float(value))
        return f"{dtype.name}({f'math.{text}' if text in ('inf', 'nan') else text})".replace(
            "(-inf)", "(-math.inf)"
        )

    def declare(self, name: str, dtype: DType, text: str) -> str:
        """Name a value."""
        return f"{name} = {text}"

    def type_name(self, dtype: DType) -> str:
        """Spell the type."""
        return dtype.name

    def fail(self, condition: str) -> str:
        """Note a division by zero."""
        return f"status |= int64({condition})"


class PointwiseKernel:
    """The entries of one kernel; see the module docstring.

    Parameters
    ----------
    graph : Graph
        What is computed.
    in_dtypes, out_dtypes : tuple of DType
        The dtypes in memory.
    """

    def __init__(
        self, graph: Graph, in_dtypes: tuple[DType, ...], out_dtypes: tuple[DType, ...]
    ) -> None:
        self.graph = graph
        self.in_dtypes = in_dtypes
        self.out_dtypes = out_dtypes
        self._variants: dict[str, NativeKernel] = {}

    @cached_property
    def flat(self) -> NativeKernel:
        """The loop over dense operands."""
        return self._compile("flat", flat_source(self.graph, self.in_dtypes, self.out_dtypes))

    @property
    def strided(self) -> NativeKernel:
        """The loop over operands of any strides."""
        return self.variant("s" * (len(self.out_dtypes) + len(self.in_dtypes)))

    def for_table(self, table: Sequence[int]) -> NativeKernel:
        """Return the best strided entry for a table."""
        dtypes = (*self.out_dtypes, *self.in_dtypes)
        pattern = inner_pattern(table, [dtype.itemsize for dtype in dtypes])
        if pattern not in self._variants and math.prod(table[1 : 1 + table[0]]) <= _SMALL:
            return self.strided
        return self.variant(pattern)

    def variant(self, pattern: str) -> NativeKernel:
        """Return the strided entry for one letter an operand."""
        found = self._variants.get(pattern)
        if found is None:
            source = strided_source(self.graph, self.in_dtypes, self.out_dtypes, pattern)
            found = self._variants[pattern] = self._compile(f"strided_{pattern}", source)
        return found

    def _compile(self, suffix: str, source: str) -> NativeKernel:
        module = generated_module(source, f"{self.graph.name}_{suffix}")
        kernel: NativeKernel = getattr(module, f"{self.graph.name}_{suffix}")
        return kernel


@cache
def kernel_for(
    graph: Graph, in_dtypes: tuple[DType, ...], out_dtypes: tuple[DType, ...]
) -> PointwiseKernel:
    """Return the kernel of a graph for dtypes in memory; nothing is compiled yet.

    Raises
    ------
    KernelMissingError
        For complex dtypes.
    DTypeError
        When an entry is first used: if the graph has a function that its step's dtype lacks.
    """
    for dtype in (*in_dtypes, *out_dtypes):
        element_of(dtype, graph.name)
    return PointwiseKernel(graph, in_dtypes, out_dtypes)


def inner_pattern(table: Sequence[int], itemsizes: Sequence[int]) -> str:
    """Return how each operand moves along the innermost dimension of a stride table."""
    ndim = int(table[0])
    if ndim == 0:
        return "s" * len(itemsizes)
    strides = [int(table[1 + ndim * (k + 1) + ndim - 1]) for k in range(len(itemsizes))]
    letters = [
        "u" if stride == itemsize else "z" if stride == 0 else "s"
        for stride, itemsize in zip(strides, itemsizes, strict=True)
    ]
    # A mixture with any other stride gains nothing: one general variant serves them all.
    return "s" * len(letters) if "s" in letters or letters[0] == "z" else "".join(letters)


# ---------------------------------------------------------------------------------------------
# Source


class _Emitter:
    """The parts of a kernel's source that both entries share."""

    def __init__(
        self, graph: Graph, in_dtypes: tuple[DType, ...], out_dtypes: tuple[DType, ...],
        pattern: str,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.outs = out_dtypes
        self.ins = in_dtypes
        self.pattern = pattern
        dialect = NumbaDialect()
        inputs = [Var(f"x{k}", self._loaded(dtype)) for k, dtype in enumerate(in_dtypes)]
        numbers = [
            Var(f"number_{k}", _IMMEDIATE_DTYPES[kind]) for k, kind in enumerate(graph.immediates)
        ]
        self.lowering = Lowering(graph, dialect, inputs, numbers)
        self.stores = [self._store(k, dtype) for k, dtype in enumerate(out_dtypes)]

    @staticmethod
    def _loaded(dtype: DType) -> DType:
        return dtype.compute

    def load(self, index: int, place: str) -> str:
        """Return the statement that loads an input element."""
        dtype = self.ins[index]
        text = f"fetch(in_{index}, {place})"
        if dtype in _HALVES:
            text = f"widen_{_HALVES[dtype]}({text})"
        elif dtype is _dtypes.bool_:
            text += " != 0"
        return f"x{index} = {text}"

    def _store(self, index: int, dtype: DType) -> str:
        number = self.lowering.output(index, dtype.compute)
        if dtype in _HALVES:
            number = f"narrow_{_HALVES[dtype]}({number})"
        elif dtype is _dtypes.bool_:
            number = f"uint8({number})"
        return f"put(out_{index}, {{place_{index}}}, {number})"

    def pointer(self, side: str, index: int, address: str) -> str:
        """Return the statement that makes a typed pointer."""
        dtype = (self.outs if side == "out" else self.ins)[index]
        return f"{side}_{index} = {_pointer_name(dtype)}({address})"

    def operands(self) -> list[tuple[str, int, int]]:
        """Return (side, index, position) of every operand, outputs first."""
        outs = [("out", k) for k in range(len(self.outs))]
        both = outs + [("in", k) for k in range(len(self.ins))]
        return [(side, k, position) for position, (side, k) in enumerate(both)]

    def signature(self, leading: int) -> str:
        """Return the Numba signature of the entry."""
        kinds = ["int64"] * (leading + len(self.outs) + len(self.ins))
        kinds += [_IMMEDIATE_DTYPES[kind].name for kind in self.graph.immediates]
        return f"int64({', '.join([*kinds, 'int64', 'int64'])})"

    def parameters(self, leading: list[str]) -> str:
        """Return the parameter list of the entry."""
        names = [f"{side}_{k}_address" for side, k, _ in self.operands()]
        numbers = [f"number_{k}" for k in range(len(self.graph.immediates))]
        return ", ".join([*leading, *names, *numbers, "start", "stop"])

    def computing(self, places: list[str]) -> list[str]:
        """Return the statements for one element; `places` index the operands, outputs first."""
        inputs = places[len(self.outs) :]
        moving = self.pattern[len(self.outs) :]
        loads = [self.load(k, p) for k, (p, way) in enumerate(zip(inputs, moving)) if way != "z"]
        fields = {f"place_{k}": place for k, place in enumerate(places[: len(self.outs)])}
        return [*loads, *self.lowering.lines, *[store.format(**fields) for store in self.stores]]

    def module(self, name: str, leading: list[str], lines: list[str]) -> str:
        """Return the complete module."""
        dtypes = [", ".join(d.name for d in group) or "nothing" for group in (self.ins, self.outs)]
        body = [*self.lowering.preamble, *lines]
        if self.lowering.fails:
            body.insert(0, "status = int64(0)")
        body.append(f"return {'status' if self.lowering.fails else '0'}")
        text = "\n".join(f"    {line}" for line in body)
        head = f'"""{self.graph.name}: {dtypes[0]} to {dtypes[1]}. Generated by emit_numba."""\n'
        signature = f'@native("{self.signature(len(leading))}")'
        function = f"{signature}\ndef {name}({self.parameters(leading)}):\n{text}\n"
        return f"{head}\n{_imports(function)}\n\n{function}"


def _pointer_name(dtype: DType) -> str:
    if dtype is _dtypes.bool_:
        return "ptr_u8"
    if dtype in _HALVES:
        return "ptr_u16"
    return f"ptr_{dtype.kind}{dtype.itemsize * 8}"


_WORD = re.compile(r"[A-Za-z_]\w*")


def _imports(text: str) -> str:
    """Return the import statements for every name that the text uses."""
    words = set(_WORD.findall(text))
    sources: list[tuple[str, Any]] = [
        ("numpy", lambda w: w in _NUMPY_TYPES),
        ("refruntime._native", lambda w: w.startswith(("native", "ptr_", "widen_", "narrow_"))),
        ("refruntime.kernels.memory", lambda w: w in ("fetch", "put", "lesser", "entry")),
        ("refruntime.kernels.odometer", lambda w: w in ("cells_of", "begin", "advance")),
        ("refruntime.kernels.scalarmath", lambda w: w in _SCALAR_NAMES),
        ("refruntime.kernels.intrinsics", lambda w: w == "select" or w in intrinsics.INTRINSICS),
    ]
    lines = ["import math\n"] if "math" in words else []
    for module, belongs in sources:
        names = sorted(filter(belongs, words))
        if names:
            lines.append(f"from {module} import {', '.join(names)}")
    return "\n".join(lines)


_NUMPY_TYPES = frozenset(
    ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
)
_SCALAR_NAMES = frozenset(
    name for name, value in vars(scalarmath).items() if hasattr(value, "py_func")
)


def flat_source(
    graph: Graph, in_dtypes: tuple[DType, ...], out_dtypes: tuple[DType, ...]
) -> str:
    """Return the module with the entry for dense operands."""
    emitter = _Emitter(graph, in_dtypes, out_dtypes, "u" * (len(in_dtypes) + len(out_dtypes)))
    operands = emitter.operands()
    lines = [emitter.pointer(side, k, f"{side}_{k}_address") for side, k, _ in operands]
    lines.append("for i in range(start, stop):")
    lines += [f"    {line}" for line in emitter.computing(["i"] * len(operands))]
    return emitter.module(f"{graph.name}_flat", [], lines)


def strided_source(
    graph: Graph, in_dtypes: tuple[DType, ...], out_dtypes: tuple[DType, ...], pattern: str
) -> str:
    """Return the module with a strided entry: rows by the odometer, elements by a loop."""
    emitter = _Emitter(graph, in_dtypes, out_dtypes, pattern)
    operands = emitter.operands()
    count = len(operands)
    addresses = ", ".join(f"{side}_{k}_address" for side, k, _ in operands)
    lines = [
        "table = ptr_i64(table_address)",
        f"cells = cells_of(({addresses},))",
        f"column = begin(table, cells, {count}, start)",
        "columns = entry(table, table[0], table[0], 1)",
    ]
    for side, k, position in operands:
        if pattern[position] == "s":
            step = f"entry(table, table[0], table[0] * {position + 2}, 0)"
            lines.append(f"{side}_{k}_step = {step}")
    lines += ["while start < stop:", *[f"    {line}" for line in _row(emitter, pattern)]]
    return emitter.module(f"{graph.name}_strided_{pattern}", ["table_address"], lines)


def _row(emitter: _Emitter, pattern: str) -> list[str]:
    """Compute what is left of one row, or of the range, and go to the next row."""
    operands = emitter.operands()
    lines = ["end = lesser(columns, column + stop - start)"]
    places = []
    for side, k, position in operands:
        way = pattern[position]
        places.append("j" if way == "u" else "0")
        if way == "s":
            lines.append(f"{side}_{k}_at = cells[{position}]")
        else:
            lines.append(emitter.pointer(side, k, f"cells[{position}]"))
        if way == "z":
            lines.append(emitter.load(k, "0"))
    lines.append("for j in range(column, end):")
    for side, k, position in operands:
        if pattern[position] == "s":
            pointer = emitter.pointer(side, k, f"{side}_{k}_at + j * {side}_{k}_step")
            lines.append(f"    {pointer}")
    lines += [f"    {line}" for line in emitter.computing(places)]
    lines += ["start += end - column", "column = 0", f"advance(table, cells, {len(operands)})"]
    return lines
