"""Apple's GPUs are not driven."""

from __future__ import annotations


def is_available() -> bool:
    """Return False: these GPUs are not driven."""
    return False


def is_built() -> bool:
    """Return False: these GPUs are not driven."""
    return False
