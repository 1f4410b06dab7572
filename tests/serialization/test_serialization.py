"""``.pt`` files: those of PyTorch (``golden/``), our own, damaged and hostile ones."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest

import refruntime as torch
from refruntime import serialization
from refruntime.errors import DeviceError
from refruntime.serialization import CheckpointError

GOLDEN = Path(__file__).parents[1] / "golden"


def through_file(value, **kwargs):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **kwargs)


# ---------------------------------------------------------------------------------------------
# Files that PyTorch wrote


@pytest.mark.parametrize("mmap", [False, True])
def test_every_dtype_of_a_pytorch_file_is_read(mmap):
    loaded = torch.load(GOLDEN / "torch_dtypes.pt", mmap=mmap)
    assert len(loaded) == 15
    for name, tensor in loaded.items():
        assert tensor.dtype is getattr(torch, name)
        expected = [False, True, True, True] if name == "bool" else [0, 1, 2, 3]
        assert tensor.tolist() == expected


def test_containers_views_and_sharing_of_a_pytorch_file_are_read():
    loaded = torch.load(GOLDEN / "torch_containers.pt")
    assert loaded["row"].tolist() == [4.0, 5.0, 6.0, 7.0]
    assert loaded["transposed"].stride() == (1, 4)
    assert loaded["transposed"].tolist()[1] == [1.0, 5.0, 9.0]
    assert loaded["scalar"].item() == 5
    assert tuple(loaded["empty"].shape) == (0, 3)
    assert loaded["nested"][:5] == [1, 2.5, "text", None, True]
    assert loaded["size"] == torch.Size([3, 4])
    assert loaded["dtype"] is torch.float16
    assert loaded["device"] == torch.device("cpu")
    assert isinstance(loaded["parameter"], torch.nn.Parameter)
    assert loaded["leaf"].requires_grad
    assert loaded["set"] == {1, 2}
    assert loaded["bytes"] == b"ab"
    assert loaded["complex"] == 1 + 2j
    assert loaded["counter"] == Counter("aab")
    loaded["base"][4] = -1.0
    assert loaded["row"][0].item() == -1.0
    assert loaded["nested"][5][0].tolist() == [2.0, 3.0, -1.0]


def test_a_state_dict_of_pytorch_loads_into_a_module():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    state = torch.load(GOLDEN / "torch_state_dict.pt")
    assert isinstance(state, OrderedDict)
    assert model.load_state_dict(state).missing_keys == []
    assert model[0].weight.tolist() == state["0.weight"].tolist()


def test_an_optimizer_state_of_pytorch_is_read():
    state = torch.load(GOLDEN / "torch_optimizer.pt")
    assert state["param_groups"][0]["lr"] == 0.01
    assert state["state"][0]["step"].item() == 1.0


def test_the_stream_format_of_old_pytorch_is_read():
    loaded = torch.load(GOLDEN / "torch_legacy.pt")
    assert loaded.tolist() == np.arange(12.0).reshape(3, 4).tolist()


def test_a_pickled_module_of_pytorch_needs_trust():
    with pytest.raises(pickle.UnpicklingError, match=r"GLOBAL torch\.nn\.modules\.linear\.Linear"):
        torch.load(GOLDEN / "torch_module.pt")
    module = torch.load(GOLDEN / "torch_module.pt", weights_only=False)
    assert type(module) is torch.nn.Linear
    assert module(torch.ones(1, 2)).shape == (1, 2)


# ---------------------------------------------------------------------------------------------
# Our own files


def test_values_shapes_strides_and_dtypes_survive():
    values = {
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
        "strided": torch.arange(10)[1::3],
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 4, dtype=torch.int16),
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "unsigned": torch.tensor([1, 2], dtype=torch.uint8),
    }
    loaded = through_file(values)
    for name, value in values.items():
        assert loaded[name].tolist() == value.tolist()
        assert loaded[name].stride() == value.stride()
        assert loaded[name].dtype is value.dtype


def test_tensors_that_shared_memory_share_it_again():
    base = torch.zeros(6)
    first, second = through_file([base[:4], base[2:]])
    first[3] = 5.0
    assert second[1].item() == 5.0


def test_one_tensor_in_two_places_is_one_tensor_again():
    x = torch.ones(2)
    first, second = through_file([x, x])
    assert first is second


def test_a_storage_is_written_once_and_aligned(tmp_path):
    x = torch.arange(1000.0)
    torch.save({"x": x, "view": x[10:20]}, tmp_path / "model.pt")
    data = (tmp_path / "model.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        names = archive.namelist()
        assert [name for name in names if "/data/" in name] == ["model/data/0"]
        assert {"model/data.pkl", "model/version", "model/byteorder"} <= set(names)
    assert data.index(x.numpy().tobytes()) % 64 == 0


def test_parameters_and_gradient_flags_survive():
    leaf = torch.ones(1).requires_grad_()
    parameter, leaf = through_file([torch.nn.Parameter(torch.ones(2)), leaf])
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.requires_grad
    assert leaf.requires_grad
    assert leaf.is_leaf


def test_attributes_of_a_tensor_survive_but_cannot_replace_methods():
    x = torch.ones(2)
    x.note = "kept"
    x.__dict__["sum"] = "not a method"
    loaded = through_file(x)
    assert loaded.note == "kept"
    assert loaded.sum().item() == 2.0


def test_a_module_round_trips_when_trusted():
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    loaded = through_file(module, weights_only=False)
    x = torch.randn(4, 3)
    assert loaded(x).tolist() == module(x).tolist()


def test_classes_that_are_declared_safe_are_read():
    value = through_file_class()
    with pytest.raises(CheckpointError, match="add_safe_globals"):
        through_file(value)
    with serialization.safe_globals([Plain]):
        assert through_file(value).field == 3
    assert Plain not in serialization.get_safe_globals()


class Plain:
    """A class of a user's program."""

    field: int


def through_file_class():
    value = Plain()
    value.field = 3
    return value


def test_views_of_one_storage_under_two_dtypes_are_refused():
    x = torch.zeros(4)
    with pytest.raises(RuntimeError, match="view the same data as different types"):
        torch.save([x, x.view(torch.int32)], io.BytesIO())


def test_a_failed_save_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(torch.ones(1), path)
    before = path.read_bytes()
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        torch.save({"bad": lambda: None}, path)
    assert path.read_bytes() == before


# ---------------------------------------------------------------------------------------------
# Where storages go


@pytest.mark.parametrize(
    "map_location",
    ["cpu", torch.device("cpu"), {"cpu": "cpu"}, lambda storage, location: storage,
     lambda storage, location: None],
)  # fmt: skip
def test_map_location_in_each_of_its_forms(map_location):
    assert through_file(torch.ones(2), map_location=map_location).tolist() == [1.0, 1.0]


def test_a_device_that_is_not_there_is_refused_with_the_remedy():
    with pytest.raises(DeviceError, match="map_location='cpu'"):
        through_file(torch.ones(2), map_location="cuda:0")


# ---------------------------------------------------------------------------------------------
# Damaged and hostile files


def saved() -> bytes:
    buffer = io.BytesIO()
    torch.save({"x": torch.arange(100.0)}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("keep", [3, 100, 700, -1])
def test_a_truncated_file_raises_one_clear_error(keep):
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        torch.load(io.BytesIO(saved()[:keep]))


@pytest.mark.parametrize("content", [b"abc", b"PK\x03\x04 not a zip", b"{}", b"\x80\x02]q\x00."])
def test_a_foreign_file_raises_one_clear_error(content):
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        torch.load(io.BytesIO(content))


def test_an_empty_file_and_a_missing_one():
    with pytest.raises(EOFError):
        torch.load(io.BytesIO())
    with pytest.raises(FileNotFoundError):
        torch.load("/nonexistent/model.pt")


def archive_of(pickled: bytes, storage: bytes = b"") -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/data/0", storage)
    buffer.seek(0)
    return buffer


def tensor_pickle(offset: int, shape: tuple, strides: tuple, count: int) -> bytes:
    """A hand-made pickle of one tensor, with any metadata."""
    from refruntime.serialization import writer
    from refruntime.serialization.names import Foreign

    class Record:
        def __init__(self, *parts):
            self.parts = parts

        def __reduce__(self):
            return self.parts

    class Pickler(writer._Pickler):
        def persistent_id(self, obj):
            if obj == "storage 0":
                return ("storage", Foreign("torch", "FloatStorage"), "0", "cpu", count)
            return None

    buffer = io.BytesIO()
    args = ("storage 0", offset, shape, strides, False, None)
    Pickler(buffer, 2).dump(Record(Foreign("torch._utils", "_rebuild_tensor_v2"), args))
    return buffer.getvalue()


def test_a_hand_made_tensor_is_read_when_it_fits():
    content = tensor_pickle(1, (2,), (2,), 4)
    loaded = torch.load(archive_of(content, np.arange(4, dtype=np.float32).tobytes()))
    assert loaded.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("offset", "shape", "strides", "count"),
    [
        (0, (5,), (1,), 4),
        (3, (2,), (1,), 4),
        (0, (2, 2), (4, 1), 4),
        (-1, (1,), (1,), 4),
        (0, (2,), (-1,), 4),
        (0, (2,), (1, 1), 4),
        (0, (2**62, 4), (1, 1), 4),
        (0, (1,), (1,), 5),
    ],
)
def test_a_tensor_that_leaves_its_storage_is_refused(offset, shape, strides, count):
    content = tensor_pickle(offset, shape, strides, count)
    with pytest.raises(CheckpointError):
        torch.load(archive_of(content, bytes(16)))


def test_code_in_a_file_does_not_run():
    class Hostile:
        def __reduce__(self):
            return exec, ("import sys; sys.hostile = True",)

    with pytest.raises(CheckpointError, match=r"GLOBAL (builtins|__builtin__)\.exec"):
        torch.load(archive_of(pickle.dumps(Hostile(), 2)))
    assert not hasattr(sys, "hostile")


@pytest.mark.parametrize(
    "name", [b"torch._utils\n_rebuild_tensor_v2", b"torch\nFloatStorage", b"collections\nCounter"]
)
def test_a_file_cannot_change_what_its_names_stand_for(name):
    # GLOBAL name, (None, {"value": 1, "dtype": 1}), BUILD
    attributes = b"}(X\x05\x00\x00\x00valueK\x01X\x05\x00\x00\x00dtypeK\x01u"
    state = b"\x80\x02c" + name + b"\n(N" + attributes + b"tb."
    with pytest.raises(CheckpointError):
        torch.load(archive_of(state))
    assert torch.load(GOLDEN / "torch_containers.pt")["counter"] == Counter("aab")


def test_a_torchscript_archive_is_told_apart():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", b"")
        archive.writestr("a/constants.pkl", b"")
    buffer.seek(0)
    with pytest.raises(CheckpointError, match="TorchScript"):
        torch.load(buffer)


def test_pickle_module_needs_trust():
    with pytest.raises(CheckpointError, match="weights_only=False"):
        torch.load(io.BytesIO(saved()), pickle_module=pickle)
    loaded = torch.load(io.BytesIO(saved()), pickle_module=pickle, weights_only=False)
    assert loaded["x"].numel() == 100


def test_what_is_neither_path_nor_file_is_a_type_error():
    with pytest.raises(TypeError, match="a path or a seekable file"):
        torch.load(5)
    with pytest.raises(TypeError, match="a path or a file"):
        torch.save(1, 5)
