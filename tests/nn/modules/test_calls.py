"""Calling modules and the hooks around a call."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn
from refruntime.nn.modules import module as hooks_everywhere


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(3.0))

    def forward(self, x, plus=0.0):
        return x * self.factor + plus


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match='missing the required "forward"'):
        nn.Module()(1)


def test_forward_pre_hooks_see_and_replace_arguments():
    net = Scale()
    net.register_forward_pre_hook(lambda module, args: args[0] + 1)
    net.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {"plus": 10.0}), with_kwargs=True
    )
    assert float(net(torch.tensor(1.0)).detach()) == 16.0


def test_a_pre_hook_with_kwargs_must_return_a_pair():
    net = Scale()
    net.register_forward_pre_hook(lambda module, args, kwargs: 3, with_kwargs=True)
    with pytest.raises(RuntimeError, match="new_args, new_kwargs"):
        net(torch.tensor(1.0))


def test_forward_hooks_run_in_order_and_replace_the_result():
    net, seen = Scale(), []
    net.register_forward_hook(lambda module, args, out: out * 2)
    net.register_forward_hook(
        lambda module, args, kwargs, out: seen.append((kwargs, float(out.detach()))),
        with_kwargs=True,
    )
    net.register_forward_hook(lambda module, args, out: seen.append("first"), prepend=True)
    assert float(net(torch.tensor(1.0), plus=1.0).detach()) == 8.0
    assert seen == ["first", ({"plus": 1.0}, 8.0)]


def test_a_hook_leaves_with_its_handle():
    net, seen = Scale(), []
    with net.register_forward_hook(lambda *args: seen.append(1)):
        net(torch.tensor(1.0))
    net(torch.tensor(1.0))
    assert seen == [1]


class Failing(nn.Module):
    def forward(self, x):
        raise ValueError("inside")


def test_always_called_hooks_run_after_an_error_which_goes_on():
    net, seen = Failing(), []
    net.register_forward_hook(lambda *args: seen.append("plain"))
    net.register_forward_hook(lambda *args: seen.append("always"), always_call=True)
    with pytest.raises(ValueError, match="inside"):
        net(1)
    assert seen == ["always"]


def test_an_error_of_an_always_called_hook_does_not_hide_the_first():
    net = Failing()

    def bad(*args):
        raise KeyError("second")

    net.register_forward_hook(bad, always_call=True)
    with pytest.warns(UserWarning, match="silenced"), pytest.raises(ValueError, match="inside"):
        net(1)


def test_global_hooks_run_for_all_modules():
    seen = []
    net = nn.Sequential(Scale(), nn.Identity())
    with hooks_everywhere.register_module_forward_hook(
        lambda module, args, out: seen.append(type(module).__name__)
    ):
        net(torch.tensor(1.0))
    net(torch.tensor(1.0))
    assert seen == ["Scale", "Identity", "Sequential"]


def test_full_backward_hooks_see_gradients_of_inputs_and_outputs():
    net, seen = Scale(), []
    net.register_full_backward_hook(
        lambda module, grad_in, grad_out: seen.append((grad_in[0].tolist(), grad_out[0].tolist()))
    )
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (net(x) * torch.tensor([1.0, 10.0])).sum().backward()
    assert seen == [([3.0, 30.0], [1.0, 10.0])]
    assert x.grad.tolist() == [3.0, 30.0]
    assert float(net.factor.grad) == 21.0


def test_full_backward_hooks_may_replace_the_gradients():
    net = Scale()
    net.register_full_backward_pre_hook(lambda module, grad_out: (grad_out[0] * 2,))
    net.register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] + 1,))
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    net(x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [7.0, 7.0])


def test_full_backward_hooks_run_when_no_input_needs_a_gradient():
    net, seen = Scale(), []
    net.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append(grad_in))
    net(torch.tensor([1.0, 2.0])).sum().backward()
    assert seen == [(None,)]


def test_a_backward_hook_with_too_many_gradients_is_refused():
    net = Scale()
    net.register_full_backward_hook(lambda module, grad_in, grad_out: (1, 2))
    out = net(torch.tensor(1.0, requires_grad=True))
    with pytest.raises(RuntimeError, match="another number of gradients"):
        out.backward()
