"""Launching pointwise kernels: a compiled loop bound to one combination of layouts.

State
-----
None: what `bind_cpu` returns is kept by the op's plans.

Invariants
----------
* A bound launch takes tensors whose metas are the ones it was bound to; it reads only addresses
  and numbers, so that it costs little more than the loop.
* A launch of the small, `_direct`, is generated for the kinds of its operands, once.
* Numbers in operand places come first among the immediates, then the keyword parameters, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta
from refruntime._layout import collapse
from refruntime.config import config
from refruntime.kernels.emit_numba import kernel_for
from refruntime.kernels.launch import parallel_for, raise_status
from refruntime.kernels.scalar import Body, Graph, single

Launch = Callable[[TensorImpl, tuple[Any, ...], dict[str, Any]], None]
Strides = list[tuple[int, ...]]


def bind_cpu(
    name: str,
    body: Body,
    compute: DType,
    out: TensorMeta,
    operands: tuple[Any, ...],
    strides: Strides | None,
    params: dict[str, Any],
) -> Launch:
    """Bind the CPU kernel of a body to metas.

    Parameters
    ----------
    name : str
        The op, for messages.
    body : Body
        The scalar function.
    compute : DType
        The dtype in which it is computed.
    out : TensorMeta
        The meta of the result.
    operands : tuple of TensorMeta or number
        The operands.
    strides : list of strides, optional
        One entry for the result and each tensor operand, in elements, broadcast to the shape of the
        result; None if all of them are one dense span in the same order.
    params : dict
        The keyword parameters; only their kinds matter here.
    """
    if out.numel == 0:
        return _nothing
    metas = [value for value in operands if isinstance(value, TensorMeta)]
    graph = graph_of(body, compute, operands, params)
    kernel = kernel_for(graph, tuple(meta.dtype for meta in metas), (out.dtype,))
    table = None
    if strides is None:
        entry = kernel.flat
    else:
        table = stride_table(out, metas, strides)
        entry = kernel.for_table(table.tolist())
    return _Bound(name, entry, table, out.numel, graph, operands).best()


def graph_of(
    body: Body, compute: DType, operands: tuple[Any, ...], params: dict[str, Any]
) -> Graph:
    """Return the one-step graph of a body over tensors and numbers."""
    number = "f" if compute.is_floating_point else "i"
    kinds = "".join("a" if isinstance(value, TensorMeta) else number for value in operands)
    immediates = "".join("f" if isinstance(params[k], float) else "i" for k in body.immediates)
    return single(body, compute, kinds, immediates)


def stride_table(out: TensorMeta, metas: list[TensorMeta], strides: Strides) -> Any:
    """Return the int64 table of a strided loop: rank, extents, byte strides an operand."""
    shape, merged = collapse(out.shape, strides, reorder=True)
    itemsizes = [out.dtype.itemsize, *[meta.dtype.itemsize for meta in metas]]
    rows = [len(shape), *shape]
    for one, itemsize in zip(merged, itemsizes, strict=True):
        rows += [stride * itemsize for stride in one]
    return np.array(rows, dtype=np.int64)


def _nothing(out: TensorImpl, inputs: tuple[Any, ...], params: dict[str, Any]) -> None:
    """Launch nothing: there is no element."""


class _Bound:
    """A kernel, its table and its range; `best` gives the cheapest callable for them."""

    def __init__(
        self, name: str, entry: Any, table: Any, total: int, graph: Graph,
        operands: tuple[Any, ...],
    ) -> None:  # fmt: skip
        self.name = name
        self.kernel = entry
        self.table = table
        self.leading = () if table is None else (table.ctypes.data,)
        self.total = total
        self.tensors = [i for i, v in enumerate(operands) if isinstance(v, TensorMeta)]
        self.numbers = [i for i, v in enumerate(operands) if not isinstance(v, TensorMeta)]
        self.casts = [float if kind == "f" else int for kind in graph.immediates]
        self.scalars = graph.steps[0].body.immediates

    def best(self) -> Launch:
        """Return the launch without any work that this combination does not need."""
        if self.total > config.parallel_grain:
            return self.launch
        self.kernel.compile()
        roles = ["t" if i in self.tensors else "n" for i in range(len(self.tensors + self.numbers))]
        make = _direct("".join(roles), tuple(self.casts), tuple(self.scalars), bool(self.leading))
        address = self.leading[0] if self.leading else 0
        launch: Launch = make(self.kernel.entry, address, self.total, self.name)
        launch.table = self.table  # type: ignore[attr-defined]  # the address lives as long as it
        return launch

    def launch(self, out: TensorImpl, inputs: tuple[Any, ...], params: dict[str, Any]) -> None:
        """Run the kernel, on several threads if the range is long."""
        args = [*self.leading, out.storage.ptr + out.byte_offset]
        for position in self.tensors:
            tensor = inputs[position]
            args.append(tensor.storage.ptr + tensor.byte_offset)
        numbers = [inputs[position] for position in self.numbers]
        numbers += [params[name] for name in self.scalars]
        args += [cast(value) for cast, value in zip(self.casts, numbers, strict=True)]
        status = parallel_for(self.kernel.entry, self.total, config.parallel_grain, *args)
        if status:
            raise_status(self.name, status)


@cache
def _direct(roles: str, casts: tuple[type, ...], scalars: tuple[str, ...], table: bool) -> Any:
    """Return a maker of launches on one thread that pass their arguments without any list.

    Parameters
    ----------
    roles : str
        For each operand ``t`` (tensor) or ``n`` (number).
    casts : tuple of type
        For each number, then each keyword parameter, the type that the kernel takes.
    scalars : tuple of str
        The keyword parameters.
    table : bool
        Whether the kernel reads a stride table.
    """
    names = [f"x{i}" for i in range(len(roles))]
    tensors = [name for name, role in zip(names, roles, strict=True) if role == "t"]
    numbers = [name for name, role in zip(names, roles, strict=True) if role == "n"]
    numbers += [f"params[{name!r}]" for name in scalars]
    arguments = ["table"] if table else []
    arguments += [f"{name}.storage.ptr + {name}.byte_offset" for name in ("out", *tensors)]
    arguments += [f"{cast.__name__}({v})" for cast, v in zip(casts, numbers, strict=True)]
    source = f"""
def make(entry, table, total, name):
    def launch(out, inputs, params):
        {", ".join(names)}, = inputs
        status = entry({", ".join(arguments)}, 0, total)
        if status:
            raise_status(name, status)
    return launch
"""
    namespace: dict[str, Any] = {"raise_status": raise_status}
    exec(source, namespace)
    return namespace["make"]


def bind_cuda(
    name: str, body: Body, compute: DType, out: TensorMeta, operands: tuple[Any, ...],
    strides: Strides | None, params: dict[str, Any],
) -> Launch:  # fmt: skip
    """Bind the GPU kernel of a body to metas; parameters as in `bind_cpu`."""
    from refruntime.kernels.emit_cuda import elementwise_cuda

    if out.numel == 0:
        return _nothing
    metas = [value for value in operands if isinstance(value, TensorMeta)]
    graph = graph_of(body, compute, operands, params)
    table = None if strides is None else stride_table(out, metas, strides)
    bound = _Bound(name, None, table, out.numel, graph, operands)
    dtypes = tuple(meta.dtype for meta in metas)

    def launch(target: TensorImpl, inputs: tuple[Any, ...], params: dict[str, Any]) -> None:
        addresses = [inputs[position].address() for position in bound.tensors]
        numbers = [inputs[position] for position in bound.numbers]
        numbers += [params[name] for name in bound.scalars]
        immediates = [cast(value) for cast, value in zip(bound.casts, numbers, strict=True)]
        elementwise_cuda(
            graph, dtypes, (out.dtype,), [target.address()], addresses, immediates, table, out.numel
        )

    return launch
