"""Generated CUDA kernels: compiled by NVRTC, and run as host C++ against the Numba kernels."""

from __future__ import annotations

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime.kernels import cuda_instances
from refruntime.kernels.emit_cuda import cuda_source, elementwise_cuda, kernel_name
from refruntime.kernels.scalar import Body, single
from tests.kernels.cuda_host import harness, offline_nvrtc
from tests.kernels.cuda_host.harness import Out, run, strides_of, table
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
from tests.kernels.test_cuda_compile import needs_nvrtc

ADD = Body.from_source("def add(x, y):\n    return x + y")
COMPUTE = [_dtypes.float32, _dtypes.float64, _dtypes.int32, _dtypes.int64, _dtypes.uint8,
           _dtypes.bool_]  # fmt: skip


@pytest.fixture
def on_host(request):
    """``on_host(graph, ins, outs, strided)``: the generated kernel, built for this machine."""
    folder = request.config.cache.mkdir("cuda_host")

    def build(graph, ins, outs, strided=False):
        text = cuda_instances.expand(cuda_source(graph, ins, outs, strided))
        name = kernel_name(graph, strided)
        return harness.HostModule(harness.build_text(graph.name, text, (name,), folder)), name

    return build


def values(compute, rng, count=200):
    if compute is _dtypes.bool_:
        return [rng.integers(0, 2, count).astype(bool) for _ in range(3)]
    if compute.is_floating_point:
        special = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan]
        made = [np.concatenate([rng.uniform(-3, 3, count), special]) for _ in range(3)]
        return [rng.permutation(a).astype(compute.np) for a in made]
    low = -9 if compute.is_signed else 0
    return [rng.integers(low, 9, count).astype(compute.np) for _ in range(3)]


@pytest.mark.parametrize("compute", COMPUTE, ids=lambda d: d.name)
def test_every_function_gives_what_the_numba_kernel_gives(on_host, rng, compute):
    names = functions_of("cuda", compute)
    arrays = values(compute, rng)
    graph, outs = table_graph(names, compute), table_outputs(names, compute)
    module, name = on_host(graph, tuple(map(dtype_of, arrays)), outs)
    args = [*[Out(arrays[0].shape, d.np) for d in outs], *arrays, arrays[0].size]
    got = run(module, name, (2,), (32,), args)
    expected = run_flat(graph, arrays, outs)
    # Libraries differ in the last digits; lgamma and zeta near their zeros and poles in more.
    tolerance = 3e-5 if compute is _dtypes.float32 else 1e-9
    for function, a, b in zip(names, got, expected, strict=False):
        np.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=function)


def test_both_targets_have_the_same_functions():
    for compute in COMPUTE:
        assert functions_of("cuda", compute) == functions_of("cpu", compute)


@needs_nvrtc
@pytest.mark.parametrize("architecture", offline_nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("compute", COMPUTE, ids=lambda d: d.name)
def test_every_function_compiles(compute, architecture):
    names = functions_of("cuda", compute)
    graph, outs = table_graph(names, compute), table_outputs(names, compute)
    text = cuda_instances.expand(cuda_source(graph, (compute,) * 3, outs, True))
    name = kernel_name(graph, True)
    lowered, cubin, _ = offline_nvrtc.compile_text(
        text, (name,), architecture, offline_nvrtc.QUICK
    )
    assert lowered[name].encode() in cubin


@pytest.mark.parametrize("dtype", [_dtypes.float32, _dtypes.float64], ids=lambda d: d.name)
def test_ten_fused_ops_equal_the_ops_one_by_one(on_host, rng, dtype):
    graph, singles = ten_ops(dtype)
    x, y = (rng.uniform(-2, 2, 1000).astype(dtype.np) for _ in range(2))
    module, name = on_host(graph, (dtype, dtype), (dtype,))
    got = run(module, name, (3,), (64,), [Out(x.shape, dtype.np), x, y, *NUMBERS, x.size])[0]
    expected = run_one_by_one(singles, x, y, dtype)
    np.testing.assert_allclose(got, expected, 2e-6 if dtype is _dtypes.float32 else 1e-14, 1e-7)


@needs_nvrtc
@pytest.mark.parametrize("architecture", offline_nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("dtype", [_dtypes.float16, _dtypes.bfloat16, _dtypes.float32],
                         ids=lambda d: d.name)  # fmt: skip
def test_ten_fused_ops_compile_in_every_storage_type(dtype, architecture):
    graph, _ = ten_ops(dtype)
    text = cuda_instances.expand(cuda_source(graph, (dtype, dtype), (dtype,), False))
    name = kernel_name(graph, False)
    _, cubin, _ = offline_nvrtc.compile_text(text, (name,), architecture, offline_nvrtc.QUICK)
    assert name.encode() in cubin


def test_strided_kernel_follows_byte_strides(on_host, rng):
    x = rng.uniform(-1, 1, (4, 6)).astype(np.float32)
    y = rng.uniform(-1, 1, 4)
    view, spread = x.T[::2], np.broadcast_to(y, (3, 4))
    graph = single(ADD, _dtypes.float64, "aa")
    ins = (_dtypes.float32, _dtypes.float64)
    module, name = on_host(graph, ins, (_dtypes.float64,), True)
    out = np.zeros((3, 4))
    space = table((3, 4), out.strides, view.strides, spread.strides)
    module.launch(
        name, (1,), (5,), [out.ctypes.data, view.ctypes.data, y.ctypes.data, space.array, 12]
    )
    np.testing.assert_array_equal(out, view + spread)
    assert strides_of(view) == (2, 6)


@pytest.mark.parametrize("strided", [False, True])
def test_launch_passes_addresses_numbers_and_table(on_host, rng, monkeypatch, strided):
    body = Body.from_source("def mix(x, y, *, weight):\n    return x + weight * y")
    graph = single(body, _dtypes.float32, "ai", "f")
    ins, outs = (_dtypes.float32,), (_dtypes.float32,)
    module, name = on_host(graph, ins, outs, strided)
    from refruntime.kernels import jit

    def compiled(source, wanted):
        assert wanted == name
        return lambda grid, block, args: module.launch(wanted, grid, block, args)

    monkeypatch.setattr(jit, "compiled", compiled)
    x = rng.uniform(-1, 1, 8).astype(np.float32)
    source = x[::2] if strided else x[:4]
    out = np.zeros(4, np.float32)
    layout = np.array([1, 4, 4, source.strides[0]]) if strided else None
    elementwise_cuda(
        graph, ins, outs, [out.ctypes.data], [source.ctypes.data], [3, 0.5], layout, 4
    )
    np.testing.assert_allclose(out, source + np.float32(1.5), rtol=1e-6)
