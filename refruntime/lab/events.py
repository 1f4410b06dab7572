"""Event lists: what a program asks of an allocator, in order, and when the device's work was done.

State
-----
Columns of NumPy arrays; see `EventList`.

Invariants
----------
* The operations and their names are those of the list format (one JSON object a line), so that a
  list made here also replays on a real allocator.
* An id names one allocation: it is allocated once, and freed at most once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from refruntime.errors import ArgumentValueError
from refruntime.lab.recording import Array

OPS: Final = (
    "alloc", "free", "record_stream", "complete", "empty_cache", "sync", "sync_stream", "events",
    "set_fraction", "set_capacity", "set_foreign", "fail_next", "settings", "pool_begin",
    "pool_end", "pool_delete", "reset_peak", "snapshot",
)  # fmt: skip
(
    ALLOC, FREE, RECORD_STREAM, COMPLETE, EMPTY_CACHE, SYNC, SYNC_STREAM, EVENTS,
    SET_FRACTION, SET_CAPACITY, SET_FOREIGN, FAIL_NEXT, SETTINGS, POOL_BEGIN,
    POOL_END, POOL_DELETE, RESET_PEAK, SNAPSHOT,
) = range(len(OPS))  # fmt: skip
_NUMBER: Final = {name: place for place, name in enumerate(OPS)}

# What an operation holds beside its name: key in the file -> column.
_FIELDS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "alloc": (("id", "id"), ("size", "size"), ("stream", "stream")),
    "free": (("id", "id"),),
    "record_stream": (("id", "id"), ("stream", "stream")),
    "complete": (("stream", "stream"), ("n", "size")),
    "sync_stream": (("stream", "stream"),),
    "set_capacity": (("bytes", "size"),),
    "set_foreign": (("bytes", "size"),),
    "fail_next": (("n", "size"),),
    "pool_begin": (("pool", "id"),),
    "pool_end": (("pool", "id"),),
    "pool_delete": (("pool", "id"),),
}
_TEXTS: Final = {"settings": "conf", "events": "mode", "set_fraction": "fraction"}
_COLUMNS: Final = ("op", "id", "size", "stream")
_ABSENT: Final = {"complete": {"stream": -1, "size": -1}}


@dataclass(frozen=True, slots=True)
class EventList:
    """Operations on an allocator.

    Attributes
    ----------
    op : ndarray of uint8
        A place in `OPS`.
    id, size, stream : ndarray of int64
        The allocation (or pool); bytes (or a count, or a place in `texts`); the stream by number.
        A ``complete`` with stream -1 is of all streams, with size -1 of all that is pending.
    texts : tuple of str
        Settings, modes and fractions.
    capacity : int
        Bytes of the device.
    conf : str
        The settings to begin with.
    manual_events : bool
        Whether work on a stream is done only when a ``complete`` says so.
    """

    op: Array
    id: Array
    size: Array
    stream: Array
    texts: tuple[str, ...] = ()
    capacity: int = 80 << 30
    conf: str = ""
    manual_events: bool = False

    @classmethod
    def of_matrix(
        cls, matrix: Array, texts: tuple[str, ...], capacity: int, conf: str, manual_events: bool
    ) -> EventList:
        """Return a list from rows of op, id, size and stream."""
        op, id, size, stream = (np.ascontiguousarray(matrix[:, i]) for i in range(4))
        return cls(op.astype(np.uint8), id, size, stream, texts, capacity, conf, manual_events)

    def __len__(self) -> int:
        return len(self.op)

    def under(self, conf: str | None = None, capacity: int | None = None) -> EventList:
        """Return the same list with other settings or another device."""
        return replace(
            self,
            conf=self.conf if conf is None else conf,
            capacity=self.capacity if capacity is None else capacity,
        )

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the operations as the file has them, the ``config`` line first."""
        yield {
            "op": "config", "capacity": self.capacity, "conf": self.conf,
            "manual_events": self.manual_events,
        }  # fmt: skip
        columns = (self.op.tolist(), self.id.tolist(), self.size.tolist(), self.stream.tolist())
        for op, id, size, stream in zip(*columns):
            name = OPS[op]
            record: dict[str, Any] = {"op": name}
            values = {"id": id, "size": size, "stream": stream}
            for key, column in _FIELDS.get(name, ()):
                if values[column] != _ABSENT.get(name, {}).get(column):
                    record[key] = values[column]
            if name in _TEXTS:
                text = self.texts[size]
                record[_TEXTS[name]] = float(text) if name == "set_fraction" else text
            yield record

    def lines(self) -> Iterator[str]:
        """Yield the list as lines of JSON."""
        for record in self.records():
            yield json.dumps(record, separators=(",", ":"))


class Builder:
    """Collects operations, then makes an `EventList` of them."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.texts: dict[str, int] = {}

    def add(self, op: int, id: int = 0, size: int = 0, stream: int = 0) -> None:
        """Append an operation."""
        self.rows.append((op, id, size, stream))

    def text(self, text: str) -> int:
        """Return the place of a text."""
        return self.texts.setdefault(text, len(self.texts))

    def add_record(self, record: dict[str, Any]) -> None:
        """Append an operation as the file has it.

        Raises
        ------
        ArgumentValueError
            If the operation or one of its numbers makes no sense.
        """
        name = record.get("op")
        if name not in _NUMBER:
            raise ArgumentValueError(
                "event list", expected="an operation: " + ", ".join(OPS), got=repr(name)
            )
        columns = {"id": 0, "size": 0, "stream": 0, **_ABSENT.get(name, {})}
        for key, column in _FIELDS.get(name, ()):
            value = record.get(key, columns[column])
            if type(value) is not int or not -(1 << 62) < value < 1 << 62:
                raise ArgumentValueError(
                    "event list", expected=f"an integer under {key!r}", got=repr(value)
                )
            columns[column] = value
        if name in _TEXTS:
            columns["size"] = self.text(str(record.get(_TEXTS[name], "")))
        self.add(_NUMBER[name], **columns)

    def done(self, *, capacity: int, conf: str = "", manual_events: bool = False) -> EventList:
        """Return the list."""
        matrix = np.array(self.rows, np.int64).reshape(-1, 4)
        return EventList.of_matrix(matrix, tuple(self.texts), capacity, conf, manual_events)


def parse(records: Iterable[dict[str, Any]]) -> EventList:
    """Return the event list of records, the first of which may be a ``config``."""
    builder, config = Builder(), dict[str, Any]()
    for place, record in enumerate(records):
        if place == 0 and record.get("op") == "config":
            config = record
        else:
            builder.add_record(record)
    return builder.done(
        capacity=bytes_of(config.get("capacity", "80G")),
        conf=str(config.get("conf", "")),
        manual_events=bool(config.get("manual_events", False)),
    )


def bytes_of(text: Any) -> int:
    """Return a number of bytes from digits with an optional unit: 80G, 512M, 4096.

    Raises
    ------
    ArgumentValueError
        If it is none.
    """
    word = str(text).strip().removesuffix("B").removesuffix("i").upper()
    shift = {"K": 10, "M": 20, "G": 30, "T": 40}.get(word[-1:], 0)
    try:
        value = int(float(word.rstrip("KMGT")) * (1 << shift)) if shift else int(word)
    except (ValueError, OverflowError):
        value = -1
    if value < 0:
        raise ArgumentValueError(
            "bytes", expected="a size such as 80G, 512M or 4096", got=repr(text)
        )
    return value
