"""The old tensor types: constructors, isinstance, and the default type."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.errors import ArgumentTypeError


def test_types_make_and_recognise_tensors():
    assert torch.FloatTensor([1, 2]).dtype == torch.float32
    assert torch.LongTensor(2, 3).shape == (2, 3)
    assert isinstance(torch.zeros(1, dtype=torch.int32), torch.IntTensor)
    assert not isinstance(torch.zeros(1), torch.DoubleTensor)


@pytest.mark.parametrize("kind", [torch.DoubleTensor, "torch.DoubleTensor"])
def test_default_type_decides_the_dtype_of_new_tensors(kind):
    torch.set_default_tensor_type(kind)
    try:
        assert torch.zeros(1).dtype == torch.float64
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.zeros(1).dtype == torch.float32


@pytest.mark.parametrize("kind", [torch.LongTensor, "torch.Nothing", torch.float64, 3])
def test_other_types_are_refused(kind):
    with pytest.raises(ArgumentTypeError):
        torch.set_default_tensor_type(kind)
