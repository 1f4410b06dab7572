"""One kernel body, many dtypes: templates of hand-written kernels.

A template is an ordinary kernel body in which element types are placeholders imported from here.
``.for_dtypes(T=float32)`` gives the `NativeKernel` of one combination, compiled at its first call
and cached on disk like any other::

    from refruntime.kernels.variants import ACC, T, load_T, ptr_T, store_T, template

    @template("void(int64, int64, int64, int64, int64)")
    def scale_rows(out, x, columns, start, stop):
        o = ptr_T(out)                       # a typed pointer from a byte address
        p = ptr_T(x)
        for row in range(start, stop):
            total = ACC(0)                   # calling a type casts to it
            for j in range(columns):
                total += ACC(load_T(p, row * columns + j))
            for j in range(columns):
                at = row * columns + j
                store_T(o, at, ACC(load_T(p, at)) / total)

    def scale_rows_cpu(out, x):
        kernel = scale_rows.for_dtypes(T=x.dtype, ACC=x.dtype.compute)
        launch.parallel_for(kernel, rows, grain, out.address(), x.address(), columns)

Type placeholders are `T`, `S`, `D`, `I` and `ACC` (by custom: operand, second operand, result,
index, accumulator). For each of them, say T, a body may use

===============  ==================================================================================
``T(x)``         cast to the type in which T is computed: float32 for the half types, uint8 for bool
``ptr_T(a)``     pointer to elements as they are in memory
``load_T(p, i)`` element `i` in the computing type
``store_T(p, i, v)``  convert `v` and store it (rounds half types; bool stores ``v != 0``)
``size_T``       bytes of an element in memory
===============  ==================================================================================

Any other keyword of `for_dtypes` replaces the global of that name in the body: a number, or a
device function (``merge=add_states``), which is how one loop serves several operations. The body
must have such a global, so that linters and readers see a name; `Placeholder` makes one::

    merge: Any = Placeholder("merge")

A helper that uses placeholders itself is decorated ``@device_template`` instead of
``@device_function``; it is specialised with the bindings of the kernel that calls it.

A signature may name a type placeholder in braces for a scalar argument: ``"void(int64, {T})"``.

State
-----
Each template keeps its variants by their bindings.

Invariants
----------
* A variant is a function of its own name (``scale_rows__T_float32``): its disk-cache entry depends
  on that name, on the template's source file, and on those of all device functions it reaches.
* A placeholder that was not bound fails at the first call, with its name.
"""

# ruff: noqa: N816 - ptr_T says what it is: the pointer type of T

from __future__ import annotations

import hashlib
import re
import types
from collections.abc import Callable
from typing import Any

from refruntime._dtypes import DType
from refruntime._native import FASTMATH, DeviceFunction, NativeKernel
from refruntime.errors import ArgumentTypeError
from refruntime.kernels.elements import element_of

TYPE_NAMES = ("T", "S", "D", "I", "ACC")


class Placeholder:
    """A name that a template's body uses and that `for_dtypes` binds."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Placeholder({self.name})"

    def __call__(self, *args: Any) -> Any:
        """Refuse: a placeholder has no value."""
        raise ArgumentTypeError(
            self.name,
            what="a placeholder was called",
            expected="a template that binds it",
            got="plain Python",
            remedy=f"bind it: template.for_dtypes({self.name}=...)",
        )


T: Any = Placeholder("T")
ptr_T: Any = Placeholder("ptr_T")
load_T: Any = Placeholder("load_T")
store_T: Any = Placeholder("store_T")
size_T: Any = Placeholder("size_T")
S: Any = Placeholder("S")
ptr_S: Any = Placeholder("ptr_S")
load_S: Any = Placeholder("load_S")
store_S: Any = Placeholder("store_S")
size_S: Any = Placeholder("size_S")
D: Any = Placeholder("D")
ptr_D: Any = Placeholder("ptr_D")
load_D: Any = Placeholder("load_D")
store_D: Any = Placeholder("store_D")
size_D: Any = Placeholder("size_D")
I: Any = Placeholder("I")  # noqa: E741 - the index type; ptr_I reads well beside ptr_T
ptr_I: Any = Placeholder("ptr_I")
load_I: Any = Placeholder("load_I")
store_I: Any = Placeholder("store_I")
size_I: Any = Placeholder("size_I")
ACC: Any = Placeholder("ACC")
ptr_ACC: Any = Placeholder("ptr_ACC")
load_ACC: Any = Placeholder("load_ACC")
store_ACC: Any = Placeholder("store_ACC")
size_ACC: Any = Placeholder("size_ACC")


class DeviceTemplate:
    """A device function with placeholders; kernels that call it bind them."""

    def __init__(self, func: Callable[..., Any], fastmath: frozenset[str]) -> None:
        self.py_func: Any = func
        self.__name__ = func.__name__
        self.__doc__ = func.__doc__
        self._fastmath = fastmath
        self._variants: dict[tuple[Any, ...], DeviceFunction] = {}

    def specialise(self, bindings: dict[str, Any]) -> DeviceFunction:
        """Return the device function with the placeholders bound."""
        key = _key(bindings)
        found = self._variants.get(key)
        if found is None:
            func = _specialise(self.py_func, bindings)
            found = self._variants[key] = DeviceFunction(func, self._fastmath)
        return found


class Template:
    """A kernel body with placeholders; see the module docstring.

    Parameters
    ----------
    func : callable
        The body.
    signature : str
        In Numba's notation; ``{T}`` stands for the computing type of T.
    fastmath : frozenset of str
        LLVM fast-math flags.
    """

    def __init__(
        self, func: Callable[..., Any], signature: str, fastmath: frozenset[str]
    ) -> None:
        self.py_func: Any = func
        self.__name__ = func.__name__
        self.__doc__ = func.__doc__
        self.signature = signature
        self._fastmath = fastmath
        self._variants: dict[tuple[Any, ...], NativeKernel] = {}
        # By the bindings in the order of the call, which spares sorting them.
        self._calls: dict[tuple[Any, ...], NativeKernel] = {}

    def for_dtypes(self, **bindings: Any) -> NativeKernel:
        """Return the kernel for these dtypes (and other bindings), always the same object.

        Raises
        ------
        KernelMissingError
            If a dtype has no CPU kernels.
        """
        call = tuple(bindings.items())
        found = self._calls.get(call)
        if found is None:
            found = self._calls[call] = self._variant(bindings)
        return found

    def _variant(self, bindings: dict[str, Any]) -> NativeKernel:
        key = _key(bindings)
        found = self._variants.get(key)
        if found is None:
            found = self._variants[key] = self._make(bindings)
        return found

    def _make(self, bindings: dict[str, Any]) -> NativeKernel:
        names = {
            name: element_of(value, self.__name__).number_name
            for name, value in bindings.items()
            if isinstance(value, DType)
        }
        func = _specialise(self.py_func, bindings)
        return NativeKernel(func, self.signature.format(**names), self._fastmath, False)


def template(
    signature: str, *, fastmath: frozenset[str] | set[str] = FASTMATH
) -> Callable[[Callable[..., Any]], Template]:
    """Decorate a kernel body that has placeholders."""

    def wrap(func: Callable[..., Any]) -> Template:
        return Template(func, signature, frozenset(fastmath))

    return wrap


def device_template(func: Callable[..., Any]) -> Any:
    """Decorate a function that kernel templates call and that has placeholders itself."""
    return DeviceTemplate(func, FASTMATH)


def _key(bindings: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(bindings.items(), key=lambda item: item[0]))


def _specialise(func: types.FunctionType, bindings: dict[str, Any]) -> types.FunctionType:
    """Copy `func` under a name of its own, with placeholders and device templates replaced."""
    namespace = dict(func.__globals__)
    for name, value in bindings.items():
        if isinstance(value, DType):
            namespace.update(_type_globals(name, value))
        else:
            namespace[name] = value
    for name in func.__code__.co_names:
        if isinstance(namespace.get(name), DeviceTemplate):
            namespace[name] = namespace[name].specialise(bindings)
    made = types.FunctionType(
        func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__
    )
    made.__name__ = made.__qualname__ = _variant_name(func.__name__, bindings)
    made.__module__ = func.__module__
    made.__doc__ = func.__doc__
    return made


def _type_globals(name: str, dtype: DType) -> dict[str, Any]:
    element = element_of(dtype)
    return {
        name: element.number,
        f"ptr_{name}": element.pointer,
        f"load_{name}": element.load,
        f"store_{name}": element.store,
        f"size_{name}": dtype.itemsize,
    }


def _variant_name(name: str, bindings: dict[str, Any]) -> str:
    full = "__".join([name, *map(_label, _key(bindings))])
    if len(full) <= 120:
        return full
    # It becomes a file name of the disk cache.
    return f"{full[:100]}__{hashlib.sha1(full.encode()).hexdigest()[:12]}"


def _label(binding: tuple[str, Any]) -> str:
    name, value = binding
    text = value.name if isinstance(value, DType) else getattr(value, "__name__", repr(value))
    return re.sub(r"\W", "_", f"{name}_{text}")
