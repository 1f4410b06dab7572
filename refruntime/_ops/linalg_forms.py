"""Linear algebra composed of factors and solutions: matrix exponentials, tensor equations, forms
that report instead of raising.
"""

from __future__ import annotations

import math
from typing import Any

from refruntime import _dtypes
from refruntime._ops.opdef import front, ops, require_tensor
from refruntime._ops.results import named_result
from refruntime.errors import ArgumentValueError, ShapeError
from refruntime.kernels.dense import LinAlgError

# Terms of the exponential's series: for norms up to a half the rest is below float64's precision.
_TERMS = 15


@front(aliases=("linalg_matrix_exp",))
def matrix_exp(input: Any) -> Any:
    """Return the exponential of square matrices, by scaling and squaring.

    Source: Moler and Van Loan, "Nineteen dubious ways to compute the exponential of a matrix",
    SIAM Review, 2003, method 3.
    """
    require_tensor("matrix_exp", input)
    if input.dim() < 2 or input.shape[-1] != input.shape[-2]:
        raise ShapeError(
            "matrix_exp", what="linalg.matrix_exp: A must be batches of square matrices",
            expected="(..., n, n)", got=str(tuple(input.shape)),
        )  # fmt: skip
    if not input.numel():
        return ops.clone(input)
    sizes = ops.sum(ops.abs(ops.detach(input)), -2)
    largest = float(ops.amax(sizes))
    halvings = max(0, math.ceil(math.log2(2 * largest))) if 0 < largest < math.inf else 0
    small = ops.mul(input, 0.5**halvings)
    identity = ops.eye(input.shape[-1], dtype=input.dtype, device=input.device)
    result = ops.expand(identity, tuple(input.shape))
    for term in range(_TERMS, 0, -1):
        result = ops.add(identity, ops.mul(ops.matmul(small, result), 1 / term))
    for _ in range(halvings):
        result = ops.matmul(result, result)
    return result


@front(method=False)
def linalg_vander(x: Any, *, N: int | None = None) -> Any:
    """Return the powers of numbers from 0 to N - 1 (default as many as there are numbers)."""
    require_tensor("linalg.vander", x)
    count = (x.shape[-1] if x.dim() else 1) if N is None else N
    if count < 1:
        raise ShapeError("linalg.vander", expected="N of at least 1", got=str(count))
    x = x if x.dim() else ops.reshape(x, (1,))
    if x.dtype.kind in "biu":
        x = ops.to(x, _dtypes.int64)
    ones = ops.ones_like(ops.unsqueeze(x, -1))
    steps = ops.expand(ops.unsqueeze(x, -1), (*x.shape, max(count - 1, 0)))
    return ops.cat([ones, ops.cumprod(steps, -1)], -1)


@front(method=False)
def linalg_tensorinv(A: Any, ind: int = 2, *, out: Any = None) -> Any:
    """Return the inverse of a tensor as a map between its first `ind` dimensions and the others."""
    require_tensor("linalg.tensorinv", A)
    if ind <= 0:
        raise ArgumentValueError("linalg.tensorinv", what="Expected a strictly positive integer",
                                 expected="ind > 0", got=str(ind))  # fmt: skip
    rows, columns = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    if math.prod(rows) != math.prod(columns):
        raise ShapeError(
            "linalg.tensorinv", expected="as many elements on both sides",
            got=f"{rows} and {columns}",
        )  # fmt: skip
    inverse = ops.linalg_inv(ops.reshape(A, (math.prod(rows), math.prod(columns))))
    return _into(ops.reshape(inverse, (*columns, *rows)), out)


@front(method=False)
def linalg_tensorsolve(A: Any, B: Any, dims: Any = None, *, out: Any = None) -> Any:
    """Return X with ``tensordot(A, X, X.ndim) == B``; `dims` of A are moved to its end first."""
    require_tensor("linalg.tensorsolve", A)
    if dims is not None:
        moved = (dims,) if isinstance(dims, int) else tuple(dims)
        A = ops.movedim(A, moved, tuple(range(A.dim() - len(moved), A.dim())))
    shape = tuple(A.shape[B.dim() :])
    if math.prod(shape) != B.numel():
        raise ShapeError(
            "linalg.tensorsolve", expected=f"A with {B.numel()} elements beside B's dimensions",
            got=str(tuple(A.shape)),
        )  # fmt: skip
    matrix = ops.reshape(A, (B.numel(), math.prod(shape)))
    solution = ops.linalg_solve(matrix, ops.reshape(B, (-1,)))
    return _into(ops.reshape(solution, shape), out)


@front(method=False)
def linalg_lu_solve(
    LU: Any, pivots: Any, B: Any, *, left: bool = True, adjoint: bool = False, out: Any = None
) -> Any:
    """Return the solution of ``A X = B`` from what `lu_factor` gave of A."""
    require_tensor("linalg.lu_solve", LU)
    if not left:
        turned = linalg_lu_solve(LU, pivots, ops.adjoint(B), adjoint=not adjoint)
        return _into(ops.adjoint(turned), out)
    permutation, lower, upper = ops.lu_unpack(LU, pivots)
    solve = ops.linalg_solve_triangular
    if adjoint:
        half = solve(ops.adjoint(upper), B, upper=False)
        half = solve(ops.adjoint(lower), half, upper=True, unitriangular=True)
        return _into(ops.matmul(permutation, half), out)
    half = ops.matmul(ops.transpose(permutation, -2, -1), B)
    half = solve(lower, half, upper=False, unitriangular=True)
    return _into(solve(upper, half, upper=True), out)


@front()
def lu_solve(b: Any, LU_data: Any, LU_pivots: Any, *, out: Any = None) -> Any:
    """Return the solution of ``A X = b`` from what `lu` gave of A."""
    return linalg_lu_solve(LU_data, LU_pivots, b, out=out)


def _into(result: Any, out: Any) -> Any:
    return result if out is None else ops.copy_(out, result)


def _info(op: str, input: Any, failed: bool, check_errors: bool) -> Any:
    """Return the report of a batch; raise it if errors are to be checked."""
    if failed and check_errors:
        raise LinAlgError(
            op, what="The input matrix is singular, so the result could not be computed",
            expected="a regular matrix", got=f"shape {tuple(input.shape)}",
        )  # fmt: skip
    shape = tuple(input.shape[:-2])
    return ops.full(shape, int(failed), dtype=_dtypes.int32, device=input.device)


@front(method=False)
def linalg_solve_ex(
    A: Any, B: Any, *, left: bool = True, check_errors: bool = False, out: Any = None
) -> Any:
    """Return the solution of ``A X = B``, and whether there was none."""
    require_tensor("linalg.solve_ex", A)
    try:
        result, failed = ops.linalg_solve(A, B, left=left), False
    except LinAlgError:
        result, failed = ops.full_like(ops.mul(B, 1), math.nan), True
    info = _info("linalg.solve_ex", A, failed, check_errors)
    return named_result("linalg_solve_ex", "result", "info")((_into(result, out), info))


@front(method=False)
def linalg_lu_factor_ex(
    A: Any, *, pivot: bool = True, check_errors: bool = False, out: Any = None
) -> Any:
    """Return what `lu_factor` gives, and the first step without a pivot (0: none)."""
    require_tensor("linalg.lu_factor_ex", A)
    factors, pivots = ops.linalg_lu_factor(A, pivot=pivot)
    zero = ops.eq(ops.diagonal(ops.detach(factors), 0, -2, -1), 0)
    first = ops.add(ops.argmax(ops.to(zero, _dtypes.int32), -1), 1) if zero.shape[-1] else 0
    info = ops.to(ops.where(ops.any(zero, -1), first, 0), _dtypes.int32)
    if check_errors and bool(ops.any(ops.ne(info, 0))):
        _info("linalg.lu_factor_ex", A, True, True)
    return named_result("linalg_lu_factor_ex", "LU", "pivots", "info")((factors, pivots, info))
