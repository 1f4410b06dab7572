"""Progress of long work, on the error stream, for people only.

State
-----
When something was last written, and how wide it was.

Invariants
----------
* Nothing is written within the first half second, more than ten times a second, or where nobody
  looks (the error stream is no terminal).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_PATIENCE: Final = 0.5
_PAUSE: Final = 0.1
_CELLS: Final = 30


@contextmanager
def bar(label: str) -> Iterator[Callable[[float], None]]:
    """Show a bar for the length of a ``with`` block.

    Parameters
    ----------
    label : str
        What is going on.

    Yields
    ------
    callable
        To be called with the share that is done, from 0 to 1.
    """
    if not sys.stderr.isatty():
        yield lambda share: None
        return
    begun = last = time.monotonic()
    width = 0

    def show(share: float) -> None:
        nonlocal last, width
        now = time.monotonic()
        if now - begun < _PATIENCE or now - last < _PAUSE:
            return
        last = now
        full = int(_CELLS * share)
        text = f"{label} [{'#' * full}{'.' * (_CELLS - full)}] {100 * share:3.0f} %"
        width = max(width, len(text))
        sys.stderr.write("\r" + text.ljust(width))
        sys.stderr.flush()

    try:
        yield show
    finally:
        if width:
            sys.stderr.write("\r" + " " * width + "\r")
            sys.stderr.flush()
