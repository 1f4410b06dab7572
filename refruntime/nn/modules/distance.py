"""Distances between rows."""

from __future__ import annotations

from typing import Any

from refruntime.nn import functional
from refruntime.nn.modules.module import Module

__all__ = ["CosineSimilarity", "PairwiseDistance"]


class PairwiseDistance(Module):
    """The p-norm of ``x1 - x2 + eps`` along the last dimension.

    Parameters
    ----------
    p : float
        The norm.
    eps : float
        Added to each difference.
    keepdim : bool
        Whether the dimension stays, with size 1.
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Any, x2: Any) -> Any:
        """Return the distances."""
        return functional.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along `dim`.

    Parameters
    ----------
    dim : int
        The dimension of the vectors.
    eps : float
        The smallest norm that is divided by.
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps

    def forward(self, x1: Any, x2: Any) -> Any:
        """Return the cosines."""
        return functional.cosine_similarity(x1, x2, self.dim, self.eps)
