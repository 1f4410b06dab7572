"""The old tensor types: `FloatTensor` and its siblings, as constructors and for `isinstance`."""

from __future__ import annotations

from typing import Any

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._ops.opdef import ops
from refruntime._tensor import Tensor
from refruntime.errors import ArgumentTypeError


class _TypedTensor(type):
    """The class of the old types: making an instance makes a Tensor of the dtype."""

    dtype: DType
    device = "cpu"

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return ops.legacy_tensor(args, {"dtype": cls.dtype, "device": cls.device, **kwargs})

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, Tensor)
            and instance.dtype is cls.dtype
            and instance.device.type == cls.device
        )


class FloatTensor(metaclass=_TypedTensor):
    """A float32 CPU tensor."""

    dtype = _dtypes.float32


class DoubleTensor(metaclass=_TypedTensor):
    """A float64 CPU tensor."""

    dtype = _dtypes.float64


class HalfTensor(metaclass=_TypedTensor):
    """A float16 CPU tensor."""

    dtype = _dtypes.float16


class BFloat16Tensor(metaclass=_TypedTensor):
    """A bfloat16 CPU tensor."""

    dtype = _dtypes.bfloat16


class LongTensor(metaclass=_TypedTensor):
    """An int64 CPU tensor."""

    dtype = _dtypes.int64


class IntTensor(metaclass=_TypedTensor):
    """An int32 CPU tensor."""

    dtype = _dtypes.int32


class ShortTensor(metaclass=_TypedTensor):
    """An int16 CPU tensor."""

    dtype = _dtypes.int16


class CharTensor(metaclass=_TypedTensor):
    """An int8 CPU tensor."""

    dtype = _dtypes.int8


class ByteTensor(metaclass=_TypedTensor):
    """A uint8 CPU tensor."""

    dtype = _dtypes.uint8


class BoolTensor(metaclass=_TypedTensor):
    """A bool CPU tensor."""

    dtype = _dtypes.bool_


def on_device(kind: type, device: str) -> Any:
    """Return the twin of an old type whose tensors lie on another kind of device."""
    fields = {"__doc__": f"A {kind.dtype.name} {device} tensor.", "device": device}  # type: ignore[attr-defined]
    return type(kind)(kind.__name__, (kind,), fields)


def set_default_tensor_type(t: Any) -> None:
    """Make the dtype of an old type, or of its name, the default floating dtype.

    Raises
    ------
    ArgumentTypeError
        If it is not a floating CPU type.
    """
    name = t if isinstance(t, str) else getattr(t, "__name__", "")
    kind = globals().get(name.removeprefix("torch."))
    if not isinstance(kind, _TypedTensor) or not kind.dtype.is_floating_point:
        raise ArgumentTypeError(
            "set_default_tensor_type", what="only floating-point types can be the default",
            expected="for example torch.FloatTensor", got=repr(t),
            remedy="use set_default_dtype and set_default_device",
        )  # fmt: skip
    _dtypes.set_default_dtype(kind.dtype)
