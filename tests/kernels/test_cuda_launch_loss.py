"""The GPU launch functions of losses, against the CPU kernels of the same ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl
from refruntime.kernels import gpu, loss
from tests.kernels.cuda_host.launches import Router, assert_same, filled, tensor

F32 = _dtypes.float32
REDUCTIONS = ("none", "mean", "sum")


def agree(
    cpu: Any, cuda: Any, outs: list[tuple[tuple[int, ...], DType]], inputs: Any, **params: Any
) -> list[TensorImpl]:
    expected, got = ([filled(shape, dtype) for shape, dtype in outs] for _ in range(2))
    cpu(tuple(expected) if len(outs) > 1 else expected[0], *inputs, **params)
    cuda(tuple(got) if len(outs) > 1 else got[0], *inputs, **params)
    for a, b in zip(got, expected, strict=True):
        assert_same(a, b, 2e-2 if a.dtype.itemsize == 2 else 2e-5)
    return expected


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["squared", "absolute", "smooth", "huber"])
def test_losses_of_pairs(
    router: Router, rng: np.random.Generator, name: str, reduction: str, layout: str
) -> None:
    x, t = (tensor(rng.standard_normal((31, 40)).astype(np.float32), layout) for _ in range(2))
    op = getattr(loss, f"{name}_error")
    shape = (31, 40) if reduction == "none" else ()
    cpu, cuda = loss.pair_loss_cpu(op), loss.pair_loss_cuda(op)
    agree(cpu, cuda, [(shape, F32)], (x, t), reduction=reduction, parameter=0.75)
    assert router.launched


def test_operands_are_converted_to_the_result_dtype(
    router: Router, rng: np.random.Generator
) -> None:
    x, t = tensor(rng.standard_normal(9).astype(np.float16)), tensor(np.arange(9, dtype=np.float32))
    op = loss.squared_error
    agree(loss.pair_loss_cpu(op), loss.pair_loss_cuda(op), [((), F32)], (x, t), reduction="sum")
    assert router.launched[0] == "convert<float, __half>"


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_mean_over_nothing_is_nan(router: Router, reduction: str) -> None:
    empty = tensor(np.zeros((0, 3), np.float32))
    out = filled((), F32)
    loss.pair_loss_cuda(loss.squared_error)(out, empty, empty, reduction=reduction)
    assert np.isnan(out.array()) if reduction == "mean" else out.array() == 0
    assert router.launched


@pytest.mark.parametrize("dtype", [F32, _dtypes.float16], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5,), (40, 5), (3, 5, 2, 4)])
def test_nll_loss_and_its_backward(
    router: Router,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    reduction: str,
    weighted: bool,
    dtype: DType,
) -> None:
    x = tensor(rng.standard_normal(shape).astype(dtype.np), "strided")
    rows = (shape[:1] + shape[2:]) if len(shape) > 1 else ()
    labels = rng.integers(0, 5, rows)
    if labels.size > 3:
        labels.flat[3] = -100
    target = tensor(np.asarray(labels))
    weight = tensor(rng.random(5).astype(dtype.np)) if weighted else None
    each = rows if reduction == "none" else ()
    params = {"ignore_index": -100, "reduction": reduction}
    outs = [(each, dtype), ((), F32)]
    made = agree(loss.nll_loss_cpu, loss.nll_loss_cuda, outs, (x, target, weight), **params)
    g = tensor(np.asarray(rng.standard_normal(each)).astype(dtype.np))
    agree(
        loss.nll_loss_backward_cpu, loss.nll_loss_backward_cuda, [(shape, dtype)],
        (g, target, weight, made[1]), shape=shape, **params,
    )  # fmt: skip
    assert router.launched


def test_a_target_outside_the_classes_sets_the_fault_cell(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_fault_cells", {})
    x, target = tensor(np.zeros((2, 3), np.float32)), tensor(np.array([1, 3]))
    outs = filled((), F32), filled((), F32)
    loss.nll_loss_cuda(outs, x, target, None, ignore_index=-100, reduction="sum")
    assert gpu.read_integer(gpu.fault_cell(x)) == 1
    assert router.launched


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_binary_cross_entropy(router: Router, rng: np.random.Generator, layout: str) -> None:
    x, t, w = (tensor(rng.random((6, 7)).astype(np.float32), layout) for _ in range(3))
    outs = [((6, 7), F32)]
    agree(loss.binary_cross_entropy_cpu, loss.binary_cross_entropy_cuda, outs, (x, t))
    for weight in (None, w):
        agree(
            loss.binary_cross_entropy_with_logits_cpu, loss.binary_cross_entropy_with_logits_cuda,
            outs, (x, t, weight),
        )  # fmt: skip
    assert "logit_losses<float>" in router.launched
