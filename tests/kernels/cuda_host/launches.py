"""Running launch functions without a card: the kernels built for the host answer `launch.raw`.

State: none. Invariants: a launch is checked as CuPy would see it: the instance is in the table,
arguments match the kernel's parameters in number, kind and size, and grid, block and shared memory
are what a card accepts. Tensors stay CPU tensors, so their addresses are real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refruntime._dtypes import DType, from_numpy_dtype
from refruntime._impl import TensorImpl, from_array
from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.harness import HostModule


@dataclass
class Router:
    """Stands in for `launch.raw`; remembers the expressions that were launched."""

    host: Callable[[str], HostModule]
    launched: list[str] = field(default_factory=list)

    def __call__(
        self,
        file: str,
        kernel: str,
        template_args: Sequence[str],
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared: int = 0,
    ) -> None:
        expression = cuda_instances.require(file, kernel, template_args)
        assert all(type(n) is int and n > 0 for n in (*grid, *block)), (expression, grid, block)
        self.launched.append(expression)
        self.host(file).launch(expression, grid, block, args, shared)


def tensor(array: np.ndarray, layout: str = "contiguous") -> TensorImpl:
    """A tensor with the array's elements, in memory of the given layout."""
    if layout == "transposed" and array.ndim > 1:
        array = np.ascontiguousarray(array.T).T
    elif layout == "strided" and array.ndim:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        array = wide[..., ::2]
    elif layout == "contiguous":
        array = np.ascontiguousarray(array).reshape(array.shape)
    return from_array(array, from_numpy_dtype(array.dtype))


def filled(shape: Iterable[int], dtype: DType, layout: str = "contiguous") -> TensorImpl:
    """A tensor full of one odd byte, for a kernel to overwrite."""
    shape = tuple(shape)
    count = int(np.prod(shape, dtype=np.int64))
    stale = np.full(max(count, 1) * dtype.itemsize, 0x5A, np.uint8)[: count * dtype.itemsize]
    out = tensor(stale.view(dtype.np).reshape(shape), layout)
    assert isinstance(out, TensorImpl)
    return out


def assert_same(got: TensorImpl, expected: TensorImpl, tolerance: float) -> None:
    """Equal for integers and bool, near for floating types; NaN equals NaN."""
    a, b = got.array(), expected.array()
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    if a.dtype.kind in "iub":
        np.testing.assert_array_equal(a, b)
    elif a.dtype.kind == "c":
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=tolerance, atol=tolerance
        )
