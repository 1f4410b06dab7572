"""Reading the arguments that front functions take in torch's many forms.

Invariants
----------
* Sizes and dimensions come as ``f(x, 2, 3)``, ``f(x, (2, 3))`` or a `Size`; entries may be NumPy
  integers or one-element integer tensors. What leaves this module are plain ints.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from refruntime._impl import TensorImpl
from refruntime.errors import ArgumentTypeError


def int_of(op: str, name: str, value: Any) -> int:
    """Return `value` as an int.

    Raises
    ------
    ArgumentTypeError
        If it is not an integer.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(
            op, what=f"argument '{name}' must be int", expected="int",
            got=f"{type(value).__name__} {value!r}", remedy="convert it with int(...)",
        ) from None  # fmt: skip


def number_of(value: Any) -> Any:
    """Return a one-element tensor or a NumPy number as a Python number; others as they are."""
    if isinstance(value, TensorImpl):
        return value.array().reshape(()).item()
    return value.item() if isinstance(value, np.generic) else value


def ints_of(op: str, name: str, values: Any) -> tuple[int, ...]:
    """Return sizes or dimensions as a tuple of ints; a single integer counts as one of them."""
    if isinstance(values, (tuple, list)):
        return tuple([v if type(v) is int else int_of(op, name, v) for v in values])
    return (int_of(op, name, values),)


def spread_ints(op: str, name: str, args: tuple[Any, ...], keyword: Any = None) -> tuple[int, ...]:
    """Return the ints of ``*args``, which may also be one sequence, or the keyword's."""
    if keyword is not None:
        return ints_of(op, name, keyword)
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return ints_of(op, name, args[0])
    return ints_of(op, name, args)
