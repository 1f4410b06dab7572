"""Safetensors files, against the library's own NumPy reader."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import refruntime as torch
from refruntime.serialization import CheckpointError, load_safetensors, save_safetensors

DTYPES = [
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64",
    "uint32", "uint16", "uint8", "bool",
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_each_dtype_survives(tmp_path, name):
    x = torch.tensor([[0, 1], [2, 3]]).to(getattr(torch, name))
    save_safetensors({"x": x}, tmp_path / "x.safetensors")
    loaded = load_safetensors(tmp_path / "x.safetensors")["x"]
    assert loaded.dtype is x.dtype
    assert loaded.tolist() == x.tolist()


def test_the_library_reads_what_we_write(tmp_path):
    x = torch.arange(6.0).reshape(2, 3).t()
    save_safetensors({"x": x}, tmp_path / "x.safetensors", {"made by": "a test"})
    loaded = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(loaded["x"], np.arange(6.0).reshape(2, 3).T)
    with safetensors.safe_open(tmp_path / "x.safetensors", "np") as file:
        assert file.metadata() == {"made by": "a test"}


def test_we_read_what_the_library_writes(tmp_path):
    arrays = {"a": np.ones((2, 0), np.float32), "b": np.array(5, np.int64)}
    safetensors.numpy.save_file(arrays, tmp_path / "x.safetensors")
    loaded = load_safetensors(tmp_path / "x.safetensors")
    assert tuple(loaded["a"].shape) == (2, 0)
    assert loaded["b"].item() == 5


def test_each_loaded_tensor_has_memory_of_its_own(tmp_path):
    save_safetensors({"a": torch.zeros(2), "b": torch.zeros(2)}, tmp_path / "x.safetensors")
    loaded = load_safetensors(tmp_path / "x.safetensors")
    loaded["a"][0] = 1.0
    assert loaded["b"].tolist() == [0.0, 0.0]


def test_a_state_dict_of_parameters_is_saved(tmp_path):
    model = torch.nn.Linear(3, 2)
    save_safetensors(model.state_dict(), tmp_path / "x.safetensors")
    twin = torch.nn.Linear(3, 2)
    twin.load_state_dict(load_safetensors(tmp_path / "x.safetensors"))
    assert twin.weight.tolist() == model.weight.tolist()


def test_a_damaged_file_and_a_foreign_entry_are_refused(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load_safetensors(tmp_path / "x.safetensors")
    with pytest.raises(TypeError, match="entry 'x' is not a tensor"):
        save_safetensors({"x": 5}, tmp_path / "y.safetensors")
