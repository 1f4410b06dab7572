"""Reading ``.pt`` files: the zip archive of today and the stream of before PyTorch 1.6.

State
-----
None outlives a call of `load`.

Invariants
----------
* A storage is read once, and only if a tensor asks for it; its size is checked against its record.
* A damaged or foreign file raises one `CheckpointError`, whatever broke inside.
"""

from __future__ import annotations

import io
import mmap as _mmap
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from refruntime import _dtypes
from refruntime._device import Device
from refruntime._dtypes import DType
from refruntime._impl import array_of, meta_of
from refruntime._storage import Storage, allocate, external
from refruntime.errors import ArgumentTypeError, DeviceError
from refruntime.serialization.names import CheckpointError
from refruntime.serialization.unpickler import (
    LoadedStorage,
    StorageType,
    WeightsUnpickler,
    trusting_unpickler,
)

MapLocation = Callable[[Storage, str], Any] | Device | str | dict[str, str] | None
_ZIP_MAGIC = b"PK\x03\x04"
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
# What reading a damaged archive or pickle may raise.
_DAMAGE = (
    pickle.UnpicklingError, EOFError, IndexError, KeyError, TypeError, ValueError, AttributeError,
    struct.error, OverflowError, zipfile.BadZipFile, MemoryError, NotImplementedError,
)  # fmt: skip


def load(
    f: str | os.PathLike[str] | IO[bytes],
    map_location: MapLocation = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Load what `save` or ``torch.save`` wrote.

    Parameters
    ----------
    f : path or binary file
        The file must be seekable.
    map_location : str, Device, dict or callable, optional
        Where storages go: one device for all, a map from saved to new device names, or a function
        of the storage and its saved device name.
    pickle_module : module, optional
        What reads the pickle when ``weights_only=False``.
    weights_only : bool, optional
        Default True: tensors, numbers, strings and containers only. False trusts the file, which
        can then run any code.
    mmap : bool, optional
        Map the file instead of reading it; needs a path and a zip archive.

    Raises
    ------
    CheckpointError
        A RuntimeError and ``pickle.UnpicklingError``: the file is damaged, or names something that
        weights-only loading does not allow.
    """
    trusted = weights_only is False
    if not trusted and pickle_module is not None:
        raise CheckpointError(
            "load", what="cannot use pickle_module with weights_only",
            remedy="pass weights_only=False if you trust the file",
        )  # fmt: skip
    options = _Options(map_location, pickle_module or pickle, trusted, pickle_load_args)
    if isinstance(f, (str, os.PathLike)):
        with Path(f).open("rb") as file:
            return _load_file(file, options, bool(mmap))
    if not (hasattr(f, "read") and hasattr(f, "seek")):
        raise ArgumentTypeError(
            "load", expected="a path or a seekable file", got=type(f).__name__,
            remedy="read the bytes into io.BytesIO first",
        )  # fmt: skip
    if mmap:
        raise ArgumentTypeError("load", what="f must be a file path to use mmap", got="a file")
    return _load_file(f, options, False)


class _Options:
    """How a call of `load` was asked to read."""

    def __init__(
        self, map_location: MapLocation, pickle_module: Any, trusted: bool, kwargs: dict[str, Any]
    ) -> None:
        self.place = _placer(map_location)
        self.trusted = trusted
        self._pickle_module = pickle_module
        self._kwargs = {"encoding": "utf-8", **kwargs}

    def unpickle(self, file: IO[bytes], read_storage: Callable[[Any], Any]) -> Any:
        """Read one pickle, resolving storages through `read_storage`."""
        kind: Any = trusting_unpickler(self._pickle_module) if self.trusted else WeightsUnpickler
        return kind(file, read_storage, **self._kwargs).load()


def _load_file(file: IO[bytes], options: _Options, mapped: bool) -> Any:
    start = file.tell()
    head = file.read(4)
    file.seek(start)
    if not head:
        raise EOFError("load: Ran out of input; the file is empty")
    try:
        if head == _ZIP_MAGIC:
            return _Archive(file, options, mapped).load()
        return _LegacyStream(file, options).load()
    except CheckpointError:
        raise
    except _DAMAGE as error:
        if options.trusted and not isinstance(error, (zipfile.BadZipFile, EOFError)):
            # The program's own classes may raise anything; that is theirs to explain.
            raise
        raise _damaged(str(error) or type(error).__name__) from error


def _damaged(reason: str) -> CheckpointError:
    return CheckpointError(
        "load",
        what=f"this is not a readable checkpoint ({reason})",
        expected="a complete file written by save() or torch.save()",
        remedy="check that the file was copied in full",
    )


# ---------------------------------------------------------------------------------------------
# Where storages go

Place = Callable[[Storage, str], Storage]


def _placer(map_location: MapLocation) -> Place:
    """Return the function that takes a freshly read storage to its device."""
    if map_location is None:
        return lambda storage, location: _to_device(storage, location)
    if isinstance(map_location, dict):
        names = map_location
        return lambda storage, location: _to_device(storage, names.get(location, location))
    if isinstance(map_location, (str, Device)):
        target = str(map_location)
        return lambda storage, location: _to_device(storage, target)
    asked = map_location

    def place(storage: Storage, location: str) -> Storage:
        answer = asked(storage, location)
        return answer if isinstance(answer, Storage) else _to_device(storage, location)

    return place


def _to_device(storage: Storage, location: str) -> Storage:
    device = Device(location)
    if device.type == "cpu":
        return storage
    raise DeviceError(
        "load",
        what=f"the file's tensors belong to {location}, which this process cannot use",
        expected="device cpu",
        got=location,
        remedy="pass map_location='cpu'",
    )


def _read_into(storage: Storage, read: Callable[[memoryview], int]) -> None:
    """Fill a host storage from a stream; `read` fills what it is given and says how much."""
    if not storage.nbytes:
        return
    view = _bytes_of(storage).data
    while view:
        count = read(view)
        if not count:
            raise EOFError("a storage ends early")
        view = view[count:]


def _bytes_of(storage: Storage) -> np.ndarray[Any, Any]:
    return array_of(storage, meta_of((storage.nbytes,), _dtypes.uint8), 0)


# ---------------------------------------------------------------------------------------------
# The zip archive


class _Archive:
    """A zip archive with one pickle and its storages."""

    def __init__(self, file: IO[bytes], options: _Options, mapped: bool) -> None:
        self._file = file
        self._options = options
        self._zip = zipfile.ZipFile(file)
        self._prefix = self._find_prefix()
        self._storages: dict[str, LoadedStorage] = {}
        self._swap = self._record_or("byteorder", sys.byteorder.encode()) != sys.byteorder.encode()
        self._map = _mmap.mmap(file.fileno(), 0, access=_mmap.ACCESS_COPY) if mapped else None

    def _find_prefix(self) -> str:
        names = [n for n in self._zip.namelist() if n.count("/") == 1 and n.endswith("/data.pkl")]
        if len(names) != 1:
            raise _damaged("a zip file without a data.pkl record")
        prefix = names[0][: -len("data.pkl")]
        if prefix + "constants.pkl" in self._zip.NameToInfo:
            raise CheckpointError(
                "load", what="this is a TorchScript archive, which holds a program",
                remedy="save the state_dict() of the model in PyTorch instead",
            )  # fmt: skip
        return prefix

    def _record_or(self, name: str, default: bytes) -> bytes:
        full = self._prefix + name
        return self._zip.read(full).strip() if full in self._zip.NameToInfo else default

    def load(self) -> Any:
        """Return the object that was saved."""
        data = io.BytesIO(self._zip.read(self._prefix + "data.pkl"))
        return self._options.unpickle(data, self._storage)

    def _storage(self, pid: Any) -> LoadedStorage:
        kind, key, location, count = _storage_id(pid)
        if key not in self._storages:
            nbytes = count * (1 if kind.dtype is None else kind.dtype.itemsize)
            storage = self._options.place(self._read(key, nbytes, kind.dtype), location)
            self._storages[key] = LoadedStorage(storage, kind.dtype)
        return LoadedStorage(self._storages[key].storage, kind.dtype)

    def _read(self, key: str, nbytes: int, dtype: DType | None) -> Storage:
        info = self._zip.getinfo(f"{self._prefix}data/{key}")
        if info.file_size != nbytes:
            raise _damaged(f"storage {key} has {info.file_size} bytes, its tensors say {nbytes}")
        if self._map is not None and info.compress_type == zipfile.ZIP_STORED and nbytes:
            return self._mapped(self._map, info)
        storage = allocate(nbytes)
        with self._zip.open(info) as record:
            _read_into(storage, record.readinto)  # type: ignore[attr-defined]
        if self._swap:
            _swap_bytes(storage, dtype)
        return storage

    def _mapped(self, mapping: _mmap.mmap, info: zipfile.ZipInfo) -> Storage:
        # The local header's own name and extra field lengths say where the record begins.
        name, extra = struct.unpack_from("<HH", mapping, info.header_offset + 26)
        start = info.header_offset + 30 + name + extra
        array = np.frombuffer(mapping, np.uint8, info.file_size, start)
        return external(array.__array_interface__["data"][0], info.file_size, array)


def _storage_id(pid: Any) -> tuple[Any, str, str, int]:
    if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
        raise _damaged("an unknown kind of persistent id")
    kind, key, location, count = pid[1:5]
    types_fit = isinstance(kind, StorageType) and isinstance(key, str) and isinstance(location, str)
    if not types_fit or type(count) is not int or count < 0:
        raise _damaged("a storage with impossible metadata")
    return kind, key, location, count


def _swap_bytes(storage: Storage, dtype: DType | None) -> None:
    """Turn a storage of the other byte order into the host's."""
    width = 1 if dtype is None else dtype.itemsize // (2 if dtype.is_complex else 1)
    if width > 1 and storage.nbytes:
        _bytes_of(storage).view(f"u{width}").byteswap(inplace=True)


# ---------------------------------------------------------------------------------------------
# The stream of before PyTorch 1.6: five pickles, then each storage as a count and its elements


class _LegacyStream:
    """A file without archive: magic number, version, system, object, keys, storages."""

    def __init__(self, file: IO[bytes], options: _Options) -> None:
        self._file = file
        self._options = options
        self._storages: dict[str, LoadedStorage] = {}

    def load(self) -> Any:
        """Return the object that was saved."""
        if self._next() != _LEGACY_MAGIC:
            raise _damaged("it begins neither as a zip archive nor as a stream of torch.save")
        if self._next() != _LEGACY_PROTOCOL:
            raise _damaged("an unknown version of the stream format")
        system = self._next()
        if not isinstance(system, dict) or not system.get("little_endian", True):
            raise _damaged("a stream of a big-endian machine")
        result = self._options.unpickle(self._file, self._storage)
        for key in self._next():
            self._fill(self._storages[key])
        return result

    def _next(self) -> Any:
        return WeightsUnpickler(self._file, self._storage, encoding="utf-8").load()

    def _storage(self, pid: Any) -> LoadedStorage:
        kind, key, location, count = _storage_id(pid)
        if len(pid) > 5 and pid[5] is not None:
            raise _damaged("a storage that is a view of another, as PyTorch 0.1 wrote it")
        if key not in self._storages:
            # The elements come later in the stream, so a size that cannot be there is refused now.
            itemsize = kind.dtype.itemsize if kind.dtype is not None else 1
            if count * itemsize > self._bytes_left():
                raise _damaged(f"storage {key} is larger than the rest of the file")
            storage = self._options.place(allocate(count * itemsize), location)
            self._storages[key] = LoadedStorage(storage, kind.dtype)
        return self._storages[key]

    def _bytes_left(self) -> int:
        here = self._file.tell()
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(here)
        return end - here

    def _fill(self, loaded: LoadedStorage) -> None:
        itemsize = loaded.dtype.itemsize if loaded.dtype is not None else 1
        (count,) = struct.unpack("<q", self._file.read(8))
        if count * itemsize != loaded.storage.nbytes:
            raise _damaged("a storage whose size disagrees with its tensors")

        def read(view: memoryview) -> int:
            data = self._file.read(len(view))
            view[: len(data)] = data
            return len(data)

        _read_into(loaded.storage, read)


