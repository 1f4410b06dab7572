"""`make_tensor`: random tensors for tests, of any dtype and layout.

Invariants
----------
* Values are drawn from the default generator, so `manual_seed` makes a test repeatable.
"""

from __future__ import annotations

import math
from typing import Any

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError

# The values that torch draws from when no bounds are given.
_SPREAD = 9


def make_tensor(
    *shape: Any,
    dtype: DType,
    device: Any,
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: Any = None,
) -> Any:
    """Return a tensor of random values.

    Parameters
    ----------
    *shape : int
        The shape; also as one sequence.
    dtype, device
        Both must be given.
    low, high : float, optional
        The values lie in [low, high); default [-9, 9) (integers: up to 9 included; uint8: from 0).
    requires_grad : bool
        Whether gradients flow to the tensor.
    noncontiguous : bool
        Whether the elements stand two apart in memory.
    exclude_zero : bool
        Replace zeros by the smallest positive value.
    memory_format : MemoryFormat, optional
        The order of the elements in memory.
    """
    size = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
        raise ArgumentValueError(
            "make_tensor",
            what="`requires_grad=True` is not supported for boolean and integral dtypes, but got "
            f"dtype={dtype}",
        )
    if noncontiguous and memory_format is not None:
        raise ArgumentValueError(
            "make_tensor", what="noncontiguous and memory_format exclude each other",
            got=f"memory_format={memory_format}",
        )  # fmt: skip
    made = _drawn(size, dtype, device, *_bounds(dtype, low, high))
    if exclude_zero:
        made.masked_fill_(ops.eq(made, 0), _least(dtype))
    if noncontiguous and made.numel() > 1:
        made = ops.repeat_interleave(made, 2, dim=-1)[..., ::2]
    elif memory_format is not None:
        made = made.clone(memory_format=memory_format)
    return made.requires_grad_() if requires_grad else made


def _bounds(dtype: DType, low: float | None, high: float | None) -> tuple[float, float]:
    if dtype is _dtypes.bool_:
        least, most = 0.0, 2.0
    elif dtype.is_floating_point or dtype.is_complex:
        least, most = -float(_SPREAD), float(_SPREAD)
    else:
        least, most = (-float(_SPREAD) if dtype.is_signed else 0.0), _SPREAD + 1.0
    first = least if low is None else low
    end = most if high is None else high
    if math.isnan(first) or math.isnan(end) or first >= end:
        raise ArgumentValueError(
            "make_tensor", what=f"`low` must be less than `high`, but got {first:g} >= {end:g}"
        )
    return first, end


def _drawn(size: tuple[int, ...], dtype: DType, device: Any, low: float, high: float) -> Any:
    if dtype.is_floating_point or dtype.is_complex:
        return ops.empty(size, dtype=dtype, device=device).uniform_(low, high)
    return ops.randint(math.floor(low), math.ceil(high), size, dtype=dtype, device=device)


def _least(dtype: DType) -> Any:
    if dtype.is_complex:
        part = _dtypes.float64 if dtype is _dtypes.complex128 else _dtypes.float32
        tiny = float(_dtypes.finfo(part).tiny)
        return complex(tiny, tiny)
    return float(_dtypes.finfo(dtype).tiny) if dtype.is_floating_point else 1
