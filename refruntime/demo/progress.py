"""A progress bar on one line: tqdm's if it is installed, else a plain one.

Invariants
----------
* Nothing is drawn when the output is not a terminal.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO

from refruntime import _optional

_WIDTH = 24


class PlainBar:
    """Draws ``label [#####.....] 12/23`` over and over on one line.

    Parameters
    ----------
    total : int
        Steps in all.
    label : str
        What is running.
    file : text file
        A terminal.
    """

    def __init__(self, total: int, label: str, file: TextIO) -> None:
        self._total = total
        self._label = label
        self._file = file
        self._done = 0

    def update(self, steps: int = 1) -> None:
        """Move on by some steps."""
        self._done += steps
        filled = _WIDTH * self._done // max(self._total, 1)
        bar = "#" * filled + "." * (_WIDTH - filled)
        self._file.write(f"\r{self._label} [{bar}] {self._done}/{self._total}")
        self._file.flush()

    def close(self) -> None:
        """Clear the line."""
        self._file.write("\r" + " " * (len(self._label) + _WIDTH + 24) + "\r")
        self._file.flush()


class SilentBar:
    """Draws nothing."""

    def update(self, steps: int = 1) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def bar(total: int, label: str, file: TextIO | None = None) -> Any:
    """Return the best bar for a file (default: standard error)."""
    target = sys.stderr if file is None else file
    if not target.isatty():
        return SilentBar()
    if _optional.tqdm:
        return _optional.tqdm.tqdm(total=total, desc=label, file=target, leave=False)
    return PlainBar(total, label, target)
