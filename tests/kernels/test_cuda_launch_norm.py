"""The GPU launch functions of the normalisations, against the CPU kernels of the same ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl
from refruntime.kernels import batch_norm, norm, norm_cuda
from tests.kernels.cuda_host.launches import Router, assert_same, filled, tensor

F32 = _dtypes.float32


def normal(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: DType = F32, layout: str = "contiguous"
) -> TensorImpl:
    return tensor(rng.standard_normal(shape).astype(dtype.np), layout)


def agree(
    cpu: Any, cuda: Any, outs: list[tuple[tuple[int, ...], DType]], inputs: tuple[Any, ...],
    tolerance: float = 2e-5, compared: int | None = None, **params: Any,
) -> list[TensorImpl]:  # fmt: skip
    """Run both; the first `compared` outputs must agree. Returns what the CPU made."""
    expected, got = ([filled(shape, dtype) for shape, dtype in outs] for _ in range(2))
    cpu(tuple(expected), *inputs, **params)
    cuda(tuple(got), *inputs, **params)
    for a, b in list(zip(got, expected, strict=True))[:compared]:
        assert_same(a, b, tolerance)
    return expected


@pytest.mark.parametrize("dtype", [F32, _dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_layer_norm_and_its_backward(
    router: Router, rng: np.random.Generator, dtype: DType, weighted: bool, layout: str
) -> None:
    rows, n = 70, 12
    tolerance = 3e-2 if dtype.itemsize == 2 else 2e-5
    x, g = normal(rng, (7, 10, n), dtype, layout), normal(rng, (7, 10, n), dtype, layout)
    weight, bias = (normal(rng, (n,), dtype) if weighted else None for _ in range(2))
    outs = [((7, 10, n), dtype), ((rows,), F32), ((rows,), F32)]
    made = agree(
        norm.layer_norm_cpu, norm_cuda.layer_norm_cuda, outs, (x, weight, bias), tolerance, n=n,
        eps=1e-5,
    )  # fmt: skip
    width = n if weighted else 0
    outs = [((7, 10, n), dtype), ((width,), F32), ((width,), F32)]
    agree(
        norm.layer_norm_backward_cpu, norm_cuda.layer_norm_backward_cuda, outs,
        (g, x, made[1], made[2], weight), 4 * tolerance, n=n, affine=weighted,
    )  # fmt: skip
    assert any(expression.startswith("row_norm_backward<true") for expression in router.launched)


@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_and_its_backward(
    router: Router, rng: np.random.Generator, weighted: bool
) -> None:
    x, g = normal(rng, (9, 33)), normal(rng, (9, 33))
    weight = normal(rng, (33,)) if weighted else None
    outs = [((9, 33), F32), ((9,), F32)]
    made = agree(norm.rms_norm_cpu, norm_cuda.rms_norm_cuda, outs, (x, weight), n=33, eps=1e-6)
    width = 33 if weighted else 0
    outs = [((9, 33), F32), ((width,), F32)]
    agree(
        norm.rms_norm_backward_cpu, norm_cuda.rms_norm_backward_cuda, outs,
        (g, x, made[1], weight), n=33, affine=weighted,
    )  # fmt: skip
    assert any(expression.startswith("row_norm_backward<false") for expression in router.launched)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(3, 6, 5), (2, 6, 3, 4)])
def test_group_norm_and_its_backward(
    router: Router, rng: np.random.Generator, shape: tuple[int, ...], weighted: bool
) -> None:
    x, g = normal(rng, shape), normal(rng, shape)
    weight, bias = (normal(rng, (6,)) if weighted else None for _ in range(2))
    rows = shape[0] * 2
    outs = [(shape, F32), ((rows,), F32), ((rows,), F32)]
    made = agree(
        norm.group_norm_cpu, norm_cuda.group_norm_cuda, outs, (x, weight, bias), groups=2, eps=1e-5
    )
    width = 6 if weighted else 0
    outs = [(shape, F32), ((width,), F32), ((width,), F32)]
    agree(
        norm.group_norm_backward_cpu, norm_cuda.group_norm_backward_cuda, outs,
        (g, x, made[1], made[2], weight), groups=2, affine=weighted,
    )  # fmt: skip
    assert any(e.startswith("channel_norm") for e in router.launched) == weighted


@pytest.mark.parametrize("dtype", [F32, _dtypes.float16], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(8, 5), (3, 5, 2, 4)])
def test_batch_norm_and_its_backward(
    router: Router, rng: np.random.Generator, shape: tuple[int, ...], weighted: bool,
    training: bool, dtype: DType,
) -> None:  # fmt: skip
    tolerance = 1e-2 if dtype.itemsize == 2 else 2e-5
    x, g = normal(rng, shape, dtype), normal(rng, shape, dtype)
    weight, bias = (normal(rng, (5,)) if weighted else None for _ in range(2))
    running = normal(rng, (5,)), tensor(rng.random(5).astype(np.float32) + 0.5)
    # Evaluation gives back the running variance: only training has one of its own to compare.
    outs = [(shape, dtype), ((5,), F32), ((5,), F32), ((5,), F32)]
    made = agree(
        batch_norm.batch_norm_cpu, norm_cuda.batch_norm_cuda, outs, (x, weight, bias, *running),
        tolerance, 4 if training else 3, training=training, eps=1e-5,
    )  # fmt: skip
    width = 5 if weighted else 0
    outs = [(shape, dtype), ((width,), F32), ((width,), F32)]
    agree(
        batch_norm.batch_norm_backward_cpu, norm_cuda.batch_norm_backward_cuda, outs,
        (g, x, weight, made[1], made[2]), 2 * tolerance, training=training, affine=weighted,
    )  # fmt: skip
    assert any(e.startswith("batch_norm_recall") for e in router.launched) == (not training)


def test_an_empty_batch_launches_nothing_and_gives_zero_gradients(router: Router) -> None:
    x = tensor(np.zeros((0, 4), np.float32))
    rows = tensor(np.zeros(0, np.float32))
    outs = tuple(filled(shape, F32) for shape in ((0, 4), (0,), (0,)))
    norm_cuda.layer_norm_cuda(outs, x, None, None, n=4, eps=1e-5)
    assert not router.launched
    outs = tuple(filled(shape, F32) for shape in ((0, 4), (4,), (4,)))
    norm_cuda.layer_norm_backward_cuda(outs, x, x, rows, rows, None, n=4, affine=True)
    assert outs[1].array().tolist() == outs[2].array().tolist() == [0.0] * 4
