"""ModuleTree: what a module holds, by name, and how the tree of modules is walked.

State
-----
Three dicts by name: `_parameters`, `_buffers`, `_modules`; and `_non_persistent_buffers_set`, the
buffers that no state dict shows. All else that a user sets is a plain attribute.

Invariants
----------
* A name stands in at most one of the three dicts, and then not in ``__dict__``.
* The three dicts are the truth: code outside may read and change them, so nothing is cached.
* Walks visit a shared parameter, buffer or module once, at the first name that leads to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from refruntime._impl import TensorImpl
from refruntime.errors import ArgumentTypeError, ArgumentValueError
from refruntime.nn.parameter import Buffer, Parameter

Member = tuple[str, Any]


def _type_name(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _before_init(kind: str) -> AttributeError:
    return AttributeError(f"cannot assign {kind} before Module.__init__() call")


def _refuse(name: str, value: Any, slot: str, expected: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        "Module.__setattr__",
        what=f"cannot assign '{_type_name(value)}' as {slot} '{name}' ({expected} expected)",
        remedy=f"delete the attribute first if '{name}' shall be something else",
    )


class ModuleTree:
    """Registration, attribute access and traversal of a module."""

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _non_persistent_buffers_set: set[str]

    # ------------------------------------------------------------------ attributes

    def __getattr__(self, name: str) -> Any:
        # Reached only when the ordinary look-up failed, so `__dict__` needs no second look.
        own = self.__dict__
        for slot in ("_parameters", "_buffers", "_modules"):
            held = own.get(slot)
            if held is not None and name in held:
                return held[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        parameters = own.get("_parameters")
        if isinstance(value, Parameter):
            self._set_parameter(name, value)
        elif parameters is not None and name in parameters:
            if value is not None:
                raise _refuse(name, value, "parameter", "torch.nn.Parameter or None")
            parameters[name] = None
        elif isinstance(value, ModuleTree):
            self._set_module(name, value)
        else:
            modules = own.get("_modules")
            if modules is not None and name in modules:
                if value is not None:
                    raise _refuse(name, value, "child module", "torch.nn.Module or None")
                modules[name] = None
            elif isinstance(value, Buffer) or name in own.get("_buffers", ()):
                self._set_buffer(name, value)
            else:
                object.__setattr__(self, name, value)

    def _set_parameter(self, name: str, value: Parameter) -> None:
        if "_parameters" not in self.__dict__:
            raise _before_init("parameters")
        if name not in self._parameters:
            self._forget(name)
        self.register_parameter(name, value)

    def _set_module(self, name: str, value: ModuleTree) -> None:
        if "_modules" not in self.__dict__:
            raise _before_init("module")
        if name not in self._modules:
            self._forget(name)
        self._modules[name] = value

    def _set_buffer(self, name: str, value: Any) -> None:
        if "_buffers" not in self.__dict__:
            raise _before_init("buffer")
        if name in self._buffers:
            if value is not None and not isinstance(value, TensorImpl):
                raise _refuse(name, value, "buffer", "torch.nn.Buffer, torch.Tensor or None")
            self._buffers[name] = value
        else:
            self._forget(name)
            self.register_buffer(name, value, value.persistent)

    def _forget(self, name: str) -> None:
        for slot in (self.__dict__, self._parameters, self._buffers, self._modules):
            slot.pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def __delattr__(self, name: str) -> None:
        for slot in (self._parameters, self._buffers, self._modules):
            if name in slot:
                del slot[name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = set(dir(type(self))) | set(self.__dict__)
        names.update(self._parameters, self._modules, self._buffers)
        # A ModuleList's numbers are no attribute names.
        return sorted(name for name in names if not name[0].isdigit())

    # ------------------------------------------------------------------ registration

    def _check_name(self, kind: str, name: Any, own: dict[str, Any]) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError(
                f"register_{kind}", what=f"{kind} name should be a string",
                expected="str", got=_type_name(name),
            )  # fmt: skip
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain ".", got: {name}')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if name not in own and hasattr(self, name):
            raise KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, which becomes an attribute; None holds the name free.

        Raises
        ------
        KeyError
            If the name is empty, contains a dot, or is taken.
        TypeError
            If `param` is not a Parameter.
        ValueError
            If `param` has a history: parameters are leaves.
        """
        if "_parameters" not in self.__dict__:
            raise _before_init("parameter")
        self._check_name("parameter", name, self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise ArgumentTypeError(
                "register_parameter",
                what=f"cannot assign '{_type_name(param)}' object to '{name}'",
                expected="torch.nn.Parameter or None", got=_type_name(param),
                remedy="wrap the tensor with nn.Parameter",
            )  # fmt: skip
        if param is not None and param.grad_fn is not None:
            raise ArgumentValueError(
                "register_parameter", what=f"cannot assign non-leaf Tensor to parameter '{name}'",
                expected="a leaf", got=f"grad_fn {type(param.grad_fn).__name__}",
                remedy="compute the value from parameters in forward()",
            )  # fmt: skip
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Add a tensor that moves with the module but is not trained.

        Parameters
        ----------
        name : str
            The attribute's name.
        tensor : Tensor or None
            The value; None is ignored by conversions and by the state dict.
        persistent : bool
            Whether the state dict shows it.
        """
        if "_buffers" not in self.__dict__:
            raise _before_init("buffer")
        self._check_name("buffer", name, self._buffers)
        if tensor is not None and not isinstance(tensor, TensorImpl):
            raise ArgumentTypeError(
                "register_buffer", what=f"cannot assign '{_type_name(tensor)}' object to '{name}'",
                expected="torch Tensor or None", got=_type_name(tensor),
            )  # fmt: skip
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def add_module(self, name: str, module: Any) -> None:
        """Add a child module, which becomes an attribute; None holds the name free."""
        if module is not None and not isinstance(module, ModuleTree):
            raise ArgumentTypeError(
                "add_module", what=f"{_type_name(module)} is not a Module subclass",
                expected="nn.Module or None", got=_type_name(module),
            )  # fmt: skip
        self._check_name("module", name, self._modules)
        self._modules[name] = module

    def register_module(self, name: str, module: Any) -> None:
        """Alias of `add_module`."""
        self.add_module(name, module)

    # ------------------------------------------------------------------ look-up by dotted name

    def get_submodule(self, target: str) -> Any:
        """Return the module at a dotted path; the empty path is the module itself.

        Raises
        ------
        AttributeError
            If a step of the path is missing or is no module.
        """
        found: Any = self
        for step in target.split(".") if target else ():
            if not hasattr(found, step):
                raise AttributeError(f"{type(found).__name__} has no attribute `{step}`")
            found = getattr(found, step)
            if not isinstance(found, ModuleTree):
                raise AttributeError(f"`{step}` is not an nn.Module")
        return found

    def set_submodule(self, target: str, module: Any, strict: bool = False) -> None:
        """Put `module` at a dotted path; with `strict` the path must exist already."""
        if not target:
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, ModuleTree):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        above, _, name = target.rpartition(".")
        parent = self.get_submodule(above)
        if strict or hasattr(parent, name):
            self.get_submodule(target)
        setattr(parent, name, module)

    def _get_tensor(self, target: str, kind: str, slot: str) -> Any:
        above, _, name = target.rpartition(".")
        module = self.get_submodule(above)
        if not hasattr(module, name):
            raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
        if name not in getattr(module, slot):
            raise AttributeError(f"`{name}` is not {kind}")
        return getattr(module, name)

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter at a dotted path."""
        found: Parameter = self._get_tensor(target, "an nn.Parameter", "_parameters")
        return found

    def get_buffer(self, target: str) -> Any:
        """Return the buffer at a dotted path."""
        return self._get_tensor(target, "a buffer", "_buffers")

    # ------------------------------------------------------------------ walks

    def named_modules(
        self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[Member]:
        """Yield (dotted name, module) for this module and all below it, parents first."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                below = prefix + "." + name if prefix else name
                yield from module.named_modules(memo, below, remove_duplicate)

    def modules(self) -> Iterator[Any]:
        """Yield this module and all below it."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[Member]:
        """Yield (name, module) for the direct children."""
        memo = set()
        for name, module in self._modules.items():
            if module is not None and module not in memo:
                memo.add(module)
                yield name, module

    def children(self) -> Iterator[Any]:
        """Yield the direct children."""
        for _, module in self.named_children():
            yield module

    def _named_members(
        self,
        get_members_fn: Callable[[Any], Iterable[Member]],
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[Member]:
        memo: set[int] = set()
        holders: Iterable[Member] = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in holders:
            for key, value in get_members_fn(module):
                if value is None or id(value) in memo:
                    continue
                if remove_duplicate:
                    memo.add(id(value))
                yield (path + "." + key if path else key), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, parameter), each once unless `remove_duplicate` is False."""
        return self._named_members(
            lambda module: module._parameters.items(), prefix, recurse, remove_duplicate
        )

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters of this module and, with `recurse`, of all below it."""
        for _, param in self.named_parameters(recurse=recurse):
            yield param

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[Member]:
        """Yield (dotted name, buffer), each buffer once unless `remove_duplicate` is False."""
        return self._named_members(
            lambda module: module._buffers.items(), prefix, recurse, remove_duplicate
        )

    def buffers(self, recurse: bool = True) -> Iterator[Any]:
        """Yield the buffers of this module and, with `recurse`, of all below it."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer
