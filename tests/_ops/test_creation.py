"""Factories: sizes, dtypes, devices, and tensors like others."""

import numpy as np
import pytest

import refruntime as torch


@pytest.mark.parametrize("make", [torch.zeros, torch.ones, torch.empty])
def test_sizes_are_read_in_every_spelling(make):
    for made in (
        make(2, 3),
        make((2, 3)),
        make([2, 3]),
        make(torch.Size([2, 3])),
        make(size=(2, 3)),
    ):
        assert tuple(made.shape) == (2, 3)
        assert made.dtype is torch.float32
    assert tuple(make([]).shape) == ()
    assert tuple(make(0, 3).shape) == (0, 3)
    assert make(2, dtype=torch.int8, requires_grad=False).dtype is torch.int8
    assert make(2, requires_grad=True).requires_grad


def test_filled_factories_hold_their_value():
    assert torch.zeros(2, 2).tolist() == [[0.0] * 2] * 2
    assert torch.ones(2, dtype=torch.bool).tolist() == [True, True]
    assert torch.full((2,), -1.5, dtype=torch.bfloat16).tolist() == [-1.5, -1.5]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1, torch.int64), (1.5, torch.float32), (True, torch.bool), (1j, torch.complex64)],
)
def test_full_takes_its_dtype_from_the_value(value, dtype):
    made = torch.full((2,), value)
    assert made.dtype is dtype
    assert made.tolist() == [value, value]


def test_like_keeps_dtype_and_the_order_of_dimensions():
    x = torch.zeros(2, 3, 4, dtype=torch.int16).permute(2, 0, 1)
    for make in (torch.zeros_like, torch.ones_like, torch.empty_like):
        assert make(x).dtype is torch.int16
        assert make(x).stride() == x.stride()
        assert make(x, dtype=torch.float64).dtype is torch.float64
        assert make(x, memory_format=torch.contiguous_format).is_contiguous()
    assert torch.zeros_like(torch.zeros(3, 1).expand(3, 4)).stride() == (4, 1)
    assert torch.full_like(x, 7)[0, 0, 0].item() == 7


def test_new_takes_dtype_and_device_of_the_tensor():
    x = torch.zeros(1, dtype=torch.int32)
    for made in (x.new_zeros(2), x.new_ones((2,)), x.new_empty(2), x.new_full((2,), 3), x.new(2)):
        assert made.dtype is torch.int32
        assert tuple(made.shape) == (2,)
    assert x.new_tensor([1.5, 2]).tolist() == [1, 2]
    assert x.new_zeros(2, dtype=torch.float64).dtype is torch.float64


def test_empty_strided_has_the_strides_it_was_asked_for():
    x = torch.empty_strided((2, 3), (1, 2))
    assert x.stride() == (1, 2)
    x.copy_(torch.arange(6.0).reshape(2, 3))
    assert x.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_out_receives_the_result():
    out = torch.empty(2, 2, dtype=torch.float64)
    assert torch.ones(2, 2, out=out) is out
    assert out.tolist() == [[1.0] * 2] * 2
    target = torch.empty(0)
    torch.arange(3, out=target)
    assert target.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: torch.zeros(-1), RuntimeError, "negative dimension -1"),
        (lambda: torch.zeros(2.5), TypeError, "must be int"),
        (lambda: torch.empty_strided((2,), (-1,)), RuntimeError, "Negative strides"),
        (lambda: torch.zeros(2, device="gpu"), RuntimeError, "device: "),
        (lambda: torch.zeros_like([1]), TypeError, "must be Tensor"),
        (lambda: torch.arange(5, 1), RuntimeError, "inconsistent with step sign"),
        (lambda: torch.linspace(0, 1, -1), RuntimeError, "non-negative"),
    ],
)
def test_arguments_that_make_no_sense_are_explained(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(
    "args", [(5,), (1, 5), (1, 10, 3), (5, 1, -2), (0, 1, 0.25), (1.0, 2.1, 0.3), (0,), (-3, 3, 2)]
)
def test_arange_equals_numpy(args):
    made = torch.arange(*args)
    want = np.arange(*args)
    assert made.dtype is (torch.int64 if want.dtype.kind == "i" else torch.float32)
    np.testing.assert_allclose(made.numpy(), want, rtol=1e-6)


def test_arange_rounds_each_element_once():
    made = torch.arange(0, 10_000, 0.1)
    np.testing.assert_array_equal(made.numpy(), (np.arange(100_000) * 0.1).astype(np.float32))


def test_linspace_and_logspace_reach_both_ends():
    assert torch.linspace(-1, 1, 5).tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert torch.linspace(3, 7, 1).tolist() == [3.0]
    assert torch.linspace(0, 10, 4, dtype=torch.int64).tolist() == [0, 3, 6, 10]
    assert torch.logspace(0, 2, 3).tolist() == [1.0, 10.0, 100.0]
    assert torch.linspace(torch.tensor(0.0), torch.tensor(1.0), 3).tolist() == [0.0, 0.5, 1.0]


def test_eye_and_triangle_indices_equal_numpy():
    assert torch.eye(2, 3).tolist() == np.eye(2, 3).tolist()
    assert torch.eye(2, dtype=torch.int64).dtype is torch.int64
    for offset in (-2, 0, 1, 5):
        for rows, columns in ((3, 3), (2, 4), (4, 2), (0, 2)):
            for name in ("tril_indices", "triu_indices"):
                got = getattr(torch, name)(rows, columns, offset)
                want = np.stack(getattr(np, name)(rows, offset, columns))
                assert got.tolist() == want.tolist()


def test_default_device_block_is_used_by_factories():
    with torch.device("cpu"):
        assert torch.zeros(1).device.type == "cpu"
    with torch.device("cuda:0"), pytest.raises(RuntimeError, match="cuda"):
        torch.zeros(1)
