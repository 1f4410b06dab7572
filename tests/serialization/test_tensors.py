"""Tensors through pickle and copy."""

from __future__ import annotations

import copy
import pickle

import pytest

import refruntime as torch
from refruntime.alloc import categories


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_values_strides_and_flags_survive_pickling(protocol):
    x = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    loaded = pickle.loads(pickle.dumps(x, protocol))
    assert loaded.tolist() == x.tolist()
    assert loaded.stride() == (1, 3)
    assert loaded.requires_grad
    assert loaded.is_leaf


def test_a_slice_is_pickled_without_the_rest_of_its_storage():
    x = torch.zeros(100000)[::1000]
    data = pickle.dumps(x)
    assert len(data) < 2000
    assert pickle.loads(data).tolist() == [0.0] * 100


def test_protocol_5_hands_the_elements_out_of_band():
    x = torch.arange(1000.0)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(x, 5, buffer_callback=buffers.append)
    assert len(data) < 1000
    assert pickle.loads(data, buffers=buffers).tolist() == x.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.uint8])
def test_dtypes_survive_pickling(dtype):
    x = torch.tensor([0, 1, 1]).to(dtype)
    loaded = pickle.loads(pickle.dumps(x))
    assert loaded.dtype is dtype
    assert loaded.tolist() == x.tolist()


def test_empty_and_zero_dim_tensors_survive_pickling():
    assert tuple(pickle.loads(pickle.dumps(torch.empty(0, 3))).shape) == (0, 3)
    assert pickle.loads(pickle.dumps(torch.tensor(5))).item() == 5


def test_class_attributes_and_category_survive_pickling():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.note = "kept"
    loaded = pickle.loads(pickle.dumps(parameter))
    assert isinstance(loaded, torch.nn.Parameter)
    assert loaded.note == "kept"
    assert loaded.storage.category == categories.PARAMETER


def test_a_deep_copy_is_independent():
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    x.note = [1]
    twin = copy.deepcopy(x)
    twin.data[0] = 9.0
    twin.note.append(2)
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert x.note == [1]
    assert twin.requires_grad
    assert twin.grad.tolist() == [2.0, 2.0, 2.0]
    assert twin.grad is not x.grad


def test_views_of_one_storage_share_one_after_a_deep_copy():
    base = torch.zeros(4)
    first, second, whole = copy.deepcopy([base[:2], base[1:], base])
    whole[1] = 7.0
    assert first[1].item() == second[0].item() == 7.0
    assert base[1].item() == 0.0


def test_a_deep_copy_of_the_same_tensor_twice_is_one_tensor():
    x = torch.ones(2)
    first, second = copy.deepcopy([x, x])
    assert first is second


def test_a_deep_copy_of_foreign_memory_is_ours():
    import numpy as np

    twin = copy.deepcopy(torch.from_numpy(np.ones(3)))
    assert twin.storage.category != categories.EXTERNAL
    assert twin.tolist() == [1.0, 1.0, 1.0]


def test_only_leaves_can_be_deep_copied():
    x = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="created explicitly by the user"):
        copy.deepcopy(x)


def test_a_shallow_copy_shares_memory():
    x = torch.ones(3)
    twin = copy.copy(x)
    assert twin is not x
    twin[0] = 4.0
    assert x[0].item() == 4.0
