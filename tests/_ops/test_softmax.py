from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.autograd import gradcheck, gradgradcheck


def double(*shape):
    rng = np.random.default_rng(sum(shape))
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_derivatives_of_both_orders(function, dim):
    assert gradcheck(lambda x: function(x, dim), [double(3, 4, 2)], fast_mode=True)
    assert gradgradcheck(lambda x: function(x, dim), [double(3, 4, 2)], fast_mode=True)


def test_a_dtype_converts_before_the_computation():
    x = torch.tensor([1, 2, 3])
    y = torch.softmax(x, 0, dtype=torch.float64)
    assert y.dtype is torch.float64 and y.sum().item() == pytest.approx(1.0)


def test_the_gradient_of_a_converted_operand_has_its_own_dtype():
    x = torch.randn(3, dtype=torch.float16, requires_grad=True)
    torch.log_softmax(x, 0, dtype=torch.float32).sum().backward()
    assert x.grad.dtype is torch.float16


def test_softmin_turns_the_order_around():
    x = torch.tensor([1.0, 2.0])
    np.testing.assert_allclose(
        torch.softmin(x, 0).numpy(), torch.softmax(x, 0).numpy()[::-1], rtol=1e-6
    )


def test_zero_dim_and_empty_tensors():
    assert torch.softmax(torch.tensor(3.0), 0).item() == 1
    assert torch.softmax(torch.zeros(0, 3), 1).shape == (0, 3)
    assert torch.softmax(torch.zeros(3, 0), 1).shape == (3, 0)


def test_only_the_result_is_saved():
    x = torch.randn(4, 5, requires_grad=True)
    node = torch.softmax(x, 1).grad_fn
    assert node.op.saves == ("out",)
