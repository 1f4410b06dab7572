"""Dual tensors by hand: levels, views, writes, what is refused."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn
from refruntime.autograd import forward_ad as fw

X = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
T = torch.tensor([1.0, -1.0, 3.0], dtype=torch.float64)


def tangent(value):
    return fw.unpack_dual(value).tangent


def test_operators_carry_tangents():
    with fw.dual_level():
        d = fw.make_dual(X, T)
        primal, moved = fw.unpack_dual((d.sin() * d).sum())
        x, t = X.numpy(), T.numpy()
        assert primal.item() == pytest.approx((np.sin(x) * x).sum())
        assert moved.item() == pytest.approx(((np.cos(x) * x + np.sin(x)) * t).sum())
        assert tangent(X * 2) is None
        assert tangent(d > 1) is None
        assert tangent(d.detach()) is None
        np.testing.assert_array_equal(tangent(d + 1).numpy(), t)


def test_views_of_dual_tensors_are_views_of_the_tangent():
    with fw.dual_level():
        d = fw.make_dual(X.clone(), T.clone())
        y = d * 1
        y[1:].mul_(2)
        np.testing.assert_array_equal(fw.unpack_dual(y).primal.numpy(), [0.5, 2.0, 4.0])
        np.testing.assert_array_equal(tangent(y).numpy(), [1.0, -2.0, 6.0])
        # The tangent that was given is not written to by writes into results.
        z = d + 1
        z.mul_(5)
        np.testing.assert_array_equal(tangent(d).numpy(), T.numpy())


def test_writing_a_dual_tensor_into_a_plain_one_makes_it_dual():
    with fw.dual_level():
        d = fw.make_dual(X, T)
        out = torch.zeros(4, dtype=torch.float64)
        out[1:] = d * 2
        np.testing.assert_array_equal(tangent(out).numpy(), [0.0, 2.0, -2.0, 6.0])
        out.zero_()
        np.testing.assert_array_equal(tangent(out).numpy(), np.zeros(4))
    assert out.tolist() == [0.0] * 4


def test_views_that_exist_already_see_the_write_of_a_dual_tensor():
    with fw.dual_level():
        out = torch.zeros(4, dtype=torch.float64)
        early = out[2:]
        out[1:3] = fw.make_dual(X[:2], T[:2])
        np.testing.assert_array_equal(tangent(early).numpy(), [-1.0, 0.0])
        early.mul_(3)
        np.testing.assert_array_equal(tangent(out).numpy(), [0.0, 1.0, -3.0, 0.0])


def test_leaving_the_level_leaves_the_primals():
    with fw.dual_level():
        y = fw.make_dual(X, T).exp()
    np.testing.assert_allclose((y + 0).numpy(), np.exp(X.numpy()))
    assert fw.unpack_dual(y).tangent is None
    assert type(y) is torch.Tensor


def test_levels_nest_and_do_not_mix():
    with fw.dual_level() as outer:
        a = fw.make_dual(X, T)
        with fw.dual_level() as inner:
            b = fw.make_dual(a, torch.ones_like(X))
            y = (b**3).sum()
            first = fw.unpack_dual(y, level=inner).tangent
            second = fw.unpack_dual(first, level=outer).tangent
        assert second.item() == pytest.approx((6 * X.numpy() * T.numpy()).sum())
        with pytest.raises(RuntimeError, match="not the last one"):
            fw.exit_dual_level(level=5)


def test_forward_over_reverse_and_reverse_over_forward():
    x = X.clone().requires_grad_()
    with fw.dual_level():
        y = (fw.make_dual(x, T) ** 3).sum()
        (found,) = torch.autograd.grad(tangent(y), x)
    np.testing.assert_allclose(found.numpy(), 6 * X.numpy() * T.numpy())


def test_a_network_has_the_derivative_that_differences_say():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 3, 2), nn.GELU(), nn.Flatten(), nn.Linear(9, 2)).double()
    x, t = torch.randn(4, 2, 4).double(), torch.randn(4, 2, 4).double()
    with torch.no_grad(), fw.dual_level():
        moved = tangent(net(fw.make_dual(x, t)))
        eps = 1e-6
        want = (net(x + eps * t) - net(x - eps * t)) / (2 * eps)
    np.testing.assert_allclose(moved.numpy(), want.numpy(), atol=1e-8)


def test_dual_tensors_leave_no_memory_behind():
    from refruntime import alloc

    with fw.dual_level():
        fw.make_dual(X, T).sin()
    gc.collect()
    before = alloc.host().stats()["allocated_bytes.all.current"]
    for _ in range(5):
        with fw.dual_level():
            (fw.make_dual(X, T).sin() * 2).sum()
    gc.collect()
    assert alloc.host().stats()["allocated_bytes.all.current"] == before


def test_mistakes_are_named():
    with pytest.raises(RuntimeError, match="no level exists"):
        fw.make_dual(X, T)
    with pytest.raises(RuntimeError, match="not the last one"):
        fw.exit_dual_level()
    with fw.dual_level():
        with pytest.raises(RuntimeError, match="same shape"):
            fw.make_dual(X, T[:2])
        with pytest.raises(RuntimeError, match="same dtype"):
            fw.make_dual(X, T.float())
        with pytest.raises(ValueError, match="floating point or complex"):
            fw.make_dual(torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64))
        d = fw.make_dual(X, T)
        with pytest.raises(RuntimeError, match="already carries"):
            fw.make_dual(d, T)
        with pytest.raises(TypeError, match="numpy"):
            d.numpy()
        assert d[0].item() == 0.5
        assert "tangent=" in repr(d)
