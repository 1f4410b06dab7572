"""Generated CPU kernels: every entry, storage dtype, layout and aliasing, against NumPy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refruntime import _dtypes
from refruntime._dtypes import ALL_DTYPES
from refruntime.config import config
from refruntime.errors import KernelMissingError
from refruntime.kernels.emit_numba import PointwiseKernel, flat_source, inner_pattern, kernel_for
from refruntime.kernels.launch import DIVISION_BY_ZERO
from refruntime.kernels.scalar import Body, GraphBuilder, single
from tests.kernels.graphs import NUMBERS, run_flat, run_one_by_one, ten_ops

F32, F64 = _dtypes.float32, _dtypes.float64
ADD = Body.from_source("def add(x, y):\n    return x + y")
SCALED = Body.from_source("def scaled(x, y, *, alpha):\n    return x + alpha * y")
REAL = [dtype for dtype in ALL_DTYPES if not dtype.is_complex]


def table_of(out, *operands):
    """Return the stride table of arrays of one shape, dimensions unmerged."""
    rows = [out.ndim, *out.shape, *out.strides]
    for operand in operands:
        rows += operand.strides
    return np.array(rows, np.int64)


def run_strided(kernel, out, *operands, numbers=(), start=0, stop=None):
    table = table_of(out, *operands)
    addresses = [array.ctypes.data for array in (table, out, *operands)]
    kernel(*addresses, *numbers, start, out.size if stop is None else stop)
    return out


@pytest.mark.parametrize("dtype", [F32, F64], ids=lambda d: d.name)
def test_ten_fused_ops_equal_the_ops_one_by_one(dtype):
    graph, singles = ten_ops(dtype)
    rng = np.random.default_rng(5)
    x, y = (rng.uniform(-2, 2, 1003).astype(dtype.np) for _ in range(2))
    (fused,) = run_flat(graph, [x, y], (dtype,), NUMBERS)
    expected = run_one_by_one(singles, x, y, dtype)
    np.testing.assert_allclose(fused, expected, 20 * np.finfo(dtype.np).eps, 1e-7)


@pytest.mark.parametrize("dtype", REAL, ids=lambda d: d.name)
def test_every_storage_dtype_adds(dtype):
    x = np.array([0, 1, 1, 0, 1]).astype(dtype.np)
    y = np.array([1, 1, 0, 0, 1]).astype(dtype.np)
    out = np.zeros(5, dtype.np)
    kernel = kernel_for(single(ADD, dtype, "aa"), (dtype, dtype), (dtype,))
    kernel.flat(out.ctypes.data, x.ctypes.data, y.ctypes.data, 0, 5)
    np.testing.assert_array_equal(out, x | y if dtype is _dtypes.bool_ else x + y)


@pytest.mark.parametrize("dtype", [_dtypes.int8, _dtypes.uint8, _dtypes.int16, _dtypes.int32],
                         ids=lambda d: d.name)  # fmt: skip
def test_narrow_integers_wrap_inside_a_body(dtype):
    top = np.iinfo(dtype.np).max
    x, y = np.array([top], dtype.np), np.array([1], dtype.np)
    body = Body.from_source("def f(x, y):\n    return 1 if x + y < x else 0")
    assert run_flat(single(body, dtype, "aa"), [x, y], (dtype,))[0][0] == 1


def test_mixed_dtypes_convert_at_load_and_store():
    x, y = np.array([1.5, -2.5], np.float32), np.array([3, 4], np.int16)
    (out,) = run_flat(single(ADD, F64, "aa"), [x, y], (_dtypes.int32,))
    np.testing.assert_array_equal(out, [4, 1])


def test_numbers_keep_their_precision():
    graph = single(ADD, _dtypes.int64, "ai")
    x = np.array([1], np.int64)
    assert run_flat(graph, [x], (_dtypes.int64,), [2**60])[0][0] == 2**60 + 1


def test_result_may_be_written_over_an_operand():
    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    kernel = kernel_for(single(ADD, F32, "aa"), (F32, F32), (F32,))
    kernel.flat(x.ctypes.data, x.ctypes.data, y.ctypes.data, 0, 1000)
    np.testing.assert_array_equal(x, np.arange(1000) + 1)
    kernel.flat(x.ctypes.data, x.ctypes.data, x.ctypes.data, 0, 1000)
    np.testing.assert_array_equal(x, 2 * (np.arange(1000) + 1))


def test_range_is_respected():
    x = np.ones(10, np.float32)
    out = np.zeros(10, np.float32)
    kernel = kernel_for(single(ADD, F32, "aa"), (F32, F32), (F32,))
    kernel.flat(out.ctypes.data, x.ctypes.data, x.ctypes.data, 3, 7)
    np.testing.assert_array_equal(out, [0, 0, 0, 2, 2, 2, 2, 0, 0, 0])


def test_several_outputs_come_from_one_pass():
    builder = GraphBuilder()
    x = builder.input()
    body = Body.from_source("def both(x):\n    return -x, x * x")
    first = builder.apply(body, (x,), compute=F32)
    second = type(first)("step", first.index, 1)
    graph = builder.finish(first, second)
    values = np.array([1.0, -2.0], np.float32)
    negative, square = run_flat(graph, [values], (F32, F32))
    np.testing.assert_array_equal(negative, -values)
    np.testing.assert_array_equal(square, values * values)


def test_steps_of_different_dtypes_convert_between_them():
    builder = GraphBuilder()
    x = builder.input()
    whole = builder.apply(Body.from_source("def trip(x):\n    return trunc(x)"), (x,), compute=F32)
    odd = builder.apply(
        Body.from_source("def odd(n):\n    return n % 2 == 1"), (whole,), compute=_dtypes.int64
    )
    picked = builder.apply(
        Body.from_source("def pick(c, x):\n    return x if c else 0"), (odd, x), compute=F32
    )
    values = np.array([1.5, 2.5, -3.5, -4.5], np.float32)
    (out,) = run_flat(builder.finish(picked), [values], (F32,))
    np.testing.assert_array_equal(out, [1.5, 0, -3.5, 0])


@pytest.mark.parametrize("function", ["x // y", "x % y", "fmod(x, y)", "truncdiv(x, y)"])
@pytest.mark.parametrize("dtype", [_dtypes.int64, _dtypes.int8, _dtypes.uint8],
                         ids=lambda d: d.name)  # fmt: skip
def test_integer_division_by_zero_is_reported(function, dtype):
    body = Body.from_source(f"def f(x, y):\n    return {function}")
    kernel = kernel_for(single(body, dtype, "aa"), (dtype, dtype), (dtype,)).flat
    x, out = np.array([7, 8], dtype.np), np.zeros(2, dtype.np)
    for divisors, status in (([2, 0], DIVISION_BY_ZERO), ([2, 3], 0)):
        y = np.array(divisors, dtype.np)
        assert kernel(out.ctypes.data, x.ctypes.data, y.ctypes.data, 0, 2) == status


def test_most_negative_number_divided_by_minus_one_wraps():
    low = np.iinfo(np.int64).min
    body = Body.from_source("def f(x, y):\n    return x // y")
    x, y = np.array([low]), np.array([-1])
    (out,) = run_flat(single(body, _dtypes.int64, "aa"), [x, y], (_dtypes.int64,))
    assert out[0] == low


def test_float_division_follows_python_signs():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-9, 9, 100), [0.0, 5.0, -5.0, np.inf, 1.0]])
    y = np.concatenate([rng.uniform(-3, 3, 100), [1.0, 0.0, 0.0, 2.0, np.inf]])
    for source, reference in (("x // y", np.floor_divide), ("x % y", np.mod)):
        body = Body.from_source(f"def f(x, y):\n    return {source}")
        (out,) = run_flat(single(body, F64, "aa"), [x, y], (F64,))
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(out, reference(x, y))


# ---------------------------------------------------------------------------------------------
# Strides


@pytest.mark.parametrize(
    ("strides", "pattern"),
    [((4, 4, 4), "uuu"), ((4, 4, 0), "uuz"), ((4, 0, 0), "uzz"), ((4, 8, 4), "sss"),
     ((8, 4, 4), "sss"), ((0, 4, 4), "sss")],
)  # fmt: skip
def test_inner_pattern_names_how_operands_move(strides, pattern):
    assert inner_pattern([2, 3, 5, *[x for s in strides for x in (100, s)]], (4, 4, 4)) == pattern


def test_single_element_needs_no_dimensions():
    assert inner_pattern([0], (4, 4)) == "ss"
    x, out = np.array(2.0, np.float32), np.array(0.0, np.float32)
    kernel = kernel_for(single(ADD, F32, "aa"), (F32, F32), (F32,))
    run_strided(kernel.for_table([0]), out, x, x)
    assert out == 4.0


@pytest.mark.parametrize("start", [0, 1, 5, 17, 59])
def test_any_part_of_the_range_may_be_run(start):
    x = np.arange(120, dtype=np.float32).reshape(4, 6, 5).transpose(2, 0, 1)
    y = np.broadcast_to(np.arange(4, dtype=np.float32)[:, None], (5, 4, 6))
    kernel = kernel_for(single(SCALED, F32, "aa", "f"), (F32, F32), (F32,)).strided
    out = np.zeros((5, 4, 6), np.float32)
    for first, last in ((0, start), (start, start + 1), (start + 1, 120)):
        run_strided(kernel, out, x, y, numbers=(0.5,), start=first, stop=last)
    np.testing.assert_array_equal(out, x + np.float32(0.5) * y)


def test_negative_strides_walk_backwards():
    x, out = np.arange(6, dtype=np.float64), np.zeros(6)
    kernel = kernel_for(single(ADD, F64, "aa"), (F64, F64), (F64,)).strided
    run_strided(kernel, out, x[::-1], x)
    np.testing.assert_array_equal(out, np.full(6, 5.0))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_layout_gives_what_numpy_gives(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))

    def operand():
        kept = [size if data.draw(st.booleans()) else 1 for size in shape]
        order = data.draw(st.permutations(range(len(shape))))
        memory = np.random.default_rng(0).integers(0, 50, [kept[d] for d in order])
        array = memory.astype(np.float32).transpose(np.argsort(order))
        return np.broadcast_to(array, shape)

    x, y = operand(), operand()
    out = np.zeros(shape, np.float32)
    kernel = kernel_for(single(ADD, F32, "aa"), (F32, F32), (F32,))
    table = table_of(out, x, y).tolist()
    run_strided(kernel.for_table(table), out, x, y)
    np.testing.assert_array_equal(out, x + y)
    entry = kernel.variant(inner_pattern(table, (4, 4, 4)))
    np.testing.assert_array_equal(run_strided(entry, out, x, y), x + y)


# ---------------------------------------------------------------------------------------------
# The kernel object


def test_kernels_are_shared_and_lazy():
    graph = single(ADD, _dtypes.int16, "aa")
    kernel = kernel_for(graph, (_dtypes.int16,) * 2, (_dtypes.int16,))
    assert kernel_for(graph, (_dtypes.int16,) * 2, (_dtypes.int16,)) is kernel
    fresh = PointwiseKernel(graph, (_dtypes.int16,) * 2, (_dtypes.int16,))
    assert fresh.strided.compiled is False or fresh.strided is kernel.strided


def test_small_ranges_share_the_general_variant():
    kernel = PointwiseKernel(single(ADD, F32, "aa"), (F32, F32), (F32,))
    small, large = ([1, count, 4, 4, 0] for count in (100, 100_000))
    assert kernel.for_table(small) is kernel.variant("sss")
    assert kernel.for_table(large) is kernel.variant("uuz")
    # Once it is there, the better variant serves small ranges too.
    assert kernel.for_table(small) is kernel.variant("uuz")


def test_complex_dtypes_are_refused():
    with pytest.raises(KernelMissingError, match="complex64"):
        kernel_for(single(ADD, F32, "aa"), (_dtypes.complex64, F32), (F32,))


def test_source_runs_as_plain_python_in_pure_mode():
    graph, singles = ten_ops(F32)
    x, y = np.array([0.5, -1.5], np.float32), np.array([1.0, 2.0], np.float32)
    expected = run_one_by_one(singles, x, y, F32)
    out = np.zeros(2, np.float32)
    with config.patch(pure=True):
        kernel = PointwiseKernel(graph, (F32, F32), (F32,))
        entry = kernel.flat.py_func
        entry(out.ctypes.data, x.ctypes.data, y.ctypes.data, *NUMBERS, 0, 2)
    np.testing.assert_allclose(out, expected, 1e-6)


def test_source_depends_on_its_arguments_alone():
    program = (
        "from refruntime import _dtypes as d\n"
        "from refruntime.kernels.emit_numba import flat_source\n"
        "from refruntime.kernels.scalar import Body, single\n"
        "body = Body.from_source('def add(x, y):\\n    return x + y')\n"
        "print(flat_source(single(body, d.float32, 'aa'), (d.float32,) * 2, (d.bool_,)), end='')"
    )
    path = [entry for entry in sys.path if entry]
    made = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{program}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert made == flat_source(single(ADD, F32, "aa"), (F32, F32), (_dtypes.bool_,))
