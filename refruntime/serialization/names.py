"""What things are called inside a ``.pt`` file, and the error that a bad file raises.

Invariants
----------
* `STORAGE_NAMES` is a bijection between the dtypes that have a typed storage in PyTorch and the
  names of those; a dtype outside it travels as an untyped storage plus its own name.
"""

from __future__ import annotations

import pickle
from typing import Any

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime.errors import RefruntimeError


class CheckpointError(RefruntimeError, RuntimeError, pickle.UnpicklingError):
    """A file that is damaged, foreign, or asks for what loading does not allow."""


STORAGE_NAMES: dict[DType, str] = {
    _dtypes.float64: "DoubleStorage",
    _dtypes.float32: "FloatStorage",
    _dtypes.float16: "HalfStorage",
    _dtypes.bfloat16: "BFloat16Storage",
    _dtypes.int64: "LongStorage",
    _dtypes.int32: "IntStorage",
    _dtypes.int16: "ShortStorage",
    _dtypes.int8: "CharStorage",
    _dtypes.uint8: "ByteStorage",
    _dtypes.bool_: "BoolStorage",
    _dtypes.complex64: "ComplexFloatStorage",
    _dtypes.complex128: "ComplexDoubleStorage",
}
DTYPE_OF_STORAGE: dict[str, DType] = {name: dtype for dtype, name in STORAGE_NAMES.items()}
DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        *STORAGE_NAMES, _dtypes.uint16, _dtypes.uint32, _dtypes.uint64,
    )
}  # fmt: skip


class Foreign:
    """A global that is written by name only: PyTorch's name of something that is ours here."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __call__(self, *args: Any) -> Any:
        """Never run: pickle insists that what it writes as a constructor is callable."""
        raise TypeError(f"{self.module}.{self.name} is a name in a file, not a function")
