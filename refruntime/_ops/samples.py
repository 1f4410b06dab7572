"""Samples: what an op's tests call it with.

A record's ``samples`` gives `Sample` objects; the op-matrix test runs each against the record's
NumPy ``reference``, in several memory layouts, and checks its derivatives. ``error_samples`` gives
calls that must be refused, with the exception type and a part of the message.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import AutogradMeta, TensorImpl, empty_impl, meta_of, wrap
from refruntime._layout import contiguous_strides
from refruntime._ops.opdef import OpDef, ops

LAYOUTS = ("contiguous", "transposed", "strided", "expanded")


@dataclass(frozen=True, slots=True)
class T:
    """A tensor argument.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    dtype : DType
        Its dtype.
    low, high : float
        Values are spread evenly between these (excluded), in random order, so that no two are equal
        and none sits on a kink by accident. Integers: between `low` and `high`, both included.
    layout : str
        ``contiguous``, ``transposed`` (dimensions stored in reverse order), ``strided`` (every
        second element of a larger span, behind an offset) or ``expanded`` (stride 0 in the first
        dimension).
    grad : bool
        Whether derivatives with respect to it are checked.
    values : nested sequence, optional
        The values themselves.
    """

    shape: tuple[int, ...] = ()
    dtype: DType = _dtypes.float32
    low: float = -2.0
    high: float = 2.0
    layout: str = "contiguous"
    grad: bool = True
    values: Any = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One call: positional arguments (`T` stands for a tensor) and keyword arguments.

    ``grad=False`` leaves derivatives unchecked; ``gradgrad=False`` second ones. `name` labels the
    case; `reference` overrides the record's for this call. `call` takes the arguments in the place
    of the op's front function: a record without one of its own is reached through another's.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    grad: bool = True
    gradgrad: bool = True
    name: str = ""
    # Left out of the text: tests seed their numbers by it, and a function's text has an address.
    reference: Callable[..., Any] | None = field(default=None, repr=False)
    call: Callable[..., Any] | None = field(default=None, repr=False)
    rtol: float | None = None
    atol: float | None = None


@dataclass(frozen=True, slots=True)
class ErrorSample:
    """A call that must raise `error` with a message that matches the expression `match`.

    `call` is as in `Sample`.
    """

    args: tuple[Any, ...]
    error: type[Exception]
    match: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] | None = field(default=None, repr=False)


def unary(
    low: float = -2.0, high: float = 2.0, *, dtype: DType = _dtypes.float32, **kwargs: Any
) -> Callable[[], Iterable[Sample]]:
    """Return samples of a one-tensor op: several ranks and layouts, a zero-dim and an empty one."""

    def samples() -> Iterable[Sample]:
        for shape in ((7,), (3, 5), (2, 3, 4), ()):
            yield Sample((T(shape, dtype, low, high),), dict(kwargs))
        for layout in LAYOUTS[1:]:
            yield Sample((T((4, 3), dtype, low, high, layout),), dict(kwargs), name=layout)
        yield Sample((T((0, 3), dtype, low, high),), dict(kwargs), grad=False, name="empty")

    return samples


def binary(
    low: float = -2.0, high: float = 2.0, *, right: tuple[float, float] | None = None,
    dtype: DType = _dtypes.float32, number: float | None = 1.5, **kwargs: Any,
) -> Callable[[], Iterable[Sample]]:  # fmt: skip
    """Return samples of a two-tensor op: broadcasting, layouts, zero-dim operands and numbers."""
    right_low, right_high = right or (low, high)

    def samples() -> Iterable[Sample]:
        shapes = (((5,), (5,)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((2, 3), ()), ((), (2,)))
        for first, second in shapes:
            pair = T(first, dtype, low, high), T(second, dtype, right_low, right_high)
            yield Sample(pair, dict(kwargs))
        for one, two in (("transposed", "contiguous"), ("strided", "expanded")):
            pair = T((4, 3), dtype, low, high, one), T((4, 3), dtype, right_low, right_high, two)
            yield Sample(pair, dict(kwargs), name=f"{one}-{two}")
        if number is not None:
            yield Sample((T((3,), dtype, low, high), number), dict(kwargs), name="number")
        empty = T((0,), dtype, low, high), T((1,), dtype, right_low, right_high)
        yield Sample(empty, dict(kwargs), grad=False, name="empty")

    return samples


def front_of(op: OpDef, sample: Sample) -> Callable[..., Any]:
    """Return what calls an op: the sample's own way, its front function, or the record itself."""
    front = sample.call or getattr(ops, op.name, None) or getattr(ops, op.name + "_", None)
    return front or (lambda *operands, **params: call(op, operands, params))


def generator_of(op: OpDef, sample: Sample) -> np.random.Generator:
    """Return the generator of a sample's numbers: the same in every process."""
    text = re.sub(r" at 0x[0-9a-f]+", "", f"{op.name}{sample!r}")
    return np.random.default_rng(zlib.crc32(text.encode()))


# ---------------------------------------------------------------------------------------------
# Making the tensors


def realize(
    value: Any, rng: np.random.Generator, dtype: DType | None = None, requires_grad: bool = False
) -> Any:
    """Replace each `T` inside `value` (sequences and dictionaries included) by a tensor.

    `dtype` replaces floating dtypes; with `requires_grad` the differentiable tensors become leaves.
    """
    if isinstance(value, T):
        return make(value, rng, dtype, requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(realize(item, rng, dtype, requires_grad) for item in value)
    if isinstance(value, dict):
        return {key: realize(item, rng, dtype, requires_grad) for key, item in value.items()}
    return value


def make(
    spec: T, rng: np.random.Generator, dtype: DType | None = None, requires_grad: bool = False
) -> TensorImpl:
    """Make the tensor that `spec` describes."""
    kind = spec.dtype
    if kind.is_floating_point and dtype is not None:
        kind = dtype
    values = _values(spec, rng, kind)
    # Differences perturb one element at a time, so a leaf must not repeat its elements.
    repeats = requires_grad and spec.layout == "expanded"
    tensor = _laid_out(values, kind, "contiguous" if repeats else spec.layout)
    if requires_grad and spec.grad and kind.is_floating_point:
        tensor.autograd = AutogradMeta(True)
    return tensor


def _values(spec: T, rng: np.random.Generator, dtype: DType) -> np.ndarray[Any, Any]:
    if spec.values is not None:
        return np.asarray(spec.values).astype(dtype.np)
    count = int(np.prod(spec.shape, dtype=np.int64))
    if dtype.kind == "b":
        return rng.integers(0, 2, spec.shape).astype(bool)
    if dtype.kind in "iu":
        low = max(spec.low, 0) if dtype.kind == "u" else spec.low
        return rng.integers(int(low), int(spec.high) + 1, spec.shape).astype(dtype.np)
    spread = np.linspace(spec.low, spec.high, count + 2)[1:-1]
    # A tenth of a step of noise: evenly spaced values sum to suspiciously round numbers.
    step = (spec.high - spec.low) / (count + 1)
    noisy = spread + 0.1 * step * rng.uniform(-1, 1, count)
    return rng.permutation(noisy).reshape(spec.shape).astype(dtype.np)


def _laid_out(values: np.ndarray[Any, Any], dtype: DType, layout: str) -> TensorImpl:
    shape = values.shape
    if layout == "transposed":
        strides = tuple(contiguous_strides(shape[::-1]))[::-1]
        tensor = empty_impl(meta_of(shape, dtype, strides=strides))
    elif layout == "strided" and values.size:
        wide = (*shape[:-1], 2 * shape[-1]) if shape else shape
        strides = tuple(s * (2 if i == len(shape) - 1 else 1) for i, s in
                        enumerate(contiguous_strides(wide)))  # fmt: skip
        whole = empty_impl(meta_of((int(np.prod(wide)) + 3,), dtype))
        tensor = wrap(whole.storage, meta_of(shape, dtype, strides=strides), 3 * dtype.itemsize)
    elif layout == "expanded" and shape and values.size:
        row = empty_impl(meta_of(shape[1:], dtype))
        row.array()[...] = values[0]
        strides = (0, *contiguous_strides(shape[1:]))
        return wrap(row.storage, meta_of(shape, dtype, strides=strides))
    else:
        tensor = empty_impl(meta_of(shape, dtype))
    if values.size:
        tensor.array()[...] = values
    return tensor
