"""Containers: modules and parameters held in order or by key.

State
-----
Module containers hold their children in `_modules` under "0", "1", ... or under the given keys.
Parameter containers hold parameters as attributes, and other tensors or values too.

Invariants
----------
* Numbers run from 0 without a gap after each operation, and so do the keys of the state dict.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

from refruntime._impl import TensorImpl
from refruntime.errors import ArgumentTypeError, ArgumentValueError
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]

S = TypeVar("S", bound="_Numbered")


def _place(index: Any, size: int) -> int:
    place = operator.index(index)
    if not -size <= place < size:
        raise IndexError(f"index {place} is out of range")
    return place % size


class _Numbered(Module):
    """A module whose children are numbered."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def _renumber(self, modules: Iterable[Any]) -> None:
        renewed = {str(i): module for i, module in enumerate(modules)}
        self._modules.clear()
        self._modules.update(renewed)

    def _key(self, index: Any) -> str:
        keys = list(self._modules)
        return keys[_place(index, len(keys))]

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._key(index), module)

    def __delitem__(self, index: int | slice) -> None:
        keys = list(self._modules)
        for key in keys[index] if isinstance(index, slice) else [self._key(index)]:
            delattr(self, key)
        self._renumber(list(self._modules.values()))

    def append(self: S, module: Module) -> S:
        """Add a module at the end and return the container."""
        self.add_module(str(len(self)), module)
        return self

    def insert(self: Any, index: int, module: Module) -> Any:
        """Put a module before the one at `index`."""
        if not isinstance(module, Module):
            raise ArgumentTypeError(
                f"{type(self).__name__}.insert", expected="a Module", got=type(module).__name__
            )
        modules = list(self._modules.values())
        self._check_insert(index, len(modules))
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def _check_insert(self, index: int, size: int) -> None:
        if not -size <= index <= size:
            raise IndexError(f"Index out of range: {index}")

    def extend(self: S, modules: Iterable[Module]) -> S:
        """Add all modules of an iterable at the end and return the container."""
        if not isinstance(modules, Iterable):
            raise ArgumentTypeError(
                f"{type(self).__name__}.extend", expected="an iterable", got=type(modules).__name__
            )
        for module in list(modules):
            self.append(module)
        return self

    def pop(self, index: int | slice) -> Any:
        """Remove a module and return it."""
        module = self[index]  # type: ignore[index]
        del self[index]
        return module


class Sequential(_Numbered):
    """Modules called one after the other, each on the result of the one before.

    Parameters
    ----------
    *args : Module
        The modules; or one ordered dict of names to modules.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = (
            args[0].items()
            if len(args) == 1 and isinstance(args[0], Mapping)
            else ((str(i), module) for i, module in enumerate(args))
        )
        for name, module in named:
            self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        """Send the input through all modules."""
        for module in self._modules.values():
            input = module(input)
        return input

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.__class__(OrderedDict(list(self._modules.items())[index]))
        return self._modules[self._key(index)]

    def __add__(self, other: Any) -> Sequential:
        if not isinstance(other, Sequential):
            raise ArgumentValueError(
                "Sequential.__add__", what="add operator supports only objects of Sequential class",
                got=str(type(other)),
            )  # fmt: skip
        return Sequential(*chain(self, other))

    def __iadd__(self, other: Any) -> Sequential:
        if not isinstance(other, Sequential):
            raise ArgumentValueError(
                "Sequential.__iadd__",
                what="add operator supports only objects of Sequential class",
                got=str(type(other)),
            )  # fmt: skip
        return self.extend(other)

    def __mul__(self, other: int) -> Sequential:
        if not isinstance(other, int):
            raise ArgumentTypeError(
                "Sequential.__mul__", expected="an int", got=type(other).__name__
            )
        if other <= 0:
            raise ArgumentValueError("Sequential.__mul__", expected="above 0", got=str(other))
        return Sequential(*chain.from_iterable(iter(self) for _ in range(other)))

    __rmul__ = __mul__

    def __imul__(self, other: int) -> Sequential:
        if other <= 0:
            raise ArgumentValueError("Sequential.__imul__", expected="above 0", got=str(other))
        own = list(self)
        for _ in range(other - 1):
            self.extend(own)
        return self


class ModuleList(_Numbered):
    """Modules in a list; calling them is up to the program.

    Parameters
    ----------
    modules : iterable of Module, optional
        The first members.
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.__class__(list(self._modules.values())[index])
        return self._modules[self._key(index)]

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        combined = ModuleList()
        for i, module in enumerate(chain(self, other)):
            combined.add_module(str(i), module)
        return combined

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        return self.extend(other)

    def _check_insert(self, index: int, size: int) -> None:
        # A list takes any place and clips it.
        pass

    def __repr__(self) -> str:
        if not self._modules:
            return f"{self._get_name()}()"
        lines = [_run_line(first, last, text) for first, last, text in self._runs()]
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"

    def _runs(self) -> list[tuple[int, int, str]]:
        """Group neighbours that print alike: (first, last, text)."""
        runs: list[tuple[int, int, str]] = []
        for i, module in enumerate(self):
            text = repr(module)
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], i, text)
            else:
                runs.append((i, i, text))
        return runs


def _run_line(first: int, last: int, text: str) -> str:
    body = text.replace("\n", "\n  ")
    if first == last:
        return f"({first}): {body}"
    return f"({first}-{last}): {last - first + 1} x {body}"


class ModuleDict(Module):
    """Modules by key, in the order of insertion.

    Parameters
    ----------
    modules : mapping or iterable of pairs, optional
        The first members.
    """

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Remove all members."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Remove a member and return it."""
        return self._modules.pop(key)

    def keys(self) -> Any:
        """Return the keys."""
        return self._modules.keys()

    def items(self) -> Any:
        """Return (key, module) pairs."""
        return self._modules.items()

    def values(self) -> Any:
        """Return the modules."""
        return self._modules.values()

    def update(self, modules: Any) -> None:
        """Add members from a mapping or from pairs, replacing those of the same key."""
        for key, module in _pairs("ModuleDict.update", modules):
            self[key] = module


def _pairs(op: str, given: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(given, (Mapping, ModuleDict, ParameterDict)):
        return list(given.items())
    if not isinstance(given, Iterable):
        raise ArgumentTypeError(
            op, expected="an iterable of key/value pairs", got=type(given).__name__
        )
    pairs = [tuple(pair) for pair in given]
    for place, pair in enumerate(pairs):
        if len(pair) != 2:
            raise ArgumentValueError(
                op, what=f"element {place} is no pair", expected="2 values", got=str(len(pair))
            )
    return pairs


def _as_parameter(value: Any) -> Any:
    """A plain tensor becomes a parameter; parameters and other values stay as they are."""
    if isinstance(value, TensorImpl) and not isinstance(value, Parameter):
        return Parameter(value)
    return value


def _value_line(key: Any, value: Any, element: str) -> str:
    if not isinstance(value, TensorImpl):
        return f"({key}): Object of type: {type(value).__name__}"
    size = "x".join(str(n) for n in value.shape)
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    where = "" if value.device.type == "cpu" else f" ({value.device})"
    return f"({key}): {kind} containing: [{element} of size {size}{where}]"


class ParameterList(Module):
    """Parameters in a list; plain tensors become parameters, other values stay as they are.

    Parameters
    ----------
    values : iterable, optional
        The first members.
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._size))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            picked = self.__class__()
            for i in range(*index.indices(self._size)):
                picked.append(self[i])
            return picked
        return getattr(self, str(_place(index, self._size)))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, str(_place(index, self._size)), _as_parameter(value))

    def append(self, value: Any) -> ParameterList:
        """Add a value at the end and return the list."""
        place = self._size
        self._size += 1
        self[place] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add all values of an iterable at the end and return the list."""
        if not isinstance(values, Iterable) or isinstance(values, TensorImpl):
            raise ArgumentTypeError(
                "ParameterList.extend", expected="an iterable", got=type(values).__name__
            )
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def extra_repr(self) -> str:
        """Return one line for each member."""
        return "\n".join(
            f"  {_value_line(i, value, str(getattr(value, 'dtype', '')))}"
            for i, value in enumerate(self)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse the call: this only holds parameters."""
        raise RuntimeError("ParameterList should not be called.")


class ParameterDict(Module):
    """Parameters by key; plain tensors become parameters, other values stay as they are.

    Parameters
    ----------
    parameters : mapping or iterable of pairs, optional
        The first members.
    """

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._keys[key] = None
        setattr(self, key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._keys))

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def copy(self) -> ParameterDict:
        """Return another dict of the same parameters."""
        return ParameterDict(OrderedDict(self.items()))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, putting `default` there first if it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Remove all members."""
        for key in list(self._keys):
            del self[key]

    def pop(self, key: str) -> Any:
        """Remove a member and return it."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the newest member and return (key, value)."""
        key = next(reversed(self))
        return key, self.pop(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default`."""
        return self[key] if key in self._keys else default

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """Return a new dict with the same value for all keys."""
        return ParameterDict((key, default) for key in keys)

    def keys(self) -> Any:
        """Return the keys."""
        return self._keys.keys()

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return (key, value) pairs."""
        return ((key, self[key]) for key in self._keys)

    def values(self) -> Iterator[Any]:
        """Return the values."""
        return (self[key] for key in self._keys)

    def update(self, parameters: Any) -> None:
        """Add members from a mapping or from pairs, replacing those of the same key."""
        for key, value in _pairs("ParameterDict.update", parameters):
            self[key] = value

    def extra_repr(self) -> str:
        """Return one line for each member."""
        return "\n".join(
            f"  {_value_line(k, v, v.type() if hasattr(v, 'type') else '')}"
            for k, v in self.items()
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse the call: this only holds parameters."""
        raise RuntimeError("ParameterDict should not be called.")
