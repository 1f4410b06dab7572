"""Views of the same bytes as another dtype: `view(dtype)`, real and complex.

Invariants
----------
* Only the last dimension changes its size, in the ratio of the item sizes.
* `view_as_real` and `view_as_complex` are each other's derivative; the others have none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta, alias, meta_of
from refruntime._ops import samples_complex
from refruntime._ops import samples_inner as inner
from refruntime._ops.opdef import (
    NO_PARAMS,
    Inplace,
    OpDef,
    front,
    ops,
    register,
    require_tensor,
)
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime.errors import DTypeError, ShapeError
from refruntime.kernels import complexmath

Rule = tuple[tuple[int, ...], tuple[int, ...], DType]


def _run_retyped(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> TensorImpl:
    source: TensorImpl = inputs[0]
    assert op.infer is not None
    return alias(source, op.infer(source.meta, **params), source.byte_offset)


def _refused(what: str, meta: TensorMeta, dtype: DType) -> ShapeError:
    return ShapeError(
        "view", what=f"{what} to view {meta.dtype} as {dtype}",
        expected="a last dimension that can be regrouped",
        got=f"shape {tuple(meta.shape)}, strides {meta.strides}", remedy="call .contiguous() first",
    )  # fmt: skip


def _dtype_rule(meta: TensorMeta, dtype: DType) -> Rule:
    old, new = meta.dtype.itemsize, dtype.itemsize
    shape, strides = tuple(meta.shape), meta.strides
    if old == new:
        return shape, strides, dtype
    if not shape:
        raise _refused("self.dim() cannot be 0", meta, dtype)
    if strides[-1] != 1:
        raise _refused("self.stride(-1) must be 1", meta, dtype)
    if old > new:
        ratio = old // new
        return (*shape[:-1], shape[-1] * ratio), (*[s * ratio for s in strides[:-1]], 1), dtype
    ratio = new // old
    if any(number % ratio for number in (shape[-1], *strides[:-1])):
        raise _refused(f"self.size(-1) and strides must be divisible by {ratio}", meta, dtype)
    return (*shape[:-1], shape[-1] // ratio), (*[s // ratio for s in strides[:-1]], 1), dtype


def _numpy_view(x: Any, dtype: Any) -> Any:
    # The op-matrix widens floats to float64 for the reference; the bytes are those of float32.
    return (x.astype(np.float32) if x.dtype == np.float64 else x).view(dtype)


def _view_dtype_infer(input: TensorMeta, *, dtype: DType) -> TensorMeta:
    shape, strides, kind = _dtype_rule(input, dtype)
    return meta_of(shape, kind, input.device, strides)


VIEW_DTYPE = register(
    OpDef(
        "view_dtype",
        ("input",),
        batch="leading",
        infer=_view_dtype_infer,
        run=_run_retyped,
        samples=lambda: [
            Sample((T((2, 3)), _dtypes.int32), grad=False),
            Sample((T((2, 3), _dtypes.int16), _dtypes.uint8), grad=False),
            Sample((T((2, 4), _dtypes.int16), _dtypes.int64), grad=False),
        ],
        error_samples=lambda: [
            ErrorSample((T((2, 3), _dtypes.int16), _dtypes.int32), RuntimeError, "divisible by 2"),
            ErrorSample((T((2, 4), layout="transposed"), _dtypes.int8), RuntimeError, "must be 1"),
            ErrorSample((T(()), _dtypes.int8), RuntimeError, "cannot be 0"),
        ],
        reference=_numpy_view,
    )
)


@front(VIEW_DTYPE, method=False)
def view_dtype(input: Any, dtype: DType) -> Any:
    """Show the bytes as another dtype."""
    require_tensor("view", input)
    itemsize = dtype.itemsize
    if input.byte_offset % itemsize:
        raise _refused(f"self.storage_offset() must be divisible by {itemsize}", input.meta, dtype)
    return call(VIEW_DTYPE, (input,), {"dtype": dtype})


def _real_infer(input: TensorMeta) -> TensorMeta:
    if not input.dtype.is_complex:
        raise DTypeError(
            "view_as_real", what="view_as_real is only supported for complex tensors",
            expected="a complex dtype", got=str(input.dtype), remedy="the tensor is real already",
        )  # fmt: skip
    strides = (*[2 * stride for stride in input.strides], 1)
    return meta_of((*input.shape, 2), input.dtype.to_real(), input.device, strides)


def _complex_infer(input: TensorMeta) -> TensorMeta:
    if input.dtype not in (_dtypes.float32, _dtypes.float64):
        raise DTypeError(
            "view_as_complex", what="view_as_complex is only supported for float and double",
            expected="float32 or float64", got=str(input.dtype), remedy="convert the tensor",
        )  # fmt: skip
    even = all(stride % 2 == 0 for stride in input.strides[:-1])
    if not input.ndim or input.shape[-1] != 2 or input.strides[-1] != 1 or not even:
        raise ShapeError(
            "view_as_complex", what="Tensor must have a last dimension of size 2 and stride 1, and "
            "even strides elsewhere", expected="pairs side by side in memory",
            got=f"shape {tuple(input.shape)}, strides {input.strides}",
            remedy="call .contiguous() first",
        )  # fmt: skip
    strides = tuple(stride // 2 for stride in input.strides[:-1])
    return meta_of(tuple(input.shape[:-1]), input.dtype.to_complex(), input.device, strides)


VIEW_AS_REAL = register(
    OpDef(
        "view_as_real",
        ("input",),
        jvp="linear",
        batch="leading",
        **inner.VIEW_AS_REAL,
        infer=_real_infer,
        run=_run_retyped,
        vjp=lambda g, n: ops.view_as_complex(ops.contiguous(g)),
        error_samples=lambda: [ErrorSample((T((3, 2)),), RuntimeError, "complex tensors")],
    )
)
VIEW_AS_COMPLEX = register(
    OpDef(
        "view_as_complex",
        ("input",),
        jvp="linear",
        batch="leading",
        infer=_complex_infer,
        run=_run_retyped,
        vjp=lambda g, n: ops.view_as_real(g),
        samples=lambda: [Sample((T((3, 2)),), grad=False)],
        error_samples=lambda: [ErrorSample((T((3,)),), RuntimeError, "last dimension of size 2")],
        reference=lambda x: x[..., 0] + 1j * x[..., 1],
    )
)


@front(VIEW_AS_REAL, method=False)
def view_as_real(input: Any) -> Any:
    """Show complex numbers as pairs of real ones, in a new last dimension."""
    require_tensor("view_as_real", input)
    return call(VIEW_AS_REAL, (input,))


@front(VIEW_AS_COMPLEX, method=False)
def view_as_complex(input: Any) -> Any:
    """Show pairs of real numbers, in the last dimension, as complex ones."""
    require_tensor("view_as_complex", input)
    return call(VIEW_AS_COMPLEX, (input,))


@front(VIEW_AS_REAL, method=False)
def real(input: Any) -> Any:
    """Show the real part; a real tensor is its own."""
    require_tensor("real", input)
    return ops.select(view_as_real(input), -1, 0) if input.meta.dtype.is_complex else input


@front(VIEW_AS_REAL, method=False)
def imag(input: Any) -> Any:
    """Show the imaginary part of a complex tensor."""
    require_tensor("imag", input)
    if not input.meta.dtype.is_complex:
        raise DTypeError(
            "imag", what="imag is not implemented for tensors with non-complex dtypes.",
            expected="a complex dtype", got=str(input.meta.dtype), remedy="a real tensor has none",
        )  # fmt: skip
    return ops.select(view_as_real(input), -1, 1)


# ---------------------------------------------------------------------------------------------
# Complex numbers of their parts


@front(method=False, name="complex")
def complex_(real: Any, imag: Any) -> Any:
    """Return complex numbers with the given parts."""
    require_tensor("complex", real, "real")
    require_tensor("complex", imag, "imag")
    return view_as_complex(ops.stack(ops.broadcast_tensors(real, imag), -1))


@front(method=False)
def polar(abs: Any, angle: Any) -> Any:
    """Return complex numbers with the given absolute values and angles."""
    require_tensor("polar", abs, "abs")
    return complex_(ops.mul(abs, ops.cos(angle)), ops.mul(abs, ops.sin(angle)))


CONJ = register(
    OpDef(
        "conj",
        ("input",),
        jvp="linear",
        batch="leading",
        infer=lambda input: meta_of(tuple(input.shape), input.dtype, input.device),
        cpu=complexmath.conj,
        cuda=complexmath.conj,
        vjp=lambda g, n: ops.conj(g),
        **samples_complex.CONJ,
    )
)


@front(CONJ, aliases=("conj_physical",))
def conj(input: Any) -> Any:
    """Return the complex conjugate; a real tensor is its own."""
    require_tensor("conj", input)
    return call(CONJ, (input,)) if input.meta.dtype.is_complex else input


@front(CONJ, name="conj_physical_")
def _conj_physical_(input: Any) -> Any:
    """Conjugate complex numbers in place."""
    require_tensor("conj_physical_", input)
    return call(CONJ, (input,), NO_PARAMS, Inplace(input)) if input.meta.dtype.is_complex else input


@front(aliases=("resolve_neg",))
def resolve_conj(input: Any) -> Any:
    """Return the tensor itself: conjugates and negatives are computed at once."""
    return input


@front(aliases=("is_neg",))
def is_conj(input: Any) -> bool:
    """Return False: conjugates and negatives are computed at once."""
    return False


@front()
def angle(input: Any, *, out: Any = None) -> Any:
    """Return the angle of each number in the complex plane, in radians."""
    require_tensor("angle", input)
    if input.meta.dtype.is_complex:
        return ops.atan2(imag(input), real(input), out=out)
    floats = (
        input if input.meta.dtype.is_floating_point else ops.to(input, _dtypes.get_default_dtype())
    )
    turned = ops.where(ops.lt(floats, 0), math.pi, ops.mul(floats, 0))
    return turned if out is None else ops.copy_(out, turned)
