"""Generated numba.cuda kernels in numba's CUDA simulator, against the Numba kernels of the CPU.

The simulator replaces numba.cuda when it is first imported, so the tests that run kernels need a
process of their own: ``NUMBA_ENABLE_CUDASIM=1 pytest -m sim``.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime.errors import DTypeError, KernelMissingError
from refruntime.kernels.emit_device import device_kernel, device_source
from refruntime.kernels.scalar import Body, single
from tests.kernels.graphs import (
    NUMBERS,
    dtype_of,
    functions_of,
    run_flat,
    run_one_by_one,
    table_graph,
    table_outputs,
    ten_ops,
)

simulated = pytest.mark.skipif(
    os.environ.get("NUMBA_ENABLE_CUDASIM") != "1", reason="needs NUMBA_ENABLE_CUDASIM=1"
)


@pytest.mark.sim
@simulated
def test_ten_fused_ops_equal_the_ops_one_by_one():
    graph, singles = ten_ops(_dtypes.float32)
    rng = np.random.default_rng(5)
    x, y = (rng.uniform(-2, 2, 37).astype(np.float32) for _ in range(2))
    out = np.zeros_like(x)
    kernel = device_kernel(graph, (_dtypes.float32,) * 2, (_dtypes.float32,))
    kernel[2, 8](out, x, y, *NUMBERS, 37)
    expected = run_one_by_one(singles, x, y, _dtypes.float32)
    np.testing.assert_allclose(out, expected, 1e-5, 1e-6)


@pytest.mark.sim
@simulated
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [_dtypes.float32, _dtypes.int32], ids=lambda d: d.name)
def test_every_function_gives_what_the_cpu_kernel_gives(dtype):
    names = functions_of("device", dtype)
    rng = np.random.default_rng(6)
    # Python's math refuses arguments outside a domain, so all lie in the one that all share.
    low, high = (0.1, 0.9) if dtype is _dtypes.float32 else (1, 5)
    arrays = [rng.uniform(low, high, 9).astype(dtype.np) for _ in range(3)]
    names = [name for name in names if name != "acosh"]
    graph, outs = table_graph(names, dtype), table_outputs(names, dtype)
    results = [np.zeros(9, d.np) for d in outs]
    device_kernel(graph, tuple(map(dtype_of, arrays)), outs)[1, 4](*results, *arrays, 9)
    for name, got, expected in zip(names, results, run_flat(graph, arrays, outs), strict=True):
        np.testing.assert_allclose(got, expected, 1e-5, 1e-6, err_msg=name)


def test_the_source_reads_as_a_kernel():
    body = Body.from_source("def relu(x):\n    return x if x > 0 else 0")
    source = device_source(single(body, _dtypes.float16, "a"), (_dtypes.float16,), (_dtypes.bool_,))
    assert "@cuda.jit\ndef relu_device(out_0, in_0, count):" in source
    assert "x0 = float32(in_0[i])" in source
    assert "r = x0 if t else float32(0.0)" in source
    assert "out_0[i] = r != float32(0.0)" in source


def test_what_python_math_has_not_is_refused():
    body = Body.from_source("def f(x):\n    return digamma(x)")
    graph = single(body, _dtypes.float32, "a")
    with pytest.raises(DTypeError, match="digamma"):
        device_source(graph, (_dtypes.float32,), (_dtypes.float32,))
    with pytest.raises(KernelMissingError, match="bfloat16"):
        device_source(graph, (_dtypes.bfloat16,), (_dtypes.float32,))
