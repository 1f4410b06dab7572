"""The GPU launch functions that move elements, against the CPU kernels of the same ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._dtypes import DType, from_numpy_dtype
from refruntime._impl import from_array
from refruntime.errors import ShapeError
from refruntime.kernels import copy, gpu, index, join, rearrange, scan, sort
from refruntime.kernels.index import Route
from tests.kernels.cuda_host.launches import Router, assert_same, filled, tensor

LAYOUTS = ("contiguous", "transposed", "strided")
MOVED = (np.uint8, np.float16, np.int32, np.float64, np.complex128)


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("source", LAYOUTS)
def test_copies_between_layouts(
    router: Router, rng: np.random.Generator, dtype: Any, target: str, source: str
) -> None:
    x = tensor((rng.random((3, 4, 5)) * 100).astype(dtype), source)
    out = filled((3, 4, 5), x.dtype, target)
    copy.copy_cuda(out, x)
    np.testing.assert_array_equal(out.array(), x.array())
    assert len(router.launched) == 1


@pytest.mark.parametrize(
    "to", [_dtypes.float16, _dtypes.bfloat16, _dtypes.int64, _dtypes.bool_], ids=str
)
def test_copies_cast_and_broadcast(router: Router, rng: np.random.Generator, to: DType) -> None:
    x = tensor(np.round(rng.random((1, 4)) * 9).astype(np.float32))
    out = filled((3, 4), to, "transposed")
    copy.copy_cuda(out, x)
    np.testing.assert_array_equal(out.array(), np.broadcast_to(x.array(), (3, 4)).astype(to.np))
    assert router.launched[0].startswith("convert")


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("dtype", MOVED)
def test_transposed_matrices_are_copied_through_tiles(
    router: Router, rng: np.random.Generator, dtype: Any, batch: tuple[int, ...]
) -> None:
    array = (rng.random((*batch, 40, 33)) * 100).astype(dtype)
    x = from_array(array.swapaxes(-1, -2), from_numpy_dtype(array.dtype))
    out = filled(x.shape, x.dtype)
    copy.copy_cuda(out, x)
    np.testing.assert_array_equal(out.array(), x.array())
    assert router.launched[0].startswith("transpose_bits")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(_dtypes.float32, -2.5), (_dtypes.int64, 2**60 + 1), (_dtypes.bool_, True),
     (_dtypes.complex128, 1 - 2j), (_dtypes.bfloat16, 3.0)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fills(router: Router, dtype: DType, value: Any, layout: str) -> None:
    out = filled((3, 4), dtype, layout)
    copy.fill_cuda(out, value)
    assert (out.array() == np.array(value).astype(dtype.np)).all()
    assert len(router.launched) == 1


# -------------------------------------------------------------------------------------- index walks


def gather_route(x: np.ndarray, where: np.ndarray, dim: int) -> Route:
    steps = tuple(s // x.itemsize for s in x.strides)
    fixed = tuple(0 if d == dim else step for d, step in enumerate(steps))
    own = tuple(s // where.itemsize for s in where.strides)
    entry = (own, x.shape[dim], steps[dim])
    return Route(where.shape, own, fixed, (entry,), wrap=False)


@pytest.mark.parametrize("dtype", MOVED)
def test_gather_agrees_with_the_cpu(router: Router, rng: np.random.Generator, dtype: Any) -> None:
    x, where = (rng.random((4, 6)) * 50).astype(dtype), rng.integers(0, 4, (3, 6))
    route = gather_route(x, where, 0)
    expected, got = (filled((3, 6), tensor(x).dtype) for _ in range(2))
    index.run_walk(index.get, tensor(x), expected, (tensor(where),), route)
    index.run_walk_cuda(index.get, tensor(x), got, (tensor(where),), route)
    assert_same(got, expected, 0)
    assert any(expression.startswith("index_get") for expression in router.launched)


@pytest.mark.parametrize("name", ["put", "add", "multiply", "maximum", "minimum"])
def test_scatters_agree_with_the_cpu(router: Router, rng: np.random.Generator, name: str) -> None:
    x = np.round(rng.standard_normal((5, 6)) * 4)
    values = np.round(rng.standard_normal((4, 6)) * 4)
    where = rng.permuted(np.tile(np.arange(5), (6, 1)), axis=1).T[:4].copy()
    if name != "put":  # repeated places, which put leaves to chance
        where[1] = where[0]
    route = gather_route(x, where, 0)
    op = getattr(index, name)
    expected, got = tensor(x.copy()), tensor(x.copy())
    index.run_walk(op, expected, tensor(values), (tensor(where),), route)
    index.run_walk_cuda(op, got, tensor(values), (tensor(where),), route)
    assert_same(got, expected, 0)
    assert any(expression.startswith("index_") for expression in router.launched)


def test_two_index_tensors_with_negative_entries(router: Router, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 3, 5)).astype(np.float32)
    rows, columns = np.array([[3, -4], [1, 2]]), np.array([-1, 0])
    entries = (((2, 1, 0), 4, 15), ((0, 1, 0), 5, 1))
    route = Route((2, 2, 3), (6, 3, 1), (0, 0, 5), entries)
    got = filled((2, 2, 3), _dtypes.float32)
    index.run_walk_cuda(index.get, tensor(x), got, (tensor(rows), tensor(columns)), route)
    np.testing.assert_array_equal(got.array(), x.transpose(0, 2, 1)[rows, columns])
    assert router.launched


def test_an_index_out_of_range_sets_the_fault_cell(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_fault_cells", {})
    x, where = np.arange(5.0), np.array([1, 9])
    out = tensor(np.full(2, -1.0))
    index.run_walk_cuda(index.get, tensor(x), out, (tensor(where),), gather_route(x, where, 0))
    assert out.array().tolist() == [1.0, -1.0]
    assert gpu.read_integer(gpu.fault_cell(out)) == 1


def test_more_index_tensors_than_the_kernel_has_are_refused(router: Router) -> None:
    where = tensor(np.zeros(1, np.int64))
    route = Route((1,), (1,), (0,), (((1,), 1, 1),) * 9)
    with pytest.raises(ShapeError, match="at most 8"):
        index.run_walk_cuda(index.get, where, where, (where,) * 9, route)
    assert "index_get" not in str(router.launched)


# ------------------------------------------------------------------------------- join, sort, others


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_joining_agrees_with_the_cpu(
    router: Router, rng: np.random.Generator, dim: int, layout: str
) -> None:
    sizes, shape = (2, 1, 0, 4), [3, 4, 5]
    parts = []
    for size in sizes:
        shape[dim] = size
        parts.append(tensor(rng.standard_normal(shape).astype(np.float32), layout))
    shape[dim] = sum(sizes)
    expected, got = (filled(shape, _dtypes.float32) for _ in range(2))
    join.join_cpu(expected, parts, dim)
    join.join_cuda(got, parts, dim)
    assert_same(got, expected, 0)
    kernel = "cat_bits" if layout == "contiguous" else "copy_bits"
    assert all(expression.startswith(kernel) for expression in router.launched)


def test_many_parts_take_several_launches(router: Router, rng: np.random.Generator) -> None:
    parts = [tensor(rng.standard_normal((2, 1 + k % 3))) for k in range(150)]
    out = filled((2, sum(p.shape[1] for p in parts)), _dtypes.float64)
    join.join_cuda(out, parts, 1)
    np.testing.assert_array_equal(out.array(), np.concatenate([p.array() for p in parts], 1))
    assert router.launched == ["cat_bits<unsigned long long>"] * 3


def test_joining_converts_parts_of_other_dtypes(router: Router) -> None:
    parts = [tensor(np.arange(3, dtype=np.int32)), tensor(np.array([0.5, 1.5]))]
    out = filled((5,), _dtypes.float64)
    join.join_cuda(out, parts, 0)
    assert out.array().tolist() == [0, 1, 2, 0.5, 1.5]
    assert router.launched == ["convert<double, int>", "copy_bits<unsigned long long>"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_sorting_along_any_dimension(
    router: Router, rng: np.random.Generator, dim: int, descending: bool, layout: str
) -> None:
    x = tensor(rng.integers(-3, 4, (3, 7, 4)).astype(np.float32), layout)
    out = filled(x.shape, x.dtype), filled(x.shape, _dtypes.int64, "strided")
    sort.sort_cuda(out, x, dim=dim, descending=descending)
    places = sort.sorted_places(x.array(), dim, descending)
    np.testing.assert_array_equal(out[1].array(), places)
    np.testing.assert_array_equal(out[0].array(), np.take_along_axis(x.array(), places, dim))
    assert "sort_tiles<float>" in router.launched


def test_long_rows_are_merged(router: Router, rng: np.random.Generator) -> None:
    x = tensor(rng.standard_normal((2, 1500)))
    out = filled(x.shape, x.dtype), filled(x.shape, _dtypes.int64)
    sort.sort_cuda(out, x, dim=1, descending=False)
    np.testing.assert_array_equal(out[0].array(), np.sort(x.array(), 1))
    assert router.launched.count("merge_runs<double>") == 2


def test_topk_takes_the_first_of_the_sorted(router: Router, rng: np.random.Generator) -> None:
    x = tensor(rng.standard_normal((5, 9)).astype(np.float32), "transposed")
    for largest in (True, False):
        out = filled((3, 9), x.dtype), filled((3, 9), _dtypes.int64)
        sort.topk_cuda(out, x, k=3, dim=0, largest=largest)
        places = sort.sorted_places(x.array(), 0, largest)[:3]
        np.testing.assert_array_equal(out[1].array(), places)
    assert router.launched


def test_zero_dim_sort(router: Router) -> None:
    x = tensor(np.array(4.0))
    out = filled((), x.dtype), filled((), _dtypes.int64)
    sort.sort_cuda(out, x, dim=0, descending=False)
    assert out[0].array() == 4.0
    assert out[1].array() == 0
    assert router.launched


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_running_results_agree_with_the_cpu(
    router: Router, rng: np.random.Generator, dim: int, layout: str
) -> None:
    x = tensor(rng.integers(-2, 3, (3, 7, 40)).astype(np.int64), layout)
    for product in (False, True):
        expected, got = (filled(x.shape, x.dtype) for _ in range(2))
        scan.running_cpu(expected, x, dim=dim, product=product)
        scan.running_cuda(got, x, dim=dim, product=product)
        assert_same(got, expected, 0)
    for largest in (False, True):
        pairs = [(filled(x.shape, x.dtype), filled(x.shape, x.dtype)) for _ in range(2)]
        scan.extreme_cpu(pairs[0], x, dim=dim, largest=largest)
        scan.extreme_cuda(pairs[1], x, dim=dim, largest=largest)
        for got, expected in zip(pairs[1], pairs[0], strict=True):
            assert_same(got, expected, 0)
    assert any(e.startswith("scan<CumulativeMax") for e in router.launched)


@pytest.mark.parametrize(
    ("frm", "to"),
    [(np.int32, _dtypes.int64), (np.float32, _dtypes.float64), (np.int64, _dtypes.float32),
     (np.int64, _dtypes.int32)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_running_sums_into_another_dtype_and_layout(
    router: Router, frm: Any, to: DType, layout: str
) -> None:
    x = tensor(np.arange(12).reshape(3, 4).astype(frm))
    out = filled((3, 4), to, layout)
    scan.running_cuda(out, x, dim=1, product=False)
    np.testing.assert_array_equal(out.array(), np.cumsum(x.array(), 1))
    assert router.launched


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_triangles_agree_with_the_cpu(
    router: Router, rng: np.random.Generator, upper: bool, layout: str
) -> None:
    x = tensor(rng.standard_normal((2, 4, 5)).astype(np.float32), layout)
    expected, got = filled(x.shape, x.dtype), filled(x.shape, x.dtype, layout)
    rearrange.triangle_cpu(expected, x, diagonal=1, upper=upper)
    rearrange.triangle_cuda(got, x, diagonal=1, upper=upper)
    assert_same(got, expected, 0)
    assert router.launched
