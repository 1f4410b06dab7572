"""How many threads BLAS uses, for the library that NumPy has loaded.

State
-----
The function of that library that says so, looked up at the first use; None where it is not found.

Invariants
----------
* Nothing here changes the number: it holds for the whole process and is the user's. Lowering it
  for a while would not free a core either, for the threads of OpenBLAS spin after their work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

_MAPS = Path("/proc/self/maps")
# How builds of OpenBLAS spell their function.
_NAMES = tuple(
    f"{prefix}openblas_get_num_threads{suffix}"
    for prefix in ("scipy_", "")
    for suffix in ("64_", "_64", "")
)


def threads() -> int:
    """Return how many threads a large product uses; 1 where the library does not say (macOS)."""
    getter = _getter()
    return 1 if getter is None else int(getter())


@cache
def _getter() -> Callable[[], int] | None:
    for path in _loaded():
        library = ctypes.CDLL(path)
        for name in _NAMES:
            getter: Callable[[], int] | None = getattr(library, name, None)
            if getter is not None:
                return getter
    return None


def _loaded() -> list[str]:
    """Return the paths of the BLAS libraries that this process has loaded (Linux)."""
    if not _MAPS.exists():
        return []
    lines = [line.split(maxsplit=5) for line in _MAPS.read_text().splitlines() if "blas" in line]
    return sorted({fields[5] for fields in lines if ".so" in fields[5]})
