"""Named results of ops with several outputs: ``torch.return_types.max`` and the like.

State: one class a name, made once. Invariants: a result is a tuple, so it unpacks, compares and
pickles as one; its fields are read by name too.
"""

from __future__ import annotations

from functools import cache
from typing import Any


class NamedResult(tuple[Any, ...]):
    """A tuple whose entries have names; `n_fields` is their number, as in torch."""

    __slots__ = ()
    _name: str = ""
    _fields: tuple[str, ...] = ()
    n_fields: int = 0

    def __repr__(self) -> str:
        lines = (f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"torch.return_types.{self._name}(\n" + ",\n".join(lines) + ")"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._name, self._fields, tuple(self))


@cache
def named_result(name: str, *fields: str) -> type[NamedResult]:
    """Return the result class of an op; ``cls((a, b))`` makes one."""
    namespace: dict[str, Any] = {
        "__slots__": (),
        "__doc__": f"The result of {name}: {', '.join(fields)}.",
        "__module__": "torch.return_types",
        "_name": name,
        "_fields": fields,
        "n_fields": len(fields),
    }
    for position, field in enumerate(fields):
        namespace[field] = _field(position)
    return type(name, (NamedResult,), namespace)


def _field(position: int) -> property:
    def read(self: NamedResult) -> Any:
        return self[position]

    return property(read)


def _rebuild(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> NamedResult:
    return named_result(name, *fields)(values)
