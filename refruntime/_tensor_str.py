"""Tensors as text, digit for digit as PyTorch prints them.

State
-----
`_options`: the precision, sizes and line width that `set_printoptions` sets for the process.

Invariants
----------
* All numbers of a tensor share one width and one format (plain, integral as in ``1.``, or
  scientific), chosen from the numbers that are shown.
* Above `threshold` elements only `edgeitems` at each end of a dimension are shown, and only those
  are read.
* Printing changes nothing: no gradient is recorded, no version is bumped.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._impl import plain_types
from refruntime.errors import ArgumentValueError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PrintOptions:
    """How tensors print; see `set_printoptions`."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=math.inf),
}
_options = PrintOptions()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how tensors print, for the whole process.

    Parameters
    ----------
    precision : int, optional
        Digits after the point; 4 at first.
    threshold : float, optional
        Elements above which a tensor is summarised; 1000 at first.
    edgeitems : int, optional
        Items shown at each end of a summarised dimension; 3 at first.
    linewidth : int, optional
        Characters a line; 80 at first.
    profile : {"default", "short", "full"}, optional
        Values to start from; single arguments override it.
    sci_mode : bool, optional
        Always or never use scientific notation; None lets each tensor decide. Unlike the others,
        it is reset by each call.
    """
    global _options
    if profile is not None and profile not in _PROFILES:
        raise ArgumentValueError(
            "set_printoptions", expected="profile 'default', 'short' or 'full'", got=repr(profile)
        )
    given = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
    }
    base = _options if profile is None else _PROFILES[profile]
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    _options = replace(base, **changes, sci_mode=sci_mode)


def get_printoptions() -> dict[str, Any]:
    """Return the current options by name."""
    return {name: getattr(_options, name) for name in PrintOptions.__dataclass_fields__}


@contextlib.contextmanager
def printoptions(**kwargs: Any) -> Iterator[None]:
    """Apply `set_printoptions` for the length of a block."""
    global _options
    before = _options
    try:
        set_printoptions(**kwargs)
        yield
    finally:
        _options = before


# ---------------------------------------------------------------------------------------------
# One format for all numbers of a tensor


class NumberFormat:
    """The common format of a set of real numbers (or bools).

    Parameters
    ----------
    values : array
        The numbers that will be shown.
    options : PrintOptions
        Supplies precision and `sci_mode`.
    """

    __slots__ = ("integral", "precision", "real", "scientific", "width")

    def __init__(self, values: Array, options: PrintOptions) -> None:
        self.precision = options.precision
        self.real = values.dtype.kind == "f"
        self.integral = True
        self.scientific = False
        self.width = 1
        if self.real:
            self._fit_reals(values, options)
        else:
            self.width = max((len(str(value)) for value in values.ravel().tolist()), default=1)

    def _fit_reals(self, values: Array, options: PrintOptions) -> None:
        shown = values[np.isfinite(values) & (values != 0)]
        if shown.size == 0:
            return
        magnitude = np.abs(shown).astype(np.float64)
        largest, smallest = float(magnitude.max()), float(magnitude.min())
        self.integral = bool(np.all(shown == np.ceil(shown)))
        wide_range = largest / smallest > 1000.0 or largest > 1.0e8
        self.scientific = wide_range or (not self.integral and smallest < 1.0e-4)
        if options.sci_mode is not None:
            self.scientific = options.sci_mode
        self.width = max(len(self._digits(value)) for value in shown.tolist())

    def _digits(self, value: float) -> str:
        if self.scientific:
            return f"{value:.{self.precision}e}"
        if self.integral:
            return f"{value:.0f}" + ("." if math.isfinite(value) else "")
        return f"{value:.{self.precision}f}"

    def format(self, value: Any) -> str:
        """Return one number, padded on the left to the common width."""
        return (self._digits(value) if self.real else str(value)).rjust(self.width)


class ComplexFormat:
    """The common format of complex numbers: one format for each part."""

    __slots__ = ("_imaginary", "_real", "width")

    def __init__(self, values: Array, options: PrintOptions) -> None:
        self._real = NumberFormat(values.real, options)
        self._imaginary = NumberFormat(values.imag, options)
        self.width = self._real.width + self._imaginary.width + 1

    def format(self, value: complex) -> str:
        """Return one number as ``a+bj``."""
        imaginary = (self._imaginary.format(value.imag) + "j").lstrip()
        sign = "" if imaginary[0] in "+-" else "+"
        return self._real.format(value.real) + sign + imaginary


def _format_for(values: Array, options: PrintOptions) -> NumberFormat | ComplexFormat:
    if values.dtype.kind == "c":
        return ComplexFormat(values, options)
    return NumberFormat(values, options)


# ---------------------------------------------------------------------------------------------
# Nested brackets


def _edges(values: Array, edgeitems: int) -> Array:
    """Return the part of `values` that a summary shows."""
    for axis, size in enumerate(values.shape):
        if size > 2 * edgeitems:
            ends = [*range(edgeitems), *range(size - edgeitems, size)]
            values = np.take(values, ends, axis=axis)
    return values


def format_array(values: Array, indent: int, options: PrintOptions | None = None) -> str:
    """Return the nested brackets of a NumPy array of bools, integers, reals or complex numbers.

    Parameters
    ----------
    values : array
        Half types must have been widened.
    indent : int
        The column in which the first bracket will stand.
    options : PrintOptions, optional
        Default: those set for the process.
    """
    chosen = _options if options is None else options
    summarise = values.size > chosen.threshold
    shown = _edges(values, chosen.edgeitems) if summarise else values
    number = _format_for(shown, chosen)
    if values.ndim == 0:
        return number.format(values.item())
    layout = _Brackets(values.shape, chosen, summarise, number.format, number.width)
    return layout.nest(shown.tolist(), 0, indent)


@dataclass(frozen=True, slots=True)
class _Brackets:
    """Lays out nested lists of numbers for a tensor of `shape`."""

    shape: tuple[int, ...]
    options: PrintOptions
    summarise: bool
    text: Callable[[Any], str]
    width: int

    def nest(self, items: Sequence[Any], axis: int, indent: int) -> str:
        """Return the text of the sub-tensor `items` whose first dimension is `axis`."""
        depth = len(self.shape) - axis
        if depth == 1:
            return self._vector(items, indent)
        inner = [self.nest(item, axis + 1, indent + 1) for item in items]
        parts = self._with_gap(inner, axis, "...")
        return "[" + ("," + "\n" * (depth - 1) + " " * (indent + 1)).join(parts) + "]"

    def _vector(self, items: Sequence[Any], indent: int) -> str:
        columns = self.width + 2
        per_line = max(1, (self.options.linewidth - indent) // columns)
        words = self._with_gap(list(map(self.text, items)), len(self.shape) - 1, " ...")
        lines = [
            ", ".join(words[start : start + per_line]) for start in range(0, len(words), per_line)
        ]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"

    def _with_gap(self, parts: list[str], axis: int, mark: str) -> list[str]:
        edge = self.options.edgeitems
        if self.summarise and self.shape[axis] > 2 * edge:
            return [*parts[:edge], mark, *parts[edge:]]
        return parts


def append_suffixes(text: str, suffixes: Sequence[str], indent: int, linewidth: int) -> str:
    """Return `text` with its suffixes and closing bracket, each on a new line when too long."""
    pieces = [text]
    column = len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        if column + len(suffix) + 2 > linewidth:
            pieces.append(",\n" + " " * indent + suffix)
            column = indent + len(suffix)
        else:
            pieces.append(", " + suffix)
            column += len(suffix) + 2
    return "".join([*pieces, ")"])


# ---------------------------------------------------------------------------------------------
# Tensors


def to_string(tensor: Any, contents: str | None = None) -> str:
    """Return what ``repr(tensor)`` shows.

    Parameters
    ----------
    tensor : Tensor
        On any device; device memory is copied to the host first. A subclass shows its own name.
    contents : str, optional
        What to show in the place of the numbers.
    """
    meta = tensor.meta
    prefix = "tensor(" if type(tensor) in plain_types else f"{type(tensor).__name__}("
    suffixes = []
    if meta.device.type != "cpu":
        suffixes.append(f"device='{meta.device}'")
    if meta.device.type == "meta":
        text = "..."
        suffixes.append(f"size={tuple(meta.shape)}")
    elif meta.numel == 0:
        text = "[]"
        if meta.ndim != 1:
            suffixes.append(f"size={tuple(meta.shape)}")
    else:
        text = format_array(_host_values(tensor), len(prefix)) if contents is None else contents
    if _shows_dtype(meta):
        suffixes.append(f"dtype={meta.dtype!r}")
    suffixes.extend(_autograd_suffix(tensor))
    return append_suffixes(prefix + text, suffixes, len(prefix), _options.linewidth)


def _host_values(tensor: Any) -> Array:
    """Return the values as a NumPy array that NumPy itself can order and format."""
    host = tensor if tensor.meta.device.type == "cpu" else tensor.detach().cpu()
    values: Array = host.array()
    if host.meta.dtype in (_dtypes.float16, _dtypes.bfloat16):
        return values.astype(np.float32)
    return values


def _shows_dtype(meta: Any) -> bool:
    default = _dtypes.get_default_dtype()
    if meta.numel == 0 and meta.device.type != "meta":
        return meta.dtype is not default
    plain = {default, _dtypes.int64, _dtypes.bool_}
    plain.add(_dtypes.complex128 if default is _dtypes.float64 else _dtypes.complex64)
    return meta.dtype not in plain


def _autograd_suffix(tensor: Any) -> list[str]:
    node = tensor.grad_fn
    if node is not None:
        return [f"grad_fn=<{type(node).__name__}>"]
    return ["requires_grad=True"] if tensor.requires_grad else []
