"""Padding: values added around the last dimensions."""

from __future__ import annotations

from typing import Any

from refruntime.nn import functional
from refruntime.nn.modules.module import Module

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class _Pad(Module):
    """Padding of one mode.

    Parameters
    ----------
    padding : int or tuple of int
        For all sides, or (left, right, top, bottom, ...): the last dimension first.
    """

    n_dims: int
    mode: str
    padding: tuple[int, ...]

    def __init__(self, padding: Any) -> None:
        super().__init__()
        sides = 2 * self.n_dims
        self.padding = (padding,) * sides if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Any) -> Any:
        """Pad the last dimensions."""
        return functional.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"{self.padding}"


class _ConstantPad(_Pad):
    """Padding with one value.

    Parameters
    ----------
    padding : int or tuple of int
        For all sides, or (left, right, top, bottom, ...): the last dimension first.
    value : float
        What is put there.
    """

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Any) -> Any:
        """Pad the last dimensions."""
        return functional.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """Padding of one dimension with one value; see `ConstantPad2d`."""

    n_dims = 1


class ConstantPad2d(_ConstantPad):  # noqa: D101 - the base's
    __doc__ = _ConstantPad.__doc__

    n_dims = 2


class ConstantPad3d(_ConstantPad):
    """Padding of three dimensions with one value; see `ConstantPad2d`."""

    n_dims = 3


class _ZeroPad(_ConstantPad):
    """Padding with zeros; see `ConstantPad2d`."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"{self.padding}"


class ZeroPad1d(_ZeroPad):
    """Padding of one dimension with zeros."""

    n_dims = 1


class ZeroPad2d(_ZeroPad):
    """Padding of two dimensions with zeros."""

    n_dims = 2


class ZeroPad3d(_ZeroPad):
    """Padding of three dimensions with zeros."""

    n_dims = 3


class _ReflectionPad(_Pad):
    """Padding with what lies inside, mirrored at the border, which is not repeated."""

    mode = "reflect"


class ReflectionPad1d(_ReflectionPad):
    """Mirror padding of one dimension."""

    n_dims = 1


class ReflectionPad2d(_ReflectionPad):
    """Mirror padding of two dimensions."""

    n_dims = 2


class ReflectionPad3d(_ReflectionPad):
    """Mirror padding of three dimensions."""

    n_dims = 3


class _ReplicationPad(_Pad):
    """Padding with the border's values."""

    mode = "replicate"


class ReplicationPad1d(_ReplicationPad):
    """Border padding of one dimension."""

    n_dims = 1


class ReplicationPad2d(_ReplicationPad):
    """Border padding of two dimensions."""

    n_dims = 2


class ReplicationPad3d(_ReplicationPad):
    """Border padding of three dimensions."""

    n_dims = 3


class _CircularPad(_Pad):
    """Padding with what lies at the other end."""

    mode = "circular"


class CircularPad1d(_CircularPad):
    """Circular padding of one dimension."""

    n_dims = 1


class CircularPad2d(_CircularPad):
    """Circular padding of two dimensions."""

    n_dims = 2


class CircularPad3d(_CircularPad):
    """Circular padding of three dimensions."""

    n_dims = 3
