"""The GPU launch functions of reductions and softmax, against the CPU kernels of the same ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime.errors import KernelMissingError
from refruntime.kernels import arg_reduce, reduce, reduce_cuda, softmax
from tests.kernels.cuda_host.launches import Router, assert_same, filled, tensor

LAYOUTS = ("contiguous", "transposed", "strided")
DIMS: list[tuple[int, ...] | None] = [None, (0,), (1,), (2,), (0, 2), (0, 1)]
SHAPE = (4, 5, 6)


def kept(shape: tuple[int, ...], dim: tuple[int, ...] | None) -> tuple[int, ...]:
    return () if dim is None else tuple(n for d, n in enumerate(shape) if d not in dim)


def both(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
    return getattr(reduce, f"{name}_cpu"), getattr(reduce_cuda, f"{name}_cuda")


REDUCTIONS: dict[str, dict[str, Any]] = {
    "sum": {},
    "mean": {},
    "nansum": {},
    "prod": {},
    "amax": {},
    "amin": {},
    "var": {"correction": 1.0},
    "std": {"correction": 0.0},
    "logsumexp": {},
}
TESTS = ("any", "all", "count_nonzero")


def run_both(
    cpu: Callable[..., None], cuda: Callable[..., None], outs: list[tuple[Any, DType]],
    inputs: tuple[Any, ...], tolerance: float, out_layout: str = "contiguous", **params: Any,
) -> None:  # fmt: skip
    expected = [filled(shape, dtype) for shape, dtype in outs]
    got = [filled(shape, dtype, out_layout) for shape, dtype in outs]
    cpu(tuple(expected) if len(outs) > 1 else expected[0], *inputs, **params)
    cuda(tuple(got) if len(outs) > 1 else got[0], *inputs, **params)
    for a, b in zip(got, expected, strict=True):
        assert_same(a, b, tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_agree_with_the_cpu(
    router: Router, rng: np.random.Generator, name: str, dim: Any, layout: str
) -> None:
    x = tensor(rng.standard_normal(SHAPE).astype(np.float32), layout)
    outs = [(kept(SHAPE, dim), _dtypes.float32)]
    run_both(*both(name), outs, (x,), 1e-5, dim=dim, **REDUCTIONS[name])
    assert router.launched


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", TESTS)
def test_truth_tests_agree_with_the_cpu(
    router: Router, rng: np.random.Generator, name: str, dim: Any, layout: str
) -> None:
    x = tensor((rng.random(SHAPE) < 0.7).astype(np.int32), layout)
    dtype = _dtypes.int64 if name == "count_nonzero" else _dtypes.bool_
    run_both(*both(name), [(kept(SHAPE, dim), dtype)], (x,), 0, dim=dim)
    assert router.launched


@pytest.mark.parametrize("ord", [0.0, 1.0, 2.0, 3.0, math.inf, -math.inf])
def test_norms_agree_with_the_cpu(router: Router, rng: np.random.Generator, ord: float) -> None:
    x = tensor(rng.standard_normal(SHAPE).astype(np.float32))
    outs = [((4, 6), _dtypes.float32)]
    run_both(*both("vector_norm"), outs, (x,), 1e-5, dim=(1,), ord=ord)
    assert router.launched


def test_variance_and_mean_come_together(router: Router, rng: np.random.Generator) -> None:
    x = tensor(rng.standard_normal(SHAPE).astype(np.float32))
    outs = [((5,), _dtypes.float32)] * 2
    run_both(*both("var_mean"), outs, (x,), 1e-5, dim=(0, 2), correction=1.0)
    assert len(router.launched) == 2


@pytest.mark.parametrize(
    ("frm", "to"),
    [
        (_dtypes.int32, _dtypes.int64),
        (_dtypes.bool_, _dtypes.int64),
        (_dtypes.int64, _dtypes.int32),
        (_dtypes.float32, _dtypes.float64),
        (_dtypes.float16, _dtypes.float32),
        (_dtypes.bfloat16, _dtypes.bfloat16),
        (_dtypes.float32, _dtypes.int64),
        (_dtypes.complex64, _dtypes.complex64),
    ],
    ids=str,
)
def test_sums_into_another_dtype(
    router: Router, rng: np.random.Generator, frm: DType, to: DType
) -> None:
    x = tensor((rng.standard_normal((7, 9)) * 3).astype(frm.np))
    run_both(*both("sum"), [((9,), to)], (x,), 2e-2 if to.itemsize == 2 else 1e-5, dim=(0,))
    assert router.launched


def test_long_reductions_are_split_and_finished(router: Router, rng: np.random.Generator) -> None:
    x = tensor(rng.standard_normal((2, 20000)).astype(np.float32))
    for name in ("sum", "amax", "var"):
        params = {"correction": 1.0} if name == "var" else {}
        run_both(*both(name), [((2,), _dtypes.float32)], (x,), 1e-4, dim=(1,), **params)
    assert sum(expression.startswith("finish") for expression in router.launched) == 3


def test_the_place_of_an_extreme_is_found_across_splits(router: Router) -> None:
    array = np.zeros((1, 30000), np.float32)
    array[0, [12345, 29000]] = 7.0
    x = tensor(array)
    outs = [((1,), _dtypes.float32), ((1,), _dtypes.int64)]
    run_both(arg_reduce.max_at_cpu, arg_reduce.max_at_cuda, outs, (x,), 0, dim=1)
    assert any(expression.startswith("finish") for expression in router.launched)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [None, 0, 1, 2])
def test_places_agree_with_the_cpu(
    router: Router, rng: np.random.Generator, dim: int | None, layout: str
) -> None:
    x = tensor(rng.integers(0, 4, SHAPE).astype(np.float32), layout)
    shape = kept(SHAPE, None if dim is None else (dim,))
    for name in ("argmax", "argmin"):
        pair = getattr(arg_reduce, f"{name}_cpu"), getattr(arg_reduce, f"{name}_cuda")
        run_both(*pair, [(shape, _dtypes.int64)], (x,), 0, dim=dim)
    if dim is not None:
        outs = [(shape, _dtypes.float32), (shape, _dtypes.int64)]
        for name in ("max_at", "min_at"):
            pair = getattr(arg_reduce, f"{name}_cpu"), getattr(arg_reduce, f"{name}_cuda")
            run_both(*pair, outs, (x,), 0, dim=dim)
    assert router.launched


def test_zero_dim_and_empty_operands(router: Router) -> None:
    scalar = tensor(np.array(3.5, np.float32))
    run_both(*both("sum"), [((), _dtypes.float32)], (scalar,), 0, dim=None)
    run_both(
        arg_reduce.argmax_cpu, arg_reduce.argmax_cuda, [((), _dtypes.int64)], (scalar,), 0, dim=0
    )
    empty = tensor(np.zeros((0, 3), np.float32))
    run_both(*both("sum"), [((3,), _dtypes.float32)], (empty,), 0, dim=(0,))
    before = len(router.launched)
    run_both(*both("sum"), [((0,), _dtypes.float32)], (empty,), 0, dim=(1,))
    assert len(router.launched) == before


def test_results_go_into_strided_outputs(router: Router, rng: np.random.Generator) -> None:
    x = tensor(rng.standard_normal(SHAPE).astype(np.float32))
    outs = [((4, 6), _dtypes.float32)]
    run_both(*both("sum"), outs, (x,), 1e-5, out_layout="strided", dim=(1,))
    assert any(expression.startswith("copy_bits") for expression in router.launched)


def test_a_dtype_without_an_instance_is_refused(router: Router) -> None:
    x = tensor(np.ones((2, 2), np.complex64))
    with pytest.raises(KernelMissingError, match="no GPU kernel"):
        reduce_cuda.amax_cuda(filled((2,), _dtypes.complex64), x, dim=(0,))
    assert not router.launched


# ------------------------------------------------------------------------------------------ softmax


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_and_its_backward_agree_with_the_cpu(
    router: Router, rng: np.random.Generator, name: str, dim: int, layout: str
) -> None:
    x, g = (tensor(rng.standard_normal(SHAPE).astype(np.float32), layout) for _ in range(2))
    outs = [(SHAPE, _dtypes.float32)]
    cpu, cuda = getattr(softmax, f"{name}_cpu"), getattr(softmax, f"{name}_cuda")
    run_both(cpu, cuda, outs, (x,), 1e-5, dim=dim)
    y = filled(SHAPE, _dtypes.float32)
    cpu(y, x, dim=dim)
    cpu, cuda = getattr(softmax, f"{name}_backward_cpu"), getattr(softmax, f"{name}_backward_cuda")
    run_both(cpu, cuda, outs, (g, y), 1e-5, dim=dim)
    assert len([e for e in router.launched if e.startswith("softmax")]) == 2


def test_softmax_converts_to_the_result_dtype(router: Router, rng: np.random.Generator) -> None:
    x = tensor(rng.standard_normal((3, 8)).astype(np.float16))
    outs = [((3, 8), _dtypes.float32)]
    run_both(softmax.softmax_cpu, softmax.softmax_cuda, outs, (x,), 1e-5, dim=1, dtype=None)
    assert router.launched[0] == "convert<float, __half>"
