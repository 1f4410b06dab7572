"""Samples and NumPy references of reductions, softmax, and products of matrices.

State: none. Invariants: references compute in float64 and take what the front functions take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._ops.samples import LAYOUTS, ErrorSample, Sample, T

Samples = Callable[[], Iterable[Sample]]


def over_dims(
    low: float = -2.0, high: float = 2.0, *, many: bool = True, whole: bool = True,
    rtol: float | None = None, **kwargs: Any,
) -> Samples:  # fmt: skip
    """Return samples of a reduction: full, over one dimension, over several, in all layouts.

    `many` allows several dimensions, `whole` a call without `dim`.
    """

    def samples() -> Iterable[Sample]:
        if whole:
            yield Sample((T((7,), low=low, high=high),), dict(kwargs), rtol=rtol)
            yield Sample((T((), low=low, high=high),), dict(kwargs), rtol=rtol)
        one = {"dim": 1, **kwargs}
        yield Sample((T((3, 5), low=low, high=high),), one, rtol=rtol)
        yield Sample((T((2, 3, 4), low=low, high=high),), {**one, "keepdim": True}, rtol=rtol)
        yield Sample((T((2, 70, 3), low=low, high=high),), one, rtol=rtol)
        for layout in LAYOUTS[1:]:
            tensor = T((4, 3, 2), low=low, high=high, layout=layout)
            dim: Any = (0, 2) if many else -1
            yield Sample((tensor,), {"dim": dim, **kwargs}, name=layout, rtol=rtol)

    return samples


def wrong_dim(**kwargs: Any) -> Callable[[], list[ErrorSample]]:
    """Return the error samples of an op over dimensions."""
    return lambda: [
        ErrorSample((T((2, 3)),), IndexError, "Dimension out of range", {"dim": 2, **kwargs})
    ]


def reduction(function: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """Return the reference of a reduction that NumPy has as ``function(x, axis, keepdims=)``."""

    def reference(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        axis = tuple(dim) if isinstance(dim, list) else dim
        return function(x, axis=axis, keepdims=keepdim, **fixed)

    return reference


def _log_sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


def _norm(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False) -> Any:
    size = np.abs(x)
    if np.isinf(ord):
        return (np.max if ord > 0 else np.min)(size, axis=dim, keepdims=keepdim)
    return np.sum(size**ord, axis=dim, keepdims=keepdim) ** (1 / ord)


def _norms() -> Iterable[Sample]:
    for ord in (1, 2, 3, float("inf"), float("-inf")):
        yield Sample((T((3, 4)), ord), {"dim": 1})
    yield Sample((T((2, 3, 4), layout="transposed"), 2), {"dim": (0, 2), "keepdim": True})
    yield Sample((T((5,)),))


# Fields of records: ``OpDef(..., **SUM)``.
SUM: dict[str, Any] = {
    "samples": over_dims(), "error_samples": wrong_dim(), "reference": reduction(np.sum),
}  # fmt: skip
MEAN: dict[str, Any] = {
    "samples": over_dims(),
    "error_samples": lambda: [
        *wrong_dim()(),
        ErrorSample((T((3,), _dtypes.int64),), RuntimeError, "could not infer output dtype"),
    ],
    "reference": reduction(np.mean),
}
NANSUM: dict[str, Any] = {
    "samples": over_dims(), "error_samples": wrong_dim(), "reference": reduction(np.nansum),
}  # fmt: skip
PROD: dict[str, Any] = {
    "samples": over_dims(0.5, 1.5, many=False), "error_samples": wrong_dim(),
    "reference": reduction(np.prod),
}  # fmt: skip
ANY: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((4, 3), _dtypes.bool_),), {"dim": 0}), Sample((T((5,), low=0, high=2),)),
        Sample((T((2, 3, 4), _dtypes.bool_, layout="transposed"),), {"dim": (0, 1)}),
        Sample((T((3, 4), _dtypes.int64, 0, 1),), {"dim": 1, "keepdim": True}),
    ],
    "error_samples": wrong_dim(),
    "reference": reduction(np.any),
}  # fmt: skip
ALL: dict[str, Any] = {**ANY, "reference": reduction(np.all)}
COUNT_NONZERO: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((4, 3), _dtypes.int64, 0, 2),), {"dim": 0}),
        Sample((T((2, 3), _dtypes.bool_),)),
    ],
    "error_samples": wrong_dim(),
    "reference": lambda x, dim=None: np.count_nonzero(x, axis=dim),
}
AMAX: dict[str, Any] = {
    "samples": over_dims(), "error_samples": wrong_dim(), "reference": reduction(np.max),
}  # fmt: skip
AMIN: dict[str, Any] = {**AMAX, "reference": reduction(np.min)}
_EMPTY = ErrorSample((T((0,)),), RuntimeError, "Expected reduction dim to be specified")
MAX: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((7,)),)), Sample((T((3, 4), layout="transposed"),)), Sample((T(()),)),
        Sample((T((3, 4), _dtypes.int64),), grad=False),
    ],
    "error_samples": lambda: [_EMPTY],
    "reference": np.max,
}  # fmt: skip
MIN: dict[str, Any] = {**MAX, "reference": np.min}
ARGMAX: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((7,)),)), Sample((T((3, 5)), 1)), Sample((T((4, 20, 3)), 1, True)),
        Sample((T((3, 4), layout="transposed"), 0)), Sample((T((3, 4), layout="strided"),)),
        Sample((T((2, 3), _dtypes.int64), -1)),
    ],
    "error_samples": wrong_dim(),
    "reference": lambda x, dim=None, keepdim=False: np.argmax(x, dim, keepdims=keepdim),
}  # fmt: skip
ARGMIN: dict[str, Any] = {
    **ARGMAX, "reference": lambda x, dim=None, keepdim=False: np.argmin(x, dim, keepdims=keepdim),
}  # fmt: skip
_NOT_FLOAT = ErrorSample((T((3,), _dtypes.int64),), RuntimeError, "floating point")
VAR: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((7,)),)), Sample((T((3, 5)),), {"dim": 1}),
        Sample((T((2, 3, 4), layout="transposed"),), {"dim": (0, 2), "keepdim": True}),
        Sample((T((40, 6)),), {"dim": 0}),
    ],
    "error_samples": lambda: [_NOT_FLOAT, *wrong_dim()()],
    "reference": reduction(np.var, ddof=1),
}  # fmt: skip
STD: dict[str, Any] = {**VAR, "reference": reduction(np.std, ddof=1)}


def _var_mean(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return [reduction(np.var, ddof=1)(x, dim, keepdim), np.mean(x, dim, keepdims=keepdim)]


VAR_MEAN: dict[str, Any] = {**VAR, "reference": _var_mean}
VECTOR_NORM: dict[str, Any] = {
    "samples": _norms, "error_samples": lambda: [_NOT_FLOAT], "reference": _norm,
}  # fmt: skip
LOGSUMEXP: dict[str, Any] = {
    "samples": over_dims(whole=False), "error_samples": wrong_dim(),
    "reference": reduction(_log_sum),
}  # fmt: skip


# ---------------------------------------------------------------------------------------------
# softmax


def _softmax(x: Any, dim: int) -> Any:
    powers = np.exp(x - np.max(x, axis=dim, keepdims=True))
    return powers / np.sum(powers, axis=dim, keepdims=True)


def _softmaxes() -> Iterable[Sample]:
    yield Sample((T((5,)), 0))
    yield Sample((T((3, 40)), -1))
    yield Sample((T((3, 4, 5)), 1))
    yield Sample((T((4, 3), layout="transposed"), 1))
    yield Sample((T((4, 3), layout="strided"), 0))


_INTEGER = ErrorSample((T((3,), _dtypes.int64), 0), NotImplementedError, "not implemented for")
SOFTMAX: dict[str, Any] = {
    "samples": _softmaxes,
    "error_samples": lambda: [
        _INTEGER, ErrorSample((T((2, 3)), 2), IndexError, "Dimension out of range"),
    ],
    "reference": _softmax,
}  # fmt: skip
LOG_SOFTMAX: dict[str, Any] = {**SOFTMAX, "reference": lambda x, dim: np.log(_softmax(x, dim))}


# ---------------------------------------------------------------------------------------------
# Products


def _pairs(*shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Samples:
    def samples() -> Iterable[Sample]:
        for first, second in shapes:
            yield Sample((T(first), T(second)))
            if len(first) > 1 and len(second) > 1:
                turned = T(first, layout="transposed"), T(second, layout="strided")
                yield Sample(turned, name="transposed-strided")

    return samples


def _clash(*args: Any, match: str) -> Callable[[], list[ErrorSample]]:
    return lambda: [ErrorSample(args, RuntimeError, match)]


MM: dict[str, Any] = {
    "samples": _pairs(((3, 4), (4, 5)), ((1, 2), (2, 1)), ((2, 0), (0, 3))),
    "error_samples": _clash(
        T((2, 3)), T((4, 5)), match=r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 4x5\)"
    ),
    "reference": np.matmul,
}
BMM: dict[str, Any] = {
    "samples": _pairs(((2, 3, 4), (2, 4, 5))),
    "error_samples": _clash(T((2, 3, 4)), T((2, 5, 4)), match="Expected size for first two"),
    "reference": np.matmul,
}
MV: dict[str, Any] = {
    "samples": _pairs(((3, 4), (4,))),
    "error_samples": _clash(T((2, 3)), T((4,)), match="size mismatch"),
    "reference": np.matmul,
}
DOT: dict[str, Any] = {
    "samples": _pairs(((5,), (5,))),
    "error_samples": _clash(T((2,)), T((3,)), match="inconsistent tensor size"),
    "reference": np.dot,
}
VDOT: dict[str, Any] = {**DOT, "reference": np.vdot}


def _addmm(base: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Any:
    return beta * base + alpha * (a @ b)


ADDMM: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((5,)), T((3, 4)), T((4, 5)))),
        Sample((T((3, 5)), T((3, 4)), T((4, 5))), {"beta": 0.5, "alpha": 2.0}),
    ],
    "error_samples": _clash(T((3,)), T((2, 3)), T((4, 5)), match="cannot be multiplied"),
    "reference": _addmm,
}
BADDBMM: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((5,)), T((2, 3, 4)), T((2, 4, 5)))),
        Sample((T((2, 3, 5)), T((2, 3, 4)), T((2, 4, 5))), {"beta": 0.5, "alpha": 2.0}),
    ],
    "error_samples": _clash(T((3,)), T((2, 3, 4)), T((2, 5, 4)), match="Expected size"),
    "reference": _addmm,
}


def _linear(x: Any, weight: Any, bias: Any = 0.0) -> Any:
    return x @ weight.T + bias


LINEAR: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((3, 4)), T((5, 4)), T((5,)))), Sample((T((2, 3, 4)), T((5, 4)))),
        Sample((T((4,)), T((5, 4)), T((5,)))),
        Sample((T((3, 4), layout="transposed"), T((2, 4), layout="strided"), T((2,)))),
    ],
    "error_samples": _clash(T((2, 3)), T((5, 4)), match=r"cannot be multiplied \(2x3 and 4x5\)"),
    "reference": _linear,
}  # fmt: skip
