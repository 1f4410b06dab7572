"""Samples and NumPy references of dense linear algebra.

State: none. Invariants: matrices are well conditioned, so that results are accurate in float32 and
derivatives exist; factors that are unique up to sign are differentiated in their own tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime._ops.samples import ErrorSample, Sample, T


def _matrix(size: int, seed: int = 0, *lead: int) -> T:
    """Return a matrix with a heavy diagonal."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, (*lead, size, size)) + 3 * np.eye(size)
    return T(values.shape, values=values)


def _positive(size: int, grad: bool) -> T:
    root = np.asarray(_matrix(size).values)
    return T((size, size), values=root @ root.T, grad=grad)


def _not_square(op: str) -> Any:
    return lambda: [ErrorSample((T((2, 3)),), RuntimeError, f"{op}: A must be batches of square")]


def _matrices() -> list[Sample]:
    return [Sample((_matrix(3),)), Sample((_matrix(2, 1, 4),)), Sample((_matrix(1, 2),))]


def _det(x: Any) -> Any:
    return np.linalg.det(x)


INV: dict[str, Any] = {
    "samples": _matrices, "error_samples": _not_square("linalg.inv"), "reference": np.linalg.inv,
}  # fmt: skip
DET: dict[str, Any] = {
    "samples": _matrices, "error_samples": _not_square("linalg.det"), "reference": _det,
}  # fmt: skip
SLOGDET: dict[str, Any] = {
    "samples": _matrices, "error_samples": _not_square("linalg.slogdet"),
    "reference": lambda x: list(np.linalg.slogdet(x)),
}  # fmt: skip
SOLVE: dict[str, Any] = {
    "samples": lambda: [
        Sample((_matrix(3), T((3, 2)))), Sample((_matrix(3), T((3,)))),
        Sample((_matrix(2, 1, 4), T((2, 3)))),
    ],
    "error_samples": lambda: [
        ErrorSample((_matrix(3), T((2, 2))), RuntimeError, "Incompatible shapes of A and B"),
    ],
    "reference": np.linalg.solve,
}  # fmt: skip


def _triangular(a: Any, b: Any, upper: bool, unitriangular: bool = False) -> Any:
    triangle = np.triu(a) if upper else np.tril(a)
    if unitriangular:
        np.fill_diagonal(triangle, 1)
    return np.linalg.solve(triangle, b)


TRIANGULAR: dict[str, Any] = {
    "samples": lambda: [
        Sample((_matrix(3), T((3, 2))), {"upper": True}),
        Sample((_matrix(3), T((3, 2))), {"upper": False, "unitriangular": True}),
    ],
    "error_samples": lambda: [
        ErrorSample((T((3, 2)), T((3, 2))), RuntimeError, "square", {"upper": True}),
    ],
    "reference": _triangular,
}  # fmt: skip
CHOLESKY: dict[str, Any] = {
    "samples": lambda: [Sample((_positive(3, False),), grad=False)],
    "error_samples": lambda: [
        ErrorSample((T((2, 2), values=[[1, 2], [2, 1]]),), RuntimeError, "not positive-definite"),
    ],
    "reference": np.linalg.cholesky,
}  # fmt: skip
QR: dict[str, Any] = {
    "samples": lambda: [Sample((_matrix(3),)), Sample((T((4, 2)),)), Sample((T((2, 4)),))],
    "error_samples": lambda: [ErrorSample((T((3,)),), RuntimeError, "must be batches of")],
    "reference": lambda x: list(np.linalg.qr(x)),
}  # fmt: skip
SVD: dict[str, Any] = {
    "samples": lambda: [Sample((T((3, 2)), False), grad=False), Sample((T((2, 3)),), grad=False)],
    "error_samples": lambda: [ErrorSample((T((3,)),), RuntimeError, "must be batches of")],
    "reference": lambda x, full=True: list(np.linalg.svd(x, full)),
}  # fmt: skip
EIGH: dict[str, Any] = {
    "samples": lambda: [Sample((_positive(3, False),), grad=False)],
    "error_samples": _not_square("linalg.eigh"),
    "reference": lambda x: list(np.linalg.eigh(x)),
}  # fmt: skip
PINV: dict[str, Any] = {
    "samples": lambda: [Sample((T((4, 3)),)), Sample((T((2, 3)),)), Sample((_matrix(2, 1, 3),))],
    "error_samples": lambda: [ErrorSample((T((3,)),), RuntimeError, "must be batches of")],
    "reference": np.linalg.pinv,
}  # fmt: skip
