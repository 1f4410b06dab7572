"""Tensors over memory that belongs to others: NumPy arrays, buffers, DLPack.

State
-----
Whether the warning about read-only arrays was given.

Invariants
----------
* Nothing is copied: both sides see each other's writes, and the tensor keeps the owner alive.
* An array that cannot be described by whole, non-negative strides of a known dtype is refused.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._device import CPU
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, alias, meta_of, requires_grad, wrap
from refruntime._layout import extent
from refruntime._ops.opdef import front
from refruntime._storage import external
from refruntime.errors import ArgumentTypeError, ArgumentValueError

_KNOWN = (
    "float64, float32, float16, complex64, complex128, int64, int32, int16, int8, uint64, uint32, "
    "uint16, uint8, and bool"
)
_DL_CPU = 1
_warned_read_only = False


@front(method=False)
def from_numpy(ndarray: Any) -> TensorImpl:
    """Return a tensor over the memory of a NumPy array.

    Parameters
    ----------
    ndarray : numpy.ndarray
        Of a numeric dtype in native byte order, with strides that are not negative.

    Raises
    ------
    TypeError
        If it is not an array, or of a dtype without a counterpart.
    ValueError
        If its strides or byte order have no counterpart.
    """
    if not isinstance(ndarray, np.ndarray):
        raise ArgumentTypeError(
            "from_numpy", what=f"expected np.ndarray (got {type(ndarray).__name__})",
            remedy="use tensor(...) for lists and numbers",
        )  # fmt: skip
    dtype = _dtype_of_array(ndarray)
    _check_strides(ndarray)
    if not ndarray.flags.writeable:
        _warn_read_only()
    return tensor_over(ndarray, dtype)


def _dtype_of_array(array: np.ndarray[Any, Any]) -> DType:
    if not array.dtype.isnative:
        raise ArgumentValueError(
            "from_numpy",
            what="given numpy array has byte order different from the native byte order. "
            "Conversion between byte orders is currently not supported",
            got=str(array.dtype),
            remedy="use array.astype(array.dtype.newbyteorder('='))",
        )
    if array.dtype.kind in "biufc" or array.dtype.name == "bfloat16":
        try:
            return _dtypes.from_numpy_dtype(array.dtype)
        except TypeError:
            pass
    raise ArgumentTypeError(
        "from_numpy",
        what=f"can't convert np.ndarray of type {array.dtype.type.__module__}."
        f"{array.dtype.type.__name__}. The only supported types are: {_KNOWN}",
        remedy="use array.astype(...)",
    )


def _check_strides(array: np.ndarray[Any, Any]) -> None:
    itemsize = array.dtype.itemsize
    if any(stride < 0 for stride in array.strides):
        raise ArgumentValueError(
            "from_numpy",
            what="At least one stride in the given numpy array is negative, and tensors with "
            "negative strides are not currently supported",
            got=f"strides {array.strides}",
            remedy="make a copy with array.copy()",
        )
    if any(stride % itemsize for stride in array.strides):
        raise ArgumentValueError(
            "from_numpy",
            what="given numpy array strides not a multiple of the element byte size",
            got=f"strides {array.strides} of {itemsize}-byte elements",
            remedy="make a copy with array.copy()",
        )


def _warn_read_only() -> None:
    global _warned_read_only
    if _warned_read_only:
        return
    _warned_read_only = True
    warnings.warn(
        "The given NumPy array is not writable, and refruntime does not support non-writable "
        "tensors: writing to this tensor is undefined behavior. Copy the array to protect its "
        "data, or make it writable before converting it. This warning is given once.",
        UserWarning,
        stacklevel=3,
    )


def tensor_over(array: np.ndarray[Any, Any], dtype: DType) -> TensorImpl:
    """Make a tensor over an array's memory; the storage covers all that its strides reach."""
    itemsize = dtype.itemsize
    shape = tuple(array.shape)
    strides = tuple(stride // itemsize for stride in array.strides)
    nbytes = (extent(shape, strides)[1] + 1) * itemsize if array.size else 0
    storage = external(array.__array_interface__["data"][0], nbytes, array)
    return wrap(storage, meta_of(shape, dtype, CPU, strides))


@front(method=False)
def frombuffer(
    buffer: Any, *, dtype: DType, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Any:
    """Return a one-dimensional tensor over an object that has the buffer protocol.

    Parameters
    ----------
    buffer : object
        For example a bytearray.
    dtype : DType
        How to read the bytes.
    count : int
        Elements to read; -1 means all.
    offset : int
        Bytes to skip.
    requires_grad : bool
        Whether gradients flow to the tensor.
    """
    array = np.frombuffer(buffer, dtype=dtype.np, count=count, offset=offset)
    if not array.flags.writeable:
        _warn_read_only()
    tensor: Any = tensor_over(array, dtype)
    return tensor.requires_grad_() if requires_grad else tensor


# ---------------------------------------------------------------------------------------------
# DLPack. NumPy reads the capsules.


class _Capsule:
    """Gives a bare capsule the two methods that consumers ask for."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DL_CPU, 0


@front(method=False)
def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Any:
    """Return a tensor over the memory of an object that has ``__dlpack__``, or of a capsule.

    Parameters
    ----------
    ext_tensor : object
        An array or tensor of any library, on the CPU.
    device : Device, optional
        Where the result must be; only the CPU is possible.
    copy : bool, optional
        True copies; False and None share the memory.
    """
    if isinstance(ext_tensor, TensorImpl):
        if requires_grad(ext_tensor):
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        shared: Any = alias(ext_tensor, ext_tensor.meta, ext_tensor.byte_offset)
    else:
        source = ext_tensor if hasattr(ext_tensor, "__dlpack__") else _Capsule(ext_tensor)
        array = np.from_dlpack(source)
        _check_strides(array)
        shared = tensor_over(array, _dtype_of_array(array))
    if device is not None and str(device) != "cpu":
        shared = shared.to(device)
    return shared.clone() if copy else shared
