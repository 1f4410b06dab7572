"""The GPU launch functions of compaction, embedding and optimizer steps, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime.kernels import gpu, optim_cuda, select_cuda
from tests.kernels.cuda_host.launches import Router, filled, tensor

LAYOUTS = ("contiguous", "transposed", "strided")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nonzero_finds_coordinates_in_any_layout(
    router: Router, rng: np.random.Generator, layout: str
) -> None:
    x = tensor((rng.random((3, 50, 20)) < 0.2).astype(np.float32), layout)
    np.testing.assert_array_equal(select_cuda.nonzero_cuda(x).array(), np.argwhere(x.array()))
    assert router.launched == ["count_true<float>", "offsets", "nonzero<float>"]


def test_nonzero_of_nothing_and_of_a_scalar(router: Router) -> None:
    assert select_cuda.nonzero_cuda(tensor(np.zeros((0, 3)))).shape == (0, 2)
    assert not router.launched
    assert select_cuda.nonzero_cuda(tensor(np.zeros((2, 3)))).shape == (0, 2)
    assert select_cuda.nonzero_cuda(tensor(np.array(5.0))).shape == (1, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masked_select_broadcasts(router: Router, rng: np.random.Generator, layout: str) -> None:
    x, mask = tensor(rng.standard_normal((40, 60)), layout), tensor(rng.random((60,)) < 0.5)
    got = select_cuda.masked_select_cuda(x, mask).array()
    np.testing.assert_array_equal(got, x.array()[:, mask.array()].ravel())
    assert select_cuda.masked_select_cuda(x, tensor(np.zeros(60, bool))).shape == (0,)
    assert "masked_select<unsigned long long>" in router.launched


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masked_scatter_keeps_what_the_source_does_not_reach(
    router: Router, rng: np.random.Generator, layout: str
) -> None:
    array, mask = rng.standard_normal((5, 6)), rng.random((5, 6)) < 0.5
    out, total = tensor(array.copy(), layout), int(mask.sum())
    source = tensor(rng.standard_normal(total - 1))
    assert select_cuda.masked_scatter_cuda(out, tensor(mask), source) == total
    expected = array.copy()
    expected[mask] = [*source.array(), array[mask][-1]]
    np.testing.assert_array_equal(out.array(), expected)
    assert router.launched


@pytest.mark.parametrize("layout", LAYOUTS)
def test_embedding_reads_rows_and_sums_gradients(
    router: Router, rng: np.random.Generator, layout: str
) -> None:
    weight = tensor(rng.standard_normal((7, 5)).astype(np.float32), layout)
    index = rng.integers(0, 7, (3, 4))
    out = filled((3, 4, 5), _dtypes.float32)
    select_cuda.embedding_cuda(out, weight, tensor(index))
    np.testing.assert_array_equal(out.array(), weight.array()[index])

    g = tensor(rng.standard_normal((3, 4, 5)).astype(np.float32), layout)
    for padding, by_freq in ((-1, False), (2, False), (-1, True)):
        got = filled((7, 5), _dtypes.float32, layout)
        select_cuda.embedding_backward_cuda(
            got, g, tensor(index), rows=7, padding_idx=padding, by_freq=by_freq
        )
        expected = np.zeros((7, 5))
        np.add.at(expected, index, g.array())
        if padding >= 0:
            expected[padding] = 0
        if by_freq:
            expected /= np.maximum(np.bincount(index.ravel(), minlength=7), 1)[:, None]
        np.testing.assert_allclose(got.array(), expected, rtol=1e-5, atol=1e-5)
    assert "embedding_backward<float>" in router.launched


def test_embedding_reports_a_bad_index(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_fault_cells", {})
    weight, out = tensor(np.ones((3, 2), np.float32)), filled((1, 2), _dtypes.float32)
    select_cuda.embedding_cuda(out, weight, tensor(np.array([3])))
    assert gpu.read_integer(gpu.fault_cell(out)) == 1
    assert router.launched


def test_embedding_gradient_of_no_index_is_zero(router: Router) -> None:
    out = filled((4, 2), _dtypes.float32)
    g, index = tensor(np.zeros((0, 2), np.float32)), tensor(np.zeros(0, np.int64))
    select_cuda.embedding_backward_cuda(out, g, index, rows=4, padding_idx=-1, by_freq=False)
    assert not out.array().any()
    assert router.launched == ["fill_bits<unsigned int>"]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_steps(router: Router, rng: np.random.Generator, momentum: float) -> None:
    start, grads = rng.standard_normal(10), rng.standard_normal((3, 10))
    param, velocity = tensor(start.copy()), tensor(np.zeros(10))
    settings: dict[str, Any] = {"lr": 0.1, "momentum": momentum, "dampening": 0.0}
    settings |= {"weight_decay": 0.01, "nesterov": False, "maximize": False}
    expected, v = start.copy(), np.zeros(10)
    for k, g in enumerate(grads):
        kept = velocity if momentum else None
        optim_cuda.sgd_cuda(param, tensor(g), kept, first=k == 0, **settings)
        v = momentum * v + g + 0.01 * expected
        expected -= 0.1 * v
    np.testing.assert_allclose(param.array(), expected, rtol=1e-12)
    assert router.launched == ["sgd<double>"] * 3


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_steps(
    router: Router, rng: np.random.Generator, decoupled: bool, amsgrad: bool
) -> None:
    start, grads = rng.standard_normal((2, 5)), rng.standard_normal((3, 2, 5))
    param = tensor(start.copy())
    mean, square, top = (tensor(np.zeros((2, 5))) for _ in range(3))
    p, m, v, vmax = start.copy(), *np.zeros((3, 2, 5))
    for step, g in enumerate(grads, 1):
        optim_cuda.adam_cuda(
            param, tensor(g, "transposed"), mean, square, top if amsgrad else None, step=step,
            lr=0.1, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1, decoupled=decoupled,
            maximize=False,
        )  # fmt: skip
        d = g if decoupled else g + 0.1 * p
        p = p * (1 - 0.1 * 0.1) if decoupled else p
        m, v = 0.9 * m + 0.1 * d, 0.99 * v + 0.01 * d * d
        vmax = np.maximum(vmax, v)
        spread = np.sqrt((vmax if amsgrad else v) / (1 - 0.99**step)) + 1e-6
        p = p - 0.1 * m / (1 - 0.9**step) / spread
    np.testing.assert_allclose(param.array(), p, rtol=1e-10)
    assert router.launched.count("adam<double>") == 3


def test_an_empty_parameter_launches_nothing(router: Router) -> None:
    empty = tensor(np.zeros(0, np.float32))
    optim_cuda.sgd_cuda(
        empty, empty, None, lr=0.1, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False,
        maximize=False, first=True,
    )  # fmt: skip
    optim_cuda.adam_cuda(
        empty, empty, empty, empty, None, step=1, lr=0.1, betas=(0.9, 0.99), eps=1e-8,
        weight_decay=0.0, decoupled=False, maximize=False,
    )  # fmt: skip
    assert not router.launched
