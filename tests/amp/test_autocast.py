"""Regions choose the dtype of operators, on this thread, on this device, and no longer."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import refruntime as torch
from refruntime import _dispatch
from refruntime.errors import ArgumentValueError

F = torch.nn.functional


def region(**options):
    return torch.autocast("cpu", **options)


def test_products_run_in_the_half_type_and_losses_in_float32():
    x = torch.randn(3, 3)
    with region():
        assert (x @ x).dtype == torch.bfloat16
        assert F.linear(x, x).dtype == torch.bfloat16
        assert F.mse_loss(x.bfloat16(), x).dtype == torch.float32
        assert x.bfloat16().sum().dtype == torch.bfloat16
        assert (x + x.bfloat16()).dtype == torch.float32
        assert (x.double() @ x.double()).dtype == torch.float64
    assert (x @ x).dtype == torch.float32


def test_other_half_type_and_nested_regions():
    x = torch.randn(2, 2)
    with region(dtype=torch.float16):
        assert (x @ x).dtype == torch.float16
        with region(enabled=False):
            assert (x @ x).dtype == torch.float32
        assert torch.get_autocast_dtype("cpu") == torch.float16
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_gradients_arrive_in_the_dtype_of_the_parameters():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    x = torch.randn(16, 4)
    with region():
        loss = model(x).float().square().mean()
    loss.backward()
    half = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    for one, parameter in zip(half, model.parameters(), strict=True):
        assert one.dtype == torch.float32
        scale = float(parameter.grad.abs().max())
        np.testing.assert_allclose(one.numpy(), parameter.grad.numpy(), atol=0.05 * scale)


def test_a_parameter_is_cast_once_a_region():
    weight = torch.randn(2, 2, requires_grad=True)
    with region():
        first, second = (F.linear(torch.ones(1, 2), weight).grad_fn for _ in range(2))
        casts = [node.next_functions[1][0] for node in (first, second)]
        assert casts[0] is casts[1]
        torch.clear_autocast_cache()
        third = F.linear(torch.ones(1, 2), weight).grad_fn
        assert third.next_functions[1][0] is not casts[0]


def test_region_belongs_to_its_thread():
    x = torch.randn(2, 2)
    seen = []
    with region():
        thread = threading.Thread(target=lambda: seen.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert seen == [torch.float32]
    assert _dispatch.autocast is None


def test_decorated_function_runs_inside():
    @region()
    def product(x):
        assert torch.is_autocast_enabled("cpu")
        return x @ x

    assert product(torch.ones(2, 2)).dtype == torch.bfloat16
    assert not torch.is_autocast_cpu_enabled()


def test_regions_that_cannot_be():
    with pytest.raises(ArgumentValueError, match="device_type"):
        torch.autocast("tpu")
    with pytest.warns(UserWarning, match="CUDA is not available"), torch.autocast("cuda"):
        assert not torch.is_autocast_enabled()
    with pytest.warns(UserWarning, match="not supported"):
        torch.autocast("cpu", dtype=torch.int32)
    with pytest.warns(UserWarning, match="CUDA is not available"):
        torch.cuda.amp.autocast()


def test_custom_functions_know_about_the_region():
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("cpu")
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            assert not torch.is_autocast_enabled("cpu")
            return 2 * g * ctx.saved_tensors[0]

    x = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    with region():
        y = Square.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
