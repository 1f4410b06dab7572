"""Attributes of modules, registration, and walks over the tree."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(1))
        self.inner = nn.Linear(2, 2)
        self.size = 3


def test_attributes_go_to_the_dict_of_their_kind():
    net = Net()
    assert list(net._parameters) == ["weight"]
    assert list(net._buffers) == ["seen"]
    assert list(net._modules) == ["inner"]
    assert net.__dict__["size"] == 3
    assert "weight" not in net.__dict__


def test_reading_a_missing_attribute_names_class_and_attribute():
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'absent'"):
        Net().absent  # noqa: B018


def test_an_attribute_set_again_changes_its_kind():
    net = Net()
    net.size = nn.Parameter(torch.ones(1))
    assert "size" not in net.__dict__
    net.weight = None
    assert net.weight is None
    assert "weight" in net._parameters
    del net.weight
    net.weight = 4
    assert net.__dict__["weight"] == 4


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("weight", torch.ones(2), "as parameter 'weight'"),
        ("inner", 3, "as child module 'inner'"),
        ("seen", "text", "as buffer 'seen'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(name, value, text):
    with pytest.raises(TypeError, match=text):
        setattr(Net(), name, value)


@pytest.mark.parametrize("value", [nn.Parameter(torch.ones(1)), nn.Identity()])
def test_registration_before_init_is_refused(value):
    class Early(nn.Module):
        def __init__(self):
            self.value = value
            super().__init__()

    with pytest.raises(AttributeError, match="before Module"):
        Early()


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("", KeyError, "empty"),
        ("a.b", KeyError, "contain"),
        ("size", KeyError, "already exists"),
        (3, TypeError, "should be a string"),
    ],
)
@pytest.mark.parametrize("how", ["register_parameter", "register_buffer", "add_module"])
def test_names_that_cannot_be_registered(how, name, error, text):
    value = {"register_parameter": nn.Parameter(torch.ones(1)), "add_module": nn.Identity()}
    with pytest.raises(error, match=text):
        getattr(Net(), how)(name, value.get(how, torch.ones(1)))


def test_a_parameter_with_a_history_is_refused():
    net, leaf = Net(), nn.Parameter(torch.ones(2))
    computed = leaf * 2
    computed.__class__ = nn.Parameter
    with pytest.raises(ValueError, match="non-leaf"):
        net.register_parameter("late", computed)


def test_walks_give_dotted_names_and_visit_shared_things_once():
    net = Net()
    net.again = net.inner
    net.tied = net.inner.weight
    assert [name for name, _ in net.named_parameters()] == [
        "weight", "tied", "inner.bias",
    ]  # fmt: skip
    assert [name for name, _ in net.named_modules()] == ["", "inner"]
    assert len(list(net.named_modules(remove_duplicate=False))) == 3
    assert len(list(net.named_parameters(remove_duplicate=False))) == 6
    assert [name for name, _ in net.named_children()] == ["inner"]
    assert [name for name, _ in net.named_parameters(prefix="top", recurse=False)] == [
        "top.weight", "top.tied",
    ]  # fmt: skip
    assert [tuple(b.shape) for b in net.buffers()] == [(1,)]


def test_dotted_paths_lead_to_modules_parameters_and_buffers():
    net = nn.Sequential(Net(), nn.BatchNorm1d(2))
    assert net.get_submodule("0.inner") is net[0].inner
    assert net.get_submodule("") is net
    assert net.get_parameter("0.inner.bias") is net[0].inner.bias
    assert net.get_buffer("1.running_mean") is net[1].running_mean
    with pytest.raises(AttributeError, match="no attribute `absent`"):
        net.get_submodule("0.absent")
    with pytest.raises(AttributeError, match=r"not an nn\.Module"):
        net.get_submodule("0.size")
    with pytest.raises(AttributeError, match=r"not an nn\.Parameter"):
        net.get_parameter("1.running_mean")


def test_set_submodule_replaces_a_module_deep_in_the_tree():
    net = nn.Sequential(Net())
    net.set_submodule("0.inner", nn.Identity())
    assert type(net[0].inner) is nn.Identity
    with pytest.raises(AttributeError):
        net.set_submodule("0.absent", nn.Identity(), strict=True)


def test_dir_lists_what_a_module_holds_but_no_numbers():
    names = dir(nn.Sequential(nn.Linear(1, 1)))
    assert "0" not in names
    assert {"weight", "seen", "inner", "size", "forward"} <= set(dir(Net()))


def test_changes_of_the_dicts_from_outside_are_seen_at_once():
    net = Net()
    other = nn.Parameter(torch.zeros(2))
    net._parameters["weight"] = other
    assert net.weight is other
