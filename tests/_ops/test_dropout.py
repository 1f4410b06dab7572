"""Dropout in its forms."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime._dispatch import call
from refruntime._ops.dropout import DROPOUT
from refruntime._ops.opdef import ops
from refruntime.random import fork_rng


@pytest.fixture(autouse=True)
def seeded():
    with fork_rng():
        torch.manual_seed(11)
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_elements_are_zeroed_or_scaled(dtype):
    x = torch.ones(10000, dtype=dtype)
    y = ops.dropout(x, 0.25).float().numpy()
    values = np.unique(y)
    assert values[0] == 0.0
    np.testing.assert_allclose(values[1:], [4 / 3], rtol=5e-3)
    assert abs((y == 0).mean() - 0.25) < 0.02


def test_the_gradient_has_the_mask_of_the_result():
    x = torch.randn(500, requires_grad=True)
    y = ops.dropout(x, 0.5)
    y.backward(torch.full((500,), 3.0))
    kept = y.detach().numpy() != 0
    np.testing.assert_array_equal(x.grad.numpy(), np.where(kept, 6.0, 0.0))


def test_the_mask_of_an_operand_in_another_memory_order_is_the_same():
    x = torch.randn(6, 4, requires_grad=True)
    turned = x.t()
    y = ops.dropout(turned, 0.5)
    y.backward(torch.ones(6, 4).t())
    kept = y.detach().numpy().T != 0
    np.testing.assert_array_equal(x.grad.numpy(), np.where(kept, 2.0, 0.0))


def test_second_derivatives_exist():
    x = torch.randn(20, dtype=torch.float64, requires_grad=True)
    params = {"p": 0.5, "seed": 1, "offset": 0}

    def function(value):
        return call(DROPOUT, (value * value,), params)

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


def test_nothing_is_saved_for_backward():
    from refruntime import alloc

    x = torch.ones(1 << 16, requires_grad=True)
    before = alloc.host().stats()["allocated_bytes.all.current"]
    y = ops.dropout(x, 0.5)
    grown = alloc.host().stats()["allocated_bytes.all.current"] - before
    assert y.nbytes <= grown < y.nbytes + 4096


def test_each_call_drops_anew():
    x = torch.ones(100)
    assert ops.dropout(x, 0.5).tolist() != ops.dropout(x, 0.5).tolist()


def test_nothing_happens_out_of_training_or_without_chance():
    x = torch.ones(3)
    assert ops.dropout(x, 0.5, False) is x
    assert ops.dropout(x, 0.0) is x
    assert ops.dropout(x, 1.0).tolist() == [0.0, 0.0, 0.0]
    assert ops.dropout(torch.ones(2, dtype=torch.int64), 0.5, False).tolist() == [1, 1]


def test_in_place_dropout_writes_its_operand():
    x = torch.ones(100)
    assert ops.dropout_(x, 0.5) is x
    assert set(x.tolist()) == {0.0, 2.0}


def test_native_dropout_tells_its_mask():
    x = torch.randn(100)
    y, mask = ops.native_dropout(x, 0.5, True)
    np.testing.assert_allclose(y.numpy(), np.where(mask.numpy(), 2 * x.numpy(), 0.0))


def test_feature_dropout_drops_whole_maps():
    y = ops.feature_dropout(torch.ones(20, 30, 4, 5), 0.5).numpy()
    per_map = y.reshape(600, 20)
    assert set(np.unique(y)) == {0.0, 2.0}
    assert (per_map == per_map[:, :1]).all()
    assert 0.4 < (per_map[:, 0] == 0).mean() < 0.6


@pytest.mark.parametrize("form", ["alpha_dropout", "feature_alpha_dropout"])
def test_alpha_dropout_keeps_mean_and_variance(form):
    x = torch.randn(400, 200)
    y = getattr(ops, form)(x, 0.3, True).numpy()
    assert abs(y.mean()) < 0.03
    assert abs(y.std() - 1) < 0.03


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ops.dropout(torch.ones(2), -1.0), RuntimeError, "between 0 and 1, but got -1"),
        (lambda: ops.dropout(torch.tensor([1]), 0.5), RuntimeError, "result type Float"),
        (lambda: ops.feature_dropout(torch.ones(3), 0.5), RuntimeError, "at least 2 dimensions"),
        (lambda: ops.dropout([1.0], 0.5), TypeError, "must be Tensor"),
    ],
)
def test_impossible_dropouts_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()
