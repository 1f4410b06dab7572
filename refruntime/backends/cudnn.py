"""cuDNN is not used: convolutions run on this package's own kernels, which are deterministic.

State
-----
The settings of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

enabled = False
deterministic = True
benchmark = False
benchmark_limit = 10
allow_tf32 = False


def is_available() -> bool:
    """Return False: cuDNN is not used."""
    return False


def version() -> None:
    """Return None: there is no cuDNN whose version could be told."""
    return


@contextmanager
def flags(
    enabled: bool = False, benchmark: bool = False, benchmark_limit: int = 10,
    deterministic: bool = False, allow_tf32: bool = True,
) -> Iterator[None]:  # fmt: skip
    """Change the settings inside a ``with`` block."""
    chosen = dict(locals())
    before = {name: globals()[name] for name in chosen}
    globals().update(chosen)
    try:
        yield
    finally:
        globals().update(before)
