"""Fused graphs that several tests run: every function of the math table, and a chain of ten ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime.kernels import mathtable
from refruntime.kernels.emit_numba import kernel_for
from refruntime.kernels.scalar import Body, Call, Graph, GraphBuilder, Name

FLOAT_STEPS = (
    "def scaled(x, *, factor):\n    return x * factor",
    "def shifted(x, y):\n    return x + y",
    "def gate(x):\n    return sigmoid(x)",
    "def product(x, y):\n    return x * y",
    "def positive(x):\n    return x if x > 0 else 0.01 * x",
    "def curve(x):\n    return tanh(x) + exp(-x * x)",
    "def root(x):\n    return sqrt(abs(x) + 1)",
    "def difference(x, y):\n    return x - y",
    "def bounded(x, *, low, high):\n    return minimum(maximum(x, low), high)",
    "def quotient(x, y):\n    return x / (y * y + 1)",
)


def kernel_dtype(dtype: DType) -> DType:
    """Return the dtype whose kind decides which templates a step in `dtype` has."""
    return _dtypes.uint8 if dtype is _dtypes.bool_ else dtype


def functions_of(target: str, dtype: DType) -> list[str]:
    kind = kernel_dtype(dtype).kind
    return [name for name, f in mathtable.TABLE.items() if f.template(target, kind)]


def table_graph(names: list[str], compute: DType) -> Graph:
    """Return the graph that applies each function to (a, b, c) and stores each result."""
    builder = GraphBuilder()
    inputs = [builder.input() for _ in range(3)]
    outputs = []
    for name in names:
        count = len(mathtable.TABLE[name].takes)
        letters = tuple("abc"[:count])
        body = Body(f"use_{name}", letters, (), (), (Call(name, tuple(map(Name, letters))),))
        outputs.append(builder.apply(body, tuple(inputs[:count]), compute=compute))
    return builder.finish(*outputs)


def table_outputs(names: list[str], compute: DType) -> tuple[DType, ...]:
    return tuple(
        _dtypes.bool_ if mathtable.TABLE[name].gives == "b" else compute for name in names
    )


def ten_ops(compute: DType) -> tuple[Graph, list[Graph]]:
    """Return ten ops fused into one graph, and the same ops one by one.

    Inputs are x and y, immediates factor, low and high; step `k` alone takes the result of step
    ``k - 1`` as first operand, and y as second one where it has two.
    """
    bodies = [Body.from_source(source) for source in FLOAT_STEPS]
    builder = GraphBuilder()
    value, y = builder.input(), builder.input()
    numbers = [builder.immediate() for _ in range(3)]
    singles = []
    for body in bodies:
        taken, numbers = numbers[: len(body.immediates)], numbers[len(body.immediates) :]
        operands = (value, y)[: len(body.operands)]
        value = builder.apply(body, operands, tuple(taken), compute=compute)
        singles.append(_alone(body, compute))
    return builder.finish(value), singles


def _alone(body: Body, compute: DType) -> Graph:
    builder = GraphBuilder()
    operands = tuple(builder.input() for _ in body.operands)
    numbers = tuple(builder.immediate() for _ in body.immediates)
    return builder.finish(builder.apply(body, operands, numbers, compute=compute))


NUMBERS = (1.25, -0.5, 0.9)


def run_one_by_one(singles: list[Graph], x: np.ndarray, y: np.ndarray, dtype: DType) -> np.ndarray:
    """Run the ten ops as ten kernels."""
    numbers = list(NUMBERS)
    value = x
    for graph in singles:
        taken, numbers = numbers[: len(graph.immediates)], numbers[len(graph.immediates) :]
        value = run_flat(graph, [value, y][: graph.inputs], (dtype,), taken)[0]
    return value


def run_flat(
    graph: Graph, arrays: list[np.ndarray], outputs: tuple[DType, ...], numbers: Any = ()
) -> list[np.ndarray]:
    """Run a graph's Numba kernel over contiguous arrays."""
    ins = tuple(dtype_of(array) for array in arrays)
    results = [np.zeros(arrays[0].shape, dtype.np) for dtype in outputs]
    addresses = [array.ctypes.data for array in (*results, *arrays)]
    kernel_for(graph, ins, outputs).flat(*addresses, *numbers, 0, arrays[0].size)
    return results


def dtype_of(array: np.ndarray) -> DType:
    return _dtypes.from_numpy_dtype(array.dtype)
