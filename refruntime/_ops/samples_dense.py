"""Samples and NumPy references of dense linear algebra.

State: none. Invariants: matrices are well conditioned, so that results are accurate in float32 and
derivatives exist. Symmetric matrices are made from others, since a difference in one element alone
would leave them; singular and eigenvectors, unique up to sign, are compared by their sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._ops.opdef import ops
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


def _gram(a: Any) -> Any:
    return ops.matmul(a, ops.transpose(a, -2, -1))


def _gram_reference(reference: Any) -> Any:
    return lambda a: reference(a @ np.swapaxes(a, -1, -2))


def _cholesky_of_gram(a: Any) -> Any:
    return ops.linalg_cholesky(_gram(a))


CHOLESKY: dict[str, Any] = {
    "samples": lambda: [
        Sample((_positive(3, False),), grad=False),
        *(
            Sample((a,), call=_cholesky_of_gram, reference=_gram_reference(np.linalg.cholesky))
            for a in (_matrix(3), _matrix(2, 1, 3))
        ),
    ],
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


def _svd_sizes(a: Any) -> Any:
    u, s, vh = ops.linalg_svd(a, False)
    return ops.abs(u), s, ops.abs(vh)


def _eigh_sizes(a: Any) -> Any:
    values, vectors = ops.linalg_eigh(_gram(a))
    return values, ops.abs(vectors)


def _sizes(results: Any) -> Any:
    return [np.abs(part) for part in results]


def _svd_reference(a: Any) -> Any:
    return _sizes(np.linalg.svd(a, False))


SVD: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((3, 2)), False), grad=False), Sample((T((2, 3)),), grad=False),
        *(
            Sample((a,), call=_svd_sizes, reference=_svd_reference)
            for a in (_matrix(3), T((4, 2)), T((2, 3)), _matrix(2, 1, 3))
        ),
    ],
    "error_samples": lambda: [ErrorSample((T((3,)),), RuntimeError, "must be batches of")],
    "reference": lambda x, full=True: list(np.linalg.svd(x, full)),
}  # fmt: skip
EIGH: dict[str, Any] = {
    "samples": lambda: [
        Sample((_positive(3, False),), grad=False),
        *(
            Sample(
                (a,), call=_eigh_sizes, rtol=1e-4, atol=1e-4,
                reference=_gram_reference(lambda gram: _sizes(np.linalg.eigh(gram))),
            )
            for a in (_matrix(3), _matrix(2, 1, 3))
        ),
    ],
    "error_samples": _not_square("linalg.eigh"),
    "reference": lambda x: list(np.linalg.eigh(x)),
}  # fmt: skip
PINV: dict[str, Any] = {
    "samples": lambda: [Sample((T((4, 3)),)), Sample((T((2, 3)),)), Sample((_matrix(2, 1, 3),))],
    "error_samples": lambda: [ErrorSample((T((3,)),), RuntimeError, "must be batches of")],
    "reference": np.linalg.pinv,
}  # fmt: skip


def _least_squares(a: Any, b: Any) -> Any:
    return ops.linalg_lstsq(a, b)[0]


LSTSQ: dict[str, Any] = {
    "samples": lambda: [
        Sample((a, T((4, 2))), call=_least_squares) for a in (T((4, 3)), _matrix(4), T((4, 5)))
    ],
    "error_samples": lambda: [
        ErrorSample((T((3,)), T((3, 1))), RuntimeError, "must be batches of", call=_least_squares),
    ],
    "reference": lambda a, b: np.linalg.pinv(a) @ b,
}  # fmt: skip


def _eliminated(a: Any) -> tuple[Any, Any]:
    """Eliminate column by column; pivots count rows from one."""
    lu = a.copy()
    pivots = np.zeros(min(a.shape), np.int64)
    for step in range(len(pivots)):
        row = step + int(np.argmax(np.abs(lu[step:, step])))
        lu[[step, row]], pivots[step] = lu[[row, step]], row + 1
        lu[step + 1 :, step] /= lu[step, step]
        lu[step + 1 :, step + 1 :] -= np.outer(lu[step + 1 :, step], lu[step, step + 1 :])
    return lu, pivots


_TURNING = T((3, 3), values=[[0.5, 2.0, -1.0], [2.5, 0.3, 0.7], [-1.0, 3.0, 1.5]])
LU: dict[str, Any] = {
    "samples": lambda: [
        Sample((_matrix(3),)), Sample((_TURNING,)),
        Sample((T((4, 2)),), grad=False), Sample((T((2, 3)),), grad=False),
    ],
    "error_samples": lambda: [ErrorSample((T((3,)),), RuntimeError, "must be batches of")],
    "reference": lambda x: list(_eliminated(x)),
}  # fmt: skip


def _permutation(pivots: Any, size: int, dtype: Any) -> Any:
    matrix = np.eye(size)
    for step, row in reversed(list(enumerate(pivots))):
        matrix[[step, row - 1]] = matrix[[row - 1, step]]
    return matrix


PERMUTATION: dict[str, Any] = {
    "samples": lambda: [
        Sample((T((3,), _dtypes.int32, values=pivots),), {"size": 4, "dtype": _dtypes.float32})
        for pivots in ([1, 2, 3], [2, 3, 4], [4, 3, 3])
    ],
    "reference": _permutation,
}
