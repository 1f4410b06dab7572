"""Flatten and Unflatten: ranges of dimensions made one, and one made several."""

from __future__ import annotations

from typing import Any

from refruntime.errors import ArgumentTypeError
from refruntime.nn.modules.module import Module

__all__ = ["Flatten", "Unflatten"]


class Flatten(Module):
    """Makes the dimensions from `start_dim` to `end_dim` one.

    Parameters
    ----------
    start_dim, end_dim : int
        The first and the last of them.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Any) -> Any:
        """Flatten the input."""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Makes one dimension several.

    Parameters
    ----------
    dim : int
        The dimension.
    unflattened_size : tuple of int
        What it becomes; one size may be -1.
    """

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        if not isinstance(dim, int):
            raise ArgumentTypeError(
                "Unflatten", expected="an int as dim (named dimensions are not supported)",
                got=type(dim).__name__,
            )  # fmt: skip
        if not isinstance(unflattened_size, (tuple, list)):
            raise ArgumentTypeError(
                "Unflatten", expected="unflattened_size to be a tuple of ints",
                got=type(unflattened_size).__name__,
            )  # fmt: skip
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input: Any) -> Any:
        """Unflatten the input."""
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
