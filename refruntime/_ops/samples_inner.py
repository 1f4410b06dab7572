"""Samples and NumPy references of records that are called through another op's function.

State: none. Invariants: each case names the call that ends in its record; references compute in
float64 and take what that call takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._ops.opdef import ops
from refruntime._ops.samples import LAYOUTS, ErrorSample, Sample, T, binary, unary

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]


def _through(
    name: str, given: Callable[[], Iterable[Sample]], *, flat: bool = False, **kwargs: Any
) -> Callable[[], Iterable[Sample]]:
    """Return samples that call ``ops.name`` with keyword arguments the reference does not see.

    `flat` marks a function of steps: its first derivative is zero and has none of its own.
    """

    def calling(*args: Any) -> Any:
        return getattr(ops, name)(*args, **kwargs)

    def samples() -> Iterable[Sample]:
        for sample in given():
            yield Sample(
                sample.args, grad=sample.grad, gradgrad=sample.gradgrad and not flat,
                name=sample.name, call=calling,
            )  # fmt: skip

    return samples


# ---------------------------------------------------------------------------------------------
# Pointwise

ADD_SCALED: dict[str, Any] = {
    "samples": _through("add", binary(), alpha=0.75), "reference": lambda x, y: x + 0.75 * y,
}  # fmt: skip
SUB_SCALED: dict[str, Any] = {
    "samples": _through("sub", binary(), alpha=0.75), "reference": lambda x, y: x - 0.75 * y,
}  # fmt: skip


def _quotients() -> Iterable[Sample]:
    for dtype in (_dtypes.int64, _dtypes.int8):
        pair = T((4,), dtype, values=[-7, 7, -7, 7]), T((4,), dtype, values=[2, 2, -2, -2])
        yield Sample(pair, grad=False)
    yield Sample((T((3, 4), low=-6, high=6), T((4,), low=1, high=3)))


TRUNC_DIVIDE: dict[str, Any] = {
    "samples": _through("div", _quotients, flat=True, rounding_mode="trunc"),
    "error_samples": lambda: [
        ErrorSample((T((2,)), T((2,)), "up"), ValueError, "rounding_mode", call=_rounded_quotient)
    ],
    "reference": lambda x, y: np.trunc(x / y),
}


def _rounded_quotient(input: Any, other: Any, mode: str) -> Any:
    return ops.div(input, other, rounding_mode=mode)


CUBE: dict[str, Any] = {
    "samples": lambda: [
        Sample((*sample.args, 3), grad=sample.grad, name=sample.name, call=lambda *a: ops.pow(*a))
        for sample in unary()()
    ],
    "reference": np.power,
}
ROUND_DECIMALS: dict[str, Any] = {
    "samples": _through("round", unary(-3.0, 3.0), decimals=1, flat=True),
    "reference": lambda x: np.round(x, 1),
}
ROUND_TENS: dict[str, Any] = {
    "samples": _through("round", unary(-99.0, 99.0), decimals=-1, flat=True),
    "reference": lambda x: np.round(x, -1),
}
LOGIT_CLAMPED: dict[str, Any] = {
    "samples": _through("logit", unary(0.0, 1.0), eps=0.2),
    "reference": lambda x: np.log(np.clip(x, 0.2, 0.8) / (1 - np.clip(x, 0.2, 0.8))),
}
GELU_TANH: dict[str, Any] = {
    "samples": _through("gelu", unary(-4.0, 4.0), approximate="tanh"),
    "reference": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}

# ---------------------------------------------------------------------------------------------
# Copies and writes


def _copies() -> Iterable[Sample]:
    for shape in ((5,), (2, 3, 4), (), (0, 3)):
        yield Sample((T(shape),), grad=0 not in shape, call=ops.clone)
    for layout in LAYOUTS[1:]:
        yield Sample((T((4, 3), layout=layout),), name=layout, call=ops.clone)
    for dtype in (_dtypes.int64, _dtypes.bool_):
        yield Sample((T((4, 3), dtype, layout="transposed"),), grad=False, call=ops.clone)


def _casts() -> Iterable[Sample]:
    pairs = (
        (_dtypes.float32, _dtypes.float64), (_dtypes.float32, _dtypes.int32),
        (_dtypes.int64, _dtypes.float32), (_dtypes.bool_, _dtypes.int8),
        (_dtypes.float32, _dtypes.bool_), (_dtypes.int64, _dtypes.uint8),
    )  # fmt: skip
    for source, target in pairs:
        for layout in ("contiguous", "transposed", "strided"):
            operand = T((3, 5), source, 0.0, 5.0, layout)
            yield Sample((operand, target), grad=False, name=layout, call=ops.to)
    # Derivative tests run in float64, from which complex numbers alone are a cast without loss.
    yield Sample((T((2, 3)),), name="complex", call=_real_of_complex, reference=lambda x: x)


def _real_of_complex(input: Any) -> Any:
    return ops.real(ops.to(input, _dtypes.complex128))


COPY: dict[str, Any] = {"samples": _copies, "reference": lambda x: x}
CAST: dict[str, Any] = {
    "samples": _casts,
    "error_samples": lambda: [ErrorSample((T((2,)), 1.5), TypeError, "a dtype", call=ops.to)],
    "reference": lambda x, dtype: x.astype(dtype),
}


def _assigned(input: Any, source: Any) -> Any:
    return ops.copy_(ops.clone(input), source)


def _assignments() -> Iterable[Sample]:
    for shape, source in (
        ((3, 4), (3, 4)),
        ((3, 4), (4,)),
        ((2, 3), ()),
        ((), ()),
        ((2, 3), (2, 1)),
    ):
        yield Sample((T(shape), T(source)), call=_assigned)
    turned = T((4, 3), layout="transposed"), T((4, 3), layout="strided")
    yield Sample(turned, name="transposed-strided", call=_assigned)
    mixed = T((3,), _dtypes.int64), T((3,), _dtypes.int32)
    yield Sample(mixed, grad=False, name="cast", call=_assigned)


ASSIGN: dict[str, Any] = {
    "samples": _assignments,
    "error_samples": lambda: [
        ErrorSample(
            (T((2, 3)), T((2,))), RuntimeError, "size of tensor|broadcast|does not", call=_assigned
        ),
        ErrorSample((T((2,)), T((2, 2))), RuntimeError, "does not fit", call=_assigned),
    ],
    "reference": lambda x, source: np.broadcast_to(source, x.shape),
}
FILL: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((2, 3)), 1.5)), Sample((T(()), -2)), Sample((T((4, 3), layout="transposed"), 0)),
        Sample((T((2, 3)), T(()))), Sample((T((3,), _dtypes.int64), 7), grad=False),
        Sample((T((3,), _dtypes.bool_), True), grad=False),
        Sample((T((0, 2)), 1.0), grad=False, name="empty"),
    ],
    "error_samples": lambda: [
        ErrorSample((T((2,)), T((2,))), RuntimeError, "only supports 0-dimension value"),
    ],
    "reference": np.full_like,
}  # fmt: skip


def _pairs_view(input: Any) -> Any:
    return ops.view_as_real(ops.view_as_complex(input))


VIEW_AS_REAL: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((3, 2)),), call=_pairs_view), Sample((T((2, 4, 2)),), call=_pairs_view),
    ],
    "reference": lambda x: x,
}  # fmt: skip

# ---------------------------------------------------------------------------------------------
# Extremes with places, the gradient of a convolution's weight


def _extremes(name: str) -> Callable[[], Iterable[Sample]]:
    def extreme(*args: Any) -> Any:
        return tuple(getattr(ops, name)(*args))

    def samples() -> Iterable[Sample]:
        for shape, *rest in (((5,), 0), ((3, 5), -1), ((2, 3, 4), 1, True), ((2, 40, 3), 1)):
            yield Sample((T(shape), *rest), call=extreme)
        for layout in LAYOUTS[1:]:
            operand = T((4, 3), layout=layout)
            # The rows of an expanded tensor are equal: no derivative along them.
            yield Sample((operand, 1), name=layout, call=extreme)
        yield Sample((T((3, 4), _dtypes.int64, -9, 9), 1), grad=False, call=extreme)
        yield Sample((T((0, 3)), 1), grad=False, name="empty", call=extreme)

    return samples


def _bad_extremes(name: str) -> Callable[[], list[ErrorSample]]:
    def extreme(*args: Any) -> Any:
        return getattr(ops, name)(*args)

    return lambda: [
        ErrorSample((T((2, 3)), 2), IndexError, "Dimension out of range", call=extreme),
        ErrorSample((T((2, 0)), 1), IndexError, "non-zero size", call=extreme),
    ]


def _placed(find: Any) -> Callable[..., Any]:
    def reference(x: Array, dim: int, keepdim: bool = False) -> list[Array]:
        places = np.expand_dims(find(x, dim), dim) if x.size else np.zeros((*x.shape[:dim], 1), int)
        values = np.take_along_axis(x, places, dim)
        return [part if keepdim else part.squeeze(dim) for part in (values, places)]

    return reference


MAX_AT: dict[str, Any] = {
    "samples": _extremes("max"), "error_samples": _bad_extremes("max"),
    "reference": _placed(np.argmax),
}  # fmt: skip
MIN_AT: dict[str, Any] = {
    "samples": _extremes("min"), "error_samples": _bad_extremes("min"),
    "reference": _placed(np.argmin),
}  # fmt: skip


def _weight_gradient(
    grad: Array, x: Array, *, stride: Ints, padding: Ints, dilation: Ints, groups: int, kernel: Ints
) -> Array:
    wide = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    rows, columns = grad.shape[1] // groups, x.shape[1] // groups
    spatial = "xyz"[: len(kernel)]
    result = np.zeros((groups, rows, columns, *kernel))
    g = grad.reshape(len(grad), groups, rows, *grad.shape[2:])
    for tap in np.ndindex(*kernel):
        spans = zip(tap, grad.shape[2:], stride, dilation, strict=True)
        place: Any = (..., *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, n, s, d in spans))
        met = wide[place]
        met = met.reshape(len(x), groups, columns, *met.shape[2:])
        result[(..., *tap)] = np.einsum(f"ngo{spatial},ngc{spatial}->goc", g, met)
    return result.reshape(grad.shape[1], columns, *kernel)


def _weight_gradients() -> Iterable[Sample]:
    line: dict[str, Any] = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
    yield Sample((T((2, 4, 5)), T((2, 3, 7))), {**line, "kernel": (3,)}, rtol=1e-4, atol=1e-5)
    plane = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    pair = T((2, 4, 3, 4)), T((2, 2, 5, 6), layout="transposed")
    yield Sample(pair, {**plane, "kernel": (3, 2)}, rtol=1e-4, atol=1e-5)


CONVOLUTION_WEIGHT: dict[str, Any] = {
    "samples": _weight_gradients, "reference": _weight_gradient,
}  # fmt: skip
