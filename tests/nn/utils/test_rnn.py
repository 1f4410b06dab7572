"""Padding and packing sequences."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.nn.utils import rnn

SEQUENCES = [[1.0, 2.0], [3.0, 4.0, 5.0], [6.0]]


def tensors():
    return [torch.tensor(values) for values in SEQUENCES]


def test_padding_stacks_sequences_of_different_lengths():
    padded = rnn.pad_sequence(tensors(), batch_first=True, padding_value=-1.0)
    assert padded.tolist() == [[1, 2, -1], [3, 4, 5], [6, -1, -1]]
    assert rnn.pad_sequence(tensors()).t().tolist() == [[1, 2, 0], [3, 4, 5], [6, 0, 0]]
    left = rnn.pad_sequence(tensors(), batch_first=True, padding_side="left")
    assert left.tolist() == [[0, 1, 2], [3, 4, 5], [0, 0, 6]]
    lengths = torch.tensor([2, 3, 1])
    again = rnn.unpad_sequence(padded, lengths, batch_first=True)
    assert [row.tolist() for row in again] == SEQUENCES


def test_packing_puts_the_steps_one_after_the_other():
    padded = rnn.pad_sequence(tensors())
    packed = rnn.pack_padded_sequence(padded, [2, 3, 1], enforce_sorted=False)
    assert packed.data.tolist() == [3, 1, 6, 4, 2, 5]
    assert packed.batch_sizes.tolist() == [3, 2, 1]
    assert packed.sorted_indices.tolist() == [1, 0, 2]
    assert packed.unsorted_indices.tolist() == [1, 0, 2]


@pytest.mark.parametrize("batch_first", [False, True])
def test_packing_and_padding_are_inverse(batch_first):
    padded = rnn.pad_sequence(tensors(), batch_first=batch_first)
    lengths = torch.tensor([2, 3, 1])
    packed = rnn.pack_padded_sequence(padded, lengths, batch_first, enforce_sorted=False)
    again, sizes = rnn.pad_packed_sequence(packed, batch_first)
    np.testing.assert_array_equal(again.numpy(), padded.numpy())
    assert sizes.tolist() == [2, 3, 1]
    longer, _ = rnn.pad_packed_sequence(packed, batch_first, padding_value=9.0, total_length=5)
    assert tuple(longer.shape) == ((3, 5) if batch_first else (5, 3))
    assert [row.tolist() for row in rnn.unpack_sequence(packed)] == SEQUENCES


def test_gradients_pass_through_packing():
    x = torch.zeros(3, 2, requires_grad=True)
    packed = rnn.pack_padded_sequence(x, [3, 1])
    padded, _ = rnn.pad_packed_sequence(packed)
    (padded * torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).sum().backward()
    assert x.grad.tolist() == [[1, 2], [3, 0], [5, 0]]


def test_a_packed_sequence_can_be_cast():
    packed = rnn.pack_sequence(tensors(), enforce_sorted=False)
    assert packed.to(torch.float64).data.dtype is torch.float64
    assert packed.to(torch.float32) is packed


def test_what_packing_refuses():
    padded = rnn.pad_sequence(tensors())
    with pytest.raises(RuntimeError, match="enforce_sorted=False"):
        rnn.pack_padded_sequence(padded, [2, 3, 1])
    with pytest.raises(RuntimeError, match="greater than 0"):
        rnn.pack_padded_sequence(padded, [3, 2, 0])
    with pytest.raises(RuntimeError, match="batch_size 3"):
        rnn.pack_padded_sequence(padded, [3, 2])
    packed = rnn.pack_sequence(tensors(), enforce_sorted=False)
    with pytest.raises(ValueError, match="total_length"):
        rnn.pad_packed_sequence(packed, total_length=2)
