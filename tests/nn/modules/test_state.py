"""State dicts: names, strictness, shapes, extra state, hooks."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn


def build():
    return nn.Sequential(OrderedDict(first=nn.Linear(2, 3), norm=nn.BatchNorm1d(3)))


KEYS = [
    "first.weight", "first.bias", "norm.weight", "norm.bias", "norm.running_mean",
    "norm.running_var", "norm.num_batches_tracked",
]  # fmt: skip


def test_keys_are_dotted_paths_in_order_of_registration():
    state = build().state_dict()
    assert list(state) == KEYS
    assert state._metadata["norm"] == {"version": 2}


def test_values_share_memory_and_carry_no_history():
    net = build()
    state = net.state_dict()
    assert not state["first.weight"].requires_grad
    net[0].weight.data.fill_(3.0)
    assert float(state["first.weight"].sum()) == 18.0
    assert net.state_dict(keep_vars=True)["first.weight"] is net[0].weight


def test_a_state_dict_moves_all_values_into_another_module():
    net, other = build(), build()
    answer = other.load_state_dict(net.state_dict())
    assert repr(answer) == "<All keys matched successfully>"
    for (name, a), (_, b) in zip(
        net.state_dict().items(), other.state_dict().items(), strict=True
    ):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=name)


def test_loading_keeps_the_parameter_objects():
    net = build()
    before = net[0].weight
    net.load_state_dict(build().state_dict())
    assert net[0].weight is before
    assert before.requires_grad


def test_assign_puts_the_given_tensors_in_place():
    net = build()
    state = {name: value.clone() for name, value in build().state_dict().items()}
    net.load_state_dict(state, assign=True)
    assert type(net[0].weight) is nn.Parameter
    assert net[0].weight.data_ptr() == state["first.weight"].data_ptr()


def test_all_differences_are_listed_in_one_error():
    state = build().state_dict()
    del state["first.bias"]
    state["other.weight"] = torch.ones(1)
    state["norm.weight"] = torch.ones(4)
    with pytest.raises(RuntimeError) as caught:
        build().load_state_dict(state)
    text = str(caught.value)
    assert "Error(s) in loading state_dict for Sequential:" in text
    assert 'Missing key(s) in state_dict: "first.bias"' in text
    assert 'Unexpected key(s) in state_dict: "other.weight"' in text
    assert "size mismatch for norm.weight: copying a param with shape torch.Size([4])" in text


def test_without_strict_the_names_are_returned_but_shapes_must_fit():
    state = build().state_dict()
    del state["first.bias"]
    state["first.scale"] = torch.ones(1)
    missing, unexpected = build().load_state_dict(state, strict=False)
    assert missing == ["first.bias"]
    assert unexpected == ["first.scale"]
    state["norm.weight"] = torch.ones(4)
    with pytest.raises(RuntimeError, match="size mismatch"):
        build().load_state_dict(state, strict=False)


def test_a_value_that_is_no_tensor_is_named():
    state = build().state_dict()
    state["first.bias"] = [1.0]
    with pytest.raises(RuntimeError, match=r'"first\.bias", expected torch\.Tensor'):
        build().load_state_dict(state)


def test_a_state_dict_must_be_a_mapping():
    with pytest.raises(TypeError, match="dict-like"):
        build().load_state_dict([("a", 1)])


def test_a_batch_norm_state_without_a_count_still_loads():
    state = build().state_dict()
    del state["norm.num_batches_tracked"]
    state._metadata.clear()
    build().load_state_dict(state)


def test_hidden_buffers_are_neither_saved_nor_missed():
    net = nn.Module()
    net.register_buffer("cache", torch.ones(1), persistent=False)
    assert list(net.state_dict()) == []
    net.load_state_dict({})


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def test_extra_state_travels_with_the_tensors():
    net = nn.Sequential(Counting())
    net[0].count = 5
    state = net.state_dict()
    assert state["0._extra_state"] == {"count": 5}
    other = nn.Sequential(Counting())
    other.load_state_dict(state)
    assert other[0].count == 5
    with pytest.raises(RuntimeError, match=r'Missing key.*"0\._extra_state"'):
        other.load_state_dict({})


def test_hooks_run_around_saving_and_loading():
    net, calls = build(), []
    net.register_state_dict_pre_hook(lambda module, prefix, keep: calls.append("before save"))
    net.register_state_dict_post_hook(lambda *args: calls.append("after save"))
    state = net.state_dict()

    def rename(module, state_dict, prefix, *rest):
        state_dict["first.weight"] = state_dict.pop("old.weight")

    net.register_load_state_dict_pre_hook(rename)
    net.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())
    state["old.weight"] = state.pop("first.weight")
    del state["first.bias"]
    net.load_state_dict(state)
    assert calls == ["before save", "after save"]


def test_a_removed_hook_does_not_run():
    net, calls = build(), []
    handle = net.register_state_dict_pre_hook(lambda *args: calls.append(1))
    handle.remove()
    handle.remove()
    net.state_dict()
    assert calls == []


def test_old_positional_arguments_still_work():
    target = OrderedDict()
    assert build().state_dict(target, "net.") is target
    assert next(iter(target)) == "net.first.weight"
