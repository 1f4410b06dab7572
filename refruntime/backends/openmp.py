"""OpenMP is not used: large kernels share the runtime's own threads."""

from __future__ import annotations


def is_available() -> bool:
    """Return False: it is not used."""
    return False
