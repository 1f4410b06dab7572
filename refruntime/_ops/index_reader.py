"""Reading the expression between the brackets of ``x[...]``.

State
-----
An `IndexReader` holds what it has read: basic entries, which make one view, and index tensors with
the dimension of that view at which each stands.

Invariants
----------
* A basic entry is an int (takes a dimension away), None (adds one) or (start, stop, step).
* Index tensors leave as int64, one a dimension: masks have become the coordinates of their true
  elements, and zero-dim integer tensors have become ints.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._impl import TensorImpl
from refruntime._ops.arguments import int_of
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentTypeError, ArgumentValueError, IndexRangeError

FULL = (None, None, 1)
Entry = Any


class IndexReader:
    """Splits the items of an index into basic entries and index tensors."""

    def __init__(self, input: TensorImpl, items: tuple[Any, ...]) -> None:
        self.input = input
        self.entries: list[Entry] = []
        self.tensors: list[tuple[int, TensorImpl]] = []
        self.dim = 0  # the next dimension of the input
        self.made = 0  # the number of dimensions that the view has so far
        items = tuple(_simplified(item) for item in items)
        self.spare = input.meta.ndim - sum(map(_width, items))
        if self.spare < 0:
            raise _too_many(input, len(items))
        for item in items:
            self.take(item)

    def take(self, item: Any) -> None:
        """Read one item."""
        if item is None:
            self.entries.append(None)
            self.made += 1
        elif item is Ellipsis:
            self._keep(self.spare)
            self.spare = 0
        elif isinstance(item, slice):
            self.entries.append(_slice_entry(item))
            self.dim += 1
            self.made += 1
        elif isinstance(item, int):
            self.entries.append(item)
            self.dim += 1
        elif item.meta.dtype is _dtypes.bool_:
            self._take_mask(item)
        else:
            self.tensors.append((self.made, item))
            self._keep(1)

    def _keep(self, count: int) -> None:
        self.entries.extend([FULL] * count)
        self.dim += count
        self.made += count

    def _take_mask(self, mask: TensorImpl) -> None:
        for k, size in enumerate(mask.meta.shape):
            if size != self.input.meta.shape[self.dim + k]:
                raise _mask_mismatch(self.input, mask, self.dim + k, k)
        columns = ops.nonzero(mask, as_tuple=True)
        if not mask.meta.ndim:
            # A scalar mask makes a dimension of its own, with one element or none.
            self.tensors.append((self.made, columns[0]))
            self.entries.append(None)
            self.made += 1
            return
        for column in columns:
            self.tensors.append((self.made, column))
            self._keep(1)


def _simplified(item: Any) -> Any:
    """Return an item as None, Ellipsis, slice, int or tensor (int64 or bool)."""
    kind = type(item)
    if kind is int or item is None or item is Ellipsis or kind is slice:
        return item
    if isinstance(item, TensorImpl):
        return _index_tensor(item)
    if isinstance(item, (bool, np.bool_)):
        return ops.tensor(bool(item))
    if isinstance(item, np.ndarray):
        return _index_tensor(ops.tensor(item))
    if isinstance(item, (list, tuple, range)):
        return _index_tensor(ops.tensor(item) if len(item) else ops.tensor([], dtype=_dtypes.int64))
    if hasattr(item, "__index__"):
        return int_of("index", "index", item)
    kind_of_error = ArgumentTypeError if isinstance(item, str) else IndexRangeError
    raise kind_of_error(
        "index",
        what="only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are "
        f"valid indices (got {kind.__name__})",
        expected="an index of one of these kinds",
        got=repr(item),
        remedy="convert it with int(...)",
    )


def _index_tensor(tensor: TensorImpl) -> Any:
    """Return an index tensor as int64 or bool; a zero-dim integer one counts as an int."""
    dtype = tensor.meta.dtype
    if dtype is _dtypes.bool_:
        return tensor
    if dtype is _dtypes.uint8:
        return ops.to(tensor, _dtypes.bool_)
    if dtype not in (_dtypes.int64, _dtypes.int32):
        raise IndexRangeError(
            "index",
            what="tensors used as indices must be long, int, byte or bool tensors",
            expected="int64, int32, uint8 or bool",
            got=str(dtype),
            remedy="convert the index with .long()",
        )
    # One that stands for others inside a function transform has no value to read.
    if not tensor.meta.ndim and not hasattr(tensor, "call_op"):
        return int(tensor.array())
    return as_places(tensor)


def as_places(index: Any) -> Any:
    """Return an integer tensor as int64."""
    return index if index.meta.dtype is _dtypes.int64 else ops.to(index, _dtypes.int64)


def _slice_entry(item: slice) -> Entry:
    parts = []
    for name, value in (("start", item.start), ("stop", item.stop), ("step", item.step)):
        parts.append(None if value is None else int_of("slice", name, value))
    step = 1 if parts[2] is None else parts[2]
    if step <= 0:
        raise ArgumentValueError(
            "slice", what="step must be greater than zero", expected="a step of at least 1",
            got=step, remedy="use flip() to reverse a dimension",
        )  # fmt: skip
    return parts[0], parts[1], step


def _width(item: Any) -> int:
    """Return how many dimensions of the input an item takes."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, TensorImpl) and item.meta.dtype is _dtypes.bool_:
        return item.meta.ndim
    return 1


def _too_many(input: TensorImpl, count: int) -> IndexRangeError:
    ndim = input.meta.ndim
    return IndexRangeError(
        "index",
        what=f"too many indices for tensor of dimension {ndim}",
        expected=f"at most {ndim} indices",
        got=count,
        remedy="drop an index" if ndim else "use .item() to read a 0-dim tensor",
    )


def _mask_mismatch(input: TensorImpl, mask: TensorImpl, dim: int, k: int) -> IndexRangeError:
    return IndexRangeError(
        "index",
        what=f"The shape of the mask {list(mask.meta.shape)} at index {k} does not match the shape "
        f"of the indexed tensor {list(input.meta.shape)} at index {dim}",
        expected=f"size {input.meta.shape[dim]}",
        got=mask.meta.shape[k],
        remedy="make the mask of the tensor's own shape",
    )


def items_of(index: Any) -> tuple[Any, ...]:
    """Return the items of an index; a list that holds more than numbers counts as a tuple."""
    if isinstance(index, tuple):
        return index
    if isinstance(index, list) and any(
        item is None or item is Ellipsis or isinstance(item, (slice, list, tuple, TensorImpl))
        for item in index
    ):
        return tuple(index)
    return (index,)
