"""Changes that wait: frees, tags and adoptions that could not be carried out at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Final

from refruntime.errors import ArgumentValueError

# What a queued change asks for: its kind, an address, and the rest of its arguments.
Change = tuple[int, ...]
FREE: Final = 0
TAG: Final = 1
ADOPT: Final = 2


def stray(change: Change) -> ArgumentValueError:
    """Return the error for a change that names no block in use."""
    name = "tag" if change[0] == TAG else "free"
    return ArgumentValueError(
        name,
        expected="the address of a block in use",
        got=f"{change[1]:#x}",
        remedy="each block is freed once, by whoever asked for it",
    )


def warn_of(strays: Iterable[Change]) -> None:
    """Report changes that named no block in use, where their callers cannot be told."""
    for change in strays:
        warnings.warn(str(stray(change)), RuntimeWarning, stacklevel=4)
