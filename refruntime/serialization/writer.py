"""Writing ``.pt`` files: a zip archive of one pickle and the raw bytes of each storage.

State
-----
None outlives a call of `save`.

Invariants
----------
* The pickle names PyTorch's globals, so PyTorch reads the file; only the classes of the program and
  of `refruntime.nn` go by their own names.
* A storage is written once, in full and uncompressed, at a multiple of 64 bytes from the start of
  the file, so that it can be memory-mapped.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from refruntime import _dtypes
from refruntime._device import Device
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, meta_of, wrap
from refruntime._layout import Size
from refruntime._storage import Storage
from refruntime.errors import ArgumentTypeError
from refruntime.serialization.names import STORAGE_NAMES, CheckpointError, Foreign

ALIGNMENT = 64
_LOCAL_HEADER = 30
_ZIP64_EXTRA = 20
_REBUILD = Foreign("torch._utils", "_rebuild_tensor_v2")
_REBUILD_WITH_DTYPE = Foreign("torch._utils", "_rebuild_tensor_v3")
_REBUILD_PARAMETER = Foreign("torch._utils", "_rebuild_parameter")
_REBUILD_PARAMETER_STATE = Foreign("torch._utils", "_rebuild_parameter_with_state")
_REBUILD_TYPE = Foreign("torch._tensor", "_rebuild_from_type_v2")
_HOOKS = Foreign("collections", "OrderedDict")
_SIZE = Foreign("torch", "Size")
_DEVICE = Foreign("torch", "device")
_TENSOR = Foreign("torch", "Tensor")
_UNTYPED = Foreign("torch.storage", "UntypedStorage")
_STORAGES = {dtype: Foreign("torch", name) for dtype, name in STORAGE_NAMES.items()}


def save(
    obj: Any,
    f: str | os.PathLike[str] | IO[bytes],
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """Save an object that holds tensors into a file that `load` and ``torch.load`` read.

    Parameters
    ----------
    obj : object
        A tensor, a state dict, a container of those, or anything that can be pickled.
    f : path or binary file
        Where to write.
    pickle_module, _use_new_zipfile_serialization, _disable_byteorder_record
        Accepted for compatibility; the format is always the zip archive.
    pickle_protocol : int
        Protocol of the pickle; 2 is what every version of PyTorch reads.
    """
    if isinstance(f, (str, os.PathLike)):
        _save_path(obj, Path(f), pickle_protocol)
        return
    if not hasattr(f, "write"):
        raise ArgumentTypeError("save", expected="a path or a file", got=type(f).__name__)
    _write_archive(obj, f, "archive", pickle_protocol)


def _save_path(obj: Any, path: Path, protocol: int) -> None:
    # Pickled first: an object that cannot be saved must not leave half a file behind.
    pickled = _pickle(obj, protocol)
    with path.open("wb") as file:
        _write_records(pickled, file, path.stem or "archive")


def _write_archive(obj: Any, file: IO[bytes], name: str, protocol: int) -> None:
    _write_records(_pickle(obj, protocol), file, name)


def _pickle(obj: Any, protocol: int) -> tuple[bytes, list[Storage]]:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol)
    pickler.dump(obj)
    return buffer.getvalue(), pickler.storages


def _write_records(pickled: tuple[bytes, list[Storage]], file: IO[bytes], name: str) -> None:
    data, storages = pickled
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        _add(archive, f"{name}/data.pkl", data)
        _add(archive, f"{name}/.format_version", b"1")
        _add(archive, f"{name}/.storage_alignment", str(ALIGNMENT).encode())
        _add(archive, f"{name}/byteorder", sys.byteorder.encode())
        for key, storage in enumerate(storages):
            _add(archive, f"{name}/data/{key}", host_bytes(storage))
        _add(archive, f"{name}/version", b"3\n")


def _add(archive: zipfile.ZipFile, name: str, data: bytes | memoryview) -> None:
    """Add a record whose first byte is aligned, by padding the extra field of its header."""
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_STORED
    large = len(data) >= zipfile.ZIP64_LIMIT
    start = archive.fp.tell() if archive.fp is not None else 0
    body = start + _LOCAL_HEADER + len(name.encode()) + (_ZIP64_EXTRA if large else 0)
    padding = -(body + 4) % ALIGNMENT
    info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    with archive.open(info, "w", force_zip64=large) as record:
        record.write(data)


def host_bytes(storage: Storage) -> memoryview:
    """Return the bytes of a storage, copied to the host if they are on a device."""
    whole: Any = wrap(storage, meta_of((storage.nbytes,), _dtypes.uint8, storage.device))
    if storage.device.type != "cpu":
        whole = whole.cpu()
    array: np.ndarray[Any, Any] = whole.array()
    return array.data


class _StorageRef:
    """Stands for a storage in the pickle: written as a persistent id."""

    __slots__ = ("dtype", "storage")

    def __init__(self, storage: Storage, dtype: DType) -> None:
        self.storage = storage
        self.dtype = dtype


# The C pickler checks that each global can be imported by its name; the Python one lets us write
# names of modules that do not exist here. Its cost is per object, not per byte.
class _Pickler(pickle._Pickler):
    """Pickles tensors as PyTorch does, collecting their storages."""

    dispatch = pickle._Pickler.dispatch.copy()

    def __init__(self, file: IO[bytes], protocol: int) -> None:
        super().__init__(file, protocol)
        self.storages: list[Storage] = []
        self._keys: dict[int, tuple[str, DType]] = {}

    def persistent_id(self, obj: Any) -> Any:
        """Return the id of a storage; None lets everything else be pickled."""
        if not isinstance(obj, _StorageRef):
            return None
        key = self._key(obj)
        kind = _STORAGES.get(obj.dtype, _UNTYPED)
        count = obj.storage.nbytes // (1 if kind is _UNTYPED else obj.dtype.itemsize)
        return "storage", kind, key, str(obj.storage.device), count

    def _key(self, ref: _StorageRef) -> str:
        known = self._keys.get(id(ref.storage))
        if known is None:
            known = self._keys[id(ref.storage)] = (str(len(self.storages)), ref.dtype)
            self.storages.append(ref.storage)
        if known[1] is not ref.dtype:
            raise CheckpointError(
                "save",
                what="Cannot save multiple tensors or storages that view the same data as "
                "different types",
                expected=str(known[1]),
                got=str(ref.dtype),
                remedy="clone one of them first",
            )
        return known[0]

    def reducer_override(self, obj: Any) -> Any:
        """Return how a tensor, dtype, size or device is written; NotImplemented for all else."""
        if isinstance(obj, TensorImpl):
            return _reduce(obj)
        if isinstance(obj, Size):
            return _SIZE, (tuple(obj),)
        if isinstance(obj, Device):
            parts = (obj.type,) if obj.index is None else (obj.type, obj.index)
            return _DEVICE, parts
        return NotImplemented

    def _save_name(self, obj: Any, module: str, name: str) -> None:
        self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]

    def _save_foreign(self, obj: Foreign) -> None:
        self._save_name(obj, obj.module, obj.name)

    def _save_dtype(self, obj: DType) -> None:
        self._save_name(obj, "torch", obj.name)

    dispatch[Foreign] = _save_foreign  # type: ignore[assignment]
    dispatch[DType] = _save_dtype  # type: ignore[assignment]


def _reduce(tensor: Any) -> tuple[Any, ...]:
    """Return the constructor call that PyTorch would write for a tensor."""
    if _is_parameter(tensor):
        return _reduce_parameter(tensor)
    base = _reduce_plain(tensor, bool(tensor.requires_grad))
    state = getattr(tensor, "__dict__", None)
    plain = type(tensor).__module__.startswith("refruntime.")
    if plain and not state:
        return base
    kind = _TENSOR if plain else type(tensor)
    return _REBUILD_TYPE, (base[0], kind, base[1], state or {})


def _reduce_plain(tensor: Any, requires_grad: bool) -> tuple[Any, tuple[Any, ...]]:
    meta = tensor.meta
    ref = _StorageRef(tensor.storage, meta.dtype)
    offset = tensor.byte_offset // meta.dtype.itemsize
    hooks = _EmptyHooks()
    args = (ref, offset, tuple(meta.shape), tuple(meta.strides), requires_grad, hooks)
    if meta.dtype in STORAGE_NAMES:
        return _REBUILD, args
    return _REBUILD_WITH_DTYPE, (*args, meta.dtype)


class _EmptyHooks:
    """PyTorch writes an empty OrderedDict where backward hooks would be."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _HOOKS, ()


def _is_parameter(tensor: Any) -> bool:
    # By name: the class stands on a higher floor.
    return any(
        kind.__module__ == "refruntime.nn.parameter" and kind.__name__ == "Parameter"
        for kind in type(tensor).__mro__
    )


def _reduce_parameter(tensor: Any) -> tuple[Any, ...]:
    data = _Plain(tensor)
    if tensor.__dict__:
        args = (data, tensor.requires_grad, _EmptyHooks(), dict(tensor.__dict__))
        return _REBUILD_PARAMETER_STATE, args
    return _REBUILD_PARAMETER, (data, tensor.requires_grad, _EmptyHooks())


class _Plain:
    """The tensor inside a parameter."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduce_plain(self._tensor, False)
