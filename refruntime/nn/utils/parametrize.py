"""Parametrizations: a parameter computed by modules from what is really trained.

State
-----
A parametrized module gets a subclass of its own whose properties compute the parametrized tensors;
``module.parametrizations[name]`` is the list of modules, with the trained tensor as ``original``
(or ``original0``, ``original1``, ... where the inverse returns several).

Invariants
----------
* Reading the attribute always gives the computed value; inside `cached` it is computed once.
"""

from __future__ import annotations

import contextlib
import copyreg
from collections.abc import Iterator
from typing import Any

from refruntime._impl import TensorImpl
from refruntime.autograd import no_grad
from refruntime.nn.modules.container import ModuleDict, ModuleList
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
]

_cache: dict[tuple[int, str], Any] = {}
_cache_depth = 0


@contextlib.contextmanager
def cached() -> Iterator[None]:
    """Compute each parametrized tensor once within the block."""
    global _cache_depth
    _cache_depth += 1
    try:
        yield
    finally:
        _cache_depth -= 1
        if not _cache_depth:
            _cache.clear()


class ParametrizationList(ModuleList):
    """The modules that compute one tensor, applied in order, and what they start from."""

    original: Any

    def __init__(self, modules: list[Module], original: Any, unsafe: bool = False) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        start = original
        with no_grad():
            for module in reversed(modules):
                inverse = getattr(module, "right_inverse", None)
                if inverse is not None:
                    start = inverse(start)
        self.is_tensor = isinstance(start, TensorImpl)
        if self.is_tensor:
            self._hold("original", start, original)
        else:
            self.ntensors = len(start)
            for i, tensor in enumerate(start):
                self._hold(f"original{i}", tensor, original)

    def _hold(self, name: str, tensor: Any, original: Any) -> None:
        if isinstance(original, Parameter):
            if tensor is not original:
                tensor = Parameter(tensor.detach(), original.requires_grad)
            self.register_parameter(name, tensor)
        else:
            self.register_buffer(name, tensor)

    def _originals(self) -> list[Any]:
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{i}") for i in range(self.ntensors)]

    def right_inverse(self, value: Any) -> None:
        """Set the trained tensors so that the computed one is `value`."""
        with no_grad():
            for module in reversed(list(self)):
                value = module.right_inverse(value)
            given = [value] if self.is_tensor else list(value)
            for original, new in zip(self._originals(), given, strict=True):
                original.data = new

    def forward(self) -> Any:
        """Compute the tensor."""
        first, *rest = list(self)
        value = first(*self._originals())
        for module in rest:
            value = module(value)
        return value


def _value(module: Any, name: str) -> Any:
    if not _cache_depth:
        return module.parametrizations[name]()
    key = (id(module), name)
    if key not in _cache:
        _cache[key] = module.parametrizations[name]()
    return _cache[key]


def _give_own_class(module: Any) -> None:
    """Give a module a class of its own, which can carry properties."""
    base = type(module)

    def getstate(self: Any) -> Any:
        raise RuntimeError(
            "Serialization of parametrized modules is only supported through state_dict()"
        )

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        import copy

        known = memo.get(id(self))
        if known is not None:
            return known
        replica = copyreg.__newobj__(type(self))  # type: ignore[attr-defined]
        memo[id(self)] = replica
        replica.__dict__ = copy.deepcopy(self.__dict__, memo)
        return replica

    members = {"__getstate__": getstate, "__deepcopy__": deepcopy}
    module.__class__ = type(f"Parametrized{base.__name__}", (base,), members)


def _add_property(module: Any, name: str) -> None:
    def read(self: Any) -> Any:
        return _value(self, name)

    def write(self: Any, value: Any) -> None:
        self.parametrizations[name].right_inverse(value)

    setattr(type(module), name, property(read, write))


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Compute a parameter or buffer by `parametrization` from now on.

    Parameters
    ----------
    module : Module
    tensor_name : str
        The parameter or buffer.
    parametrization : Module
        Maps the trained tensor to the value; it may define ``right_inverse``.
    unsafe : bool
        Whether the shape may change.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        held: Any = module.parametrizations[tensor_name]
        with no_grad():
            held.right_inverse(_add_and_invert(held, parametrization))
        return module
    original = module._parameters.get(tensor_name, module._buffers.get(tensor_name))
    if original is None:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element "
            f"with name '{tensor_name}'"
        )
    held = ParametrizationList([parametrization], original, unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        _give_own_class(module)
        module.parametrizations = ModuleDict()
    module.parametrizations[tensor_name] = held
    _add_property(module, tensor_name)
    if not unsafe and tuple(getattr(module, tensor_name).shape) != tuple(original.shape):
        raise ValueError(
            "Registering a parametrization may not change the shape of the tensor, unless the "
            "`unsafe` flag is enabled."
        )
    return module


def _add_and_invert(held: ParametrizationList, parametrization: Module) -> Any:
    """Add a further module; return the value that the tensor had before."""
    value = held()
    held.append(parametrization)
    return value


def is_parametrized(module: Any, tensor_name: str | None = None) -> bool:
    """Whether a module, or one tensor of it, is parametrized."""
    held = module._modules.get("parametrizations")
    if not isinstance(held, ModuleDict):
        return False
    return len(held) > 0 if tensor_name is None else tensor_name in held


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Make the tensor a plain one again, with the computed value or with the trained one."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    held: Any = module.parametrizations[tensor_name]
    if not held.is_tensor and not leave_parametrized:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is "
            "parametrized in terms of a sequence of tensors."
        )
    originals = held._originals()
    value = getattr(module, tensor_name).detach() if leave_parametrized else originals[0].detach()
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    if isinstance(originals[0], Parameter):
        module.register_parameter(tensor_name, Parameter(value, originals[0].requires_grad))
    else:
        module.register_buffer(tensor_name, value)
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module).__bases__[0]
    return module
