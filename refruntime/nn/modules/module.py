"""Module: the base class of all networks.

State
-----
The floors below hold the parts: what a module has (`_tree`), its state dict (`_state`), and how it
is called (`_calls`). This one adds conversion, modes, copying and the printed form.

Invariants
----------
* A subclass calls ``super().__init__()`` before it sets a parameter, buffer or module.
* Conversions keep each Parameter object and change its ``data``, so optimizers stay valid.
* Shared parameters stay shared through conversion, copying and pickling.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from refruntime._device import Device
from refruntime._dtypes import DType, bfloat16, float16, float32, float64
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd import no_grad
from refruntime.autograd.hooks import RemovableHandle
from refruntime.errors import ArgumentTypeError, ArgumentValueError
from refruntime.nn.modules._calls import ModuleCalls
from refruntime.nn.modules._hooks import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from refruntime.nn.modules._state import IncompatibleKeys

__all__ = [
    "IncompatibleKeys",
    "Module",
    "RemovableHandle",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
]

T = TypeVar("T", bound="Module")

_HOOK_SLOTS = (
    "_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)  # fmt: skip


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


class Module(ModuleCalls):
    """Base class of all neural network modules.

    A subclass registers parameters, buffers and other modules by setting them as attributes, and
    defines `forward`. A call of the module runs its hooks and `forward`.

    Attributes
    ----------
    training : bool
        Whether the module is in training mode (dropout, batch statistics).
    """

    dump_patches = False
    call_super_init = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not self.call_super_init and (args or kwargs):
            given = next(iter(kwargs)) if kwargs else f"{len(args)} positional argument(s)"
            raise ArgumentTypeError(
                f"{type(self).__name__}.__init__",
                what="Module.__init__() takes no arguments",
                got=given,
                remedy="take the arguments in the subclass and call super().__init__()",
            )
        own = self.__dict__
        own["training"] = True
        own["_parameters"] = {}
        own["_buffers"] = {}
        own["_non_persistent_buffers_set"] = set()
        own["_is_full_backward_hook"] = None
        own["_modules"] = {}
        for slot in _HOOK_SLOTS:
            own[slot] = OrderedDict()
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Modules pickled by an older version know fewer kinds of hooks.
        for slot in _HOOK_SLOTS:
            self.__dict__.setdefault(slot, OrderedDict())
        self.__dict__.setdefault("_non_persistent_buffers_set", set())
        self.__dict__.setdefault("_is_full_backward_hook", None)

    # ------------------------------------------------------------------ conversion

    def _apply(self: T, fn: Callable[[Any], Any], recurse: bool = True) -> T:
        """Replace all parameters' data and gradients, and all buffers, by what `fn` returns."""
        if recurse:
            for module in self.children():
                module._apply(fn)
        for param in self._parameters.values():
            if param is None:
                continue
            with no_grad():
                param.data = fn(param.data)
                if param.grad is not None:
                    grad = fn(param.grad.data)
                    param.grad = grad.requires_grad_(param.grad.requires_grad)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    def apply(self: T, fn: Callable[[Any], None]) -> T:
        """Call ``fn(module)`` for all modules below, then for this one; return the module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def to(self: T, *args: Any, **kwargs: Any) -> T:
        """Move the tensors to a device and cast the floating ones to a dtype, in place.

        Accepts ``to(device)``, ``to(dtype)``, ``to(device, dtype)``, ``to(tensor)``.

        Raises
        ------
        TypeError
            If the dtype is neither floating nor complex.
        """
        device, dtype, non_blocking = _parse_to(*args, **kwargs)
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            raise ArgumentTypeError(
                "Module.to", what="nn.Module.to only accepts floating point or complex dtypes",
                got=f"desired dtype={dtype}", remedy="cast single tensors with Tensor.to",
            )  # fmt: skip

        def convert(tensor: Any) -> Any:
            floats = tensor.dtype.is_floating_point or tensor.dtype.is_complex
            kind = dtype if dtype is not None and floats else tensor.dtype
            return tensor.to(tensor.device if device is None else device, kind, non_blocking)

        return self._apply(convert)

    def _cast_floats(self: T, dtype: DType) -> T:
        return self._apply(lambda t: t.to(dtype) if t.dtype.is_floating_point else t)

    def float(self: T) -> T:
        """Cast the floating parameters and buffers to float32."""
        return self._cast_floats(float32)

    def double(self: T) -> T:
        """Cast the floating parameters and buffers to float64."""
        return self._cast_floats(float64)

    def half(self: T) -> T:
        """Cast the floating parameters and buffers to float16."""
        return self._cast_floats(float16)

    def bfloat16(self: T) -> T:
        """Cast the floating parameters and buffers to bfloat16."""
        return self._cast_floats(bfloat16)

    def type(self: T, dst_type: Any) -> T:
        """Cast all parameters and buffers to `dst_type`."""
        return self._apply(lambda t: t.type(dst_type))

    def cpu(self: T) -> T:
        """Move all parameters and buffers to the CPU."""
        return self._apply(lambda t: t.cpu())

    def cuda(self: T, device: Any = None) -> T:
        """Move all parameters and buffers to a GPU."""
        return self._apply(lambda t: t.cuda(device))

    def to_empty(self: T, *, device: Any, recurse: bool = True) -> T:
        """Give all parameters and buffers fresh, unset memory on `device`."""
        return self._apply(lambda t: ops.empty_like(t, device=device), recurse=recurse)

    def share_memory(self: T) -> T:
        """Put all parameters and buffers into shared memory."""
        return self._apply(lambda t: t.share_memory_())

    # ------------------------------------------------------------------ modes

    def train(self: T, mode: bool = True) -> T:
        """Set the training mode of this module and all below it."""
        if not isinstance(mode, bool):
            raise ArgumentValueError(
                "Module.train", what="training mode is expected to be boolean", got=repr(mode)
            )
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self: T) -> T:
        """Set the evaluation mode of this module and all below it."""
        return self.train(False)

    def requires_grad_(self: T, requires_grad: bool = True) -> T:
        """Say whether the parameters take gradients."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, or set them to zero."""
        for param in self.parameters():
            if param.grad is None:
                continue
            if set_to_none:
                param.grad = None
            elif param.grad.grad_fn is not None:
                param.grad = param.grad.detach().zero_()
            else:
                param.grad.requires_grad_(False)
                param.grad.zero_()

    # ------------------------------------------------------------------ printed form

    def _get_name(self) -> str:
        return self.__class__.__name__

    def extra_repr(self) -> str:
        """Return what the printed form shows of the module's own settings."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        own = extra.split("\n") if extra else []
        children = [f"({name}): {_indented(repr(m))}" for name, m in self._modules.items()]
        if not children and len(own) == 1:
            return f"{self._get_name()}({own[0]})"
        lines = own + children
        inner = "\n  " + "\n  ".join(lines) + "\n" if lines else ""
        return f"{self._get_name()}({inner})"


def _parse_to(*args: Any, **kwargs: Any) -> tuple[Device | None, DType | None, bool]:
    """Read the arguments of ``to``: a device, a dtype, both in order, or a tensor."""
    device = kwargs.pop("device", None)
    dtype = kwargs.pop("dtype", None)
    other = kwargs.pop("tensor", kwargs.pop("other", None))
    non_blocking = bool(kwargs.pop("non_blocking", False))
    kwargs.pop("memory_format", None)
    kwargs.pop("copy", None)
    if kwargs:
        raise ArgumentTypeError(
            "Module.to", what=f"unexpected keyword argument {next(iter(kwargs))!r}"
        )
    flags = [arg for arg in args if isinstance(arg, bool)]
    for arg in args:
        if isinstance(arg, TensorImpl):
            other = arg
        elif isinstance(arg, DType):
            dtype = arg
        elif not isinstance(arg, bool) and arg is not None:
            device = arg
    if flags:
        non_blocking = flags[0]
    if other is not None:
        device, dtype = other.device, other.dtype
    return (None if device is None else Device(device)), dtype, non_blocking
