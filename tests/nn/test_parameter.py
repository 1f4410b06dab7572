"""Parameter and Buffer: leaves of another class over the same memory."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn
from refruntime.alloc import categories


def test_a_parameter_shares_memory_with_its_data_and_requires_grad():
    data = torch.zeros(3)
    param = nn.Parameter(data)
    param.data[1] = 5.0
    assert data.tolist() == [0.0, 5.0, 0.0]
    assert param.requires_grad
    assert param.is_leaf


def test_results_of_operations_on_parameters_are_plain_tensors():
    param = nn.Parameter(torch.ones(2))
    assert type(param * 2) is torch.Tensor
    assert type(param.detach()) is torch.Tensor


def test_a_parameter_prints_what_it_contains():
    assert repr(nn.Parameter(torch.ones(2))) == (
        "Parameter containing:\ntensor([1., 1.], requires_grad=True)"
    )


def test_integers_cannot_require_gradients():
    with pytest.raises(RuntimeError, match="floating point"):
        nn.Parameter(torch.ones(2, dtype=torch.int64))
    assert not nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False).requires_grad


def test_something_that_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match="expected Tensor or None, got list"):
        nn.Parameter([1.0, 2.0])


def test_the_storage_of_a_parameter_is_counted_as_parameter():
    assert nn.Parameter(torch.ones(2)).storage.category == categories.PARAMETER


def test_deepcopy_keeps_class_flag_and_attributes_and_copies_memory():
    param = nn.Parameter(torch.ones(2), requires_grad=False)
    param.note = "kept"
    twin = copy.deepcopy(param)
    twin.data[0] = 7.0
    assert type(twin) is nn.Parameter
    assert not twin.requires_grad
    assert twin.note == "kept"
    assert param.tolist() == [1.0, 1.0]


def test_pickling_keeps_class_values_and_attributes():
    param = nn.Parameter(torch.arange(3.0))
    param.note = "kept"
    twin = pickle.loads(pickle.dumps(param))
    assert type(twin) is nn.Parameter
    assert twin.requires_grad
    assert twin.note == "kept"
    np.testing.assert_array_equal(twin.detach().numpy(), [0.0, 1.0, 2.0])


def test_a_buffer_carries_whether_it_is_persistent():
    module = nn.Module()
    module.kept = nn.Buffer(torch.ones(1))
    module.hidden = nn.Buffer(torch.ones(1), persistent=False)
    assert list(module.state_dict()) == ["kept"]
    assert [name for name, _ in module.named_buffers()] == ["kept", "hidden"]
