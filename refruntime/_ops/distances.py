"""Distances between all pairs of vectors of two sets."""

from __future__ import annotations

import math
from typing import Any

from refruntime._ops.opdef import front, ops, require_tensor
from refruntime.errors import ArgumentValueError, ShapeError

_MODES = (
    "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist",
)  # fmt: skip
# From so many vectors on a product is faster than differences, and less exact.
_MANY = 25


@front(method=False)
def cdist(
    x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary"
) -> Any:
    """Return the `p`-norm distance of each row of `x1` from each row of `x2`.

    Parameters
    ----------
    x1 : Tensor
        Shape ``(..., n, d)``.
    x2 : Tensor
        Shape ``(..., m, d)``; leading dimensions broadcast.
    p : float
        From 0 (how many coordinates differ) to infinity.
    compute_mode : str
        Whether Euclidean distances may come from a matrix product.

    Returns
    -------
    Tensor
        Shape ``(..., n, m)``.
    """
    _check(x1, x2, p, compute_mode)
    many = max(x1.shape[-2], x2.shape[-2]) > _MANY
    if p == 2 and compute_mode != _MODES[2] and (many or compute_mode == _MODES[1]):
        return _by_product(x1, x2)
    gaps = ops.sub(ops.unsqueeze(x1, -2), ops.unsqueeze(x2, -3))
    if p == 0:
        return ops.sum(ops.abs(ops.sgn(gaps)), -1)
    return ops.linalg_vector_norm(gaps, p, -1)


def _check(x1: Any, x2: Any, p: float, compute_mode: str) -> None:
    require_tensor("cdist", x1, "x1")
    require_tensor("cdist", x2, "x2")
    if x1.dim() < 2 or x2.dim() < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(
            "cdist", what="X1 and X2 must have the same number of columns and two dimensions",
            expected="(..., n, d) and (..., m, d)", got=f"{tuple(x1.shape)}, {tuple(x2.shape)}",
        )  # fmt: skip
    if not p >= 0 or math.isnan(p) or compute_mode not in _MODES:
        raise ArgumentValueError(
            "cdist", expected=f"a p of at least 0, and one of {', '.join(_MODES)}",
            got=f"p={p}, compute_mode={compute_mode!r}",
        )  # fmt: skip


def _by_product(x1: Any, x2: Any) -> Any:
    """Return Euclidean distances from lengths and inner products."""
    lengths1 = ops.sum(ops.square(x1), -1, keepdim=True)
    lengths2 = ops.sum(ops.square(x2), -1, keepdim=True)
    product = ops.matmul(x1, ops.transpose(x2, -2, -1))
    squared = ops.add(lengths1, ops.transpose(lengths2, -2, -1))
    squared = ops.sub(squared, ops.mul(product, 2))
    # A distance of zero has no slope; the root must not see it.
    zero = ops.le(ops.detach(squared), 0)
    return ops.masked_fill(ops.sqrt(ops.masked_fill(squared, zero, 1)), zero, 0)
