"""Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

from __future__ import annotations

from collections import OrderedDict

import pytest

import refruntime as torch
from refruntime import nn


def kinds(container):
    return [type(module).__name__ for module in container]


def test_sequential_calls_its_modules_in_order():
    net = nn.Sequential(nn.Flatten(), nn.ReLU())
    out = net(torch.tensor([[[-1.0, 2.0]]]))
    assert out.tolist() == [[0.0, 2.0]]


def test_sequential_takes_names_and_slices():
    net = nn.Sequential(OrderedDict(a=nn.ReLU(), b=nn.Tanh(), c=nn.Sigmoid()))
    assert net.b is net[1] is net[-2]
    assert list(net[1:].state_dict()) == []
    assert [name for name, _ in net[1:].named_children()] == ["b", "c"]
    with pytest.raises(IndexError):
        net[3]


def test_sequential_changes_keep_numbers_without_gaps():
    net = nn.Sequential(nn.ReLU())
    net.append(nn.Tanh()).extend([nn.Sigmoid(), nn.GELU()])
    net.insert(1, nn.SiLU())
    assert kinds(net) == ["ReLU", "SiLU", "Tanh", "Sigmoid", "GELU"]
    del net[0]
    assert type(net.pop(-1)) is nn.GELU
    assert [name for name, _ in net.named_children()] == ["0", "1", "2"]
    net[1] = nn.Identity()
    assert kinds(net) == ["SiLU", "Identity", "Sigmoid"]
    with pytest.raises(IndexError):
        net.insert(9, nn.ReLU())


def test_sequentials_add_up_and_repeat():
    net = nn.Sequential(nn.ReLU()) + nn.Sequential(nn.Tanh())
    assert kinds(net) == ["ReLU", "Tanh"]
    assert kinds(net * 2) == ["ReLU", "Tanh"] * 2
    net += nn.Sequential(nn.SiLU())
    assert kinds(net) == ["ReLU", "Tanh", "SiLU"]
    with pytest.raises(ValueError, match="Sequential"):
        net + nn.ReLU()


def test_module_list_is_a_list():
    net = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    net.insert(0, nn.SiLU())
    net += [nn.GELU()]
    assert kinds(net) == ["SiLU", "ReLU", "Tanh", "GELU"]
    assert kinds(net[1:3]) == ["ReLU", "Tanh"]
    assert type(net[1:3]) is nn.ModuleList
    assert kinds(net + [nn.Identity()])[-1] == "Identity"
    assert len(net) == 4
    del net[1:3]
    assert kinds(net) == ["SiLU", "GELU"]


def test_module_list_prints_equal_neighbours_once():
    net = nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.Tanh()])
    assert repr(net) == "ModuleList(\n  (0-1): 2 x ReLU()\n  (2): Tanh()\n)"
    assert repr(nn.ModuleList()) == "ModuleList()"


def test_module_dict_is_a_dict():
    net = nn.ModuleDict({"a": nn.ReLU()})
    net["b"] = nn.Tanh()
    net.update([("c", nn.SiLU())])
    assert list(net) == ["a", "b", "c"]
    assert "b" in net
    assert type(net.pop("b")) is nn.Tanh
    assert [key for key, _ in net.items()] == ["a", "c"]
    del net["a"]
    assert len(net) == 1
    net.clear()
    assert kinds(net.values()) == []
    with pytest.raises(TypeError, match="key/value"):
        net.update(3)


def test_parameter_list_makes_parameters_of_tensors():
    params = nn.ParameterList([torch.ones(2), nn.Parameter(torch.ones(3))])
    params.append(torch.zeros(1))
    params.extend([nn.Parameter(torch.zeros(4))])
    assert [tuple(p.shape) for p in params] == [(2,), (3,), (1,), (4,)]
    assert all(type(p) is nn.Parameter for p in params)
    assert list(params.state_dict()) == ["0", "1", "2", "3"]
    assert tuple(params[-1].shape) == (4,)
    assert len(params[1:3]) == 2
    params[0] = torch.ones(7)
    assert tuple(params[0].shape) == (7,)
    with pytest.raises(IndexError):
        params[4]


def test_parameter_list_prints_shapes():
    params = nn.ParameterList([torch.ones(2, 3), "text"])
    assert repr(params) == (
        "ParameterList(\n"
        "    (0): Parameter containing: [torch.float32 of size 2x3]\n"
        "    (1): Object of type: str\n"
        ")"
    )


def test_parameter_dict_is_a_dict():
    params = nn.ParameterDict({"a": torch.ones(2)})
    params["b"] = nn.Parameter(torch.ones(3))
    params.update({"c": torch.ones(1)})
    assert list(params) == ["a", "b", "c"]
    assert type(params["a"]) is nn.Parameter
    assert params.get("absent", 5) == 5
    assert params.setdefault("d", torch.zeros(1)) is params["d"]
    assert params.popitem()[0] == "d"
    assert tuple(params.pop("b").shape) == (3,)
    assert list(params.state_dict()) == ["a", "c"]
    assert list(params.copy()) == ["a", "c"]
    params.clear()
    assert len(params) == 0
    with pytest.raises(KeyError):
        params["a"]
