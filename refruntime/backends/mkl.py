"""Intel's MKL: products run on the BLAS that NumPy was built with."""

from __future__ import annotations


def is_available() -> bool:
    """Return False: it is not used."""
    return False
