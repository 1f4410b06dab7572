"""Anomaly mode: forward lines, NaN, and that it leaves nothing behind."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.autograd import Function, anomaly, engine, record


class Broken(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        raise KeyError("boom")


def test_an_error_names_the_line_of_the_forward():
    x = torch.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="increase the runtime"):
        mode = torch.autograd.detect_anomaly()
    with mode:
        y = Broken.apply(x * 2)  # this line
        with (
            pytest.warns(UserWarning, match=r"Error detected in BrokenBackward[\s\S]*# this line"),
            pytest.raises(KeyError, match="boom") as info,
        ):
            y.sum().backward()
    assert any("# this line" in note for note in info.value.__notes__)


def test_nan_is_an_error_that_names_the_node():
    x = torch.zeros(2, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        y = (x * 0).sqrt() * 0  # here
        with (
            pytest.warns(UserWarning, match=r"SqrtBackward0[\s\S]*# here"),
            pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values in its 0th"),
        ):
            y.sum().backward()
        assert "traceback_" in y.grad_fn.metadata
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        ((x * 0).sqrt() * 0).sum().backward()
    assert x.grad.isnan().all()


def test_a_graph_made_outside_of_the_mode_says_that_it_knows_nothing():
    y = Broken.apply(torch.ones(2, requires_grad=True))
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="No forward pass information"),
        pytest.raises(KeyError),
    ):
        y.sum().backward()


def test_a_second_derivative_names_both_forwards():
    class SecondBroken(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return Broken.apply(g * 2 * x)

    x = torch.ones(2, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        y = SecondBroken.apply(x)  # outer line
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        with (
            pytest.warns(UserWarning, match=r"induced the previous calculation[\s\S]*# outer line"),
            pytest.raises(KeyError),
        ):
            g.sum().backward()


def test_the_mode_ends_with_its_block_and_leaves_no_observers():
    assert not torch.is_anomaly_enabled()
    with torch.autograd.set_detect_anomaly(True):
        assert torch.is_anomaly_enabled()
        assert torch.is_anomaly_check_nan_enabled()
        with torch.autograd.set_detect_anomaly(False):
            assert not torch.is_anomaly_enabled()
        assert torch.is_anomaly_enabled()
    assert not torch.is_anomaly_enabled()
    assert anomaly._remember not in record.observers
    assert anomaly._watch not in engine.observers
    y = torch.ones(1, requires_grad=True) * 2
    assert "traceback_" not in y.grad_fn.metadata
