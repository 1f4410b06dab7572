"""How an element of each dtype is read, written and computed with in CPU kernels.

State
-----
`ELEMENTS` maps a dtype to its `Element`: which pointer intrinsic, which load and store, and in
which type the kernel computes. It is complete for the dtypes that have CPU kernels.

Invariants
----------
* A load gives the computing type: half types widen to float32, bool reads as uint8 0 or 1.
* A store takes any number: floats are cut towards zero for integers, half types round to nearest
  even, and bool stores whether the value differs from zero.
* All functions here are device functions or intrinsics: usable in any kernel body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refruntime import _dtypes, _native
from refruntime._dtypes import DType
from refruntime._native import device_function, load_bf16, load_f16, store_bf16, store_f16
from refruntime.errors import KernelMissingError


@device_function
def load_number(p, i):  # type: ignore[no-untyped-def]
    """Return element `i` of memory whose type is its own computing type."""
    return p[i]


@device_function
def load_bool(p, i):  # type: ignore[no-untyped-def]
    """Return element `i` of bool memory as uint8 0 or 1."""
    return np.uint8(p[i] != 0)


@device_function
def store_bool(p, i, value):  # type: ignore[no-untyped-def]
    """Store whether `value` differs from zero."""
    p[i] = np.uint8(value != 0)


@device_function
def store_u8(p, i, value):  # type: ignore[no-untyped-def]
    """Store `value` as uint8."""
    p[i] = np.uint8(value)


@device_function
def store_i8(p, i, value):  # type: ignore[no-untyped-def]
    """Store `value` as int8."""
    p[i] = np.int8(value)


@device_function
def store_i16(p, i, value):  # type: ignore[no-untyped-def]
    """Store `value` as int16."""
    p[i] = np.int16(value)


@device_function
def store_i32(p, i, value):  # type: ignore[no-untyped-def]
    """Store `value` as int32."""
    p[i] = np.int32(value)


@device_function
def store_i64(p, i, value):  # type: ignore[no-untyped-def]
    """Store `value` as int64."""
    p[i] = np.int64(value)


@device_function
def store_u16(p, i, value):  # type: ignore[no-untyped-def]
    """Store `value` as uint16."""
    p[i] = np.uint16(value)


@device_function
def store_u32(p, i, value):  # type: ignore[no-untyped-def]
    """Store `value` as uint32."""
    p[i] = np.uint32(value)


@device_function
def store_u64(p, i, value):  # type: ignore[no-untyped-def]
    """Store `value` as uint64."""
    p[i] = np.uint64(value)


@device_function
def store_f32(p, i, value):  # type: ignore[no-untyped-def]
    """Store `value` as float32."""
    p[i] = np.float32(value)


@device_function
def store_f64(p, i, value):  # type: ignore[no-untyped-def]
    """Store `value` as float64."""
    p[i] = np.float64(value)


@dataclass(frozen=True, slots=True)
class Element:
    """One dtype in CPU kernels.

    Parameters
    ----------
    dtype : DType
        The type in memory.
    pointer : callable
        The intrinsic that makes a pointer of an address: ``ptr_f32`` and the like.
    load, store : DeviceFunction
        ``load(p, i)`` and ``store(p, i, value)``.
    number : type
        The NumPy scalar type in which the kernel computes; calling it casts.
    """

    dtype: DType
    pointer: Any
    load: Any
    store: Any
    number: type[Any]

    @property
    def number_name(self) -> str:
        """The computing type as Numba signatures spell it: ``float32``, ``uint8``."""
        return np.dtype(self.number).name


def _plain(dtype: DType, suffix: str) -> Element:
    pointer = getattr(_native, f"ptr_{suffix}")
    return Element(dtype, pointer, load_number, globals()[f"store_{suffix}"], dtype.np.type)


ELEMENTS: dict[DType, Element] = {
    _dtypes.bool_: Element(_dtypes.bool_, _native.ptr_u8, load_bool, store_bool, np.uint8),
    _dtypes.float16: Element(_dtypes.float16, _native.ptr_u16, load_f16, store_f16, np.float32),
    _dtypes.bfloat16: Element(_dtypes.bfloat16, _native.ptr_u16, load_bf16, store_bf16, np.float32),
    **{
        getattr(_dtypes, name): _plain(getattr(_dtypes, name), suffix)
        for name, suffix in {
            "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
            "uint16": "u16", "uint32": "u32", "uint64": "u64", "float32": "f32", "float64": "f64",
        }.items()
    },
}  # fmt: skip


def element_of(dtype: DType, op: str = "kernel") -> Element:
    """Return the element of a dtype.

    Raises
    ------
    KernelMissingError
        If no CPU kernel handles the dtype (complex types).
    """
    found = ELEMENTS.get(dtype)
    if found is None:
        raise KernelMissingError(
            op,
            what=f"no CPU kernel for {dtype.name}",
            expected="a real dtype",
            got=repr(dtype),
            remedy="convert the operand to a real dtype",
        )
    return found
