"""Factorisations: qr, svd, eigh, lu; pseudo-inverse and least squares.

Invariants
----------
* Derivatives of factors exist where singular values, or eigenvalues, are distinct and not zero;
  elsewhere they are infinite or NaN, as in torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorMeta
from refruntime._ops import samples_dense as samples
from refruntime._ops.dense import _copied_out, check_matrix, is_vector, like, turned
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.results import named_result
from refruntime.errors import ArgumentValueError
from refruntime.kernels import dense as kernels
from refruntime.kernels.dense import dense_kernel


def _eye(size: int, x: Any) -> Any:
    return ops.eye(size, dtype=x.dtype, device=x.device)


# ---------------------------------------------------------------------------------------------
# qr


def _qr_infer(input: TensorMeta, *, mode: str) -> tuple[TensorMeta, TensorMeta]:
    check_matrix("linalg.qr", input)
    *lead, m, n = input.shape
    k = m if mode == "complete" else min(m, n)
    return like(input, *lead, m, k), like(input, *lead, k, n)


def _qr_vjp(g: Any, n: Any) -> Any:
    q, r = n.out0, n.out1
    gq = ops.zeros_like(q) if g[0] is None else g[0]
    gr = ops.zeros_like(r) if g[1] is None else g[1]
    rows, columns = n.metas[0].shape[-2:]
    if rows < columns:
        # A = Q [R1 R2]: R2 = Q^H A2 moves its gradient to Q.
        rest = ops.narrow(n.input, -1, rows, columns - rows)
        rest_g = ops.narrow(gr, -1, rows, columns - rows)
        gq = ops.add(gq, ops.matmul(rest, turned(rest_g)))
        square = _square_qr(q, ops.narrow(r, -1, 0, rows), gq, ops.narrow(gr, -1, 0, rows))
        return ops.cat([square, ops.matmul(q, rest_g)], -1)
    return _square_qr(q, r, gq, gr)


def _square_qr(q: Any, r: Any, gq: Any, gr: Any) -> Any:
    middle = ops.sub(ops.matmul(r, turned(gr)), ops.matmul(turned(gq), q))
    lower = ops.tril(middle)
    symmetric = ops.add(lower, turned(ops.tril(middle, -1)))
    whole = ops.add(gq, ops.matmul(q, symmetric))
    return ops.linalg_solve_triangular(turned(r), whole, upper=False, left=False)


QR = register(
    OpDef("linalg_qr", ("input",), batch="leading", **samples.QR, infer=_qr_infer,
          cpu=dense_kernel("linalg.qr", lambda a, *, mode: np.linalg.qr(a, mode)), vjp=_qr_vjp,
          saves=("input", "out0", "out1"))
)  # fmt: skip


@front(QR, method=False)
def linalg_qr(A: Any, mode: str = "reduced", *, out: Any = None) -> Any:
    """Return an orthogonal and an upper triangular factor."""
    require_tensor("linalg.qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentValueError("linalg.qr", expected="reduced, complete or r", got=repr(mode))
    q, r = call(QR, (A,), {"mode": "reduced" if mode == "r" else mode}, out)
    if mode == "r":
        q = ops.zeros((0,), dtype=A.dtype, device=A.device)
    return named_result("linalg_qr", "Q", "R")((q, r))


@front(QR)
def qr(input: Any, some: bool = True, *, out: Any = None) -> Any:
    """Return an orthogonal and an upper triangular factor."""
    pair = linalg_qr(input, "reduced" if some else "complete", out=out)
    return named_result("qr", "Q", "R")(tuple(pair))


# ---------------------------------------------------------------------------------------------
# svd


def _svd_infer(input: TensorMeta, *, full: bool) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    check_matrix("linalg.svd", input)
    *lead, m, n = input.shape
    k = min(m, n)
    left, right = (m, n) if full else (k, k)
    values = like(input, *lead, k, dtype=input.dtype.to_real())
    return like(input, *lead, m, left), values, like(input, *lead, right, n)


def _gaps(values: Any) -> Any:
    """Return ``1 / (s_j**2 - s_i**2)``, and zero on the diagonal."""
    squares = ops.square(values)
    gaps = ops.sub(ops.unsqueeze(squares, -2), ops.unsqueeze(squares, -1))
    eye = _eye(values.shape[-1], values)
    return ops.sub(ops.reciprocal(ops.add(gaps, eye)), eye)


def _skew(x: Any) -> Any:
    return ops.sub(x, turned(x))


def _svd_vjp(g: Any, n: Any) -> Any:
    """Townsend, "Differentiating the singular value decomposition", 2016."""
    k = n.out1.shape[-1]
    u, s, vh = ops.narrow(n.out0, -1, 0, k), n.out1, ops.narrow(n.out2, -2, 0, k)
    v = turned(vh)
    row, column = ops.unsqueeze(s, -2), ops.unsqueeze(s, -1)
    middle = ops.zeros_like(ops.matmul(column, row)) if g[1] is None else ops.diag_embed(g[1])
    outside = None
    if g[0] is not None:
        gu = ops.narrow(g[0], -1, 0, k)
        inner = ops.mul(_gaps(s), _skew(ops.matmul(turned(u), gu)))
        middle = ops.add(middle, ops.mul(inner, row))
        if u.shape[-2] > k:
            rest = ops.sub(ops.div(gu, row), ops.matmul(u, ops.matmul(turned(u), ops.div(gu, row))))
            outside = ops.matmul(rest, vh)
    if g[2] is not None:
        gv = turned(ops.narrow(g[2], -2, 0, k))
        inner = ops.mul(_gaps(s), _skew(ops.matmul(vh, gv)))
        middle = ops.add(middle, ops.mul(column, inner))
        if v.shape[-2] > k:
            scaled = ops.div(turned(gv), column)
            rest = ops.sub(scaled, ops.matmul(ops.matmul(scaled, v), vh))
            part = ops.matmul(u, rest)
            outside = part if outside is None else ops.add(outside, part)
    inside = ops.matmul(ops.matmul(u, middle), vh)
    return inside if outside is None else ops.add(inside, outside)


SVD = register(
    OpDef("linalg_svd", ("input",), batch="leading", **samples.SVD, infer=_svd_infer,
          cpu=dense_kernel("linalg.svd", lambda a, *, full: np.linalg.svd(a, full)), vjp=_svd_vjp,
          saves=("out0", "out1", "out2"))
)  # fmt: skip


@front(SVD, method=False)
def linalg_svd(A: Any, full_matrices: bool = True, *, driver: Any = None, out: Any = None) -> Any:
    """Return ``U, S, Vh`` with ``A = U @ diag(S) @ Vh``."""
    require_tensor("linalg.svd", A)
    return named_result("linalg_svd", "U", "S", "Vh")(call(SVD, (A,), {"full": full_matrices}, out))


@front(SVD)
def svd(input: Any, some: bool = True, compute_uv: bool = True, *, out: Any = None) -> Any:
    """Return ``U, S, V`` with ``input = U @ diag(S) @ V.mH``."""
    u, s, vh = linalg_svd(input, not some)
    return named_result("svd", "U", "S", "V")((u, s, turned(vh)))


@front(SVD, method=False)
def linalg_svdvals(A: Any, *, driver: Any = None, out: Any = None) -> Any:
    """Return the singular values, largest first."""
    return _copied_out(linalg_svd(A, False)[1], out)


# ---------------------------------------------------------------------------------------------
# Eigenvalues of symmetric matrices


def _eigh_infer(input: TensorMeta, *, uplo: str) -> tuple[TensorMeta, TensorMeta]:
    check_matrix("linalg.eigh", input, square=True)
    values = like(input, *input.shape[:-1], dtype=input.dtype.to_real())
    return values, like(input, *input.shape)


def _eigh_vjp(g: Any, n: Any) -> Any:
    values, vectors = n.out0, n.out1
    middle = None if g[0] is None else ops.diag_embed(g[0])
    if g[1] is not None:
        gaps = ops.sub(ops.unsqueeze(values, -2), ops.unsqueeze(values, -1))
        eye = _eye(values.shape[-1], values)
        factors = ops.sub(ops.reciprocal(ops.add(gaps, eye)), eye)
        turn = ops.mul(factors, ops.matmul(turned(vectors), g[1]))
        middle = turn if middle is None else ops.add(middle, turn)
    whole = ops.matmul(ops.matmul(vectors, middle), turned(vectors))
    return ops.mul(ops.add(whole, turned(whole)), 0.5)


EIGH = register(
    OpDef("linalg_eigh", ("input",), batch="leading", **samples.EIGH, infer=_eigh_infer,
          cpu=dense_kernel("linalg.eigh", lambda a, *, uplo: np.linalg.eigh(a, uplo)),
          vjp=_eigh_vjp, saves=("out0", "out1"))
)  # fmt: skip


@front(EIGH, method=False)
def linalg_eigh(A: Any, UPLO: str = "L", *, out: Any = None) -> Any:
    """Return eigenvalues (rising) and eigenvectors of symmetric matrices."""
    require_tensor("linalg.eigh", A)
    pair = call(EIGH, (A,), {"uplo": UPLO.upper()}, out)
    return named_result("linalg_eigh", "eigenvalues", "eigenvectors")(pair)


@front(EIGH, method=False)
def linalg_eigvalsh(A: Any, UPLO: str = "L", *, out: Any = None) -> Any:
    """Return the eigenvalues of symmetric matrices, rising."""
    return _copied_out(linalg_eigh(A, UPLO)[0], out)


# ---------------------------------------------------------------------------------------------
# Pseudo-inverse, rank, least squares


def _pinv_infer(input: TensorMeta, *, rcond: float | None, hermitian: bool) -> TensorMeta:
    check_matrix("linalg.pinv", input)
    *lead, m, n = input.shape
    return like(input, *lead, n, m)


def _pinv(a: Any, *, rcond: float | None, hermitian: bool) -> Any:
    cut = max(a.shape[-2:], default=0) * np.finfo(a.dtype).eps if rcond is None else rcond
    return np.linalg.pinv(a, cut, hermitian)


def _pinv_vjp(g: Any, n: Any) -> Any:
    """Golub and Pereyra, 1973."""
    a, p = n.input, n.out
    ph, gh = turned(p), turned(g)
    inside = ops.neg(ops.matmul(ops.matmul(ph, g), ph))
    right = ops.matmul(gh, ops.matmul(p, ph))
    below = ops.sub(right, ops.matmul(a, ops.matmul(p, right)))
    left = ops.matmul(ops.matmul(ph, p), gh)
    beside = ops.sub(left, ops.matmul(ops.matmul(left, p), a))
    return ops.add(inside, ops.add(below, beside))


PINV = register(
    OpDef("linalg_pinv", ("input",), batch="leading", **samples.PINV, infer=_pinv_infer,
          cpu=dense_kernel("linalg.pinv", _pinv),
          vjp=_pinv_vjp, saves=("input", "out"))
)  # fmt: skip


@front(PINV, method=False)
def linalg_pinv(
    A: Any, rcond: float | None = None, hermitian: bool = False, *, rtol: float | None = None,
    atol: float | None = None, out: Any = None,
) -> Any:  # fmt: skip
    """Return the pseudo-inverse; singular values below ``rtol`` times the largest count as zero."""
    require_tensor("linalg.pinv", A)
    cut = rcond if rtol is None else rtol
    return call(PINV, (A,), {"rcond": cut, "hermitian": hermitian}, out)


@front(PINV)
def pinverse(input: Any, rcond: float = 1e-15) -> Any:
    """Return the pseudo-inverse."""
    return linalg_pinv(input, rcond)


@front(method=False)
def linalg_matrix_rank(
    A: Any, tol: float | None = None, hermitian: bool = False, *, rtol: float | None = None,
    atol: float | None = None, out: Any = None,
) -> Any:  # fmt: skip
    """Return how many singular values are above the tolerance."""
    values = linalg_svdvals(ops.detach(A))
    if not values.shape[-1]:
        return _copied_out(ops.zeros(values.shape[:-1], dtype=_dtypes.int64, device=A.device), out)
    largest = ops.amax(values, -1, keepdim=True)
    default = max(A.meta.shape[-2:]) * _dtypes.finfo(A.meta.dtype).eps
    bound = ops.mul(largest, default if rtol is None else rtol)
    floor = tol if atol is None else atol
    if floor is not None:
        bound = ops.clamp(bound if rtol is not None else ops.zeros_like(bound), min=floor)
    return _copied_out(ops.sum(ops.gt(values, bound), -1), out)


@front(method=False)
def linalg_cond(A: Any, p: Any = None, *, out: Any = None) -> Any:
    """Return the condition number: the ratio of extreme singular values by default."""
    if p is None or p in (2, -2):
        values = linalg_svdvals(A)
        ends = ops.select(values, -1, 0), ops.select(values, -1, -1)
        top, bottom = ends if p != -2 else ends[::-1]
        return _copied_out(ops.div(top, bottom), out)
    norm = ops.linalg_matrix_norm
    return _copied_out(ops.mul(norm(A, p), norm(ops.linalg_inv(A), p)), out)


def _lstsq_infer(
    a: TensorMeta, b: TensorMeta, *, rcond: float | None
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    check_matrix("linalg.lstsq", a)
    *lead, m, n = a.shape
    values = like(a, *lead, min(m, n), dtype=a.dtype.to_real())
    return like(a, *lead, n, b.shape[-1]), like(a, *lead, dtype=_dtypes.int64), values


def _lstsq_vjp(g: Any, n: Any) -> tuple[Any, Any]:
    """The solution is ``pinv(A) @ B``: differentiate the product."""
    if g[0] is None:
        return None, None
    p = linalg_pinv(n.A)
    gb = ops.matmul(turned(p), g[0])
    if not n.needs[0]:
        return None, gb
    a, gp = n.A, ops.matmul(g[0], turned(n.B))
    ph, gh = turned(p), turned(gp)
    inside = ops.neg(ops.matmul(ops.matmul(ph, gp), ph))
    right = ops.matmul(gh, ops.matmul(p, ph))
    left = ops.matmul(ops.matmul(ph, p), gh)
    below = ops.sub(right, ops.matmul(a, ops.matmul(p, right)))
    beside = ops.sub(left, ops.matmul(ops.matmul(left, p), a))
    return ops.add(inside, ops.add(below, beside)), gb


LSTSQ = register(
    OpDef("linalg_lstsq", ("A", "B"), batch="leading", **samples.LSTSQ, infer=_lstsq_infer,
          cpu=dense_kernel("linalg.lstsq", kernels.least_squares), vjp=_lstsq_vjp,
          saves=("A", "B"), nondiff_outputs=(1, 2))
)  # fmt: skip


@front(LSTSQ, method=False)
def linalg_lstsq(A: Any, B: Any, rcond: float | None = None, *, driver: Any = None) -> Any:
    """Return the least-squares solution of ``A X = B``, with residuals, rank, singular values."""
    require_tensor("linalg.lstsq", A)
    vector = is_vector(A, B)
    right = ops.unsqueeze(B, -1) if vector else B
    solution, rank, values = call(LSTSQ, (A, right), {"rcond": rcond})
    rows, columns = A.meta.shape[-2:]
    if driver in (None, "gelsy") or rows <= columns or not bool(ops.all(ops.eq(rank, columns))):
        # Empty, and with history all the same, as in torch.
        residuals = ops.real(ops.narrow(ops.flatten(solution), 0, 0, 0))
    else:
        residuals = ops.sum(ops.square(ops.sub(ops.matmul(A, solution), right)), -2)
    if vector:
        solution = ops.squeeze(solution, -1)
    empty = driver in (None, "gelsy", "gels")
    if empty:
        values = ops.zeros((0,), dtype=values.dtype, device=values.device)
    if driver == "gels":
        rank = ops.zeros((0,), dtype=rank.dtype, device=rank.device)
    name = named_result("linalg_lstsq", "solution", "residuals", "rank", "singular_values")
    return name((solution, residuals, rank, values))


# ---------------------------------------------------------------------------------------------
# lu


def _lu_infer(input: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    check_matrix("linalg.lu_factor", input)
    *lead, m, n = input.shape
    return like(input, *input.shape), like(input, *lead, min(m, n), dtype=_dtypes.int32)


def _lu_vjp(g: Any, n: Any) -> Any:
    """Differentiate the elimination of square matrices (Walter and Lehmann, 2010)."""
    lu, size = n.out0, n.out0.shape[-1]
    permutation, lower, upper = lu_unpack(lu, n.out1)
    g = g[0]
    gl, gu = ops.tril(g, -1), ops.triu(g)
    middle = ops.add(
        ops.tril(ops.matmul(turned(lower), gl), -1), ops.triu(ops.matmul(gu, turned(upper)))
    )
    left = ops.linalg_solve_triangular(turned(lower), middle, upper=True, unitriangular=True)
    whole = ops.linalg_solve_triangular(turned(upper), left, upper=False, left=False)
    assert lu.shape[-2] == size
    return ops.matmul(permutation, whole)


LU = register(
    OpDef("linalg_lu_factor", ("input",), batch="leading", **samples.LU, infer=_lu_infer,
          cpu=dense_kernel("linalg.lu_factor", kernels.lu_factors), vjp=_lu_vjp,
          saves=("out0", "out1"), nondiff_outputs=(1,))
)  # fmt: skip


@front(LU, method=False)
def linalg_lu_factor(A: Any, *, pivot: bool = True, out: Any = None) -> Any:
    """Return ``L`` and ``U`` in one matrix, and the rows exchanged at each step."""
    require_tensor("linalg.lu_factor", A)
    return named_result("linalg_lu_factor", "LU", "pivots")(call(LU, (A,), {}, out))


@front(LU)
def lu(input: Any, pivot: bool = True, get_infos: bool = False) -> Any:
    """Return ``L`` and ``U`` in one matrix, and the rows exchanged at each step."""
    factors, pivots = linalg_lu_factor(input, pivot=pivot)
    if not get_infos:
        return factors, pivots
    info = ops.zeros(tuple(input.meta.shape[:-2]), dtype=_dtypes.int32, device=input.device)
    return factors, pivots, info


def _permutation_infer(pivots: TensorMeta, *, size: int, dtype: Any) -> TensorMeta:
    return like(pivots, *pivots.shape[:-1], size, size, dtype=dtype)


def _permutation(pivots: Any, *, size: int, dtype: Any) -> Any:
    result = np.zeros((*pivots.shape[:-1], size, size))
    for place in np.ndindex(*pivots.shape[:-1]):
        order = np.arange(size)
        for step, row in enumerate(pivots[place]):
            order[[step, row - 1]] = order[[row - 1, step]]
        result[place][order, np.arange(size)] = 1
    return result


PERMUTATION = register(
    OpDef("permutation_of_pivots", ("pivots",), batch="leading", **samples.PERMUTATION,
          infer=_permutation_infer,
          cpu=dense_kernel("lu_unpack", _permutation))
)  # fmt: skip


@front(LU, method=False)
def lu_unpack(
    LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    """Return ``P, L, U`` of what `lu` gives."""
    rows, columns = LU_data.meta.shape[-2:]
    k = min(rows, columns)
    dtype, device = LU_data.meta.dtype, LU_data.meta.device
    nothing = ops.zeros((0,), dtype=dtype, device=device)
    permutation, lower, upper = nothing, nothing, nothing
    if unpack_pivots:
        permutation = call(PERMUTATION, (LU_pivots,), {"size": rows, "dtype": dtype})
    if unpack_data:
        wide = ops.eye(rows, k, dtype=dtype, device=device)
        lower = ops.add(ops.tril(ops.narrow(LU_data, -1, 0, k), -1), wide)
        upper = ops.triu(ops.narrow(LU_data, -2, 0, k))
    return named_result("lu_unpack", "P", "L", "U")((permutation, lower, upper))


@front(LU, method=False)
def linalg_lu(A: Any, *, pivot: bool = True, out: Any = None) -> Any:
    """Return ``P, L, U`` with ``A = P @ L @ U``."""
    return named_result("linalg_lu", "P", "L", "U")(tuple(lu_unpack(*linalg_lu_factor(A))))
