"""torch.linalg: the linear algebra of the registry under its public names."""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.kernels.dense import LinAlgError

_NAMES = (
    "cholesky", "cholesky_ex", "cond", "cross", "det", "eigh", "eigvalsh", "inv", "inv_ex", "lstsq",
    "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matrix_exp", "matrix_norm", "matrix_power",
    "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve", "solve_ex",
    "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot",
    "vector_norm",
)  # fmt: skip

__all__ = ["LinAlgError", "diagonal", "matmul", *_NAMES]


def diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Return a view of the diagonals of matrices."""
    return ops.diagonal(A, offset, dim1, dim2)


def matmul(input: Any, other: Any, *, out: Any = None) -> Any:
    """Return the matrix product of two tensors."""
    return ops.matmul(input, other, out=out)


globals().update({name: getattr(ops, f"linalg_{name}") for name in _NAMES})
