"""New tensors: unset, or filled with one number.

Invariants
----------
* ``dtype=None`` means the default dtype (or what the values say), ``device=None`` the thread's
  default device; every factory takes both, and ``requires_grad=``.
* ``*_like`` keeps the order of dimensions in memory, as torch's preserve_format does.
* Options that say nothing here (``layout``, ``pin_memory``, ``non_blocking``) are accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime import _dtypes, _layout
from refruntime._device import Device, get_default_device
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta, meta_of
from refruntime._layout import MemoryFormat, preserve_format
from refruntime._ops.arguments import ints_of, number_of, spread_ints
from refruntime._ops.opdef import OpDef, front, register, require_tensor
from refruntime._ops.samples import ErrorSample, Sample
from refruntime.errors import ShapeError
from refruntime.kernels.copy import fill_cpu, fill_cuda

# ---------------------------------------------------------------------------------------------
# Records: no operands, all is in the parameters


def _meta_param(*, meta: TensorMeta, **params: Any) -> TensorMeta:
    return meta


def _leave(out: TensorImpl, **params: Any) -> None:
    """Leave the memory as the allocator gave it."""


def _fill_with(fill: Callable[..., None]) -> Callable[..., None]:
    def kernel(out: TensorImpl, *, meta: TensorMeta, value: Any) -> None:
        fill(out, value)

    return kernel


EMPTY = register(
    OpDef(
        "empty",
        (),
        infer=_meta_param,
        cpu=_leave,
        cuda=_leave,
        error_samples=lambda: [
            ErrorSample((2, -1), RuntimeError, "negative dimension -1"),
            ErrorSample((2.5,), TypeError, "must be int"),
        ],
    )
)
FULL = register(
    OpDef(
        "full",
        (),
        infer=_meta_param,
        cpu=_fill_with(fill_cpu),
        cuda=_fill_with(fill_cuda),
        samples=lambda: [
            Sample(((2, 3), 1.5), grad=False),
            Sample(((2,), 3), grad=False),
            Sample(((), True), grad=False),
            Sample(((0, 2), 1.0), grad=False, name="empty"),
        ],
        error_samples=lambda: [ErrorSample(((-2,), 1), RuntimeError, "negative dimension")],
        reference=np.full,
    )
)


def finish(made: Any, requires_grad: bool) -> Any:
    """Return a factory's result, asking for its gradient if the user did."""
    return made.requires_grad_() if requires_grad else made


def device_of(device: Any) -> Device:
    """Return the device that a factory's argument means."""
    return get_default_device() if device is None else Device(device)


def checked_sizes(op: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes, or raise if one is negative."""
    for size in sizes:
        if size < 0:
            raise ShapeError(
                op, what=f"Trying to create tensor with negative dimension {size}: {list(sizes)}",
                expected="sizes of at least 0", got=str(sizes), remedy="check the sizes",
            )  # fmt: skip
    return sizes


def _strides_of(shape: tuple[int, ...], memory_format: MemoryFormat | None) -> Any:
    if memory_format in (_layout.channels_last, _layout.channels_last_3d):
        return _layout.channels_last_strides(shape)
    return None


def new_meta(
    op: str, size: tuple[int, ...], dtype: DType | None, device: Any, memory_format: Any = None
) -> TensorMeta:
    shape = checked_sizes(op, size)
    where = device_of(device)
    return meta_of(
        shape, dtype or _dtypes.get_default_dtype(), where, _strides_of(shape, memory_format)
    )


def _filled(meta: TensorMeta, value: Any, out: Any, requires_grad: bool) -> Any:
    return finish(call(FULL, (), {"meta": meta, "value": value}, out), requires_grad)


# ---------------------------------------------------------------------------------------------
# Of a size


@front(EMPTY, method=False)
def empty(
    *args: Any, size: Any = None, out: Any = None, dtype: DType | None = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
    memory_format: MemoryFormat | None = None,
) -> Any:  # fmt: skip
    """Return a tensor whose memory is not set."""
    shape = spread_ints("empty", "size", args, size)
    meta = new_meta("empty", shape, dtype_like(out, dtype), device, memory_format)
    return finish(call(EMPTY, (), {"meta": meta}, out), requires_grad)


def dtype_like(out: Any, dtype: DType | None) -> DType | None:
    return out.meta.dtype if dtype is None and isinstance(out, TensorImpl) else dtype


@front(EMPTY, method=False)
def empty_strided(
    size: Any, stride: Any, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return an unset tensor with chosen strides."""
    shape = checked_sizes("empty_strided", ints_of("empty_strided", "size", size))
    steps = ints_of("empty_strided", "stride", stride)
    _layout.as_strided(shape, steps, 1 << 62, 0, "empty_strided")
    meta = meta_of(shape, dtype or _dtypes.get_default_dtype(), device_of(device), steps)
    return finish(call(EMPTY, (), {"meta": meta}), requires_grad)


@front(FULL, method=False)
def zeros(
    *args: Any, size: Any = None, out: Any = None, dtype: DType | None = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return a tensor of zeros."""
    shape = spread_ints("zeros", "size", args, size)
    meta = new_meta("zeros", shape, dtype_like(out, dtype), device)
    return _filled(meta, 0, out, requires_grad)


@front(FULL, method=False)
def ones(
    *args: Any, size: Any = None, out: Any = None, dtype: DType | None = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return a tensor of ones."""
    shape = spread_ints("ones", "size", args, size)
    meta = new_meta("ones", shape, dtype_like(out, dtype), device)
    return _filled(meta, 1, out, requires_grad)


@front(FULL, method=False)
def full(
    size: Any, fill_value: Any, *, out: Any = None, dtype: DType | None = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return a tensor of `size` filled with a number, whose type decides the dtype."""
    value = number_of(fill_value)
    kind = dtype_like(out, dtype)
    if kind is None:
        own = isinstance(fill_value, TensorImpl)
        kind = fill_value.meta.dtype if own else _dtypes.dtype_of_number(value)
    meta = new_meta("full", ints_of("full", "size", size), kind, device)
    return _filled(meta, value, out, requires_grad)


def zero_dim(value: Any, like: TensorMeta) -> Any:
    """Return a number as a zero-dim tensor in the dtype and on the device of another tensor."""
    return call(FULL, (), {"meta": meta_of((), like.dtype, like.device), "value": value})


@front(FULL, method=False)
def scalar_tensor(
    s: Any, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return a zero-dim tensor, of the default dtype if none is named."""
    meta = meta_of((), dtype or _dtypes.get_default_dtype(), device_of(device))
    return _filled(meta, s, None, requires_grad)


# ---------------------------------------------------------------------------------------------
# Like another tensor


def _like_meta(
    op: str, input: Any, dtype: DType | None, device: Any, memory_format: MemoryFormat | None
) -> TensorMeta:
    require_tensor(op, input)
    meta = input.meta
    kind = meta.dtype if dtype is None else dtype
    where = meta.device if device is None else Device(device)
    if memory_format in (None, preserve_format):
        if meta.contiguous and kind is meta.dtype and where is meta.device:
            return meta_of(meta.shape, kind, where)
        strides: Any = _layout.dense_strides(meta.shape, meta.strides)
    else:
        strides = _strides_of(meta.shape, memory_format)
    return meta_of(meta.shape, kind, where, strides)


@front(EMPTY, method=False)
def empty_like(
    input: Any, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
    memory_format: MemoryFormat | None = preserve_format,
) -> Any:  # fmt: skip
    """Return an unset tensor shaped like `input`."""
    meta = _like_meta("empty_like", input, dtype, device, memory_format)
    return finish(call(EMPTY, (), {"meta": meta}), requires_grad)


@front(FULL, method=False)
def zeros_like(
    input: Any, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
    memory_format: MemoryFormat | None = preserve_format,
) -> Any:  # fmt: skip
    """Return zeros shaped like `input`."""
    meta = _like_meta("zeros_like", input, dtype, device, memory_format)
    return _filled(meta, 0, None, requires_grad)


@front(FULL, method=False)
def ones_like(
    input: Any, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
    memory_format: MemoryFormat | None = preserve_format,
) -> Any:  # fmt: skip
    """Return ones shaped like `input`."""
    meta = _like_meta("ones_like", input, dtype, device, memory_format)
    return _filled(meta, 1, None, requires_grad)


@front(FULL, method=False)
def full_like(
    input: Any, fill_value: Any, *, dtype: DType | None = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
    memory_format: MemoryFormat | None = preserve_format,
) -> Any:  # fmt: skip
    """Return a tensor shaped like `input`, in its dtype, filled with a number."""
    value = number_of(fill_value)
    meta = _like_meta("full_like", input, dtype, device, memory_format)
    return _filled(meta, value, None, requires_grad)


def _inherit(self: TensorImpl, options: dict[str, Any]) -> dict[str, Any]:
    """Fill in the dtype and device of `self` where the call names none."""
    dtype, device = options.pop("dtype", None), options.pop("device", None)
    return {
        "dtype": self.meta.dtype if dtype is None else dtype,
        "device": self.meta.device if device is None else device,
        **options,
    }


@front(EMPTY)
def new_empty(self: Any, *size: Any, **options: Any) -> Any:
    """Return an unset tensor in the dtype and on the device of this one."""
    return empty(*size, **_inherit(self, options))


@front(EMPTY)
def new_empty_strided(self: Any, size: Any, stride: Any, **options: Any) -> Any:
    """Return an unset tensor with chosen strides, in the dtype of this one."""
    return empty_strided(size, stride, **_inherit(self, options))


@front(FULL)
def new_zeros(self: Any, *size: Any, **options: Any) -> Any:
    """Return zeros in the dtype and on the device of this tensor."""
    return zeros(*size, **_inherit(self, options))


@front(FULL)
def new_ones(self: Any, *size: Any, **options: Any) -> Any:
    """Return ones in the dtype and on the device of this tensor."""
    return ones(*size, **_inherit(self, options))


@front(FULL)
def new_full(self: Any, size: Any, fill_value: Any, **options: Any) -> Any:
    """Return a filled tensor in the dtype and on the device of this one."""
    return full(size, fill_value, **_inherit(self, options))
