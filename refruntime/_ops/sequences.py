"""New tensors whose values follow from their places: ranges, the identity, triangle coordinates.

Invariants
----------
* Each element is computed from its place in float64 (or int64) and rounded once, so errors do not
  add up along a range.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta
from refruntime._ops.arguments import int_of, number_of
from refruntime._ops.creation import dtype_like, finish, new_meta
from refruntime._ops.opdef import OpDef, front, register
from refruntime._ops.samples import ErrorSample, Sample
from refruntime.errors import ShapeError
from refruntime.kernels import sequence_cuda

Array = Any

# ---------------------------------------------------------------------------------------------
# Records


def _meta_param(*, meta: TensorMeta, **params: Any) -> TensorMeta:
    return meta


def _writes(values: Callable[..., Array]) -> Callable[..., None]:
    """Make a CPU kernel of a function that computes all values."""

    def kernel(out: TensorImpl, *, meta: TensorMeta, **params: Any) -> None:
        computed = values(tuple(meta.shape), **params)
        out.array()[...] = computed.astype(meta.dtype.np, copy=False)

    return kernel


def _range_values(shape: tuple[int, ...], start: Any, step: Any) -> Array:
    kind = np.int64 if isinstance(start, int) and isinstance(step, int) else np.float64
    return np.arange(shape[0], dtype=kind) * step + start


def _sequence_op(
    name: str, values: Callable[..., Array], cuda: Callable[..., None] | None = None, **fields: Any
) -> OpDef:
    return register(OpDef(name, (), infer=_meta_param, cpu=_writes(values), cuda=cuda, **fields))


ARANGE = _sequence_op(
    "arange",
    _range_values,
    sequence_cuda.arange_cuda,
    samples=lambda: [
        Sample((5,), grad=False),
        Sample((2, 11, 3), grad=False),
        Sample((1.0, 2.1, 0.25), grad=False),
        Sample((5, -1, -2), grad=False),
        Sample((0,), grad=False, name="empty"),
    ],
    error_samples=lambda: [
        ErrorSample((5, 1), RuntimeError, "inconsistent with step sign"),
        ErrorSample((1, 5, 0), RuntimeError, "step must be nonzero"),
    ],
    reference=np.arange,
)
LINSPACE = _sequence_op(
    "linspace",
    lambda shape, start, end: np.linspace(start, end, shape[0]),
    sequence_cuda.linspace_cuda,
    samples=lambda: [Sample((0, 1, 5), grad=False), Sample((-3.0, 7.0, 1), grad=False)],
    error_samples=lambda: [ErrorSample((0, 1, -1), RuntimeError, "must be non-negative")],
    reference=np.linspace,
)
LOGSPACE = _sequence_op(
    "logspace",
    lambda shape, start, end, base: np.power(base, np.linspace(start, end, shape[0])),
    sequence_cuda.logspace_cuda,
    samples=lambda: [Sample((0, 2, 3), grad=False), Sample((-1.0, 1.0, 4, 2.0), grad=False)],
    reference=lambda start, end, steps, base=10.0: np.logspace(start, end, steps, base=base),
)
EYE = _sequence_op(
    "eye",
    lambda shape: np.eye(*shape),
    sequence_cuda.eye_cuda,
    samples=lambda: [Sample((3,), grad=False), Sample((2, 4), grad=False)],
    reference=np.eye,
)


def _triangle_op(name: str) -> OpDef:
    find = np.tril_indices if name == "tril_indices" else np.triu_indices
    return _sequence_op(
        name,
        lambda shape, row, col, offset: np.stack(find(row, offset, col)),
        samples=lambda: [Sample((3, 3), grad=False), Sample((3, 4, 1), grad=False)],
        reference=lambda row, col, offset=0: np.stack(find(row, offset, col)),
    )


# ---------------------------------------------------------------------------------------------
# Fronts


def _made(op: OpDef, meta: TensorMeta, params: dict[str, Any], out: Any, grad: bool) -> Any:
    return finish(call(op, (), {"meta": meta, **params}, out), grad)


def arange(
    start: Any, end: Any = None, step: Any = 1, *, out: Any = None, dtype: DType | None = None,
    layout: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return ``start, start + step, ...`` up to `end`, which it excludes."""
    first, last, gap = (
        number_of(v) for v in ((0, start, step) if end is None else (start, end, step))
    )
    integral = all(isinstance(value, int) for value in (first, last, gap))
    if gap == 0 or (last - first) * gap < 0 or not math.isfinite(last - first):
        raise ShapeError(
            "arange", what="step must be nonzero" if gap == 0 else
            "upper bound and lower bound inconsistent with step sign",
            expected="a step that leads from start to end", got=f"{first}, {last}, {gap}",
            remedy="change the sign of the step",
        )  # fmt: skip
    count = -((first - last) // gap) if integral else math.ceil((last - first) / gap)
    kind = dtype_like(out, dtype)
    if kind is None:
        kind = _dtypes.int64 if integral else _dtypes.get_default_dtype()

    meta = new_meta("arange", (count,), kind, device)
    return _made(ARANGE, meta, {"start": first, "step": gap}, out, requires_grad)


front(ARANGE, method=False)(arange)


def range_(start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
    """Return ``start, start + step, ...`` up to `end`, which it includes."""
    options.setdefault("dtype", _dtypes.get_default_dtype())
    return arange(start, number_of(end) + number_of(step) / 2, step, **options)


front(ARANGE, method=False, name="range")(range_)


@front(LINSPACE, method=False)
def linspace(
    start: Any, end: Any, steps: int, *, out: Any = None, dtype: DType | None = None,
    layout: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return `steps` evenly spaced numbers from `start` to `end`, both included."""
    meta = new_meta("linspace", (_steps("linspace", steps),), dtype_like(out, dtype), device)
    params = {"start": number_of(start), "end": number_of(end)}
    return _made(LINSPACE, meta, params, out, requires_grad)


def _steps(op: str, steps: Any) -> int:
    count = int_of(op, "steps", steps)
    if count < 0:
        raise ShapeError(
            op, what="number of steps must be non-negative", expected="at least 0", got=count,
            remedy="check steps",
        )  # fmt: skip
    return count


@front(LOGSPACE, method=False)
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, out: Any = None,
    dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return `steps` numbers from ``base ** start`` to ``base ** end``, even in the exponent."""
    meta = new_meta("logspace", (_steps("logspace", steps),), dtype_like(out, dtype), device)
    params = {"start": number_of(start), "end": number_of(end), "base": float(base)}
    return _made(LOGSPACE, meta, params, out, requires_grad)


@front(EYE, method=False)
def eye(
    n: int, m: int | None = None, *, out: Any = None, dtype: DType | None = None,
    layout: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return the identity matrix, or one that is not square."""
    shape = (operator.index(n), operator.index(n if m is None else m))
    return _made(
        EYE, new_meta("eye", shape, dtype_like(out, dtype), device), {}, out, requires_grad
    )


def _triangle_indices(op: OpDef) -> None:
    lower = op.name == "tril_indices"

    def indices(
        row: int, col: int, offset: int = 0, *, dtype: DType = _dtypes.int64, device: Any = None,
        layout: Any = None,
    ) -> Any:  # fmt: skip
        widths = (min(max(r + offset + 1, 0), col) for r in range(row))
        count = (
            sum(widths) if lower else sum(col - min(max(r + offset, 0), col) for r in range(row))
        )
        meta = new_meta(op.name, (2, count), dtype, device)
        return _made(op, meta, {"row": row, "col": col, "offset": offset}, None, False)

    indices.__name__ = indices.__qualname__ = op.name
    indices.__doc__ = f"Return the coordinates of a matrix's {op.name[:4]} triangle, as two rows."
    front(op, method=False)(indices)


for _name in ("tril_indices", "triu_indices"):
    _triangle_indices(_triangle_op(_name))
