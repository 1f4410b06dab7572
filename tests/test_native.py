"""Native kernels: compiled once, cached on disk, exact at the edges of the half types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import native_kernels as kernels
import numpy as np
import pytest

from refruntime._native import compile_log, generated_module
from refruntime.config import config

HERE = Path(__file__).parent


def run(kernel, out, *arrays):
    kernel(out.ctypes.data, *[a.ctypes.data for a in arrays], out.size)
    return out


def test_kernel_compiles_at_the_first_call_and_then_skips_dispatch():
    a = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(run(kernels.add, np.empty_like(a), a, a), 2 * a)
    assert kernels.add.compiled
    assert any(event.name == "add" for event in compile_log)


def test_device_function_is_compiled_into_the_kernel_and_callable_from_python():
    a = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(run(kernels.doubled, np.empty_like(a), a), 2 * a)
    assert kernels.double(3) == 6


def test_every_float16_widens_exactly():
    codes = np.arange(1 << 16, dtype=np.uint16)
    got = run(kernels.widen_f16, np.empty(codes.size, np.float32), codes)
    np.testing.assert_array_equal(got, codes.view(np.float16).astype(np.float32))


def test_every_bfloat16_widens_exactly():
    codes = np.arange(1 << 16, dtype=np.uint16)
    got = run(kernels.widen_bf16, np.empty(codes.size, np.float32), codes)
    np.testing.assert_array_equal(got, codes.view(ml_dtypes.bfloat16).astype(np.float32))


def _hard_floats():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    # Midpoints between neighbouring halves are where rounding goes wrong.
    finite = halves[np.isfinite(halves)]
    midpoints = (np.sort(finite)[1:].astype(np.float64) + np.sort(finite)[:-1]) / 2
    return np.concatenate([codes, halves, midpoints.astype(np.float32)])


@pytest.mark.parametrize(
    ("kernel", "dtype"), [(kernels.round_f16, np.float16), (kernels.round_bf16, ml_dtypes.bfloat16)]
)
def test_rounding_to_half_is_to_nearest_even(kernel, dtype):
    values = _hard_floats()
    got = run(kernel, np.empty(values.size, np.uint16), values).view(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        want = values.astype(dtype)
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan].view(np.uint16), want[~nan].view(np.uint16))


@pytest.mark.parametrize("name", ["add", "doubled", "widen_f16", "round_f16", "bits"])
def test_plain_python_twin_agrees(name):
    rng = np.random.default_rng(1)
    kernel = getattr(kernels, name)
    source = rng.standard_normal(16).astype(np.float32)
    if name == "widen_f16":
        source = source.astype(np.float16).view(np.uint16)
    dtype = {"round_f16": np.uint16, "bits": np.uint32}.get(name, np.float32)
    inputs = [source, source] if name == "add" else [source]
    compiled, plain = np.empty(16, dtype), np.empty(16, dtype)
    run(kernel, compiled, *inputs)
    run(kernel.py_func, plain, *inputs)
    np.testing.assert_array_equal(compiled, plain)


def test_machine_code_is_loaded_by_a_second_process(tmp_path):
    program = (
        "import numpy as np, native_kernels as k; from refruntime._native import compile_log\n"
        "a = np.arange(8, dtype=np.float32); o = np.empty_like(a)\n"
        "k.doubled(o.ctypes.data, a.ctypes.data, 8); assert (o == 2 * a).all()\n"
        "print(compile_log[-1].cached)"
    )
    env = {
        **os.environ,
        "REFRUNTIME_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=HERE, env=env, capture_output=True, text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]  # fmt: skip
    assert outputs == ["False", "True"]


def test_generated_module_is_one_file_a_content():
    first = generated_module("VALUE = 41\n", "probe")
    again = generated_module("VALUE = 41\n", "probe")
    other = generated_module("VALUE = 42\n", "probe")
    assert first is again and other is not first and (first.VALUE, other.VALUE) == (41, 42)
    assert Path(first.__file__).is_relative_to(config.cache_dir)


def test_device_function_is_compiled_once_for_all_constants():
    assert kernels.plus_three_constants(4) == 10
    assert len(kernels.plus.resolve().overloads) == 1
