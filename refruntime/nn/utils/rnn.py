"""Sequences of different lengths: padding and packing.

State
-----
A `PackedSequence` holds the steps of a batch one after the other: `batch_sizes[t]` rows for step t,
longest sequences first; the indices say how the batch was sorted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from refruntime._dtypes import int64
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Fields(NamedTuple):
    data: Any
    batch_sizes: Any
    sorted_indices: Any
    unsorted_indices: Any


class PackedSequence(_Fields):
    """Steps of a batch of sequences, without padding.

    Attributes
    ----------
    data : Tensor
        (total length, ...).
    batch_sizes : Tensor
        How many sequences have each step.
    sorted_indices, unsorted_indices : Tensor or None
        How the batch was sorted by length, and back.
    """

    __slots__ = ()

    def __new__(
        cls, data: Any, batch_sizes: Any = None, sorted_indices: Any = None,
        unsorted_indices: Any = None,
    ) -> PackedSequence:  # fmt: skip
        """Take the fields; the way back is computed where it is not given."""
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Return the sequence with its data moved or cast."""
        data = self.data.to(*args, **kwargs)
        return self if data is self.data else self._replace(data=data)

    @property
    def is_cuda(self) -> bool:
        """Whether the data is on a GPU."""
        return bool(self.data.is_cuda)


def invert_permutation(permutation: Any) -> Any:
    """Return the permutation that undoes another; None stays None."""
    if permutation is None:
        return None
    inverse = ops.empty_like(permutation)
    inverse[permutation] = ops.arange(permutation.numel(), dtype=int64)
    return inverse


def pack_padded_sequence(
    input: Any,
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """Pack a padded batch.

    Parameters
    ----------
    input : Tensor
        (length, batch, ...), the other way round with `batch_first`.
    lengths : Tensor or list of int
        The length of each sequence.
    enforce_sorted : bool
        Whether the lengths must come in decreasing order; False sorts them.
    """
    if not isinstance(lengths, TensorImpl):
        lengths = ops.tensor(lengths, dtype=int64)
    if batch_first:
        input = input.transpose(0, 1)
    sorted_indices = None
    if not enforce_sorted:
        lengths, sorted_indices = ops.sort(lengths, descending=True, stable=True)
        input = input.index_select(1, sorted_indices)
    sizes = [int(n) for n in lengths.tolist()]
    _check_lengths(sizes, input.shape[1])
    if enforce_sorted and sizes != sorted(sizes, reverse=True):
        raise RuntimeError(
            "pack_padded_sequence: `lengths` array must be sorted in decreasing order when "
            "`enforce_sorted` is True; pass enforce_sorted=False"
        )
    counts = [sum(1 for n in sizes if n > t) for t in range(sizes[0])]
    data = ops.cat([input[t, :count] for t, count in enumerate(counts)], 0)
    return PackedSequence(data, ops.tensor(counts, dtype=int64), sorted_indices)


def _check_lengths(sizes: list[int], batch: int) -> None:
    if len(sizes) != batch:
        raise RuntimeError(
            f"pack_padded_sequence: expected `len(lengths)` to be equal to batch_size {batch}, "
            f"got {len(sizes)}"
        )
    if any(n <= 0 for n in sizes):
        raise RuntimeError(
            "pack_padded_sequence: length of all samples has to be greater than 0, "
            f"got {min(sizes)}"
        )


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Any, Any]:
    """Pad a packed batch.

    Returns
    -------
    (Tensor, Tensor)
        (length, batch, ...) and the length of each sequence.
    """
    counts = sequence.batch_sizes.tolist()
    if total_length is not None and total_length < len(counts):
        raise ArgumentValueError(
            "pad_packed_sequence",
            what="Expected total_length to be at least the length of the longest sequence",
            expected=str(len(counts)), got=str(total_length),
        )  # fmt: skip
    steps = ops.split(sequence.data, counts, 0)
    rows = tuple(sequence.data.shape[1:])
    filled = [_filled_up(step, counts[0], rows, padding_value) for step in steps]
    empty = ops.full_like(filled[0], padding_value)
    filled += [empty] * ((total_length or 0) - len(counts))
    padded = ops.stack(filled, 0)
    lengths = [sum(1 for count in counts if count > i) for i in range(counts[0])]
    sizes = ops.tensor(lengths, dtype=int64)
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(1, sequence.unsorted_indices)
        sizes = sizes[sequence.unsorted_indices]
    return (padded.transpose(0, 1) if batch_first else padded), sizes


def _filled_up(step: Any, batch: int, row: tuple[int, ...], value: float) -> Any:
    missing = batch - step.shape[0]
    if not missing:
        return step
    return ops.cat([step, ops.full((missing, *row), value, dtype=step.dtype)], 0)


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Any:  # fmt: skip
    """Stack sequences of different lengths, filling the shorter ones up.

    Parameters
    ----------
    sequences : list of Tensor
        Each (length, ...).
    batch_first : bool
        Whether the result is (batch, length, ...) instead of (length, batch, ...).
    padding_value : float
        What is filled in.
    padding_side : str
        ``right`` or ``left``.
    """
    if padding_side not in ("right", "left"):
        raise RuntimeError(f"padding_side should be 'right' or 'left', got {padding_side!r}")
    tensors = list(sequences)
    longest = max(tensor.shape[0] for tensor in tensors)
    rows = []
    for tensor in tensors:
        shape = (longest - tensor.shape[0], *tensor.shape[1:])
        if shape[0]:
            fill = ops.full(shape, padding_value, dtype=tensor.dtype, device=tensor.device)
            order = [tensor, fill] if padding_side == "right" else [fill, tensor]
            tensor = ops.cat(order, 0)
        rows.append(tensor)
    return ops.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: bool = False) -> list[Any]:
    """Return the sequences of a padded batch, each with its own length."""
    padded = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    sizes = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    return [row[:size] for row, size in zip(padded, sizes, strict=True)]


def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> PackedSequence:
    """Pack a list of sequences of different lengths."""
    tensors = list(sequences)
    lengths = [tensor.shape[0] for tensor in tensors]
    return pack_padded_sequence(pad_sequence(tensors), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Any]:
    """Return the sequences of a packed batch."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)

