"""refruntime: a deep-learning runtime that one person can read.

``import refruntime as torch`` gives a drop-in mini PyTorch. Importing it loads neither CuPy nor a
CUDA JIT, and compiles nothing.

The names of operators (``add``, ``matmul``, ...) come from the registry, `_ops.opdef.ops`; all
other public names are listed here.
"""

from __future__ import annotations

import math as _math
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import Any

from refruntime import _dtypes, _tensor, amp, autograd, nn, optim, random, sparse, utils
from refruntime._device import Device as device
from refruntime._dtypes import (
    DType as dtype,
)
from refruntime._dtypes import (
    bfloat16,
    can_cast,
    cdouble,
    cfloat,
    complex64,
    complex128,
    double,
    finfo,
    float16,
    float32,
    float64,
    get_default_dtype,
    half,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    long,
    promote_types,
    set_default_dtype,
    short,
    uint8,
    uint16,
    uint32,
    uint64,
)
from refruntime._layout import (
    MemoryFormat as memory_format,
)
from refruntime._layout import (
    Size,
    channels_last,
    contiguous_format,
    preserve_format,
)
from refruntime._legacy import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
    set_default_tensor_type,
)
from refruntime._ops.opdef import ops as _ops_namespace
from refruntime._tensor import Tensor
from refruntime._tensor_str import set_printoptions
from refruntime.amp.autocast_mode import (
    autocast,
    clear_autocast_cache,
    get_autocast_cpu_dtype,
    get_autocast_dtype,
    get_autocast_gpu_dtype,
    is_autocast_cpu_enabled,
    is_autocast_enabled,
)
from refruntime.autograd import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from refruntime.autograd.modes import is_inference, is_inference_mode_enabled
from refruntime.kernels.launch import get_num_threads, set_num_threads
from refruntime.random import (
    Generator,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)
from refruntime.serialization import load, save

__version__ = "0.1.0"

# Names that are Python's own elsewhere: bound last, as module attributes only.
bool = _dtypes.bool_
float = _dtypes.float32
int = _dtypes.int32

inf = _math.inf
nan = _math.nan
pi = _math.pi
e = _math.e
newaxis = None
strided = "torch.strided"
sparse_coo = "torch.sparse_coo"

_LAZY_MODULES = (
    "accelerator", "backends", "compat", "cuda", "distributions", "fft", "func", "hub", "interop",
    "jit", "linalg", "onnx", "signal", "special", "testing", "viz",
)  # fmt: skip


# Names that stand in a module which is loaded when they are first asked for.
_LAZY_NAMES = {
    "is_anomaly_check_nan_enabled": "autograd.anomaly", "is_anomaly_enabled": "autograd.anomaly",
    "vmap": "func",
}  # fmt: skip


def is_tensor(value: Any) -> Any:
    """Whether `value` is a tensor."""
    return isinstance(value, Tensor)


def is_floating_point(input: Tensor) -> Any:
    """Whether the tensor's dtype is a floating one."""
    return input.is_floating_point()


def is_complex(input: Tensor) -> Any:
    """Whether the tensor's dtype is a complex one."""
    return input.is_complex()


def numel(input: Tensor) -> Any:
    """Return the number of elements."""
    return input.numel()


def typename(value: Any) -> str:
    """Return the name of the type of `value`."""
    if isinstance(value, Tensor):
        return str(_ops_namespace.type(value))
    return f"{type(value).__module__}.{type(value).__qualname__}"


def result_type(first: Any, second: Any) -> dtype:
    """Return the dtype that an operation on the two operands computes in."""
    return _dtypes.result_type(first, second)


def use_deterministic_algorithms(mode: Any, *, warn_only: Any = False) -> None:
    """Accept the setting: every kernel here is deterministic."""


def are_deterministic_algorithms_enabled() -> Any:
    """Return True: every kernel here is deterministic."""
    return True


def set_float32_matmul_precision(precision: str) -> None:
    """Accept the setting: float32 products are computed in float32."""


def get_float32_matmul_precision() -> str:
    """Return "highest": float32 products are computed in float32."""
    return "highest"


def set_default_device(device: Any) -> None:
    """Set the device of tensors made without one."""
    from refruntime import _device

    _device.set_default_device(device)


def get_default_device() -> device:
    """Return the device of tensors made without one."""
    from refruntime import _device

    return _device.get_default_device()


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return _import_module(f"refruntime.{name}")
    try:
        if name in _LAZY_NAMES:
            value = getattr(_import_module(f"refruntime.{_LAZY_NAMES[name]}"), name)
        else:
            value = getattr(_ops_namespace, name)
    except AttributeError:
        raise AttributeError(f"module 'refruntime' has no attribute {name!r}") from None
    # Bound for good: this function runs only when a name is not found, and is slow.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *vars(_ops_namespace), *_LAZY_MODULES, *_LAZY_NAMES})


__all__ = [
    name
    for name, value in {**vars(_ops_namespace), **globals()}.items()
    if not name.startswith("_") and not isinstance(value, _ModuleType)
]
