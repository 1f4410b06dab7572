"""Structured errors: every failure says what was asked, expected and got, and what to do.

State
-----
None. Each class adds the mixin `RefruntimeError` to the built-in exception that a PyTorch program
would catch in the same place.

Invariants
----------
* The text is composed in one place, from fields that stay readable as attributes.
* Errors survive pickling, so worker processes can hand them to their parent.
"""

from __future__ import annotations

from typing import Any


class RefruntimeError(Exception):
    """Mixin of every error that refruntime raises on purpose.

    Parameters
    ----------
    op : str
        The operation or function that was asked for.
    expected, got : str
        What it needs and what it was given.
    remedy : str
        What the user can do about it.
    what : str
        The complaint itself, in PyTorch's words where users search for them.
    """

    op: str
    expected: str
    got: str
    remedy: str
    what: str

    def __init__(
        self, op: str, *, expected: Any = "", got: Any = "", remedy: str = "", what: str = ""
    ) -> None:
        self.op = op
        self.expected = str(expected)
        self.got = str(got)
        self.remedy = remedy
        self.what = what
        super().__init__(_compose(op, self.expected, self.got, remedy, what))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {"expected": self.expected, "got": self.got}
        return _rebuild, (type(self), self.op, {**fields, "remedy": self.remedy, "what": self.what})

    def __str__(self) -> str:
        # KeyError-like bases would show a repr; the text is always the composed sentence.
        return str(self.args[0])


def _rebuild(kind: type[RefruntimeError], op: str, fields: dict[str, str]) -> RefruntimeError:
    return kind(op, **fields)


def _compose(op: str, expected: str, got: str, remedy: str, what: str) -> str:
    """Join the parts that are present: ``op: what; expected E, got G; remedy``."""
    contrast = ", ".join(
        part
        for part in (expected and f"expected {expected}", got and f"got {got}")
        if part
    )  # fmt: skip
    detail = "; ".join(part for part in (what, contrast, remedy) if part)
    return f"{op}: {detail}" if detail else op


class ShapeError(RefruntimeError, RuntimeError):
    """Shapes, strides or overlaps that do not fit the operation."""


class DTypeError(RefruntimeError, RuntimeError):
    """An element type that the operation does not take or cannot produce."""


class DeviceError(RefruntimeError, RuntimeError):
    """Operands on different devices, or a device that is not there."""


class AutogradError(RefruntimeError, RuntimeError):
    """A graph that cannot be recorded or run backward."""


class SafePointError(RefruntimeError, RuntimeError):
    """Memory cannot be moved now, because work under way may have its address."""


class OutOfMemoryError(RefruntimeError, RuntimeError):
    """No memory for a request, also after the caches have been released."""


class IndexRangeError(RefruntimeError, IndexError):
    """A dimension or an index outside its range."""


class IndexValueError(IndexRangeError, RuntimeError):
    """An entry of an index tensor outside its range, where PyTorch raises RuntimeError."""


class ArgumentTypeError(RefruntimeError, TypeError):
    """An argument of the wrong Python type."""


class ArgumentValueError(RefruntimeError, ValueError):
    """An argument of the right type whose value makes no sense."""


class KernelMissingError(RefruntimeError, NotImplementedError):
    """An operation that has no kernel for this device or element type."""


class OptionalDependencyError(RefruntimeError, ImportError):
    """A package that the feature needs is not installed, or does not work here."""


class GradcheckError(RefruntimeError, RuntimeError):
    """A derivative rule that disagrees with finite differences."""
