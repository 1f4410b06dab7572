"""Choosing the dtype of each operator inside a region.

State
-----
A stack of regions, a thread, and in each region the half copies of parameters made so far. The
dispatcher's slot is filled while any thread is in a region.

Invariants
----------
* An operator's class stands in its record: ``lower`` operators get operands in the region's dtype,
  ``float32`` ones in float32; all others take what they are given.
* Only floating tensors of the region's device take part, and float64 never does.
* Casts are recorded like any other operator, so gradients arrive in the dtype of the parameters.
* A parameter is cast once a region: the copy is dropped when the outermost region ends.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from refruntime import _dispatch, _dtypes, _storage
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import OpDef, ops
from refruntime.autograd.modes import is_grad_enabled
from refruntime.errors import ArgumentValueError

# What loses too much in a half type on a GPU, and on a CPU, whose kernels sum in float32 anyway,
# does not.
_AS_GIVEN_ON_CPU = frozenset(
    {"cumprod", "cumsum", "group_norm", "layer_norm", "linalg_vector_norm", "log_softmax",
     "logcumsumexp", "logsumexp", "rms_norm", "softmax", "sum"}
)  # fmt: skip
_HALF_TYPES = {"cpu": _dtypes.bfloat16, "cuda": _dtypes.float16}
_LOWER = (_dtypes.float16, _dtypes.bfloat16)


@dataclass(slots=True)
class _Region:
    device_type: str
    dtype: DType
    enabled: bool
    cache_enabled: bool
    copies: dict[int, tuple[TensorImpl, Any]] = field(default_factory=dict)


class _Regions(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Region] = []


_regions = _Regions()
_entered = 0
_lock = threading.Lock()


def is_autocast_available(device_type: str) -> bool:
    """Whether regions exist for a kind of device."""
    return device_type in _HALF_TYPES


class autocast:  # noqa: N801  torch's name
    """Run products in a half type inside a ``with`` block, or inside a function.

    Parameters
    ----------
    device_type : str
        ``cpu`` or ``cuda``.
    dtype : DType, optional
        Default bfloat16 on a CPU, float16 on a GPU.
    enabled : bool
        False switches an outer region off.
    cache_enabled : bool, optional
        Whether a parameter is cast once a region.
    """

    def __init__(
        self,
        device_type: str,
        dtype: DType | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if not isinstance(device_type, str) or not is_autocast_available(device_type):
            raise _unknown(device_type)
        self.device = device_type
        self.fast_dtype = _HALF_TYPES[device_type] if dtype is None else dtype
        if enabled and self.fast_dtype not in (*_LOWER, _dtypes.float32):
            warnings.warn(
                f"In {device_type} autocast, but the target dtype is not supported. Disabling "
                f"autocast. Supported are torch.bfloat16 and torch.float16.",
                stacklevel=2,
            )
            enabled = False
        if enabled and device_type == "cuda" and not _storage.gpu_allocators:
            warnings.warn(
                "User provided device_type of 'cuda', but CUDA is not available. Disabling",
                stacklevel=2,
            )
            enabled = False
        self._enabled = enabled
        self._cache = True if cache_enabled is None else cache_enabled

    def __enter__(self) -> autocast:
        region = _Region(self.device, self.fast_dtype, self._enabled, self._cache)
        if _regions.stack:
            region.copies = _regions.stack[0].copies
        _regions.stack.append(region)
        _count(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        _regions.stack.pop()
        _count(-1)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs in the region."""

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside


def _unknown(device_type: Any) -> ArgumentValueError:
    return ArgumentValueError(
        "autocast",
        what=f"User specified an unsupported autocast device_type '{device_type}'",
        expected="'cpu' or 'cuda'",
        got=repr(device_type),
    )


def _count(change: int) -> None:
    """Fill the dispatcher's slot while there is a region on any thread."""
    global _entered
    with _lock:
        _entered += change
        _dispatch.autocast = _cast_operands if _entered else None


def _region_of(device_type: str) -> _Region | None:
    """Return the innermost region of this thread for a kind of device."""
    for region in reversed(_regions.stack):
        if region.device_type == device_type:
            return region
    return None


def _cast_operands(op: OpDef, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands of a call in the dtypes that the thread's region wants."""
    if op.autocast is None or not _regions.stack:
        return inputs
    return tuple([_cast(op, value) if isinstance(value, TensorImpl) else value for value in inputs])


def _cast(op: OpDef, value: TensorImpl) -> Any:
    meta = value.meta
    region = _region_of(meta.device.type)
    if region is None or not region.enabled:
        return value
    if not meta.dtype.is_floating_point or meta.dtype is _dtypes.float64:
        return value
    if op.autocast == "lower":
        return _lowered(region, value)
    if meta.device.type == "cpu" and op.name in _AS_GIVEN_ON_CPU:
        return value
    return value if meta.dtype is _dtypes.float32 else ops.to(value, _dtypes.float32)


def _lowered(region: _Region, value: TensorImpl) -> Any:
    if value.meta.dtype is region.dtype:
        return value
    known = value.autograd
    leaf = known is not None and known.requires_grad and known.grad_fn is None
    if not (leaf and region.cache_enabled and is_grad_enabled()):
        return ops.to(value, region.dtype)
    found = region.copies.get(id(value))
    # The entry holds the parameter, so that its number is not given to another tensor.
    if found is None or found[1].meta.dtype is not region.dtype:
        found = region.copies[id(value)] = value, ops.to(value, region.dtype)
    return found[1]


# ---------------------------------------------------------------------------------------------
# Questions and settings


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether this thread is in a region that is switched on."""
    region = _region_of(device_type)
    return region is not None and region.enabled


def get_autocast_dtype(device_type: str) -> DType:
    """Return the half type of the innermost region, or the default one."""
    if not is_autocast_available(device_type):
        raise _unknown(device_type)
    region = _region_of(device_type)
    return _HALF_TYPES[device_type] if region is None else region.dtype


def get_autocast_gpu_dtype() -> DType:
    """Return the half type of GPU regions."""
    return get_autocast_dtype("cuda")


def get_autocast_cpu_dtype() -> DType:
    """Return the half type of CPU regions."""
    return get_autocast_dtype("cpu")


def is_autocast_cpu_enabled() -> bool:
    """Whether this thread is in a CPU region that is switched on."""
    return is_autocast_enabled("cpu")


def clear_autocast_cache() -> None:
    """Drop the half copies of parameters."""
    for region in _regions.stack:
        region.copies.clear()


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str = "cuda", cast_inputs: Any = None
) -> Any:
    """Let the forward of a custom Function know about regions.

    Parameters
    ----------
    fwd : callable
        The static ``forward``.
    device_type : str
        The kind of device that it runs on.
    cast_inputs : DType, optional
        Cast floating operands to this and run outside the region; by default it runs in it.
    """
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._dtype = get_autocast_dtype(device_type)
        inside = is_autocast_enabled(device_type)
        ctx._fwd_used_autocast = inside and cast_inputs is None
        if not inside or cast_inputs is None:
            return fwd(ctx, *args, **kwargs)
        with autocast(device_type, enabled=False):
            args = tuple(_converted(value, device_type, cast_inputs) for value in args)
            return fwd(ctx, *args, **kwargs)

    return forward


def _converted(value: Any, device_type: str, dtype: DType) -> Any:
    if not isinstance(value, TensorImpl) or value.meta.device.type != device_type:
        return value
    floating = value.meta.dtype.is_floating_point and value.meta.dtype is not _dtypes.float64
    return ops.to(value, dtype) if floating else value


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str = "cuda") -> Any:
    """Run the backward of a custom Function in the kind of region that its forward ran in."""
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *args: Any) -> Any:
        with autocast(device_type, dtype=ctx._dtype, enabled=ctx._fwd_used_autocast):
            return bwd(ctx, *args)

    return backward
