"""Sending batches between processes: structure as a pickle, tensors and arrays as raw bytes.

State
-----
None. One message is a header (the pickle, and what buffers follow it) and then each buffer.

Invariants
----------
* The bytes of a tensor are received straight into memory of the receiver's caching allocator, and
  those of a NumPy array likewise: nothing is pickled in-band, nothing is copied twice.
* A tensor that stands twice in a message is one tensor on the other side.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._impl import empty_impl, meta_of
from refruntime._tensor import Tensor

# What a buffer will be on the other side: (dtype name, shape, requires_grad), or the byte count.
Spec = tuple[str, tuple[int, ...], bool] | int


def _bytes_of(array: Any) -> Any:
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


class _Pickler(pickle.Pickler):
    """Keeps tensors and large buffers out of the pickle, in the order in which they come."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._add_buffer)
        self.specs: list[Spec] = []
        self.buffers: list[Any] = []
        self.places: dict[int, int] = {}

    def _add_buffer(self, buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        self.specs.append(raw.nbytes)
        self.buffers.append(raw)

    def persistent_id(self, value: Any) -> int | None:
        # Subclasses (a Parameter) carry more than bytes and travel by their own pickling.
        if type(value) is not Tensor:
            return None
        if value.device.type != "cpu" or _has_extras(value):
            return None
        place = self.places.get(id(value))
        if place is None:
            place = self.places[id(value)] = len(self.specs)
            requires_grad = bool(value.requires_grad)
            self.specs.append((value.dtype.name, tuple(value.shape), requires_grad))
            self.buffers.append(_bytes_of(value.array()))
        return place


def _has_extras(value: Any) -> bool:
    return bool(getattr(value, "__dict__", None))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, received: list[Any], specs: list[Spec]) -> None:
        plain = [b for b, spec in zip(received, specs, strict=True) if isinstance(spec, int)]
        super().__init__(file, buffers=plain)
        self.received = received

    def persistent_load(self, place: int) -> Any:
        return self.received[place]


def send(connection: Connection, value: Any) -> None:
    """Send any picklable value."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    connection.send_bytes(pickle.dumps((file.getvalue(), pickler.specs), protocol=5))
    for buffer in pickler.buffers:
        if buffer.nbytes:
            connection.send_bytes(buffer)


def receive(connection: Connection) -> Any:
    """Receive what `send` sent. Raises EOFError when the other side is gone."""
    head, specs = pickle.loads(connection.recv_bytes())
    received = [_receive_buffer(connection, spec) for spec in specs]
    return _Unpickler(io.BytesIO(head), received, specs).load()


def _receive_buffer(connection: Connection, spec: Spec) -> Any:
    if isinstance(spec, int):
        tensor: Any = empty_impl(meta_of((spec,), _dtypes.uint8))
    else:
        name, shape, requires_grad = spec
        tensor = empty_impl(meta_of(shape, getattr(_dtypes, _DTYPE_NAMES.get(name, name))))
        if requires_grad:
            tensor.requires_grad_(True)
    array = tensor.array()
    if array.nbytes:
        connection.recv_bytes_into(memoryview(array.reshape(-1).view(np.uint8)))
    return array if isinstance(spec, int) else tensor


_DTYPE_NAMES = {"bool": "bool_"}
