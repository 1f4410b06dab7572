"""Forward-mode derivatives: dual tensors by hand (torch.autograd.forward_ad).

State
-----
Each thread has a stack of the levels that `dual_level` has opened.

Invariants
----------
* `make_dual` and `unpack_dual` use the innermost level unless one is named; levels nest.
* Leaving a level drops its tangents: dual tensors become their primals.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, NamedTuple

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd import levels
from refruntime.autograd.dual import DualLevel, join, split
from refruntime.autograd.node import is_differentiable
from refruntime.errors import ArgumentTypeError, ArgumentValueError, AutogradError, ShapeError

__all__ = [
    "UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual",
    "unpack_dual",
]  # fmt: skip


class UnpackedDualTensor(NamedTuple):
    """A primal, and its tangent or None."""

    primal: Any
    tangent: Any


class _Opened(threading.local):
    def __init__(self) -> None:
        self.levels: list[DualLevel] = []


_opened = _Opened()


def enter_dual_level() -> int:
    """Open a level and return its place in the stack of levels."""
    level = DualLevel()
    levels.stack.levels.append(level)
    _opened.levels.append(level)
    return len(_opened.levels) - 1


def exit_dual_level(*, level: int | None = None) -> None:
    """Close the innermost level; `level` must name it.

    Raises
    ------
    AutogradError
        If no level is open, or another one is named.
    """
    last = len(_opened.levels) - 1
    if last < 0 or (level is not None and level != last):
        raise AutogradError(
            "exit_dual_level",
            what="Trying to exit a forward AD level that was not the last one that was created. "
            "This is not supported",
            expected=f"level {last}", got=str(level), remedy="leave inner levels first",
        )  # fmt: skip
    closed = _opened.levels.pop()
    levels.stack.levels.remove(closed)
    closed.close()


class dual_level:  # noqa: N801  torch's name
    """A block inside of which dual tensors exist."""

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        exit_dual_level()


def _level(name: str, number: int | None) -> DualLevel | None:
    if number is not None and number >= 0:
        if number >= len(_opened.levels):
            raise ArgumentValueError(
                name, expected=f"a level below {len(_opened.levels)}", got=number
            )
        return _opened.levels[number]
    return _opened.levels[-1] if _opened.levels else None


def make_dual(tensor: Any, tangent: Any, *, level: int | None = None) -> Any:
    """Return a view of `tensor` that carries `tangent`.

    Parameters
    ----------
    tensor, tangent : Tensor
        Of one shape and dtype, floating-point or complex.
    level : int, optional
        What `enter_dual_level` returned; default the innermost one.

    Raises
    ------
    AutogradError
        If no level is open.
    """
    found = _level("make_dual", level)
    if found is None:
        raise AutogradError(
            "make_dual",
            what="Trying to create a dual Tensor for forward AD but no level exists, make sure to "
            "enter_dual_level() first",
            expected="an open level", got="none", remedy="use `with forward_ad.dual_level():`",
        )  # fmt: skip
    check_pair("make_dual", tensor, tangent)
    if split(tensor, found)[1] is not None:
        raise AutogradError(
            "make_dual", what="the tensor already carries a tangent at this level",
            expected="a tensor without one", got="a dual tensor",
            remedy="take unpack_dual(x).primal first",
        )  # fmt: skip
    return join(found, ops.alias(tensor), tangent)


def check_pair(name: str, primal: Any, tangent: Any) -> None:
    """Raise unless a tangent fits its primal."""
    for role, value in (("primal", primal), ("tangent", tangent)):
        if not isinstance(value, TensorImpl):
            raise ArgumentTypeError(name, expected=f"a tensor as {role}", got=type(value).__name__)
        if not is_differentiable(value.meta):
            raise ArgumentValueError(
                name, what=f"Expected {role} to be floating point or complex",
                got=str(value.meta.dtype), remedy="convert it with .float()",
            )  # fmt: skip
    if primal.meta.shape != tangent.meta.shape:
        raise ShapeError(
            name, what="Expected tangent to have the same shape as primal",
            expected=str(tuple(primal.meta.shape)), got=str(tuple(tangent.meta.shape)),
        )  # fmt: skip
    if primal.meta.dtype is not tangent.meta.dtype:
        raise AutogradError(
            name, what="Expected tangent to have the same dtype as primal",
            expected=str(primal.meta.dtype), got=str(tangent.meta.dtype),
        )  # fmt: skip


def unpack_dual(tensor: Any, *, level: int | None = None) -> UnpackedDualTensor:
    """Return primal and tangent of a tensor at a level; the tangent is None where there is none."""
    found = _level("unpack_dual", level)
    if found is None:
        return UnpackedDualTensor(tensor, None)
    return UnpackedDualTensor(*split(tensor, found))
