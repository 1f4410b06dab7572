"""The tables behind the compiled readers, their growth, and their values as Python sees them.

State
-----
One array a table of `cells`, the hash table, and for each shape the pages that are full, each
column of a page kept as narrow as its values allow.

Invariants
----------
* What a file can make us hold is bounded by its length (`_ALLOWANCE`): a bomb ends in an error.
* Nothing of a file is executed, imported or called.
* Lengths grow by a quarter: a table never holds much more than it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from refruntime._native import native, ptr_i64
from refruntime.errors import ArgumentValueError
from refruntime.lab.readers import cells
from refruntime.lab.readers.cells import enter_all

Array = np.ndarray[Any, np.dtype[Any]]

_ROWS_FIRST: Final = 64
_ROWS_MOST: Final = 1 << 15
_ALLOWANCE: Final = 64 << 20  # what any file may take beside twice its own length
_WIDTHS: Final = {
    cells.CELLS: 2, cells.MEMO: 1, cells.ITEMS: 1, cells.LISTS: 2, cells.CHUNKS: 3,
    cells.ENTRIES: 4, cells.BYTES: 1, cells.WORDS: 1, cells.SHAPES: 5,
}  # fmt: skip
_NAMES: Final = ("name", "filename", "line")


@native("int64(int64)")
def fill_slots(header):  # type: ignore[no-untyped-def]
    """Fill the hash table, which is empty."""
    enter_all(ptr_i64(header))
    return 0


@dataclass(slots=True)
class Column:
    """One column of a page: `base` plus narrow unsigned numbers; none where all are equal."""

    base: int
    offsets: Array | None

    @classmethod
    def of(cls, values: Array) -> Column:
        """Store a column of int64."""
        low, high = int(values.min()), int(values.max())
        if low == high:
            return cls(low, None)
        return cls(low, (values - low).astype(np.min_scalar_type(high - low)))

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return 64 + (0 if self.offsets is None else self.offsets.nbytes)

    def fill(self, out: Array) -> None:
        """Write the values into an int64 array."""
        out[:] = self.base
        if self.offsets is not None:
            out += self.offsets.astype(np.int64)


@dataclass(slots=True)
class Rows:
    """All dicts of one shape: `keys` and the tags of their values, and the pages of payloads."""

    keys: tuple[str, ...]
    tags: tuple[int, ...]
    pages: list[tuple[int, list[Column]]] = field(default_factory=list)
    count: int = 0

    def column(self, key: str) -> Array:
        """Return the payloads under a key as int64."""
        place = self.keys.index(key)
        out = np.empty(self.count, np.int64)
        start = 0
        for count, columns in self.pages:
            columns[place].fill(out[start : start + count])
            start += count
        return out

    def tag(self, key: str) -> int:
        """Return the tag of the values under a key, NONE where there is no such key."""
        return self.tags[self.keys.index(key)] if key in self.keys else cells.NONE


class Arena:
    """Memory of a compiled reader.

    Attributes
    ----------
    header : ndarray of int64
        The header of `cells`; `address` is where it lies.
    rows : list of Rows
        The dicts of each shape; complete after `seal`.
    """

    def __init__(self) -> None:
        self.header = np.zeros(cells.HEADER_WORDS, np.int64)
        self.address = int(self.header.ctypes.data)
        self.rows: list[Rows] = []
        self._tables: dict[int, Array] = {}
        self._pages: dict[int, Array] = {}
        self._page_bytes = 0
        self._texts: dict[int, str] = {}
        for table, width in _WIDTHS.items():
            kind = np.uint8 if table == cells.BYTES else np.int64
            self._place(table, np.empty(256 * width, kind))
        self._set_slots(1 << 12)
        for place, name in zip((cells.KEY_NAME, cells.KEY_FILE, cells.KEY_LINE), _NAMES):
            self.header[place] = (self.add_string(name) << 8) | cells.STRING

    # --- growth ---------------------------------------------------------------------------------

    def grow(self, table: int) -> None:
        """Make the room that the header says is needed."""
        header, array = self.header, self._tables[table]
        count, need = int(header[table + 2]), int(header[cells.NEED])
        capacity = max(count + need, int(header[table + 1]) * 5 // 4, 1024)
        self._check_memory((capacity - int(header[table + 1])) * array.itemsize)
        # In place where it can be: large arrays are remapped by the system, not copied.
        array.resize(capacity * _WIDTHS[table], refcheck=False)
        self._place(table, array)
        if table == cells.ENTRIES and 2 * capacity > len(self._slots):
            self._set_slots(2 * len(self._slots))

    def new_page(self, shape: int) -> None:
        """Take the full page of a shape away, and give it an empty one."""
        self._collect_page(shape)
        row = self._shape_row(shape)
        rows = min(max(_ROWS_FIRST, 4 * int(row[1])), _ROWS_MOST)
        page = np.empty(rows * len(self.rows[shape].keys), np.int64)
        self._check_memory(page.nbytes)
        self._pages[shape] = page
        row[0], row[1], row[2] = page.ctypes.data, rows, 0
        row[3] = self.rows[shape].count

    def seal(self) -> None:
        """Collect what the last pages hold, and drop what only the reading needed."""
        for shape in range(int(self.header[cells.SHAPES + 2])):
            self._collect_page(shape)
            self._shape_row(shape)[1:3] = 0
        self._pages.clear()
        self._tables[cells.MEMO].resize(0, refcheck=False)

    def _collect_page(self, shape: int) -> None:
        if shape == len(self.rows):
            self.rows.append(self._describe(shape))
        known, row = self.rows[shape], self._shape_row(shape)
        count = int(row[2])
        if count == 0:
            return
        matrix = self._pages[shape].reshape(-1, len(known.keys))[:count]
        columns = [Column.of(np.ascontiguousarray(matrix[:, k])) for k in range(len(known.keys))]
        self._page_bytes += sum(column.nbytes for column in columns)
        known.pages.append((count, columns))
        known.count += count

    def _describe(self, shape: int) -> Rows:
        words = self.words(int(self._shape_row(shape)[4]))
        keys = tuple(str(self.value(int(key))) for key in words[::2])
        return Rows(keys, tuple(int(tag) for tag in words[1::2]))

    def _shape_row(self, shape: int) -> Array:
        return self._tables[cells.SHAPES][5 * shape : 5 * shape + 5]

    def _place(self, table: int, array: Array) -> None:
        self._tables[table] = array
        self.header[table] = array.ctypes.data
        self.header[table + 1] = len(array) // _WIDTHS[table]

    def _set_slots(self, count: int) -> None:
        self._slots = np.zeros(count, np.int64)
        self.header[cells.SLOTS], self.header[cells.SLOT_MASK] = self._slots.ctypes.data, count - 1
        fill_slots(self.address)

    def _check_memory(self, more: int) -> None:
        held = sum(array.nbytes for array in self._tables.values()) + self._slots.nbytes
        held += self._page_bytes + sum(page.nbytes for page in self._pages.values())
        read = int(self.header[cells.CONSUMED] + self.header[cells.END])
        if held + more > 2 * read + _ALLOWANCE:
            raise ArgumentValueError(
                "read", what="the file would take far more memory than its length accounts for",
                expected="a recording", got=f"{held + more} bytes of values from {read} bytes",
            )  # fmt: skip

    # --- values ---------------------------------------------------------------------------------

    def add_string(self, text: str) -> int:
        """Return the entry of a string, which need not be in the file."""
        data = np.frombuffer(text.encode(), np.uint8)
        number = int(self.header[cells.ENTRIES + 2])
        for entry in range(number):
            if self.tag_of_entry(entry) == cells.STRING and self.text(entry) == text:
                return entry
        start = int(self.header[cells.BYTES + 2])
        self._tables[cells.BYTES][start : start + len(data)] = data
        self.header[cells.BYTES + 2] += len(data)
        hashed = _string_hash(data)
        row = [hashed, start, (len(data) << 8) | cells.STRING, -1]
        self._tables[cells.ENTRIES][4 * number : 4 * number + 4] = row
        self.header[cells.ENTRIES + 2] += 1
        self._set_slots_again()
        return number

    def _set_slots_again(self) -> None:
        self._slots[:] = 0
        fill_slots(self.address)

    def tag_of_entry(self, entry: int) -> int:
        """Return what an entry is."""
        return int(self._tables[cells.ENTRIES][4 * entry + 2]) & 255

    def entries_of(self, tag: int) -> Array:
        """Return the numbers of all entries of one tag."""
        count = int(self.header[cells.ENTRIES + 2])
        tags = self._tables[cells.ENTRIES][: 4 * count].reshape(-1, 4)[:, 2] & 255
        return np.flatnonzero(tags == tag)

    def text(self, entry: int) -> str:
        """Return the string of an entry."""
        if entry not in self._texts:
            _, start, size, _ = self._tables[cells.ENTRIES][4 * entry : 4 * entry + 4].tolist()
            data = self._tables[cells.BYTES][start : start + (size >> 8)].tobytes()
            self._texts[entry] = data.decode("utf-8", "replace")
        return self._texts[entry]

    def words(self, entry: int) -> Array:
        """Return the words of an entry."""
        _, start, size, _ = self._tables[cells.ENTRIES][4 * entry : 4 * entry + 4].tolist()
        return self._tables[cells.WORDS][start : start + (size >> 8)]

    def numbers(self, entries: Array, tag: int) -> Array:
        """Return the integers of entries of one word; floats lose their fraction."""
        words = self._tables[cells.WORDS][self._tables[cells.ENTRIES][4 * entries + 1]]
        found: Array = words.view(np.float64).astype(np.int64) if tag == cells.FLOAT else words
        return found

    def items(self, number: int) -> Array:
        """Return the cells of a list."""
        parts = list(self._chunks(number))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _chunks(self, number: int) -> Iterator[Array]:
        chunks = self._tables[cells.CHUNKS]
        chunk = int(self._tables[cells.LISTS][2 * number])
        while chunk >= 0:
            start, count, chunk = chunks[3 * chunk : 3 * chunk + 3].tolist()
            yield self._tables[cells.ITEMS][start : start + count]

    def root(self) -> int:
        """Return the cell of the whole file's value."""
        return int(self._tables[cells.CELLS][0])

    def value(self, cell: int, depth: int = 0) -> Any:
        """Return a value as plain Python; deeper than a hundred levels there is only None."""
        tag, payload = cell & 255, cell >> 8
        if tag in (cells.EMPTY_LIST, cells.EMPTY_DICT):
            return [] if tag == cells.EMPTY_LIST else {}
        if tag == cells.NONE or depth > 100:
            return None
        if tag in (cells.BOOL, cells.INT):
            return bool(payload) if tag == cells.BOOL else payload
        return _ENTRY_VALUES[tag](self, payload, depth)

    def _frame(self, entry: int, depth: int) -> dict[str, Any]:
        name, file, line = self.words(entry).tolist()
        return {"name": self.text(name), "filename": self.text(file), "line": line}

    def _dict(self, payload: int, depth: int) -> dict[str, Any]:
        rows, row = self.rows[payload >> cells.ROW_BITS], payload & ((1 << cells.ROW_BITS) - 1)
        page = 0
        while row >= rows.pages[page][0]:
            row -= rows.pages[page][0]
            page += 1
        payloads = [
            column.base + (0 if column.offsets is None else int(column.offsets[row]))
            for column in rows.pages[page][1]
        ]
        return {
            key: self.value((payload << 8) | tag, depth + 1)
            for key, tag, payload in zip(rows.keys, rows.tags, payloads)
        }


_ENTRY_VALUES: Final[dict[int, Any]] = {
    cells.STRING: lambda arena, entry, depth: arena.text(entry),
    cells.WIDE: lambda arena, entry, depth: int(arena.words(entry)[0]),
    cells.FLOAT: lambda arena, entry, depth: float(arena.words(entry).view(np.float64)[0]),
    cells.PAIR: lambda arena, entry, depth: tuple(arena.words(entry).tolist()),
    cells.FRAME: Arena._frame,
    cells.STACK: lambda arena, entry, depth: [
        arena._frame(int(frame), depth) for frame in arena.words(entry)
    ],
    cells.LIST: lambda arena, number, depth: [
        arena.value(int(cell), depth + 1) for cell in arena.items(number)
    ],
    cells.DICT: Arena._dict,
}


def _string_hash(data: Array) -> int:
    """Return the hash of `intern_bytes`."""
    hashed = cells.STRING + 7 * len(data)
    for byte in data.tolist():
        hashed = (hashed * 1000003 + byte) & cells._HASH_MASK
    return int(hashed ^ (hashed >> 21))
