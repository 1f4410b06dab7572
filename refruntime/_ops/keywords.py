"""NumPy's names for keyword arguments: ``axis`` for ``dim``, ``keepdims`` for ``keepdim``.

Invariants
----------
* torch takes either name for every operator; here that costs a call in between and nothing else, so
  functions with neither parameter are published as they are.
* What is missing or surplus in a call is told by the function itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, update_wrapper
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import Any

NAMES = {"dim": "axis", "keepdim": "keepdims"}
Names = tuple[str, ...]
# Stands for an argument that was not given and has no default.
_ABSENT: Any = object()


def with_numpy_names(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return `func`, or a function that calls it and also takes NumPy's names of its parameters."""
    code = func.__code__
    count = code.co_argcount
    named = code.co_varnames[: count + code.co_kwonlyargcount]
    translated = tuple(n for n, alias in NAMES.items() if n in named and alias not in named)
    if not translated or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS):
        return func
    defaults = func.__defaults__ or ()
    required = named[: count - len(defaults)]
    made: Callable[..., Any] = _maker(required, named[:count], named[count:], translated)(func)
    made.__defaults__ = (_ABSENT,) * len(required) + defaults
    made.__kwdefaults__ = {**(func.__kwdefaults__ or {}), **{NAMES[n]: None for n in translated}}
    return update_wrapper(made, func)


@lru_cache(None)
def _maker(required: Names, positional: Names, keyword: Names, translated: Names) -> Any:
    """Return a function that makes the callers of functions with these parameters."""
    aliases = [NAMES[name] for name in translated]
    lines = [
        "def make(function):",
        f"    def call({', '.join([*positional, '*', *keyword, *aliases])}):",
    ]
    for name, alias in zip(translated, aliases, strict=True):
        lines += [f"        if {alias} is not None:", f"            {name} = {alias}"]
    if required:
        given = ", ".join(f"{name}={name}" for name in required)
        lines += [
            f"        if {' or '.join(f'{name} is absent' for name in required)}:",
            f"            return function(**present({given}))",
        ]
    passed = ", ".join([*positional, *(f"{name}={name}" for name in keyword)])
    lines += [f"        return function({passed})", "    return call"]
    space: dict[str, Any] = {"absent": _ABSENT, "present": _present}
    exec("\n".join(lines), space)
    return space["make"]


def _present(**given: Any) -> dict[str, Any]:
    """Return the arguments that were given."""
    return {name: value for name, value in given.items() if value is not _ABSENT}
