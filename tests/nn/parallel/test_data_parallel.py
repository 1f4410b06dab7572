"""DataParallel without a GPU calls the module itself."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime import _storage
from refruntime.errors import DeviceError
from refruntime.nn.parallel import DataParallel, data_parallel


def test_without_a_gpu_the_module_is_called_where_it_is():
    module = torch.nn.Linear(3, 2)
    parallel = DataParallel(module, device_ids=[0])
    x = torch.randn(4, 3)
    assert parallel.module is module
    assert parallel.device_ids == []
    assert parallel(x).tolist() == module(x).tolist()
    assert data_parallel(module, (x,)).tolist() == module(x).tolist()
    assert set(parallel.state_dict()) == {"module.weight", "module.bias"}


def test_several_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(_storage, "gpu_allocators", [object(), object()])
    with pytest.raises(DeviceError, match="one GPU"):
        DataParallel(torch.nn.Linear(1, 1))
