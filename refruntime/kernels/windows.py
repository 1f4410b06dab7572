"""Fused pointwise kernels with several results, over equal windows of their operands.

A cell of a recurrent network reads four gates that lie side by side in the rows of one tensor, and
writes two results: one loop does it, without a tensor a gate.

State
-----
A `WindowKernel` keeps a launch for each combination of metas it has met.

Invariants
----------
* A tensor with n windows is cut into n equal parts along its last dimension; all windows of all
  operands have one shape.
* The loop is the generated one of pointwise ops (`emit_numba`, `emit_cuda`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from refruntime._impl import TensorImpl, TensorMeta
from refruntime._layout import collapse
from refruntime.config import config
from refruntime.kernels.emit_numba import inner_pattern, kernel_for
from refruntime.kernels.launch import parallel_for
from refruntime.kernels.scalar import Body, single

Launch = Callable[[Sequence[TensorImpl]], None]
_MAX_PLANS = 1024


class WindowKernel:
    """A body over windows.

    Parameters
    ----------
    func : callable
        The scalar body: an operand for each window of each input, a result for each of the outputs.
    outputs, inputs : tuple of int
        How many windows each tensor has.
    """

    def __init__(
        self, func: Callable[..., Any], outputs: tuple[int, ...], inputs: tuple[int, ...]
    ) -> None:
        self._func = func
        self.outputs = outputs
        self.inputs = inputs
        self._plans: dict[Any, Launch] = {}

    @cached_property
    def body(self) -> Body:
        """The parsed body."""
        return Body.parse(self._func)

    def run(self, *tensors: TensorImpl) -> None:
        """Compute; the outputs come first."""
        key = tuple([tensor.meta for tensor in tensors])
        launch = self._plans.get(key)
        if launch is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            launch = self._plans[key] = self._bind(key)
        launch(tensors)

    def _bind(self, metas: tuple[TensorMeta, ...]) -> Launch:
        windows = [
            (position, part * meta.shape[-1] // count * meta.strides[-1] * meta.dtype.itemsize)
            for position, (meta, count) in enumerate(
                zip(metas, (*self.outputs, *self.inputs), strict=True)
            )
            for part in range(count)
        ]
        results = sum(self.outputs)
        dtypes = [metas[position].dtype for position, _ in windows]
        shape = (*metas[0].shape[:-1], metas[0].shape[-1] // self.outputs[0])
        total = int(np.prod(shape, dtype=np.int64))
        if total == 0:
            return lambda tensors: None
        table = _table(shape, [metas[position] for position, _ in windows])
        graph = single(self.body, dtypes[0], "a" * (len(windows) - results))
        outs, ins = tuple(dtypes[:results]), tuple(dtypes[results:])
        if metas[0].device.type != "cpu":
            return _gpu_launch(graph, ins, outs, windows, table, total)
        # A cell runs at every step: the variant for its strides is worth compiling.
        pattern = inner_pattern(table.tolist(), [dtype.itemsize for dtype in dtypes])
        kernel = kernel_for(graph, ins, outs).variant(pattern)
        kernel.compile()
        entry, grain, leading = kernel.entry, config.parallel_grain, table.ctypes.data

        def launch(tensors: Sequence[TensorImpl]) -> None:
            starts = [tensor.storage.ptr + tensor.byte_offset for tensor in tensors]
            args = [starts[position] + offset for position, offset in windows]
            parallel_for(entry, total, grain, leading, *args)

        # The table must live as long as the launch that has its address.
        launch.table = table  # type: ignore[attr-defined]
        return launch


def _table(shape: tuple[int, ...], metas: Sequence[TensorMeta]) -> Any:
    """Return the stride table of the loop: rank, extents, byte strides an operand."""
    merged_shape, merged = collapse(shape, [meta.strides for meta in metas], reorder=True)
    rows = [len(merged_shape), *merged_shape]
    for strides, meta in zip(merged, metas, strict=True):
        rows += [stride * meta.dtype.itemsize for stride in strides]
    return np.array(rows, dtype=np.int64)


def _gpu_launch(
    graph: Any, ins: Any, outs: Any, windows: list[tuple[int, int]], table: Any, total: int
) -> Launch:
    from refruntime.kernels.emit_cuda import elementwise_cuda

    results = len(outs)

    def launch(tensors: Sequence[TensorImpl]) -> None:
        places = [tensors[position].address() + offset for position, offset in windows]
        elementwise_cuda(graph, ins, outs, places[:results], places[results:], (), table, total)

    return launch
