"""Modules as functions of their parameters."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn
from refruntime.func import (
    functional_call,
    grad,
    grad_and_value,
    jacrev,
    replace_all_batch_norm_modules_,
    stack_module_state,
    vmap,
)

W = torch.eye(2)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


def test_a_module_is_called_with_other_tensors_and_left_as_it_was():
    net = nn.Linear(2, 2)
    own = net.weight
    x = torch.tensor([1.0, 2.0])
    out = functional_call(net, {"weight": 3 * W, "bias": torch.zeros(2)}, (x,))
    assert out.tolist() == [3.0, 6.0]
    assert net.weight is own
    with pytest.raises(RuntimeError):
        functional_call(net, {"weight": torch.ones(5, 5)}, x)
    assert net.weight is own
    two = functional_call(net, ({"weight": W}, {"bias": x}), x)
    assert two.tolist() == [2.0, 4.0]


def test_shared_parameters_are_replaced_together():
    x = torch.tensor([1.0, 2.0])
    net = Tied()
    assert functional_call(net, {"a.weight": 2 * W}, x).tolist() == [4.0, 8.0]
    loose = functional_call(net, {"a.weight": W}, x, tie_weights=False)
    np.testing.assert_allclose(loose.detach().numpy(), net.b(x).detach().numpy())
    with pytest.raises(ValueError, match="tied"):
        functional_call(net, {"a.weight": W, "b.weight": 2 * W}, x)


def test_names_are_checked_when_asked():
    net, x = nn.Linear(2, 2), torch.ones(2)
    functional_call(net, {"other": W}, x)
    with pytest.raises(RuntimeError, match=r"Missing key.*bias"):
        functional_call(net, {"weight": W}, x, strict=True)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*other"):
        functional_call(net, {"weight": W, "bias": x, "other": x}, x, strict=True)
    with pytest.raises(ValueError, match="multiple dictionaries"):
        functional_call(net, ({"weight": W}, {"weight": W}), x)
    with pytest.raises(ValueError, match="dict"):
        functional_call(net, 3, x)
    with pytest.raises(TypeError, match=r"instance of torch\.Tensor"):
        functional_call(net, {"weight": 3}, x)


def test_per_sample_gradients_of_a_network_with_a_convolution():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)).double()
    params = {name: p.detach() for name, p in net.named_parameters()}
    x, y = torch.randn(4, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 2, 1, 1])

    def loss(params, one, label):
        out = functional_call(net, params, (one.unsqueeze(0),))
        return nn.functional.cross_entropy(out, label.unsqueeze(0))

    found, values = vmap(grad_and_value(loss), in_dims=(None, 0, 0))(params, x, y)
    for k in range(4):
        net.zero_grad()
        one = nn.functional.cross_entropy(net(x[k : k + 1]), y[k : k + 1])
        one.backward()
        assert values[k].item() == pytest.approx(one.item())
        for name, p in net.named_parameters():
            np.testing.assert_allclose(found[name][k].numpy(), p.grad.numpy(), atol=1e-12)


def test_an_ensemble_runs_as_one():
    nets = [nn.Linear(3, 2) for _ in range(4)]
    params, buffers = stack_module_state(nets)
    assert params["weight"].shape == (4, 2, 3)
    assert params["weight"].requires_grad
    x = torch.randn(5, 3)
    out = vmap(
        lambda p, b: functional_call(nets[0], (p, b), (x,)), in_dims=(0, 0)
    )(params, buffers or {})  # fmt: skip
    for k, net in enumerate(nets):
        np.testing.assert_allclose(
            out[k].detach().numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6
        )


def test_what_does_not_stack_is_refused():
    for models, text in (
        ([], "at least one"),
        ([nn.Linear(2, 2), nn.ReLU()], "same class"),
        ([nn.Linear(2, 2), nn.Linear(2, 2).eval()], "training/eval"),
    ):
        with pytest.raises(RuntimeError, match=text):
            stack_module_state(models)


def test_batch_norms_without_running_statistics_run_in_a_batch():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    params = {name: p.detach() for name, p in net.named_parameters()}
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="inplace arithmetic"):
        vmap(lambda one: functional_call(net, params, (one,)))(x)
    replace_all_batch_norm_modules_(net)
    found = vmap(lambda one: functional_call(net, params, (one,)))(x)
    want = torch.stack([net(one) for one in x])
    np.testing.assert_allclose(found.numpy(), want.detach().numpy(), atol=1e-12)


def test_the_jacobian_by_parameters_has_their_names():
    net = nn.Linear(3, 2).double()
    params = {name: p.detach() for name, p in net.named_parameters()}
    x = torch.randn(3, dtype=torch.float64)
    found = jacrev(lambda p: functional_call(net, p, x))(params)
    np.testing.assert_allclose(found["bias"].numpy(), np.eye(2))
    np.testing.assert_allclose(
        found["weight"].numpy(), np.einsum("ij,k->ijk", np.eye(2), x.numpy())
    )
    gradient = grad(lambda p: functional_call(net, p, x).sum())(params)
    np.testing.assert_allclose(gradient["bias"].numpy(), [1, 1])
