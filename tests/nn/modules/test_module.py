"""Conversion, modes, copying, pickling and the printed form of modules."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)

    def extra_repr(self):
        return "width=2"


def test_the_constructor_takes_no_arguments():
    with pytest.raises(TypeError, match="takes no arguments"):
        nn.Module(3)


def test_apply_visits_children_first():
    seen = []
    net = Net()
    assert net.apply(lambda module: seen.append(type(module).__name__)) is net
    assert seen == ["Linear", "BatchNorm1d", "Net"]


def test_conversion_keeps_parameter_objects_and_leaves_integers():
    net = Net()
    weight = net.first.weight
    net.double()
    assert net.first.weight is weight
    assert weight.dtype is torch.float64
    assert net.norm.running_mean.dtype is torch.float64
    assert net.norm.num_batches_tracked.dtype is torch.int64
    net.to(torch.float16)
    assert weight.dtype is torch.float16
    assert weight.requires_grad


def test_conversion_takes_gradients_along():
    net = Net()
    net.first.weight.grad = torch.ones(2, 2)
    net.double()
    assert net.first.weight.grad.dtype is torch.float64


def test_to_accepts_device_dtype_both_or_a_tensor():
    net = Net()
    assert net.to("cpu") is net
    net.to("cpu", torch.float64)
    assert net.first.weight.dtype is torch.float64
    net.to(torch.zeros(1))
    assert net.first.weight.dtype is torch.float32
    net.to(device=torch.device("cpu"), dtype=torch.bfloat16)
    assert net.first.weight.dtype is torch.bfloat16


def test_to_refuses_integers():
    with pytest.raises(TypeError, match="floating point or complex"):
        Net().to(torch.int32)


def test_modes_reach_all_modules():
    net = Net()
    assert not net.eval().norm.training
    assert net.train().norm.training
    with pytest.raises(ValueError, match="boolean"):
        net.train(1)


def test_requires_grad_and_zero_grad_reach_all_parameters():
    net = Net()
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    net.requires_grad_(True)
    net.first.weight.grad = torch.ones(2, 2)
    net.first.bias.grad = torch.ones(2)
    net.zero_grad(set_to_none=False)
    assert float(net.first.weight.grad.sum()) == 0.0
    net.zero_grad()
    assert net.first.weight.grad is None


def test_the_printed_form_nests():
    assert repr(nn.Sequential(Net(), nn.ReLU())) == (
        "Sequential(\n"
        "  (0): Net(\n"
        "    width=2\n"
        "    (first): Linear(in_features=2, out_features=2, bias=True)\n"
        "    (norm): BatchNorm1d(2, eps=1e-05, momentum=0.1, affine=True, bias=True, "
        "track_running_stats=True)\n"
        "  )\n"
        "  (1): ReLU()\n"
        ")"
    )


def test_copies_share_nothing_and_keep_ties():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    twin = copy.deepcopy(net)
    assert twin[1].weight is twin[0].weight
    twin[0].weight.data.fill_(9.0)
    assert float(net[0].weight.detach().max()) < 9.0


def test_pickling_keeps_values_ties_and_modes():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).eval()
    net[1].weight = net[0].weight
    twin = pickle.loads(pickle.dumps(net))
    assert twin[1].weight is twin[0].weight
    assert not twin[0].training
    np.testing.assert_array_equal(twin[0].bias.detach().numpy(), net[0].bias.detach().numpy())


def test_a_module_pickled_without_some_hook_dicts_gets_them():
    net = nn.Identity()
    state = dict(net.__dict__)
    del state["_forward_hooks"]
    twin = nn.Identity.__new__(nn.Identity)
    twin.__setstate__(state)
    assert twin(3) == 3


def test_to_empty_keeps_shapes():
    net = nn.Linear(3, 2).to_empty(device="cpu")
    assert tuple(net.weight.shape) == (2, 3)
    assert net.weight.requires_grad
