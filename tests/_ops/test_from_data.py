"""Tensors of Python and NumPy data: inferred dtypes, copies and shared memory, uneven nesting."""

import gc
import warnings

import numpy as np
import pytest

import refruntime as torch


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (1, torch.int64, ()),
        (1.5, torch.float32, ()),
        (True, torch.bool, ()),
        (1j, torch.complex64, ()),
        ([1, 2.5], torch.float32, (2,)),
        ([True, 2], torch.int64, (2,)),
        ([[1, 2], [3, 4]], torch.int64, (2, 2)),
        ((1, (2)), torch.int64, (2,)),
        ([], torch.float32, (0,)),
        ([[], []], torch.float32, (2, 0)),
        (range(4), torch.int64, (4,)),
        (np.float64(3), torch.float64, ()),
        ([np.float32(1), 2.0], torch.float32, (2,)),
        ([np.float64(1), 2], torch.float64, (2,)),
        (np.zeros((2, 3), np.int16), torch.int16, (2, 3)),
        ([np.zeros(2), np.ones(2)], torch.float64, (2, 2)),
    ],
)
def test_dtype_and_shape_follow_the_data(data, dtype, shape):
    made = torch.tensor(data)
    assert made.dtype is dtype
    assert tuple(made.shape) == shape
    assert made.tolist() == np.array(data).reshape(shape).tolist()


def test_python_floats_have_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.tensor([1.0]).dtype is torch.float64
        assert torch.tensor([1, 1j]).dtype is torch.complex128
    finally:
        torch.set_default_dtype(torch.float32)


def test_one_element_tensors_count_as_numbers():
    parts = [torch.tensor(1.0, dtype=torch.float64), 2]
    made = torch.tensor(parts)
    assert made.dtype is torch.float64
    assert made.tolist() == [1.0, 2.0]
    assert torch.tensor([[torch.tensor(1)], [2]]).tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ([[1, 2], [3]], ValueError, r"expected sequence of length 2 at dim 1 \(got 1\)"),
        ([[[1], [2]], [[3], [4, 5]]], ValueError, r"length 1 at dim 2 \(got 2\)"),
        ([1, [2]], TypeError, "stands among sequences at dim 1"),
        ([[1], 2], TypeError, "stands among sequences at dim 1"),
        ("a", TypeError, "invalid data type 'str'"),
        (["a"], ValueError, "invalid data type 'str'"),
        (None, RuntimeError, "Could not infer dtype of NoneType"),
        ([None], RuntimeError, "Could not infer dtype of NoneType"),
        (2**70, ValueError, "without overflow"),
        (np.array(["a"]), TypeError, "can't convert"),
    ],
)
def test_data_that_is_no_tensor_is_explained(data, error, text):
    with pytest.raises(error, match=text):
        torch.tensor(data)


def test_tensors_with_more_elements_are_refused_inside_a_list():
    with pytest.raises(ValueError, match="only one element tensors"):
        torch.tensor([torch.ones(2), torch.ones(2)])


def test_asked_for_dtype_converts():
    assert torch.tensor([1.7, -1.7], dtype=torch.int64).tolist() == [1, -1]
    assert torch.tensor([0, 2], dtype=torch.bool).tolist() == [False, True]
    assert torch.tensor([1.5], dtype=torch.bfloat16).dtype is torch.bfloat16
    with pytest.raises(RuntimeError, match="uint8 without overflow"):
        torch.tensor([300], dtype=torch.uint8)


def test_tensor_copies_and_says_so_for_tensors():
    array = np.zeros(3, np.float32)
    made = torch.tensor(array)
    array[0] = 5
    assert made.tolist() == [0.0] * 3
    source = torch.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="copy construct"):
        copy = torch.tensor(source)
    assert copy.is_leaf
    assert not copy.requires_grad
    assert copy.data_ptr() != source.data_ptr()


def test_requires_grad_makes_a_leaf():
    assert torch.tensor([1.0], requires_grad=True).requires_grad
    with pytest.raises(RuntimeError, match="floating"):
        torch.tensor([1], requires_grad=True)


def test_from_numpy_shares_memory_and_keeps_the_array():
    array = np.arange(6.0).reshape(2, 3).T
    made = torch.from_numpy(array)
    assert made.stride() == (1, 3)
    made[0, 0] = -1
    assert array[0, 0] == -1
    pointer = array.__array_interface__["data"][0]
    del array
    gc.collect()
    assert made.data_ptr() == pointer
    assert made.tolist() == [[-1.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_read_only_array_is_shared_with_a_warning():
    array = np.zeros(2)
    array.setflags(write=False)
    with pytest.warns(UserWarning, match="not writable"):
        torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = torch.as_tensor(array)
    assert made.data_ptr() != array.__array_interface__["data"][0]


def test_as_tensor_shares_where_nothing_changes():
    array = np.zeros(3)
    tensor = torch.zeros(3)
    assert torch.as_tensor(tensor) is tensor
    assert torch.as_tensor(array).data_ptr() == array.__array_interface__["data"][0]
    assert torch.as_tensor(array, dtype=torch.float32).dtype is torch.float32
    assert torch.as_tensor([1, 2]).tolist() == [1, 2]
    assert torch.asarray(array, copy=True).data_ptr() != array.__array_interface__["data"][0]


def test_frombuffer_reads_bytes_in_place():
    buffer = bytearray(b"\x01\x00\x02\x00\x03\x00")
    made = torch.frombuffer(buffer, dtype=torch.int16, offset=2)
    assert made.tolist() == [2, 3]
    made[0] = 7
    assert buffer[2] == 7


def test_empty_array_makes_an_empty_tensor():
    assert tuple(torch.from_numpy(np.empty((0, 3))).shape) == (0, 3)


@pytest.mark.parametrize(
    ("args", "shape"),
    [((2, 3), (2, 3)), (([1.0, 2.0],), (2,)), ((), (0,)), ((torch.Size([4]),), (4,)),
     ((np.ones((1, 2)),), (1, 2))],
)  # fmt: skip
def test_old_constructor_takes_sizes_or_data(args, shape):
    made = torch.Tensor(*args)
    assert tuple(made.shape) == shape
    assert made.dtype is torch.float32
    assert type(made) is torch.Tensor


def test_old_constructors_have_their_dtype():
    assert torch.LongTensor([1, 2]).dtype is torch.int64
    assert torch.ByteTensor(2).dtype is torch.uint8
    with pytest.raises(TypeError, match="data must be a sequence"):
        torch.Tensor(1.5)
