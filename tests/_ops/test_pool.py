from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.autograd import gradcheck, gradgradcheck


def double(*shape):
    rng = np.random.default_rng(sum(shape))
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


FUNCTIONS = {
    "max": (lambda x: torch.max_pool2d(x, 3, 2, 1, 1, True), (1, 2, 5, 6)),
    "max 1": (lambda x: torch.max_pool1d(x, 3, 1, 1, 2), (2, 2, 7)),
    "max 3": (lambda x: torch.max_pool3d(x, 2), (1, 1, 3, 4, 4)),
    "adaptive max": (lambda x: torch.adaptive_max_pool2d(x, (2, 3)), (1, 2, 5, 4)),
    "average": (lambda x: torch.avg_pool2d(x, 3, 2, 1, True, False), (1, 2, 5, 6)),
    "average 1": (lambda x: torch.avg_pool1d(x, 2), (2, 2, 7)),
    "average 3": (lambda x: torch.avg_pool3d(x, 2, 1, 1), (1, 1, 3, 3, 3)),
    "adaptive average": (lambda x: torch.adaptive_avg_pool2d(x, (2, 3)), (1, 2, 5, 4)),
    "global": (lambda x: torch.adaptive_avg_pool2d(x, 1), (1, 2, 5, 4)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_pooling_has_derivatives_of_both_orders(name):
    function, shape = FUNCTIONS[name]
    assert gradcheck(function, [double(*shape)], fast_mode=True)
    assert gradgradcheck(function, [double(*shape)], fast_mode=True)


@pytest.mark.parametrize("include", [True, False])
def test_padding_counts_in_a_mean_only_when_asked(include):
    y = torch.avg_pool2d(torch.ones(1, 1, 2, 2), 2, 2, 1, count_include_pad=include)
    assert y.tolist() == [[[[0.25 if include else 1.0] * 2] * 2]]


def test_the_last_window_of_ceil_mode_starts_inside_the_input():
    assert torch.max_pool1d(torch.arange(5.0)[None], 2, 2, 0, 1, True).tolist() == [[1, 3, 4]]
    assert torch.max_pool1d(torch.arange(4.0)[None], 1, 3, 0, 1, True).shape == (1, 2)


def test_a_divisor_of_its_own_replaces_the_window_size():
    y = torch.avg_pool2d(torch.ones(1, 1, 2, 2), 2, divisor_override=8)
    assert y.item() == 0.5


def test_adaptive_pooling_keeps_a_dimension_whose_size_is_none():
    x = torch.arange(12.0).reshape(1, 1, 3, 4)
    y = torch.adaptive_avg_pool2d(x, (None, 2))
    assert y.tolist() == [[[[0.5, 2.5], [4.5, 6.5], [8.5, 10.5]]]]


def test_windows_larger_than_the_input_are_refused():
    with pytest.raises(RuntimeError, match="too small"):
        torch.avg_pool2d(torch.ones(1, 1, 2, 2), 3)
    with pytest.raises(RuntimeError, match="Expected 3D or 4D input"):
        torch.max_pool2d(torch.ones(2, 2), 2)
