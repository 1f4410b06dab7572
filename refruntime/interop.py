"""Tensors and other libraries: NumPy's protocols, DLPack, plain buffers.

State
-----
An exported array holds an `_Export`, which holds the storage and counts in `Storage.exports` until
the array dies. The way in (`from_numpy`, `from_dlpack`) stands in `_ops.from_array`.

Invariants
----------
* `to_numpy` and DLPack never copy: both sides see each other's writes.
* Memory leaves only from the CPU, and never with a gradient attached to it.
* Work between an array and a tensor gives a tensor. Where torch has the operation it is ours, and
  recorded; else NumPy computes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes, random
from refruntime._impl import TensorImpl, requires_grad
from refruntime._ops.from_array import from_dlpack, from_numpy, frombuffer, tensor_over
from refruntime._ops.opdef import ops
from refruntime._storage import Storage
from refruntime.errors import ArgumentTypeError, ArgumentValueError, AutogradError

__all__ = ["from_dlpack", "from_numpy", "frombuffer", "to_dlpack"]

_DL_CPU = 1

# ---------------------------------------------------------------------------------------------
# Out: tensors as arrays


class _Export:
    """A storage lent to NumPy: the array keeps this, this keeps and counts on the storage."""

    __slots__ = ("__array_interface__", "_storage")

    def __init__(self, storage: Storage, interface: dict[str, Any]) -> None:
        self._storage = storage
        self.__array_interface__ = interface
        storage.exports += 1

    def __del__(self) -> None:
        self._storage.exports -= 1


def to_numpy(tensor: TensorImpl, force: bool = False) -> np.ndarray[Any, Any]:
    """Return a NumPy array over the tensor's memory.

    Parameters
    ----------
    tensor : Tensor
        On the CPU and without gradient, unless forced.
    force : bool
        Detach, and copy to the host, where that is needed.

    Raises
    ------
    RuntimeError
        If the tensor requires grad.
    TypeError
        If it is on another device, or of a dtype that NumPy lacks.
    """
    if force:
        return _lend(_plain_on_host(tensor))
    if requires_grad(tensor):
        raise AutogradError(
            "numpy",
            what="Can't call numpy() on Tensor that requires grad. "
            "Use tensor.detach().numpy() instead",
        )
    if tensor.meta.device.type != "cpu":
        raise ArgumentTypeError(
            "numpy",
            what=f"can't convert {tensor.meta.device} device type tensor to numpy",
            remedy="use Tensor.cpu() to copy the tensor to host memory first",
        )
    return _lend(tensor)


def _plain_on_host(tensor: Any) -> Any:
    detached = tensor.detach()
    return detached if detached.meta.device.type == "cpu" else detached.cpu()


def _lend(tensor: TensorImpl) -> np.ndarray[Any, Any]:
    meta = tensor.meta
    if meta.dtype is _dtypes.bfloat16:
        raise ArgumentTypeError(
            "numpy",
            what="Got unsupported ScalarType BFloat16",
            remedy="convert with .float() first; NumPy has no bfloat16 of its own",
        )
    if meta.numel == 0:
        return np.empty(meta.shape, meta.dtype.np)
    interface = {
        "version": 3,
        "shape": tuple(meta.shape),
        "typestr": meta.dtype.np.str,
        "data": (tensor.address(), False),
        "strides": tuple(stride * meta.dtype.itemsize for stride in meta.strides),
    }
    return np.asarray(_Export(tensor.storage, interface))


def array_protocol(tensor: TensorImpl, dtype: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """Return ``tensor.__array__(dtype, copy)``, with NumPy 2's meaning of `copy`."""
    array = to_numpy(tensor)
    if dtype is None or np.dtype(dtype) == array.dtype:
        return array.copy() if copy else array
    if copy is False:
        raise ArgumentValueError(
            "__array__",
            what="Unable to avoid copy while creating an array as requested",
            expected=f"dtype {array.dtype}",
            got=str(np.dtype(dtype)),
            remedy="use numpy.asarray, which may copy",
        )
    return array.astype(dtype)


# ---------------------------------------------------------------------------------------------
# States of generators


def _state_tensor(state: bytes) -> TensorImpl:
    return tensor_over(np.frombuffer(bytearray(state), np.uint8), _dtypes.uint8)


def _state_bytes(state: Any) -> bytes:
    if not isinstance(state, TensorImpl) or state.meta.dtype is not _dtypes.uint8:
        raise ArgumentTypeError(
            "set_state", what="RNG state must be a torch.ByteTensor", expected="a uint8 tensor",
            got=str(getattr(state, "dtype", type(state).__name__)),
        )  # fmt: skip
    return to_numpy(state).tobytes()


random.install_state_codec(_state_tensor, _state_bytes)


# ---------------------------------------------------------------------------------------------
# NumPy's functions on tensors

# NumPy's name of a ufunc -> the front function that does the same.
_TWINS = {
    "absolute": "abs", "add": "add", "arccos": "acos", "arcsin": "asin", "arctan": "atan",
    "arctan2": "atan2", "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor", "ceil": "ceil", "cos": "cos", "cosh": "cosh", "divide": "div",
    "equal": "eq", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "floor": "floor",
    "floor_divide": "floor_divide", "fmod": "fmod", "greater": "gt", "greater_equal": "ge",
    "invert": "bitwise_not", "isfinite": "isfinite", "isinf": "isinf", "isnan": "isnan",
    "left_shift": "bitwise_left_shift", "less": "lt", "less_equal": "le", "log": "log",
    "log10": "log10", "log1p": "log1p", "log2": "log2", "logical_and": "logical_and",
    "logical_not": "logical_not", "logical_or": "logical_or", "logical_xor": "logical_xor",
    "matmul": "matmul", "maximum": "maximum", "minimum": "minimum", "multiply": "mul",
    "negative": "neg", "not_equal": "ne", "positive": "positive", "power": "pow",
    "reciprocal": "reciprocal", "remainder": "remainder", "right_shift": "bitwise_right_shift",
    "sign": "sign", "sin": "sin", "sinh": "sinh", "sqrt": "sqrt", "square": "square",
    "subtract": "sub", "tan": "tan", "tanh": "tanh", "trunc": "trunc",
}  # fmt: skip


def array_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a NumPy ufunc that met a tensor: ``ndarray * tensor``, ``numpy.sin(tensor)``."""
    twin = getattr(ops, _TWINS.get(ufunc.__name__, ""), None)
    if method == "__call__" and not kwargs and twin is not None:
        return twin(*map(_as_operand, inputs))
    outs = kwargs.get("out", ())
    if any(isinstance(out, TensorImpl) for out in outs):
        raise ArgumentTypeError(
            ufunc.__name__, what="return arrays must be of ArrayType", expected="out=ndarray",
            got="out=Tensor", remedy="use the torch function, or the tensor's in-place method",
        )  # fmt: skip
    result = getattr(ufunc, method)(*map(_as_array, inputs), **kwargs)
    if outs:
        return result
    return tuple(map(_as_result, result)) if isinstance(result, tuple) else _as_result(result)


def _as_operand(value: Any) -> Any:
    """Return an operand for a front function: arrays become tensors, NumPy's scalars numbers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return from_numpy(value if value.flags.writeable else value.copy())
    return value


def _as_array(value: Any) -> Any:
    return to_numpy(value) if isinstance(value, TensorImpl) else value


def _as_result(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return from_numpy(np.asarray(value))
    return value


# ---------------------------------------------------------------------------------------------
# DLPack. NumPy makes the capsules.


def to_dlpack(tensor: TensorImpl, *, stream: Any = None, **kwargs: Any) -> Any:
    """Return a DLPack capsule over the tensor's memory (``__dlpack__``).

    Raises
    ------
    BufferError
        If the tensor requires grad, is not on the CPU, or has a dtype without a DLPack code here.
    """
    if requires_grad(tensor):
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if stream is not None:
        raise BufferError(f"__dlpack__: stream should be None on cpu, got {stream!r}")
    if tensor.meta.device.type != "cpu" or tensor.meta.dtype is _dtypes.bfloat16:
        raise BufferError(
            f"__dlpack__: cannot export a {tensor.meta.dtype} tensor on {tensor.meta.device}; "
            "move it to the CPU, and convert bfloat16 with .float()"
        )
    return _lend(tensor).__dlpack__(**kwargs)


def dlpack_device(tensor: TensorImpl) -> tuple[int, int]:
    """Return DLPack's device type and index of a CPU tensor."""
    if tensor.meta.device.type != "cpu":
        raise BufferError(f"__dlpack_device__: no DLPack export from {tensor.meta.device}")
    return _DL_CPU, 0
