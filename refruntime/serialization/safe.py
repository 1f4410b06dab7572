"""Safetensors files: names, dtypes, shapes and bytes, and nothing that could run.

State
-----
None. The format and its checks are the `safetensors` library's.

Invariants
----------
* A tensor is written row-major; loading gives each tensor a storage of its own.
* bfloat16 travels as itself in both directions.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, array_of, meta_of, wrap
from refruntime._storage import allocate
from refruntime.errors import ArgumentTypeError
from refruntime.serialization.names import CheckpointError

_CODES: dict[str, DType] = {
    "F64": _dtypes.float64, "F32": _dtypes.float32, "F16": _dtypes.float16,
    "BF16": _dtypes.bfloat16, "I64": _dtypes.int64, "I32": _dtypes.int32, "I16": _dtypes.int16,
    "I8": _dtypes.int8, "U64": _dtypes.uint64, "U32": _dtypes.uint32, "U16": _dtypes.uint16,
    "U8": _dtypes.uint8, "BOOL": _dtypes.bool_, "C64": _dtypes.complex64,
}  # fmt: skip


def save_safetensors(
    tensors: dict[str, TensorImpl],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write a flat dictionary of tensors to a safetensors file.

    Parameters
    ----------
    tensors : dict of str to Tensor
        For example a ``state_dict()``.
    filename : path
        Where to write.
    metadata : dict of str to str, optional
        Free text for the header.
    """
    import safetensors

    arrays = {name: _row_major(name, tensor) for name, tensor in tensors.items()}
    specs = {
        name: safetensors.TensorSpec(
            dtype=tensors[name].meta.dtype.name,
            shape=list(array.shape),
            data_ptr=array.__array_interface__["data"][0],
            data_len=array.nbytes,
        )
        for name, array in arrays.items()
    }
    safetensors.serialize_file(specs, os.fspath(filename), metadata)


def _row_major(name: str, tensor: Any) -> np.ndarray[Any, Any]:
    if not isinstance(tensor, TensorImpl):
        raise ArgumentTypeError(
            "save_safetensors", what=f"entry {name!r} is not a tensor", expected="Tensor",
            got=type(tensor).__name__, remedy="save other values as metadata text",
        )  # fmt: skip
    plain: Any = tensor
    plain = plain.detach() if plain.meta.device.type == "cpu" else plain.detach().cpu()
    array = np.ascontiguousarray(plain.array()).reshape(plain.meta.shape)
    return array.view(np.uint16) if plain.meta.dtype is _dtypes.bfloat16 else array


def load_safetensors(filename: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the tensors of a safetensors file by name.

    Raises
    ------
    CheckpointError
        If the file is damaged or no safetensors file.
    """
    import safetensors

    try:
        entries = safetensors.deserialize(Path(filename).read_bytes())  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            "load_safetensors", what=f"this is not a readable safetensors file ({error})",
            remedy="check that the file was copied in full",
        ) from error  # fmt: skip
    return {name: _tensor_of(name, entry) for name, entry in entries}


def _tensor_of(name: str, entry: dict[str, Any]) -> TensorImpl:
    dtype = _CODES.get(entry["dtype"])
    if dtype is None:
        raise CheckpointError(
            "load_safetensors", what=f"entry {name!r} has a dtype that refruntime lacks",
            expected=", ".join(_CODES), got=entry["dtype"],
        )  # fmt: skip
    meta = meta_of(tuple(entry["shape"]), dtype)
    storage = allocate(meta.nbytes)
    if meta.nbytes:
        target = array_of(storage, meta_of((meta.nbytes,), _dtypes.uint8), 0)
        target[:] = np.frombuffer(entry["data"], np.uint8)
    return wrap(storage, meta)
