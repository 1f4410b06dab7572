"""The GPU launch functions of pooling and resampling, against the CPU kernels of the same ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime.kernels import pool, pool_cuda, resample
from refruntime.kernels.resample import Taps
from tests.kernels.cuda_host.launches import Router, assert_same, filled, tensor

F32 = _dtypes.float32
SHAPE = (2, 3, 9, 8)


def agree(cpu: Any, cuda: Any, outs: list[Any], inputs: Any, **params: Any) -> list[Any]:
    expected, got = ([filled(shape, dtype) for shape, dtype in outs] for _ in range(2))
    cpu(tuple(expected) if len(outs) > 1 else expected[0], *inputs, **params)
    cuda(tuple(got) if len(outs) > 1 else got[0], *inputs, **params)
    for a, b in zip(got, expected, strict=True):
        assert_same(a, b, 1e-5)
    return expected


WINDOWS: dict[str, Any] = {
    "plain": ((pool.pool_windows(9, 4, 2, 2, 0, 1), pool.pool_windows(8, 4, 2, 2, 0, 1)), (1, 1)),
    "overlapping": (
        (pool.pool_windows(9, 9, 3, 1, 1, 1), pool.pool_windows(8, 8, 3, 1, 1, 1)),
        (1, 1),
    ),
    "dilated": ((pool.pool_windows(9, 9, 2, 1, 1, 2), pool.pool_windows(8, 7, 2, 1, 0, 1)), (2, 1)),
    "adaptive": ((pool.adaptive_windows(9, 4), pool.adaptive_windows(8, 3)), (1, 1)),
    "line": ((pool.pool_windows(8, 3, 3, 2, 0, 1),), (1,)),
}


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("told", [True, False])
def test_max_pooling_and_its_backward(
    router: Router, rng: np.random.Generator, case: str, layout: str, told: bool
) -> None:
    windows, steps = WINDOWS[case]
    x = tensor(rng.standard_normal(SHAPE).astype(np.float32), layout)
    shape = (*SHAPE[: 4 - len(windows)], *map(len, windows))
    outs = [(shape, F32), (shape, _dtypes.int64)]
    made = agree(
        pool.max_pool_cpu, pool_cuda.max_pool_cuda, outs, (x,), windows=windows, steps=steps
    )
    g = tensor(rng.standard_normal(shape).astype(np.float32), layout)
    params: dict[str, Any] = {"spatial": len(windows), "shape": SHAPE[-len(windows) :]}
    if told:
        params["windows"] = windows
    agree(
        pool.max_pool_backward_cpu, pool_cuda.max_pool_backward_cuda, [(SHAPE, F32)], (g, made[1]),
        **params,
    )  # fmt: skip
    kernel = "max_pool_backward<float>" if told else "index_combine<Add, float>"
    assert router.launched[-1] == kernel


def taps(size: int, count: int, each: int, rng: np.random.Generator) -> Taps:
    starts = each * np.arange(count + 1)
    index = rng.integers(0, size, each * count)
    return Taps(size, count, starts, index, rng.standard_normal(each * count))


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("each", [1, 2, 3])
def test_resampling_both_ways(
    router: Router, rng: np.random.Generator, each: int, layout: str
) -> None:
    rows, columns = taps(9, 5, each, rng), taps(8, 11, each, rng)
    x = tensor(rng.standard_normal(SHAPE).astype(np.float32), layout)
    cpu, cuda = resample.resample_cpu, pool_cuda.resample_cuda
    agree(cpu, cuda, [((2, 3, 5, 11), F32)], (x,), rows=rows, columns=columns)
    g = tensor(rng.standard_normal((2, 3, 5, 11)).astype(np.float32), layout)
    agree(cpu, cuda, [(SHAPE, F32)], (g,), rows=rows.turned, columns=columns.turned)
    assert router.launched[-1] == "resample<float>"


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_windows_as_columns_and_back(router: Router, rng: np.random.Generator, layout: str) -> None:
    params = {
        "kernel": (3, 2), "result": (5, 4), "stride": (2, 2), "padding": (1, 0), "dilation": (1, 1),
    }  # fmt: skip
    x = tensor(rng.standard_normal(SHAPE).astype(np.float32), layout)
    agree(pool.im2col_cpu, pool_cuda.im2col_cuda, [((2, 18, 20), F32)], (x,), **params)
    columns = tensor(rng.standard_normal((2, 18, 20)).astype(np.float32), layout)
    agree(pool.col2im_cpu, pool_cuda.col2im_cuda, [(SHAPE, F32)], (columns,), **params, size=(9, 8))
    assert router.launched[-1] == "col2im<float>"
