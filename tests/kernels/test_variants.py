"""Templates: one body, many dtypes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._native import compile_log, device_function
from refruntime.config import config
from refruntime.errors import ArgumentTypeError, KernelMissingError
from refruntime.kernels.variants import (
    ACC,
    Placeholder,
    T,
    device_template,
    load_T,
    ptr_T,
    store_T,
    template,
)

merge: Any = Placeholder("merge")


@device_function
def plus(a, b):
    return a + b


@device_function
def larger(a, b):
    return b if b > a else a


@device_template
def widened(p, i):
    return ACC(load_T(p, i))


@template("void(int64, int64, int64, int64, int64)")
def fold_rows(out, x, columns, start, stop):
    o = ptr_T(out)
    p = ptr_T(x)
    for row in range(start, stop):
        total = widened(p, row * columns)
        for j in range(1, columns):
            total = merge(total, widened(p, row * columns + j))
        store_T(o, row, total)


@template("{T}({T}, int64)")
def shifted(value, by):
    return T(value + T(by))


def fold(x, dtype, operation):
    out = np.zeros(x.shape[0], x.dtype)
    kernel = fold_rows.for_dtypes(T=dtype, ACC=dtype.compute, merge=operation)
    kernel(out.ctypes.data, x.ctypes.data, x.shape[1], 0, x.shape[0])
    return out


DTYPES = [
    _dtypes.bool_, _dtypes.uint8, _dtypes.int8, _dtypes.int16, _dtypes.int32, _dtypes.int64,
    _dtypes.float16, _dtypes.bfloat16, _dtypes.float32, _dtypes.float64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_one_body_serves_every_dtype(dtype):
    x = np.array([[1, 3, 2], [0, 0, 1], [5, 4, 6]]).astype(dtype.np)
    np.testing.assert_array_equal(fold(x, dtype, larger), x.max(axis=1))


def test_half_types_accumulate_in_float32():
    # In float16 itself, 2048 + 1 is 2048 again.
    x = np.array([[2048, 1, 1, 1, 1]], np.float16)
    assert fold(x, _dtypes.float16, plus)[0] == np.float16(2052)


def test_same_bindings_give_the_same_kernel():
    first = fold_rows.for_dtypes(T=_dtypes.int32, ACC=_dtypes.int64, merge=plus)
    assert fold_rows.for_dtypes(merge=plus, ACC=_dtypes.int64, T=_dtypes.int32) is first


def test_signature_takes_a_scalar_of_the_element_type():
    assert shifted.for_dtypes(T=_dtypes.int8)(127, 1) == -128
    assert shifted.for_dtypes(T=_dtypes.float64)(0.5, 1) == 1.5


def test_unbound_placeholder_names_itself():
    with pytest.raises(ArgumentTypeError, match="merge"):
        merge(1, 2)


def test_complex_dtype_is_refused():
    with pytest.raises(KernelMissingError, match="complex64"):
        shifted.for_dtypes(T=_dtypes.complex64)


def test_variants_run_as_plain_python_in_pure_mode():
    with config.patch(pure=True):
        x = np.array([[1.0, 3.0, 2.0]], np.float32)
        kernel = template("void(int64, int64, int64, int64, int64)")(fold_rows.py_func)
        out = np.zeros(1, np.float32)
        bound = kernel.for_dtypes(T=_dtypes.float32, ACC=_dtypes.float32, merge=plus)
        bound(out.ctypes.data, x.ctypes.data, 3, 0, 1)
    assert out[0] == 6.0


def test_variants_load_from_the_disk_cache_in_a_second_process():
    fold(np.ones((1, 2), np.float32), _dtypes.float32, plus)
    program = """
import numpy as np
from refruntime import _dtypes
from refruntime._native import compile_log
import test_variants as t
print(t.fold(np.array([[2, 3]], np.float32), _dtypes.float32, t.plus)[0], compile_log[-1].cached)
"""
    here = Path(__file__)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(here.parent), *filter(None, sys.path)])
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
    assert run.stdout.split() == ["5.0", "True"]
    assert compile_log
