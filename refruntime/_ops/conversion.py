"""Copies, casts and fills: `copy`, `to`, `clone`, `copy_`, `fill_`, and the dtype methods.

Invariants
----------
* A cast is one kernel; `to` gives the tensor itself back when nothing would change.
* `copy_` and `fill_` are in-place only: their functional twins (`assign`, `fill`) exist so that the
  graph and the compiler see pure ops.
"""

from __future__ import annotations

from typing import Any

from refruntime import _dtypes
from refruntime._device import Device
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta, meta_of, without_overlap
from refruntime._layout import (
    MemoryFormat,
    broadcast_shapes,
    channels_last,
    channels_last_strides,
    contiguous_format,
    dense_strides,
    preserve_format,
)
from refruntime._ops import samples_inner as inner
from refruntime._ops.opdef import METHODS, Inplace, OpDef, front, ops, register, require_tensor
from refruntime.errors import ArgumentTypeError, DeviceError, ShapeError
from refruntime.kernels.copy import copy_cpu, copy_cuda, fill_cpu, fill_cuda


def _copy_infer(
    input: TensorMeta, *, dtype: DType | None = None, strides: tuple[int, ...] | None = None
) -> TensorMeta:
    return meta_of(input.shape, dtype or input.dtype, input.device, strides)


def _copy_kernel(kernel: Any) -> Any:
    def copy(out: TensorImpl, input: TensorImpl, **params: Any) -> None:
        kernel(out, input)

    return copy


COPY = register(
    OpDef(
        "copy",
        ("input",),
        jvp="linear",
        batch="copy",
        **inner.COPY,
        infer=_copy_infer,
        cpu=_copy_kernel(copy_cpu),
        cuda=_copy_kernel(copy_cuda),
        vjp=lambda g, n: g,
        backward_name="CloneBackward0",
    )
)

CAST = register(
    OpDef(
        "cast",
        ("input",),
        jvp="linear",
        batch="copy",
        **inner.CAST,
        infer=_copy_infer,
        cpu=_copy_kernel(copy_cpu),
        cuda=_copy_kernel(copy_cuda),
        # The engine casts the gradient to the operand's dtype.
        vjp=lambda g, n: g if n.metas[0].dtype.kind in "fc" else None,
        backward_name="ToCopyBackward0",
    )
)


def _strides_for(meta: TensorMeta, memory_format: MemoryFormat | None) -> tuple[int, ...] | None:
    if memory_format is channels_last:
        return tuple(channels_last_strides(meta.shape))
    if memory_format is contiguous_format:
        return None
    return None if meta.contiguous else dense_strides(meta.shape, meta.strides)


@front(COPY)
def clone(input: Any, *, memory_format: MemoryFormat | None = preserve_format) -> Any:
    """Return a copy with memory of its own, in the graph."""
    require_tensor("clone", input)
    return call(COPY, (input,), {"strides": _strides_for(input.meta, memory_format)})


@front(COPY)
def contiguous(input: Any, memory_format: MemoryFormat | None = contiguous_format) -> Any:
    """Return the tensor itself if it is contiguous in `memory_format`, else a copy that is."""
    require_tensor("contiguous", input)
    strides = _strides_for(input.meta, memory_format or contiguous_format)
    if input.meta.contiguous if strides is None else input.meta.strides == strides:
        return input
    return call(COPY, (input,), {"strides": strides})


@front(CAST)
def to(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the tensor with another dtype or device; itself if nothing changes.

    ``to(dtype)``, ``to(device)``, ``to(device, dtype)``, ``to(other)``; keywords ``dtype``,
    ``device``, ``non_blocking``, ``copy``, ``memory_format``.
    """
    require_tensor("to", input)
    dtype, device, copy, memory_format = _to_arguments(input, args, kwargs)
    if device.type != input.meta.device.type:
        raise DeviceError(
            "to",
            expected=str(input.meta.device),
            got=str(device),
            remedy="no GPU is driven by this version; stay on the CPU",
        )
    strides = _strides_for(input.meta, memory_format)
    if dtype is not input.meta.dtype:
        return call(CAST, (input,), {"dtype": dtype, "strides": strides})
    same_format = memory_format in (None, preserve_format) or input.meta.strides == strides
    if not copy and same_format:
        return input
    return call(COPY, (input,), {"strides": strides})


def _to_arguments(
    input: TensorImpl, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[DType, Device, bool, Any]:
    options = dict(kwargs)
    options.pop("non_blocking", None)
    copy = options.pop("copy", False)
    memory_format = options.pop("memory_format", None)
    dtype = options.pop("dtype", None)
    device = options.pop("device", None)
    other = options.pop("other", None)
    if options:
        raise TypeError(f"to() got an unexpected keyword argument {next(iter(options))!r}")
    for position, value in enumerate(args):
        if isinstance(value, DType):
            dtype = value
        elif isinstance(value, TensorImpl):
            other = value
        elif isinstance(value, (str, Device)) or (type(value) is int and position == 0):
            device = value
        elif isinstance(value, bool) and position:
            copy = value if position == len(args) - 1 and position > 1 else copy
        elif value is not None:
            raise ArgumentTypeError(
                "to", expected="a dtype, a device or a tensor", got=type(value).__name__,
                remedy="for example x.to(torch.float32)",
            )  # fmt: skip
    if other is not None:
        dtype, device = dtype or other.meta.dtype, device or other.meta.device
    target = input.meta.device if device is None else Device(device)
    return dtype or input.meta.dtype, target, copy, memory_format


@front(CAST)
def type_as(input: Any, other: Any) -> Any:
    """Return the tensor in the dtype of `other`."""
    return to(input, other.meta.dtype)


@front(CAST, name="type")
def type_(input: Any, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Return the name of the tensor's type, or the tensor in another one."""
    if dtype is None:
        return legacy_name(input.meta.dtype)
    if isinstance(dtype, str):
        dtype = _LEGACY_DTYPES[dtype.removeprefix("torch.")]
    elif not isinstance(dtype, DType):
        dtype = dtype.dtype
    return to(input, dtype)


_LEGACY_DTYPES = {
    "FloatTensor": _dtypes.float32,
    "DoubleTensor": _dtypes.float64,
    "HalfTensor": _dtypes.float16,
    "BFloat16Tensor": _dtypes.bfloat16,
    "LongTensor": _dtypes.int64,
    "IntTensor": _dtypes.int32,
    "ShortTensor": _dtypes.int16,
    "CharTensor": _dtypes.int8,
    "ByteTensor": _dtypes.uint8,
    "BoolTensor": _dtypes.bool_,
}


def legacy_name(dtype: DType) -> str:
    """Return the name of the tensor type of a dtype: ``torch.FloatTensor``."""
    for name, known in _LEGACY_DTYPES.items():
        if known is dtype:
            return f"torch.{name}"
    return f"torch.{dtype.name.capitalize()}Tensor"


def _dtype_method(name: str, dtype: DType) -> None:
    def method(self: Any, memory_format: Any = preserve_format) -> Any:
        return to(self, dtype)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Return the tensor as {dtype.name}."
    METHODS[name] = method


for _name, _dtype in {
    "float": _dtypes.float32, "double": _dtypes.float64, "half": _dtypes.float16,
    "bfloat16": _dtypes.bfloat16, "long": _dtypes.int64, "int": _dtypes.int32,
    "short": _dtypes.int16, "char": _dtypes.int8, "byte": _dtypes.uint8, "bool": _dtypes.bool_,
    "cfloat": _dtypes.complex64, "cdouble": _dtypes.complex128,
}.items():  # fmt: skip
    _dtype_method(_name, _dtype)


# ---------------------------------------------------------------------------------------------
# Writes


def _assign_infer(input: TensorMeta, source: Any) -> TensorMeta:
    if isinstance(source, TensorMeta) and source.shape != input.shape:
        shape = broadcast_shapes(source.shape, input.shape, op="copy_")
        if tuple(shape) != tuple(input.shape):
            raise ShapeError(
                "copy_",
                what=f"the source of shape {list(source.shape)} does not fit",
                expected=f"a shape that broadcasts to {tuple(input.shape)}",
                got=str(tuple(source.shape)),
                remedy="reshape the source",
            )
    return without_overlap(input)


def _assign_cpu(out: TensorImpl, input: TensorImpl, source: TensorImpl) -> None:
    copy_cpu(out, source)


def _assign_cuda(out: TensorImpl, input: TensorImpl, source: TensorImpl) -> None:
    copy_cuda(out, source)


ASSIGN = register(
    OpDef(
        "assign",
        ("input", "source"),
        jvp="linear",
        batch="assign",
        **inner.ASSIGN,
        infer=_assign_infer,
        cpu=_assign_cpu,
        cuda=_assign_cuda,
        vjp=lambda g, n: (None if not n.needs[0] else ops.zeros_like(g), g),
        inplace=True,
        backward_name="CopyBackwards",
    )
)


@front(ASSIGN, name="copy_")
def copy_(input: Any, source: Any, non_blocking: bool = False) -> Any:
    """Copy `source` (broadcast and cast) into the tensor and return it."""
    require_tensor("copy_", input)
    if not isinstance(source, TensorImpl):
        return fill_(input, source)
    return call(ASSIGN, (input, source), out=Inplace(input))


def _fill_infer(input: TensorMeta, value: Any) -> TensorMeta:
    if isinstance(value, TensorMeta) and value.ndim != 0:
        raise ShapeError(
            "fill_",
            what="fill_ only supports 0-dimension value tensor",
            expected="a number or a zero-dim tensor",
            got=f"a tensor of shape {tuple(value.shape)}",
            remedy="use copy_",
        )
    return without_overlap(input)


def _fill_kernel(fill: Any, copy: Any) -> Any:
    def kernel(out: TensorImpl, input: TensorImpl, value: Any) -> None:
        if isinstance(value, TensorImpl):
            copy(out, value)
        else:
            fill(out, value)

    return kernel


FILL = register(
    OpDef(
        "fill",
        ("input", "value"),
        jvp="linear",
        batch="assign",
        **inner.FILL,
        infer=_fill_infer,
        cpu=_fill_kernel(fill_cpu, copy_cpu),
        cuda=_fill_kernel(fill_cuda, copy_cuda),
        vjp=lambda g, n: (None if not n.needs[0] else ops.zeros_like(g), g),
        inplace=True,
    )
)


@front(FILL, method=False)
def fill(input: Any, value: Any) -> Any:
    """Return a tensor like `input` with every element `value`."""
    require_tensor("fill", input)
    return call(FILL, (input, value))


@front(FILL, name="fill_")
def fill_(input: Any, value: Any) -> Any:
    """Set every element to `value` and return the tensor."""
    require_tensor("fill_", input)
    return call(FILL, (input, value), out=Inplace(input))


@front(FILL, name="zero_")
def zero_(input: Any) -> Any:
    """Set every element to zero and return the tensor."""
    return fill_(input, 0)
