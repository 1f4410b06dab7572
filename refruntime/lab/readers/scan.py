"""Driving the compiled readers over a file: pieces in, a sealed arena out.

State
-----
None.

Invariants
----------
* Every way in which a file can fail has its own words here, and ends in the one error of `source`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from refruntime.lab.readers import cells
from refruntime.lab.readers.arena import Arena
from refruntime.lab.readers.source import Source, unreadable

_WORDS: Final = {
    cells.BAD: "damaged, or not in the format that it begins with",
    cells.CODE: "a pickle that asks for a Python class or function; nothing of the kind is "
    "resolved, because it could run code (a snapshot holds only lists, dicts, numbers and text)",
    cells.TOO_DEEP: "nested or listed in a way that no snapshot is",
    cells.TOO_MANY: "dicts with more keys, or of more kinds, than any snapshot has",
    cells.FOREIGN: "a pickle of protocol 0 or 1, or no pickle",
    cells.MORE: "cut off: it ends in the middle of a value",
}


def scan(source: Source, kernel: Any) -> Arena:
    """Read a whole file with one of the compiled readers.

    Raises
    ------
    ArgumentValueError
        If the file is damaged, cut off, hostile or of another kind.
    """
    arena, rest, code = Arena(), b"", cells.MORE
    for piece in source.pieces():
        rest += piece
        code, used = _feed(arena, kernel, rest, final=False)
        arena.header[cells.CONSUMED] += used
        rest = rest[used:]
        if code != cells.MORE:
            break
    if code == cells.MORE:
        code, used = _feed(arena, kernel, rest, final=True)
    if code != cells.DONE:
        place = int(arena.header[cells.CONSUMED])
        raise unreadable(source.path, f"{_WORDS[code]} (at byte {place})")
    arena.seal()
    return arena


def _feed(arena: Arena, kernel: Any, data: bytes, final: bool) -> tuple[int, int]:
    """Run a reader over a piece; return its last word, and how many bytes it has used up."""
    header = arena.header
    buffer = np.frombuffer(data, np.uint8)
    header[cells.BUFFER], header[cells.END] = buffer.ctypes.data, len(buffer)
    header[cells.POSITION], header[cells.FINAL] = 0, final
    while True:
        code = int(kernel(arena.address))
        if code == cells.PAGE:
            arena.new_page(int(header[cells.NEED]))
        elif code <= cells.GROW:
            arena.grow(cells.GROW - code)
        else:
            return code, int(header[cells.POSITION])
