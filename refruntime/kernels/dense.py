"""Dense linear algebra on the CPU: LAPACK through NumPy, batch by batch.

State: none. Invariants: results are written in the operand's dtype (float32 and float64, complex
too); a failure of LAPACK is raised as `LinAlgError` by name of the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime._impl import TensorImpl
from refruntime.errors import RefruntimeError

Array = np.ndarray[Any, Any]


class LinAlgError(RefruntimeError, RuntimeError):
    """A matrix for which the result does not exist: singular, or not positive definite."""


def dense_kernel(op: str, compute: Callable[..., Any]) -> Callable[..., None]:
    """Make a kernel of a function over NumPy arrays that returns one array or several."""

    def kernel(out: Any, *inputs: TensorImpl, **params: Any) -> None:
        try:
            results = compute(*(value.array() for value in inputs), **params)
        except np.linalg.LinAlgError as error:
            raise LinAlgError(
                op, what=_reason(str(error)),
                expected="matrices for which the result exists",
                got=f"shape {tuple(inputs[0].meta.shape)}", remedy="check the matrix's condition",
            ) from None  # fmt: skip
        outs = out if isinstance(out, tuple) else (out,)
        parts = results if isinstance(out, tuple) else (results,)
        for target, part in zip(outs, parts, strict=True):
            target.array()[...] = part

    return kernel


def _reason(message: str) -> str:
    if "ositive" in message:
        return (
            "The factorization could not be completed because the input is not positive-definite"
        )
    if "ingular" in message:
        return "The input matrix is singular, so the result could not be computed"
    return message


def lower_cholesky(a: Array, *, upper: bool) -> Array:
    """Return the Cholesky factor; only one triangle of `a` is read."""
    if upper:
        factor = np.linalg.cholesky(np.conj(np.swapaxes(a, -1, -2)))
        return np.conj(np.swapaxes(factor, -1, -2))
    return np.linalg.cholesky(a)


def determinant_of_log(a: Array) -> tuple[Array, Array]:
    """Return sign and logarithm of the absolute value of the determinant."""
    sign, log = np.linalg.slogdet(a)
    return sign, log


def triangular_solve(a: Array, b: Array, *, upper: bool, unit: bool) -> Array:
    """Solve with one triangle of `a`, its diagonal taken as ones if `unit`."""
    triangle = np.triu(a) if upper else np.tril(a)
    if unit:
        diagonal = np.arange(a.shape[-1])
        triangle[..., diagonal, diagonal] = 1
    elif np.any(np.diagonal(triangle, axis1=-2, axis2=-1) == 0):
        return np.full(np.broadcast_shapes(b.shape, (*a.shape[:-2], 1, 1)), np.inf, b.dtype)
    return np.linalg.solve(triangle, b)


def least_squares(a: Array, b: Array, *, rcond: float | None) -> tuple[Array, Array, Array]:
    """Return solutions, ranks and singular values of a batch of systems."""
    lead, (m, n), k = a.shape[:-2], a.shape[-2:], b.shape[-1]
    solution = np.empty((*lead, n, k), a.dtype)
    rank = np.empty(lead, np.int64)
    values = np.empty((*lead, min(m, n)), a.real.dtype)
    for place in np.ndindex(*lead):
        solution[place], _, rank[place], values[place] = np.linalg.lstsq(a[place], b[place], rcond)
    return solution, rank, values


def lu_factors(a: Array) -> tuple[Array, Array]:
    """Return L and U in one matrix, and the row exchanged at each step (from 1), as in LAPACK."""
    lu = np.array(a)
    steps = min(a.shape[-2:])
    pivots = np.empty((*a.shape[:-2], steps), np.int32)
    for place in np.ndindex(*a.shape[:-2]):
        _eliminate(lu[place], pivots[place])
    return lu, pivots


def _eliminate(lu: Array, pivots: Array) -> None:
    for k in range(len(pivots)):
        # LAPACK's measure of a complex number: without a root.
        column = lu[k:, k]
        row = k + int(np.argmax(np.abs(column.real) + np.abs(column.imag)))
        pivots[k] = row + 1
        if row != k:
            lu[[k, row]] = lu[[row, k]]
        if lu[k, k] != 0:
            lu[k + 1 :, k] /= lu[k, k]
            lu[k + 1 :, k + 1 :] -= np.outer(lu[k + 1 :, k], lu[k, k + 1 :])
