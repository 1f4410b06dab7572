"""Integer columns as text that a page can carry: delta, varint, deflate, base64.

State
-----
None.

Invariants
----------
* `pack` writes what ``columns.js`` reads; the formats live in these two files only.
* Values below 2**51 survive: the zigzag of a step between two of them is below 2**53, which is
  what a JavaScript number holds exactly.

The container is a little-endian uint32, the length of a JSON header; the header, which lists the
columns in order (name, kind, count, bytes) and carries the texts; then the columns' bytes. A column
is the differences of neighbours, each made unsigned by zigzag (0, -1, 1, -2, ...) and written as a
varint: seven bits a byte, low ones first, the high bit set on all but the last.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]


def pack(columns: Mapping[str, Column], texts: Mapping[str, Any]) -> str:
    """Return columns and texts as one base64 string.

    Parameters
    ----------
    columns : mapping of str to array of int
        One dimension each; 32-bit columns become ``Int32Array``, others ``Float64Array``.
    texts : mapping
        Anything that JSON can hold.
    """
    parts = {name: varints(zigzag_deltas(column)) for name, column in columns.items()}
    header = {
        "texts": dict(texts),
        "columns": [
            {
                "name": name,
                "kind": "i32" if column.dtype == np.int32 else "f64",
                "count": len(column),
                "bytes": len(parts[name]),
            }
            for name, column in columns.items()
        ],
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    body = b"".join([len(head).to_bytes(4, "little"), head, *parts.values()])
    return base64.b64encode(zlib.compress(body, 6)).decode("ascii")


def zigzag_deltas(column: Column) -> NDArray[np.uint64]:
    """Return the steps between neighbours as unsigned numbers; small steps stay small."""
    values = np.asarray(column, np.int64)
    steps = values.copy()
    steps[1:] -= values[:-1]
    folded: NDArray[np.uint64] = ((steps << 1) ^ (steps >> 63)).astype(np.uint64)
    return folded


def varints(values: NDArray[np.uint64]) -> bytes:
    """Return unsigned numbers in seven-bit groups, low ones first.

    The bytes are laid out as a table, one row a number, and the unused cells dropped: this takes
    a few array operations where a loop would take a second for a million numbers.
    """
    width = _width(values)
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    rest = values[:, None] >> shifts
    more = np.zeros(rest.shape, bool)
    more[:, :-1] = rest[:, 1:] != 0
    used = np.ones(rest.shape, bool)
    used[:, 1:] = more[:, :-1]
    groups = (rest & np.uint64(127)).astype(np.uint8) | (more * np.uint8(128))
    return groups[used].tobytes()


def _width(values: NDArray[np.uint64]) -> int:
    """Return how many seven-bit groups the largest number takes."""
    largest = int(values.max()) if len(values) else 0
    return max(1, -(-largest.bit_length() // 7))
