from __future__ import annotations

import numpy as np
import pytest

from refruntime._native import native, ptr_f32
from refruntime.kernels.tiles import (
    DotTile,
    OuterTile,
    PadRow,
    ShiftRow,
    maximum,
    minimum,
    stack_array,
    tile_shape,
)

outer = OuterTile("float32")
outer_1 = OuterTile("float32", 1)
dot = DotTile("float32")
pad_row = PadRow("float32")
shift_row = ShiftRow("float32")
frame = stack_array("float32", 8)


@native("void(int64, int64, int64, int64, int64, int64)")
def run_outer(a, b, offsets, k, c, stride):
    outer((a, b, offsets, k, c, stride))


@native("void(int64, int64, int64, int64, int64, int64)")
def run_outer_1(a, b, offsets, k, c, stride):
    outer_1((a, b, offsets, k, c, stride))


@native("void(int64, int64, int64, int64, int64, int64, int64)")
def run_dot(a, a_offsets, b, b_offsets, n, c, stride):
    dot((a, a_offsets, b, b_offsets, n, c, stride))


@native("void(int64, int64, int64, int64, int64)")
def run_pad(target, source, first, width, n):
    pad_row((target, source, first, width, n))


@native("void(int64, int64, int64, float32)")
def run_shift(target, source, n, shift):
    shift_row((target, source, n, shift))


@native("float32(float32, float32)")
def run_maximum(a, b):
    return maximum(a, b)


@native("float32(float32, float32)")
def run_minimum(a, b):
    return minimum(a, b)


@native("float32(int64)")
def sum_on_the_stack(x):
    p = ptr_f32(x)
    s = frame()
    for i in range(8):
        s[i] = p[i]
    total = np.float32(0)
    for i in range(8):
        total += s[7 - i]
    return total


def address(array):
    return array.ctypes.data


@pytest.fixture(params=["compiled", "plain Python"])
def form(request):
    """A kernel as machine code, or its body over the intrinsics' twins."""
    compiled = request.param == "compiled"
    return lambda kernel: kernel if compiled else kernel.py_func


@pytest.mark.parametrize(("kernel", "rows"), [(run_outer, None), (run_outer_1, 1)])
def test_an_outer_tile_is_a_matrix_product_over_rows_at_offsets(form, kernel, rows):
    shape = tile_shape(4, rows)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, shape.rows)).astype(np.float32)
    b = rng.standard_normal((9, shape.columns)).astype(np.float32)
    chosen = np.array([7, 0, 3, 3, 8])
    offsets = chosen * b.strides[0]
    c = np.zeros((shape.rows, shape.columns + 3), np.float32)
    form(kernel)(address(a), address(b), address(offsets), 5, address(c), c.strides[0])
    np.testing.assert_allclose(c[:, : shape.columns], a.T @ b[chosen], rtol=1e-5, atol=1e-5)
    assert not c[:, shape.columns :].any()


def test_a_dot_tile_adds_products_along_positions(form):
    shape = tile_shape(4)
    n = 3 * shape.lanes - 5
    whole = 3 * shape.lanes
    rng = np.random.default_rng(1)
    a = np.zeros((shape.rows, whole), np.float32)
    a[:, :n] = rng.standard_normal((shape.rows, n))
    b = rng.standard_normal((shape.vectors, whole)).astype(np.float32)
    c = np.ones((shape.rows, shape.vectors), np.float32)
    starts_a, starts_b = (np.arange(len(x)) * x.strides[0] for x in (a, b))
    form(run_dot)(
        address(a), address(starts_a), address(b), address(starts_b), n, address(c), c.strides[0]
    )
    np.testing.assert_allclose(c, 1 + a @ b.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("first", "width", "n"), [(-2, 5, 9), (0, 30, 30), (3, 7, 2), (0, 0, 4)])
def test_a_padded_row_is_zero_outside_its_source(form, first, width, n):
    source = np.arange(1, width + 1, dtype=np.float32)
    lanes = tile_shape(4).lanes
    target = np.full(-(-n // lanes) * lanes + 1, 9, np.float32)
    form(run_pad)(address(target), address(source), first, width, n)
    expected = [source[first + i] if 0 <= first + i < width else 0 for i in range(n)]
    np.testing.assert_array_equal(target[:n], expected)
    assert target[-1] == 9


@pytest.mark.parametrize("n", [1, 16, 29])
def test_a_shifted_row_writes_its_length_and_no_more(form, n):
    source = np.arange(n, dtype=np.float32)
    target = np.zeros(n + 20, np.float32)
    form(run_shift)(address(target), address(source), n, 0.5)
    np.testing.assert_array_equal(target[:n], source + 0.5)
    assert not target[n:].any()


@pytest.mark.parametrize(("a", "b"), [(1.0, 2.0), (2.0, 1.0), (np.nan, 1.0), (1.0, np.nan)])
def test_extremes_propagate_nan(form, a, b):
    for kernel, function in ((run_maximum, np.maximum), (run_minimum, np.minimum)):
        np.testing.assert_array_equal(form(kernel)(a, b), function(a, b))


def test_a_stack_array_holds_what_was_stored(form):
    assert form(sum_on_the_stack)(address(np.arange(8, dtype=np.float32))) == 28
