"""Tensors and NumPy arrays over the same memory, DLPack, buffers."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import refruntime as torch
from refruntime import interop
from refruntime._ops import from_array

DTYPES = [
    "float64", "float32", "float16", "complex64", "complex128", "int64", "int32", "int16", "int8",
    "uint64", "uint32", "uint16", "uint8", "bool",
]  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Out


@pytest.mark.parametrize("name", DTYPES)
def test_numpy_shares_memory_in_both_directions(name):
    x = torch.zeros(3, dtype=getattr(torch, name))
    array = x.numpy()
    assert array.dtype == np.dtype(name)
    array[1] = 1
    assert x.tolist() == array.tolist()
    x[2] = 1
    assert array[2] == 1


def test_numpy_keeps_strides_and_offsets():
    array = torch.arange(12).reshape(3, 4).t()[1:, ::2].numpy()
    np.testing.assert_array_equal(array, np.arange(12).reshape(3, 4).T[1:, ::2])
    assert array.strides == (8, 64)


def test_an_exported_array_outlives_its_tensor():
    array = torch.full((1000,), 7.0).numpy()
    gc.collect()
    torch.zeros(1000)
    assert (array == 7).all()


def test_exports_are_counted_while_the_array_lives():
    x = torch.zeros(3)
    assert x.storage.exports == 0
    array = x.numpy()
    view = array[1:]
    del array
    assert x.storage.exports == 1
    del view
    assert x.storage.exports == 0


def test_empty_and_zero_dim_tensors_become_arrays():
    assert torch.empty(0, 3).numpy().shape == (0, 3)
    assert torch.tensor(2.5).numpy().shape == ()


def test_a_tensor_with_gradient_must_be_detached():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"Use tensor\.detach\(\)\.numpy\(\) instead"):
        x.numpy()
    with pytest.raises(RuntimeError, match="requires grad"):
        np.asarray(x * 2)
    assert x.detach().numpy().tolist() == [1.0, 1.0]
    assert (x * 2).numpy(force=True).tolist() == [2.0, 2.0]


def test_bfloat16_has_no_numpy_form():
    with pytest.raises(TypeError, match="BFloat16"):
        torch.ones(2, dtype=torch.bfloat16).numpy()


def test_asarray_shares_and_array_copies():
    x = torch.zeros(2)
    shared, copied = np.asarray(x), np.array(x)
    x[0] = 5
    assert shared[0] == 5
    assert copied[0] == 0


def test_copy_false_refuses_to_convert():
    x = torch.ones(2)
    assert np.array(x, copy=False).base is not None
    with pytest.raises(ValueError, match="Unable to avoid copy"):
        np.array(x, dtype=np.float64, copy=False)
    assert np.asarray(x, dtype=np.int32).tolist() == [1, 1]


# ---------------------------------------------------------------------------------------------
# In


@pytest.mark.parametrize("name", DTYPES)
def test_from_numpy_shares_memory_in_both_directions(name):
    array = np.zeros(3, name)
    x = torch.from_numpy(array)
    assert x.dtype is getattr(torch, name)
    array[0] = 1
    x[1] = 1
    assert x.tolist() == array.tolist()


def test_from_numpy_keeps_strides():
    array = np.arange(12.0).reshape(3, 4)
    assert torch.from_numpy(array.T).stride() == (1, 4)
    part = torch.from_numpy(array[::2, 1::2])
    assert part.stride() == (8, 2)
    assert part.tolist() == array[::2, 1::2].tolist()


def test_from_numpy_keeps_the_array_alive():
    x = torch.from_numpy(np.arange(100000.0))
    gc.collect()
    assert x[99999].item() == 99999


def test_a_strided_view_can_be_reshaped_within_its_storage():
    x = torch.from_numpy(np.arange(12.0)[2:10:3])
    assert x.as_strided((3,), (3,), 0).tolist() == [2.0, 5.0, 8.0]


@pytest.mark.parametrize(
    ("array", "error", "text"),
    [
        (np.arange(3)[::-1], ValueError, "negative"),
        (np.arange(3).astype(">i8"), ValueError, "byte order"),
        (np.zeros(3, [("a", "f4"), ("b", "i2")])["a"], ValueError, "not a multiple"),
        (np.array(["a"]), TypeError, "numpy.str_"),
        (np.array([None]), TypeError, "only supported types"),
        (np.zeros(2, "M8[s]"), TypeError, "only supported types"),
        ([1.0], TypeError, r"expected np.ndarray \(got list\)"),
        (np.float32(3), TypeError, r"expected np.ndarray \(got float32\)"),
    ],
)
def test_arrays_without_a_counterpart_are_refused(array, error, text):
    with pytest.raises(error, match=text):
        torch.from_numpy(array)


def test_a_read_only_array_warns_once(monkeypatch):
    monkeypatch.setattr(from_array, "_warned_read_only", False)
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="not writable"):
        torch.from_numpy(array)
    assert torch.from_numpy(array).tolist() == [1.0, 1.0]


def test_frombuffer_reads_and_writes_the_buffer():
    buffer = bytearray(b"\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00")
    x = interop.frombuffer(buffer, dtype=torch.int32, offset=4)
    assert x.tolist() == [2, 3]
    x[0] = 9
    assert buffer[4] == 9


# ---------------------------------------------------------------------------------------------
# NumPy's functions


def test_work_between_arrays_and_tensors_gives_tensors():
    array = np.array([1.0, 2.0], np.float32)
    x = torch.tensor([3.0, 4.0])
    for result, expected in (
        (array * x, [3.0, 8.0]),
        (x * array, [3.0, 8.0]),
        (array - x, [-2.0, -2.0]),
        (array / x, [1 / 3, 0.5]),
        (np.maximum(x, array), [3.0, 4.0]),
        (array < x, [True, True]),
        (array**x, [1.0, 16.0]),
    ):
        assert isinstance(result, torch.Tensor)
        np.testing.assert_allclose(result.tolist(), expected, rtol=1e-6)


def test_numpy_scalars_count_as_python_numbers():
    x = torch.tensor([1.0, 2.0])
    for result in (np.float64(2) * x, x * np.float64(2), np.int64(2) * x):
        assert isinstance(result, torch.Tensor)
        assert result.dtype is torch.float32
        assert result.tolist() == [2.0, 4.0]


def test_gradients_flow_through_numpy_operators():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (np.array([3.0, 5.0], np.float32) * np.exp(x)).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.array([3.0, 5.0]) * np.exp([1.0, 2.0]), rtol=1e-6)


def test_functions_without_a_twin_run_in_numpy():
    x = torch.tensor([1.0, 4.0])
    result = np.cbrt(x)
    assert isinstance(result, torch.Tensor)
    np.testing.assert_allclose(result.numpy(), np.cbrt([1.0, 4.0]), rtol=1e-6)
    assert np.add.reduce(x).item() == 5.0


def test_in_place_work_on_an_array_stays_in_the_array():
    array = np.ones(2)
    same = array
    array += torch.tensor([1.0, 2.0])
    assert array is same
    assert array.tolist() == [2.0, 3.0]


def test_numpy_functions_that_convert_take_tensors():
    x = torch.tensor([1.0, 2.0])
    assert np.concatenate([x, x]).tolist() == [1.0, 2.0, 1.0, 2.0]
    assert np.stack([x, x]).shape == (2, 2)
    assert np.where(x > 1, 1, 0).tolist() == [0, 1]
    np.testing.assert_allclose(x, [1.0, 2.0])


# ---------------------------------------------------------------------------------------------
# DLPack


def test_dlpack_shares_memory_with_numpy_in_both_directions():
    x = torch.zeros(2, 3)
    array = np.from_dlpack(x)
    x[1, 2] = 4.0
    assert array[1, 2] == 4.0
    source = np.zeros(3, np.int32)
    taken = torch.from_dlpack(source)
    taken[0] = 7
    assert source[0] == 7
    assert x.__dlpack_device__() == (1, 0)


def test_a_bare_capsule_is_taken():
    x = torch.ones(2)
    taken = torch.from_dlpack(x.__dlpack__())
    taken[0] = 3.0
    assert x[0].item() == 3.0


def test_from_dlpack_of_a_tensor_shares_and_copy_copies():
    x = torch.zeros(2)
    shared, copied = torch.from_dlpack(x), torch.from_dlpack(x, copy=True)
    x[0] = 1.0
    assert shared[0].item() == 1.0
    assert copied[0].item() == 0.0


def test_dlpack_refuses_gradients_streams_and_bfloat16():
    with pytest.raises(BufferError, match="require gradient"):
        torch.ones(2, requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="stream should be None"):
        torch.ones(2).__dlpack__(stream=1)
    with pytest.raises(BufferError, match="bfloat16"):
        torch.ones(2, dtype=torch.bfloat16).__dlpack__()


def test_cpu_tensors_have_no_cuda_interface():
    assert not hasattr(torch.ones(2), "__cuda_array_interface__")
