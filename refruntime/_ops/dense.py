"""Dense linear algebra: inverses, solutions, determinants, Cholesky, and norms of matrices.

Invariants
----------
* The last two dimensions are matrices; the others are a batch.
* Derivative rules are matrix products and solutions themselves, so they hold to any order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorMeta, meta_of
from refruntime._layout import broadcast_shapes, wrap_dim
from refruntime._ops import samples_dense as samples
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.reductions import torch_name
from refruntime._ops.results import named_result
from refruntime.errors import ArgumentValueError, KernelMissingError, ShapeError
from refruntime.kernels import dense as kernels
from refruntime.kernels.dense import dense_kernel


def check_matrix(op: str, meta: TensorMeta, square: bool = False) -> None:
    """Raise unless a meta is that of (square) floating-point matrices."""
    if meta.dtype not in (
        _dtypes.float32, _dtypes.float64, _dtypes.complex64, _dtypes.complex128,
    ):  # fmt: skip
        raise KernelMissingError(
            op, what=f"{op}: Expected a floating point or complex tensor as input. Got "
            f"{torch_name(meta.dtype)}", expected="float32, float64 or complex",
            got=str(meta.dtype), remedy="convert with .float() or .double()",
        )  # fmt: skip
    if meta.ndim < 2 or (square and meta.shape[-1] != meta.shape[-2]):
        what = f"{op}: A must be batches of {'square ' if square else ''}matrices"
        if square and meta.ndim >= 2:
            what += f", but they are {meta.shape[-2]} by {meta.shape[-1]} matrices"
        raise ShapeError(
            op, what=what, expected="[..., n, n]" if square else "[..., m, n]",
            got=str(tuple(meta.shape)), remedy="check the shape",
        )  # fmt: skip


def turned(x: Any) -> Any:
    """Return the conjugate transpose of matrices."""
    x = ops.transpose(x, -2, -1)
    return ops.conj(x) if x.meta.dtype.is_complex else x


def like(meta: TensorMeta, *shape: int, dtype: DType | None = None) -> TensorMeta:
    """Return the meta of a result with other shape or dtype on the same device."""
    return meta_of(shape, dtype or meta.dtype, meta.device)


def _square_op(
    name: str, op: str, compute: Any, vjp: Any, saves: tuple[str, ...], **fields: Any
) -> OpDef:
    def infer(input: TensorMeta, **params: Any) -> TensorMeta:
        check_matrix(op, input, square=True)
        return meta_of(tuple(input.shape), input.dtype, input.device)

    return register(
        OpDef(name, ("input",), batch="leading",
              infer=fields.pop("infer", infer), cpu=dense_kernel(op, compute),
              vjp=vjp, saves=saves, **fields)
    )  # fmt: skip


def _copied_out(result: Any, out: Any) -> Any:
    return result if out is None else ops.copy_(out, result)


# ---------------------------------------------------------------------------------------------
# Inverse, solution


def _inv_vjp(g: Any, n: Any) -> Any:
    inverse = turned(n.out)
    return ops.neg(ops.matmul(ops.matmul(inverse, g), inverse))


INV = _square_op("linalg_inv", "linalg.inv", np.linalg.inv, _inv_vjp, ("out",), **samples.INV)


@front(INV, method=False)
def linalg_inv(A: Any, *, out: Any = None) -> Any:
    """Return the inverse of square matrices."""
    require_tensor("linalg.inv", A)
    return call(INV, (A,), {}, out)


@front(INV, aliases=("inverse",), name="inverse")
def inverse(input: Any, *, out: Any = None) -> Any:
    """Return the inverse of square matrices."""
    return linalg_inv(input, out=out)


def _solve_infer(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    check_matrix("linalg.solve", a, square=True)
    if a.dtype is not b.dtype or b.shape[-2] != a.shape[-1]:
        raise ShapeError(
            "linalg.solve", what="linalg.solve: Incompatible shapes of A and B for the equation "
            "AX = B", expected=f"a right side of {a.shape[-1]} rows of {a.dtype}",
            got=f"{tuple(b.shape)} of {b.dtype}", remedy="check the right side",
        )  # fmt: skip
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2], op="linalg.solve")
    return like(a, *lead, *b.shape[-2:])


def _solve_vjp(g: Any, n: Any) -> tuple[Any, Any]:
    gb = call(SOLVE, (turned(n.A), g), {})
    return ops.neg(ops.matmul(gb, turned(n.out))) if n.needs[0] else None, gb


SOLVE = register(
    OpDef("linalg_solve", ("A", "B"), batch="broadcast", **samples.SOLVE, infer=_solve_infer,
          cpu=dense_kernel("linalg.solve", np.linalg.solve), vjp=_solve_vjp, saves=("A", "out"))
)  # fmt: skip


def is_vector(A: Any, B: Any) -> bool:
    """Whether `B` is a batch of vectors for the matrices `A`, as torch decides it."""
    return bool(
        B.meta.ndim == 1 or (A.meta.ndim - 1 == B.meta.ndim and B.meta.shape == A.meta.shape[:-1])
    )


@front(SOLVE, method=False)
def linalg_solve(A: Any, B: Any, *, left: bool = True, out: Any = None) -> Any:
    """Solve ``A X = B`` (or ``X A = B`` if not `left`)."""
    require_tensor("linalg.solve", A)
    require_tensor("linalg.solve", B, "B")
    if not left:
        flipped = linalg_solve(ops.transpose(A, -2, -1), ops.transpose(B, -2, -1))
        return _copied_out(ops.transpose(flipped, -2, -1), out)
    if is_vector(A, B):
        result = ops.squeeze(call(SOLVE, (A, ops.unsqueeze(B, -1)), {}), -1)
        return _copied_out(result, out)
    return call(SOLVE, (A, B), {}, out)


def _triangular_infer(a: TensorMeta, b: TensorMeta, *, upper: bool, unit: bool) -> TensorMeta:
    return _solve_infer(a, b)


def _triangular_vjp(g: Any, n: Any) -> tuple[Any, Any]:
    params = {"upper": not n.upper, "unit": n.unit}
    gb = call(TRIANGULAR, (turned(n.A), g), params)
    if not n.needs[0]:
        return None, gb
    ga = ops.neg(ops.matmul(gb, turned(n.out)))
    edge = 1 if n.unit else 0
    return (ops.triu(ga, edge) if n.upper else ops.tril(ga, -edge)), gb


TRIANGULAR = register(
    OpDef("linalg_solve_triangular", ("A", "B"), batch="broadcast",
          **samples.TRIANGULAR, infer=_triangular_infer,
          cpu=dense_kernel("linalg.solve_triangular", kernels.triangular_solve),
          vjp=_triangular_vjp, saves=("A", "out"))
)  # fmt: skip


@front(TRIANGULAR, method=False)
def linalg_solve_triangular(
    A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False, out: Any = None
) -> Any:
    """Solve ``A X = B`` (or ``X A = B`` if not `left`) with a triangle of `A`."""
    require_tensor("linalg.solve_triangular", A)
    if not left:
        flipped = linalg_solve_triangular(
            ops.transpose(A, -2, -1), ops.transpose(B, -2, -1), upper=not upper,
            unitriangular=unitriangular,
        )  # fmt: skip
        return _copied_out(ops.transpose(flipped, -2, -1), out)
    return call(TRIANGULAR, (A, B), {"upper": upper, "unit": unitriangular}, out)


# ---------------------------------------------------------------------------------------------
# Determinants


def _det_infer(input: TensorMeta) -> TensorMeta:
    check_matrix("linalg.det", input, square=True)
    return like(input, *input.shape[:-2])


def _det_vjp(g: Any, n: Any) -> Any:
    # A singular matrix has no inverse; a shift of the size of rounding gives the adjugate's limit.
    a, out = n.input, n.out
    singular = ops.eq(out, 0)
    if bool(ops.any(singular)):
        eye = ops.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        shift = ops.mul(ops.unsqueeze(ops.unsqueeze(singular, -1), -1), ops.mul(eye, 1e-7))
        a = ops.add(a, shift)
        out = linalg_det(a)
    inverted = turned(linalg_inv(a))
    factor = ops.unsqueeze(ops.unsqueeze(ops.mul(g, ops.conj(out)), -1), -1)
    return ops.mul(inverted, factor)


DET = _square_op(
    "linalg_det", "linalg.det", np.linalg.det, _det_vjp, ("input", "out"), infer=_det_infer,
    **samples.DET,
)  # fmt: skip


@front(DET, method=False)
def linalg_det(A: Any, *, out: Any = None) -> Any:
    """Return the determinants of square matrices."""
    require_tensor("linalg.det", A)
    return call(DET, (A,), {}, out)


@front(DET)
def det(input: Any) -> Any:
    """Return the determinants of square matrices."""
    return linalg_det(input)


def _slogdet_infer(input: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    check_matrix("linalg.slogdet", input, square=True)
    lead = input.shape[:-2]
    return like(input, *lead), like(input, *lead, dtype=input.dtype.to_real())


def _slogdet_vjp(g: Any, n: Any) -> Any:
    if g[1] is None:
        # The sign is constant where it is differentiable at all.
        return ops.zeros_like(n.input)
    factor = ops.unsqueeze(ops.unsqueeze(g[1], -1), -1)
    return ops.mul(turned(linalg_inv(n.input)), factor)


SLOGDET = _square_op(
    "linalg_slogdet", "linalg.slogdet", kernels.determinant_of_log, _slogdet_vjp, ("input",),
    infer=_slogdet_infer, **samples.SLOGDET,
)  # fmt: skip


@front(SLOGDET, method=False)
def linalg_slogdet(A: Any, *, out: Any = None) -> Any:
    """Return sign and logarithm of the absolute value of the determinants."""
    require_tensor("linalg.slogdet", A)
    return named_result("linalg_slogdet", "sign", "logabsdet")(call(SLOGDET, (A,), {}, out))


@front(SLOGDET)
def slogdet(input: Any) -> Any:
    """Return sign and logarithm of the absolute value of the determinants."""
    return named_result("slogdet", "sign", "logabsdet")(call(SLOGDET, (input,), {}))


@front()
def logdet(input: Any) -> Any:
    """Return the logarithms of determinants (NaN where negative)."""
    sign, log = linalg_slogdet(input)
    return ops.where(ops.eq(sign, -1), math.nan, log)


# ---------------------------------------------------------------------------------------------
# Cholesky


def _cholesky_vjp(g: Any, n: Any) -> Any:
    factor = turned(n.out) if n.upper else n.out
    g = turned(g) if n.upper else g
    product = ops.tril(ops.matmul(turned(factor), g))
    diagonal = ops.diag_embed(ops.diagonal(product, 0, -2, -1))
    half = ops.sub(product, ops.mul(diagonal, 0.5))
    left = linalg_solve_triangular(turned(factor), half, upper=True)
    whole = linalg_solve_triangular(factor, left, upper=False, left=False)
    return ops.mul(ops.add(whole, turned(whole)), 0.5)


CHOLESKY = _square_op(
    "linalg_cholesky",
    "linalg.cholesky",
    kernels.lower_cholesky,
    _cholesky_vjp,
    ("out",),
    **samples.CHOLESKY,
)


@front(CHOLESKY, method=False)
def linalg_cholesky(A: Any, *, upper: bool = False, out: Any = None) -> Any:
    """Return the triangular factor ``L`` with ``A = L @ L.mH``."""
    require_tensor("linalg.cholesky", A)
    return call(CHOLESKY, (A,), {"upper": upper}, out)


@front(CHOLESKY)
def cholesky(input: Any, upper: bool = False, *, out: Any = None) -> Any:
    """Return the triangular factor ``L`` with ``input = L @ L.mH``."""
    return linalg_cholesky(input, upper=upper, out=out)


def _info(meta: TensorMeta) -> Any:
    return ops.zeros(tuple(meta.shape[:-2]), dtype=_dtypes.int32, device=meta.device)


@front(CHOLESKY, method=False)
def linalg_cholesky_ex(
    A: Any, *, upper: bool = False, check_errors: bool = False, out: Any = None
) -> Any:
    """Return the Cholesky factor and, for each matrix, 0 or where the factorisation failed."""
    result = named_result("linalg_cholesky_ex", "L", "info")
    try:
        return result((linalg_cholesky(A, upper=upper, out=out), _info(A.meta)))
    except kernels.LinAlgError:
        if check_errors:
            raise
        return result((ops.full_like(A, math.nan), ops.add(_info(A.meta), 1)))


@front(INV, method=False)
def linalg_inv_ex(A: Any, *, check_errors: bool = False, out: Any = None) -> Any:
    """Return the inverse and, for each matrix, 0 or a number that says that it is singular."""
    result = named_result("linalg_inv_ex", "inverse", "info")
    try:
        return result((linalg_inv(A, out=out), _info(A.meta)))
    except kernels.LinAlgError:
        if check_errors:
            raise
        return result((ops.full_like(A, math.inf), ops.add(_info(A.meta), 1)))


@front(SOLVE)
def cholesky_inverse(input: Any, upper: bool = False, *, out: Any = None) -> Any:
    """Return the inverse of the matrix whose Cholesky factor is `input`."""
    factor = turned(input) if upper else input
    return _copied_out(linalg_inv(ops.matmul(factor, turned(factor))), out)


@front(SOLVE)
def cholesky_solve(input: Any, L: Any, upper: bool = False, *, out: Any = None) -> Any:
    """Solve with the matrix whose Cholesky factor is `L`."""
    factor = turned(L) if upper else L
    half = linalg_solve_triangular(factor, input, upper=False)
    return _copied_out(linalg_solve_triangular(turned(factor), half, upper=True), out)


# ---------------------------------------------------------------------------------------------
# Norms and powers


@front(method=False)
def linalg_matrix_norm(
    A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *,
    dtype: DType | None = None, out: Any = None,
) -> Any:  # fmt: skip
    """Return a norm of matrices: fro, nuc, inf, -inf, 1, -1, 2 or -2."""
    require_tensor("linalg.matrix_norm", A)
    x = A if dtype is None else ops.to(A, dtype)
    rows, columns = (wrap_dim(d, x.meta.ndim, "linalg.matrix_norm") for d in dim)
    if ord == "fro":
        return ops.linalg_vector_norm(x, 2, (rows, columns), keepdim, out=out)
    if ord not in ("nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise ArgumentValueError(
            "linalg.matrix_norm", what=f"linalg.matrix_norm: Order {ord} not supported.",
            expected="fro, nuc, inf, -inf, 1, -1, 2 or -2", got=repr(ord),
        )  # fmt: skip
    if ord == "nuc" or abs(ord) == 2:
        values = ops.linalg_svdvals(ops.movedim(x, (rows, columns), (-2, -1)))
        pick = {"nuc": ops.sum, 2: ops.amax, -2: ops.amin}[ord]
        result = pick(values, -1)
        if keepdim:
            for d in sorted((rows, columns)):
                result = ops.unsqueeze(result, d)
        return _copied_out(result, out)
    first, second = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = ops.sum(ops.abs(x), first, keepdim=True)
    result = (ops.amax if ord > 0 else ops.amin)(sums, second, keepdim=True)
    if not keepdim:
        for d in sorted((rows, columns), reverse=True):
            result = ops.squeeze(result, d)
    return _copied_out(result, out)


@front(method=False)
def linalg_norm(
    A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Return a norm of vectors or matrices; the 2-norm of all elements by default."""
    require_tensor("linalg.norm", A)
    pair = isinstance(dim, (tuple, list)) and len(dim) == 2
    if ord is not None and (pair or (dim is None and A.meta.ndim == 2)):
        dims = (-2, -1) if dim is None else dim
        return linalg_matrix_norm(A, ord, dims, keepdim, dtype=dtype, out=out)
    order = 2 if ord is None else ord
    return ops.linalg_vector_norm(A, order, dim, keepdim, dtype=dtype, out=out)


@front(method=False)
def linalg_vecdot(x: Any, y: Any, *, dim: int = -1, out: Any = None) -> Any:
    """Return the inner products of vectors along `dim`, the first conjugated."""
    require_tensor("linalg.vecdot", x)
    left = ops.conj(x) if x.meta.dtype.is_complex else x
    return ops.sum(ops.mul(left, y), dim, out=out)


@front(aliases=("linalg_matrix_power",))
def matrix_power(input: Any, n: int, *, out: Any = None) -> Any:
    """Return a power of square matrices; negative ones are powers of the inverse."""
    require_tensor("matrix_power", input)
    if n < 0:
        return matrix_power(linalg_inv(input), -n, out=out)
    result = None
    while n:
        if n & 1:
            result = input if result is None else ops.matmul(result, input)
        n >>= 1
        if n:
            input = ops.matmul(input, input)
    if result is None:
        eye = ops.eye(input.shape[-1], dtype=input.dtype, device=input.device)
        result = ops.copy_(ops.clone(input), eye)
    return _copied_out(result, out)
