"""oneDNN is not used: the CPU kernels are this package's own."""

from __future__ import annotations

enabled = False


def is_available() -> bool:
    """Return False: it is not used."""
    return False
