"""Tensors of Python data: numbers, nested sequences, NumPy arrays, other tensors.

Invariants
----------
* `tensor` always copies; `from_numpy` and (where nothing changes) `as_tensor` share memory, and the
  tensor then keeps the array alive.
* The dtype follows torch: Python floats have the default dtype, ints int64, bools bool; NumPy
  values and zero-dim tensors keep theirs; mixtures are promoted.
* Nested sequences must be even at every depth; what is not is named with depth and lengths.
"""

from __future__ import annotations

import warnings
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np

from refruntime import _dispatch, _dtypes, _layout
from refruntime._device import CPU, Device
from refruntime._dtypes import DType, from_numpy_dtype, promote_types
from refruntime._impl import TensorImpl, empty_impl, meta_of
from refruntime._ops.arguments import number_of
from refruntime._ops.creation import device_of, empty, finish
from refruntime._ops.from_array import from_numpy
from refruntime._ops.opdef import front, ops, require_tensor
from refruntime.errors import ArgumentTypeError, ArgumentValueError, DTypeError

_SEQUENCES = (list, tuple, range, np.ndarray)


# ---------------------------------------------------------------------------------------------
# Reading nested data


def _leaves(data: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of nested sequences and their leaves in row-major order."""
    shape = [len(data)]
    level = list(data)
    while level:
        if not any(_is_nested(item) for item in _one_of_each(level)):
            break
        lengths = {_length(item, len(shape)) for item in level}
        if len(lengths) > 1:
            first = len(level[0])
            other = next(length for length in lengths if length != first)
            raise _ragged(f"expected sequence of length {first} at dim {len(shape)} (got {other})")
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    return tuple(shape), level


def _is_nested(item: Any) -> bool:
    return isinstance(item, _SEQUENCES) and not (isinstance(item, np.ndarray) and item.ndim == 0)


def _one_of_each(level: list[Any]) -> list[Any]:
    """Return one item of each type."""
    return list({type(item): item for item in level}.values())


def _length(item: Any, depth: int) -> int:
    try:
        return len(item)
    except TypeError:
        raise ArgumentTypeError(
            "tensor", what=f"a {type(item).__name__} stands among sequences at dim {depth}",
            expected="sequences of one length at each depth", got=repr(item),
            remedy="nest the numbers evenly",
        ) from None  # fmt: skip


def _ragged(what: str) -> ArgumentValueError:
    return ArgumentValueError(
        "tensor", what=what, expected="sequences of one length at each depth", got="uneven nesting",
        remedy="pad the rows, or make a list of tensors",
    )  # fmt: skip


def _leaf_dtype(item: Any, nested: bool = True) -> DType:
    """Return the dtype that a leaf brings along."""
    if isinstance(item, TensorImpl):
        return item.meta.dtype
    if isinstance(item, (np.generic, np.ndarray)):
        return from_numpy_dtype(item.dtype)
    if isinstance(item, (bool, int, float, complex)):
        return _dtypes.dtype_of_number(item)
    kind = type(item).__name__
    text = isinstance(item, (str, bytes))
    refused = ArgumentValueError if nested else ArgumentTypeError
    raise (refused if text else DTypeError)(
        "tensor",
        what=f"new(): invalid data type '{kind}'" if text else f"Could not infer dtype of {kind}",
        expected="numbers, sequences of them, arrays or tensors", got=repr(item),
        remedy="convert the data to numbers",
    )  # fmt: skip


def _leaf_values(leaves: list[Any]) -> list[Any]:
    """Return leaves as numbers; tensors among them must have one element."""
    if not any(isinstance(item, TensorImpl) for item in _one_of_each(leaves)):
        return leaves
    for item in leaves:
        if isinstance(item, TensorImpl) and item.meta.numel != 1:
            raise ArgumentValueError(
                "tensor", what="only one element tensors can be converted to Python scalars",
                expected="one element", got=f"a tensor of shape {tuple(item.meta.shape)}",
                remedy="join tensors with torch.stack or torch.cat",
            )  # fmt: skip
    return [number_of(item) for item in leaves]


def _as_array(data: Any, dtype: DType | None) -> tuple[np.ndarray[Any, Any], DType]:
    """Return data as a NumPy array of its own or the asked-for dtype, and that dtype."""
    if not isinstance(data, (list, tuple, range)):
        data = _foreign(data)
    if isinstance(data, np.ndarray):
        kind = from_numpy_dtype(data.dtype) if dtype is None else dtype
        return _converted(data, kind), kind
    if not isinstance(data, (list, tuple, range)):
        kind = _leaf_dtype(data, nested=False) if dtype is None else dtype
        return _converted(data, kind), kind
    shape, leaves = _leaves(data)
    if dtype is None:
        kinds = {_leaf_dtype(item) for item in _typed_samples(leaves)}
        dtype = reduce(promote_types, kinds) if kinds else _dtypes.get_default_dtype()
    else:
        for item in _one_of_each(leaves):
            _leaf_dtype(item)
    return _converted(_leaf_values(leaves), dtype).reshape(shape), dtype


def _typed_samples(leaves: list[Any]) -> list[Any]:
    """Return leaves that together have every dtype among them."""
    samples = _one_of_each(leaves)
    if any(isinstance(item, (TensorImpl, np.ndarray)) for item in samples):
        return leaves
    return samples


def _foreign(data: Any) -> Any:
    """Return an object of another library as an array, and numbers as they are."""
    if isinstance(data, (np.ndarray, np.generic, bool, int, float, complex)):
        return data
    if hasattr(data, "__array__") or hasattr(data, "__array_interface__"):
        return np.asarray(data)
    if (
        hasattr(data, "__len__")
        and hasattr(data, "__getitem__")
        and not isinstance(data, (str, bytes))
    ):
        return np.asarray(list(data))
    return data


def _converted(values: Any, dtype: DType) -> np.ndarray[Any, Any]:
    try:
        if isinstance(values, np.ndarray):
            return values.astype(dtype.np, copy=False)
        return np.array(values, dtype=dtype.np)
    except OverflowError as error:
        wide = dtype is _dtypes.int64
        raise (ArgumentValueError if wide else DTypeError)(
            "tensor", what=f"value cannot be converted to type {dtype.name} without overflow",
            expected=f"values that {dtype.name} holds", got=str(error),
            remedy="name a wider dtype",
        ) from None  # fmt: skip
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            "tensor", what="the data does not convert to numbers", expected=dtype.name,
            got=str(error), remedy="convert the data first",
        ) from None  # fmt: skip


def _copied(array: np.ndarray[Any, Any], dtype: DType, device: Device) -> Any:
    made = empty_impl(meta_of(tuple(array.shape), dtype, device))
    if array.size:
        made.array()[...] = array
    return made


# ---------------------------------------------------------------------------------------------
# Fronts


@front(method=False)
def tensor(
    data: Any, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return a new tensor with a copy of the data.

    Parameters
    ----------
    data : number, nested sequence, array or tensor
    dtype : DType, optional
        Default: what the data says.
    device : device, optional
    requires_grad : bool

    Raises
    ------
    ArgumentValueError
        If nested sequences are uneven.
    ArgumentTypeError
        If the data holds something that is no number.
    """
    if isinstance(data, TensorImpl):
        warnings.warn(
            "To copy construct from a tensor, it is recommended to use sourceTensor.detach()."
            "clone() or sourceTensor.detach().clone().requires_grad_(True), rather than "
            "torch.tensor(sourceTensor).",
            stacklevel=2,
        )
        return finish(_copy_of(data, dtype, device), requires_grad)
    array, kind = _as_array(data, dtype)
    made = _copied(array, kind, device_of(device))
    _dispatch.note_made(made)
    return finish(made, requires_grad)


def _copy_of(source: Any, dtype: DType | None, device: Any) -> Any:
    detached = ops.detach(source)
    return ops.to(detached, dtype=dtype, device=device, copy=True)


@front(method=False)
def as_tensor(data: Any, dtype: DType | None = None, device: Any = None) -> Any:
    """Return the data as a tensor, sharing memory (and history) where nothing changes."""
    if isinstance(data, TensorImpl):
        return ops.to(data, dtype=dtype, device=device)
    if isinstance(data, np.ndarray) and _shareable(data):
        return ops.to(from_numpy(data), dtype=dtype, device=device)
    array, kind = _as_array(data, dtype)
    return _copied(array, kind, device_of(device))


def _shareable(array: np.ndarray[Any, Any]) -> bool:
    itemsize = array.dtype.itemsize
    even = all(stride >= 0 and stride % itemsize == 0 for stride in array.strides)
    return even and array.flags.writeable and array.flags.aligned


@front(method=False)
def asarray(
    obj: Any, *, dtype: DType | None = None, device: Any = None, copy: bool | None = None,
    requires_grad: bool = False,
) -> Any:  # fmt: skip
    """Return the data as a tensor; `copy` says whether memory may, must or must not be shared."""
    shared = as_tensor(obj, dtype, device)
    if copy is False and isinstance(obj, (list, tuple)):
        raise ArgumentValueError(
            "asarray", what="can't alias data of this kind", expected="an array or a tensor",
            got=type(obj).__name__, remedy="drop copy=False",
        )  # fmt: skip
    made = ops.detach(ops.clone(shared)) if copy else shared
    return finish(made, requires_grad)


# ---------------------------------------------------------------------------------------------
# Old constructors


@front(method=False)
def legacy_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what ``Tensor(...)``, ``FloatTensor(...)`` and the like make."""
    options = dict(kwargs)
    dtype = options.pop("dtype", None) or _dtypes.get_default_dtype()
    device = Device(options.pop("device", None) or CPU)
    requires_grad = options.pop("requires_grad", False)
    if "size" in options:
        args = (_layout.Size(options.pop("size")),)
    if "data" in options:
        args = (options.pop("data"),)
    if options:
        raise TypeError(f"Tensor() got an unexpected keyword argument {next(iter(options))!r}")
    return finish(_legacy(args, dtype, device), requires_grad)


def _legacy(args: tuple[Any, ...], dtype: DType, device: Device) -> Any:
    if not args:
        return empty(0, dtype=dtype, device=device)
    first = args[0]
    if len(args) == 1 and isinstance(first, TensorImpl):
        return ops.alias(first)
    if len(args) == 1 and not isinstance(first, (int, _layout.Size)):
        if isinstance(first, (float, complex)):
            raise ArgumentTypeError(
                "Tensor", what=f"new(): data must be a sequence (got {type(first).__name__})",
                expected="sizes, or a sequence of data", got=repr(first), remedy="use tensor(...)",
            )  # fmt: skip
        return _copied(_as_array(first, dtype)[0], dtype, device)
    return empty(*args, dtype=dtype, device=device)


@front()
def new_tensor(
    self: Any, data: Any, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return a copy of the data in the dtype and on the device of this tensor."""
    require_tensor("new_tensor", self)
    kind = self.meta.dtype if dtype is None else dtype
    where = self.meta.device if device is None else Device(device)
    if isinstance(data, TensorImpl):
        return finish(_copy_of(data, kind, where), requires_grad)
    return finish(_copied(_as_array(data, kind)[0], kind, where), requires_grad)


@front()
def new(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return ``Tensor(*args)`` in the dtype of this tensor (an old spelling)."""
    return legacy_tensor(args, {"dtype": self.meta.dtype, "device": self.meta.device, **kwargs})
