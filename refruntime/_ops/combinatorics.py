"""Index arithmetic: combinations of elements, places from flat numbers, places of non-zeros."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._ops.opdef import front, ops, require_tensor
from refruntime.errors import ArgumentValueError, ShapeError


@front(method=False)
def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    """Return all combinations of `r` elements of a vector, a row each."""
    require_tensor("combinations", input)
    if input.dim() != 1 or r < 0:
        raise ShapeError(
            "combinations", what="Expect a 1D vector and a non-negative number",
            expected="a vector", got=f"shape {tuple(input.shape)}, r={r}",
        )  # fmt: skip
    if r == 0:
        return ops.empty((0,), dtype=input.dtype, device=input.device)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    places = ops.tensor(rows, device=input.device)
    return ops.reshape(ops.index_select(input, 0, ops.reshape(places, (-1,))), tuple(rows.shape))


@front(method=False)
def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """Return the coordinates, in a tensor of `shape`, of numbers that count its elements."""
    require_tensor("unravel_index", indices)
    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise ArgumentValueError("unravel_index", expected="sizes of at least 0", got=str(sizes))
    strides = [math.prod(sizes[position + 1 :]) for position in range(len(sizes))]
    return tuple(
        ops.remainder(ops.floor_divide(indices, stride), size)
        for stride, size in zip(strides, sizes, strict=True)
    )


@front()
def nonzero_static(input: Any, *, size: int, fill_value: int = -1, out: Any = None) -> Any:
    """Return the places of the first `size` non-zero elements; missing rows get `fill_value`."""
    require_tensor("nonzero_static", input)
    if size < 0:
        raise ArgumentValueError("nonzero_static", expected="size of at least 0", got=str(size))
    places = ops.nonzero(input)[:size]
    rest = ops.full(
        (size - places.shape[0], input.dim()), fill_value, dtype=_dtypes.int64, device=input.device
    )
    found = ops.cat([places, rest], 0)
    return found if out is None else ops.copy_(out, found)
