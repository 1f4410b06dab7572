"""Reading the pickle of a ``.pt`` file: a closed table of names, and tensors built with care.

State
-----
`_safe`: what `add_safe_globals` has declared safe, by name.

Invariants
----------
* In weights-only reading a name means what this table or the program says, or loading stops; no
  module is imported because a file names it.
* What the table hands out cannot be changed by the file (`_Known` refuses attributes), so one file
  cannot prepare the ground for the next.
* A tensor is made only if every element that its shape and strides reach lies inside its storage.
"""

from __future__ import annotations

import _codecs
import contextlib
import importlib
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from refruntime import _layout
from refruntime._device import Device
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, meta_of, wrap
from refruntime._layout import Size
from refruntime._storage import Storage
from refruntime.serialization.names import DTYPE_OF_STORAGE, DTYPES, CheckpointError


class LoadedStorage:
    """A storage as a file describes it; `dtype` is None for an untyped one."""

    __slots__ = ("dtype", "storage")

    def __init__(self, storage: Storage, dtype: DType | None) -> None:
        self.storage = storage
        self.dtype = dtype


# ---------------------------------------------------------------------------------------------
# Rebuilding tensors


def _refuse(what: str, expected: Any = "", got: Any = "") -> CheckpointError:
    return CheckpointError(
        "load", what=what, expected=expected, got=got,
        remedy="the file is damaged or was not written by a trustworthy program",
    )  # fmt: skip


def _check_extent(storage: Storage, dtype: DType, offset: Any, shape: Any, strides: Any) -> None:
    """Raise unless shape, strides and offset are plain and stay inside the storage."""
    numbers = [offset, *shape, *strides]
    if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
        raise _refuse("a tensor with impossible metadata", got=f"{shape}, {strides}, {offset}")
    if 0 in shape:
        return
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if (last + 1) * dtype.itemsize > storage.nbytes:
        raise _refuse(
            "a tensor reaches beyond its storage",
            expected=f"at most {storage.nbytes} bytes",
            got=f"{(last + 1) * dtype.itemsize}",
        )


def _tensor_over(
    source: Any, dtype: DType | None, offset: Any, shape: Any, strides: Any
) -> TensorImpl:
    if not isinstance(source, LoadedStorage) or dtype is None:
        raise _refuse("a tensor without a storage", got=type(source).__name__)
    shape, strides = tuple(shape), tuple(strides)
    _check_extent(source.storage, dtype, offset, shape, strides)
    meta = meta_of(shape, dtype, source.storage.device, strides)
    return wrap(source.storage, meta, offset * dtype.itemsize)


def _rebuild_v1(source: Any, offset: Any, shape: Any, strides: Any) -> TensorImpl:
    return _tensor_over(source, getattr(source, "dtype", None), offset, shape, strides)


def _rebuild_v2(
    source: Any, offset: Any, shape: Any, strides: Any, requires_grad: Any, hooks: Any,
    metadata: Any = None,
) -> TensorImpl:  # fmt: skip
    tensor: Any = _rebuild_v1(source, offset, shape, strides)
    return tensor.requires_grad_() if requires_grad else tensor  # type: ignore[no-any-return]


def _rebuild_v3(
    source: Any, offset: Any, shape: Any, strides: Any, requires_grad: Any, hooks: Any, dtype: Any,
    metadata: Any = None,
) -> TensorImpl:  # fmt: skip
    if not isinstance(dtype, DType):
        raise _refuse("a tensor without a dtype", got=type(dtype).__name__)
    tensor: Any = _tensor_over(source, dtype, offset, shape, strides)
    return tensor.requires_grad_() if requires_grad else tensor  # type: ignore[no-any-return]


def _parameter_class() -> Any:
    # A pickle names classes of any floor; this one is found as pickle would find it.
    return importlib.import_module("refruntime.nn.parameter").Parameter


def _rebuild_parameter(data: Any, requires_grad: Any, hooks: Any) -> Any:
    if not isinstance(data, TensorImpl):
        raise _refuse("a parameter without a tensor", got=type(data).__name__)
    return _parameter_class()(data, bool(requires_grad))


def _rebuild_parameter_with_state(data: Any, requires_grad: Any, hooks: Any, state: Any) -> Any:
    parameter = _rebuild_parameter(data, requires_grad, hooks)
    _set_state(parameter, state)
    return parameter


def _rebuild_from_type(func: Any, kind: Any, args: Any, state: Any) -> Any:
    if not callable(func):
        raise _refuse("a tensor without a constructor", got=type(func).__name__)
    tensor = func(*args)
    target = kind.value if isinstance(kind, _Known) else kind
    if isinstance(target, type) and issubclass(target, TensorImpl) and target is not type(tensor):
        tensor.__class__ = target
    _set_state(tensor, state)
    return tensor


def _set_state(tensor: Any, state: Any) -> None:
    attributes = state[0] if isinstance(state, tuple) and state else state
    if not isinstance(attributes, dict) or not isinstance(tensor, TensorImpl):
        raise _refuse("a tensor with an unreadable state", got=type(state).__name__)
    # Only the user's attributes: the slots and methods of a tensor are not the file's to set.
    for name, value in attributes.items():
        if isinstance(name, str) and not hasattr(type(tensor), name):
            tensor.__dict__[name] = value


# ---------------------------------------------------------------------------------------------
# The table of names


class _Known:
    """What a name stands for: callable from the file, and closed to it."""

    __slots__ = ("name", "value")

    name: str
    value: Any

    def __init__(self, name: str, value: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "value", value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _refuse(f"a file tried to change {self.name}")

    def __call__(self, *args: Any) -> Any:
        return self.value(*args)


class StorageType:
    """The class of a storage in a file."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: DType | None) -> None:
        object.__setattr__(self, "dtype", dtype)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _refuse("a file tried to change a storage type")


def _device(*args: Any) -> Device:
    return Device(*args)


def _size(values: Any = ()) -> Size:
    return Size(values)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _rebuild_v1,
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter_with_state,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    "torch.Size": _size,
    "torch.device": _device,
    "collections.OrderedDict": OrderedDict,
    "collections.Counter": Counter,
    "builtins.set": set,
    "__builtin__.set": set,
    "builtins.complex": complex,
    "__builtin__.complex": complex,
    "builtins.bytearray": bytearray,
    "__builtin__.bytearray": bytearray,
    "_codecs.encode": _codecs.encode,
}


def _table() -> dict[str, Any]:
    table: dict[str, Any] = {name: _Known(name, value) for name, value in _FUNCTIONS.items()}
    table["torch.Tensor"] = _Known("torch.Tensor", None)
    table["torch.storage.UntypedStorage"] = StorageType(None)
    for name, dtype in DTYPE_OF_STORAGE.items():
        table[f"torch.{name}"] = table[f"torch.cuda.{name}"] = StorageType(dtype)
    for name, dtype in DTYPES.items():
        table[f"torch.{name}"] = dtype
    table["torch.strided"] = "torch.strided"
    table["torch.contiguous_format"] = _layout.contiguous_format
    table["torch.preserve_format"] = _layout.preserve_format
    return table


_TABLE = _table()
_safe: dict[str, Any] = {}


def _name_of(entry: Any) -> tuple[str, Any]:
    if isinstance(entry, tuple):
        return entry[1], entry[0]
    return f"{entry.__module__}.{entry.__qualname__}", entry


def add_safe_globals(safe_globals: list[Any]) -> None:
    """Let weights-only loading use these classes and functions.

    Parameters
    ----------
    safe_globals : list
        Classes or functions, or pairs of one and the full name that files give it.
    """
    _safe.update(map(_name_of, safe_globals))


def get_safe_globals() -> list[Any]:
    """Return what `add_safe_globals` has declared safe."""
    return list(_safe.values())


def clear_safe_globals() -> None:
    """Forget what `add_safe_globals` has declared safe."""
    _safe.clear()


@contextlib.contextmanager
def safe_globals(safe_globals: list[Any]) -> Iterator[None]:
    """Declare classes and functions safe for the length of a block."""
    before = dict(_safe)
    add_safe_globals(safe_globals)
    try:
        yield
    finally:
        _safe.clear()
        _safe.update(before)


# ---------------------------------------------------------------------------------------------
# Unpicklers

StorageReader = Callable[[Any], Any]


class WeightsUnpickler(pickle.Unpickler):
    """Resolves only names of the table and those declared safe."""

    def __init__(self, file: Any, read_storage: StorageReader, **kwargs: Any) -> None:
        super().__init__(file, **kwargs)
        self._read_storage = read_storage

    def persistent_load(self, pid: Any) -> Any:
        """Return the storage that an id stands for."""
        return self._read_storage(pid)

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for, or refuse it."""
        full = f"{module}.{name}"
        found = _safe.get(full, _TABLE.get(full))
        if found is None:
            raise CheckpointError(
                "load",
                what=f"Weights only load failed: Unsupported global: GLOBAL {full} was not an "
                "allowed global by default",
                expected="tensors, numbers, strings and containers of them",
                remedy=f"if you trust {full}, declare it with "
                f"serialization.add_safe_globals([{name}]); if you trust the whole file, call "
                "load(..., weights_only=False), which lets the file run any code",
            )
        return found


def trusting_unpickler(pickle_module: Any) -> type:
    """Return an unpickler class, over `pickle_module`'s, that imports what the file names."""

    class TrustingUnpickler(pickle_module.Unpickler):  # type: ignore[misc]
        def __init__(self, file: Any, read_storage: StorageReader, **kwargs: Any) -> None:
            super().__init__(file, **kwargs)
            self._read_storage = read_storage

        def persistent_load(self, pid: Any) -> Any:
            return self._read_storage(pid)

        def find_class(self, module: str, name: str) -> Any:
            found = _TABLE.get(f"{module}.{name}")
            if found is not None:
                return found.value if isinstance(found, _Known) and found.value else found
            return _find_ours(super().find_class, module, name)

    return TrustingUnpickler


def _find_ours(find: Callable[[str, str], Any], module: str, name: str) -> Any:
    """Find a global; what a file of PyTorch calls ``torch.x`` is ``refruntime.x`` here."""
    if module != "torch" and not module.startswith("torch."):
        return find(module, name)
    ours = "refruntime" + module[len("torch") :]
    try:
        return find(ours, name)
    except (ImportError, AttributeError):
        # Deep module paths are PyTorch's own affair; the public namespace holds the same class.
        return find(ours.split(".modules")[0], name)
