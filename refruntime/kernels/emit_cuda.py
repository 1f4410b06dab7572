"""Pointwise kernels for the GPU: CUDA C++ source from a fused graph, and its launch.

State
-----
None; compiled modules are kept by `jit`.

Invariants
----------
* The source is one kernel, without templates, in the subset that `cuda/common.cuh` describes, so
  that the tests can also run it as host C++.
* Parameters in order: outputs, inputs, immediates (``double`` or ``long long``), a table of byte
  strides (strided form only), the number of elements.
* Half types are computed in float and rounded at the store; integer division by zero gives 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime.kernels import jit
from refruntime.kernels.launch import cover, table_argument
from refruntime.kernels.lower import Dialect, Lowering, Var
from refruntime.kernels.scalar import Graph

_HALVES = (_dtypes.float16, _dtypes.bfloat16)
_IMMEDIATES = {"f": (_dtypes.float64, "double"), "i": (_dtypes.int64, "long long")}


class CudaDialect(Dialect):
    """CUDA C++; the names of types stand in ``pointwise.cuh``."""

    target = "cuda"

    def cast(self, text: str, source: DType, to: DType) -> str:
        """Convert, to a truth value by comparing with zero."""
        if to is _dtypes.bool_:
            return f"({text} != {self.literal(0, source)})"
        if source.kind == "f" and to.kind in "iu" and to.itemsize < 4:
            # Converting to a narrow type at once would leave numbers outside it undefined.
            return f"{to.name}(int32({text}))"
        return f"{to.name}({text})"

    def literal(self, value: float | bool, dtype: DType) -> str:
        """Spell a constant of the type."""
        if dtype is _dtypes.bool_:
            return "true" if value else "false"
        if dtype.kind != "f":
            return f"{dtype.name}({int(value)}LL)"
        text = repr(float(value))
        text = text.replace("inf", "INFINITE").replace("nan", "INFINITE - INFINITE")
        return f"{dtype.name}({text})"

    def declare(self, name: str, dtype: DType, text: str) -> str:
        """Name a value."""
        kind = "bool" if dtype is _dtypes.bool_ else dtype.name
        return f"const {kind} {name} = {text};"

    def type_name(self, dtype: DType) -> str:
        """Spell the type."""
        return dtype.name

    def fail(self, condition: str) -> str:
        """Note a division by zero."""
        # A GPU cannot raise; as in PyTorch, the quotient is then meaningless.
        return f"// {condition} gives 0."


def cuda_source(
    graph: Graph, in_dtypes: tuple[DType, ...], out_dtypes: tuple[DType, ...], strided: bool
) -> str:
    """Return the source of the kernel (without the headers that it includes)."""
    inputs = [Var(f"x{k}", dtype.compute) for k, dtype in enumerate(in_dtypes)]
    numbers = [Var(f"number_{k}", _IMMEDIATES[kind][0]) for k, kind in enumerate(graph.immediates)]
    lowering = Lowering(graph, CudaDialect(), inputs, numbers)
    outs = range(len(out_dtypes))
    stores = [_store(lowering, k, out_dtypes[k], strided) for k in outs]
    loads = [_load(k, dtype, k + len(out_dtypes), strided) for k, dtype in enumerate(in_dtypes)]
    body = [*loads, *lowering.lines, *stores]
    count = len(in_dtypes) + len(out_dtypes)
    if strided:
        body[:0] = [f"index_t at[{count}];", "locate(table, i, at);"]
    parameters = ", ".join(_parameters(graph, in_dtypes, out_dtypes, strided))
    lines = [
        '#include "pointwise.cuh"',
        "",
        f"__global__ void {kernel_name(graph, strided)}({parameters}) {{",
        *[f"    {line}" for line in lowering.preamble],
        "    for (index_t i = global_thread(); i < count; i += global_threads()) {",
        *[f"        {line}" for line in body],
        "    }",
        "}",
        "",
    ]
    return "\n".join(lines)


def kernel_name(graph: Graph, strided: bool) -> str:
    """Return the name of a graph's kernel."""
    return f"{graph.name}_{'strided' if strided else 'flat'}_kernel"


def _parameters(
    graph: Graph, in_dtypes: tuple[DType, ...], out_dtypes: tuple[DType, ...], strided: bool
) -> list[str]:
    names = [f"{dtype.ctype}* out_{k}" for k, dtype in enumerate(out_dtypes)]
    names += [f"const {dtype.ctype}* in_{k}" for k, dtype in enumerate(in_dtypes)]
    names += [f"{_IMMEDIATES[kind][1]} number_{k}" for k, kind in enumerate(graph.immediates)]
    if strided:
        names.append(f"const Table<{len(in_dtypes) + len(out_dtypes)}> table")
    return [*names, "index_t count"]


def _place(pointer: str, ctype: str, position: int, strided: bool, constant: bool) -> str:
    if not strided:
        return f"{pointer}[i]"
    qualifier = "const " if constant else ""
    return f"*({qualifier}{ctype}*)(({qualifier}char*){pointer} + at[{position}])"


def _load(index: int, dtype: DType, position: int, strided: bool) -> str:
    text = _place(f"in_{index}", dtype.ctype, position, strided, True)
    if dtype in _HALVES:
        text = f"load({text})"
    kind = "bool" if dtype is _dtypes.bool_ else dtype.compute.name
    return f"const {kind} x{index} = {text};"


def _store(lowering: Lowering, index: int, dtype: DType, strided: bool) -> str:
    value = lowering.output(index, dtype.compute)
    if dtype in _HALVES:
        value = f"store<{dtype.ctype}>({value})"
    return f"{_place(f'out_{index}', dtype.ctype, index, strided, False)} = {value};"


@cache
def _kernel(
    graph: Graph, in_dtypes: tuple[DType, ...], out_dtypes: tuple[DType, ...], strided: bool
) -> Any:
    source = jit.expanded(cuda_source(graph, in_dtypes, out_dtypes, strided))
    return jit.compiled(source, kernel_name(graph, strided))


def elementwise_cuda(
    graph: Graph,
    in_dtypes: tuple[DType, ...],
    out_dtypes: tuple[DType, ...],
    outputs: Sequence[int],
    inputs: Sequence[int],
    immediates: Sequence[int | float],
    table: Any,
    count: int,
) -> None:
    """Run a fused kernel on the GPU.

    Parameters
    ----------
    graph, in_dtypes, out_dtypes
        As in `emit_numba.kernel_for`.
    outputs, inputs : sequence of int
        Device addresses.
    immediates : sequence of numbers
        As the graph names their kinds.
    table : array of int64, optional
        ``[ndim, sizes..., byte strides of each operand]``; None if all operands are dense spans in
        one order.
    count : int
        Number of elements, at least 1.
    """
    kernel = _kernel(graph, in_dtypes, out_dtypes, table is not None)
    args: list[Any] = [*outputs, *inputs, *immediates]
    if table is not None:
        args.append(_packed(table, len(outputs) + len(inputs)))
    kernel(*cover(count), (*args, count))


def _packed(table: Any, operands: int) -> Any:
    ndim = int(table[0])
    numbers = [int(number) for number in table]
    strides = [numbers[1 + ndim * k : 1 + ndim * (k + 1)] for k in range(1, operands + 1)]
    return table_argument(numbers[1 : 1 + ndim], strides)
