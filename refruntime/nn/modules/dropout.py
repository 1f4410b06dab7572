"""Dropout: elements or whole channels set to zero while training.

Source: Srivastava et al., "Dropout", 2014; Klambauer et al., 2017 (alpha dropout).
"""

from __future__ import annotations

from typing import Any

from refruntime.errors import ArgumentValueError
from refruntime.nn import functional
from refruntime.nn.modules.module import Module

__all__ = [
    "AlphaDropout",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "FeatureAlphaDropout",
]


class _DropoutNd(Module):
    """What all kinds of dropout share.

    Parameters
    ----------
    p : float
        The probability of zero.
    inplace : bool
        Whether the input is written to.
    """

    p: float
    inplace: bool

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ArgumentValueError(
                type(self).__name__, what="dropout probability has to be between 0 and 1",
                got=str(p),
            )  # fmt: skip
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_DropoutNd):
    """Sets elements to 0 with probability p and scales the others by 1 / (1 - p)."""

    def forward(self, input: Any) -> Any:
        """Drop elements in training mode; return the input otherwise."""
        return functional.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_DropoutNd):
    """Sets whole channels of (batch, channels, length) to 0."""

    def forward(self, input: Any) -> Any:
        """Drop channels in training mode; return the input otherwise."""
        return functional.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_DropoutNd):
    """Sets whole channels of (batch, channels, height, width) to 0."""

    def forward(self, input: Any) -> Any:
        """Drop channels in training mode; return the input otherwise."""
        return functional.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_DropoutNd):
    """Sets whole channels of (batch, channels, depth, height, width) to 0."""

    def forward(self, input: Any) -> Any:
        """Drop channels in training mode; return the input otherwise."""
        return functional.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_DropoutNd):
    """Dropout that keeps mean and variance of what comes out of SELU."""

    def forward(self, input: Any) -> Any:
        """Drop elements in training mode; return the input otherwise."""
        return functional.alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(_DropoutNd):
    """Alpha dropout of whole channels."""

    def forward(self, input: Any) -> Any:
        """Drop channels in training mode; return the input otherwise."""
        return functional.feature_alpha_dropout(input, self.p, self.training)
