"""Logs of lines with commas: RMM's allocation log, and minimalloc's lists of buffers.

State
-----
None.

Invariants
----------
* Columns are found by the names in the first line, in any order.
* A line that does not parse ends the reading, with its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from refruntime.lab import recording as rec
from refruntime.lab.readers.source import Source, unreadable
from refruntime.lab.recording import Device, Events, Recording

RMM_COLUMNS: Final = ("Thread", "Time", "Action", "Pointer", "Size", "Stream")
BUFFER_COLUMNS: Final = ("id", "lower", "upper", "size")
_BASE: Final = 1 << 40

_RMM_ACTIONS: Final = {
    "allocate": (rec.ALLOC,),
    "free": (rec.FREE_REQUESTED, rec.FREE_COMPLETED),
    "allocate failure": (rec.OOM,),
}
_WORDS: Final = tuple(_RMM_ACTIONS)


def read_rmm(source: Source) -> Recording:
    """Read an RMM log: ``Thread,Time,Action,Pointer,Size,Stream``."""
    rows: list[tuple[int, ...]] = []
    for word, address, size, stream, time_us in _cells(source, RMM_COLUMNS, _rmm_row):
        for action in _RMM_ACTIONS[_WORDS[word]]:
            place = 0 if action == rec.OOM else address
            rows.append((action, place, size, stream, time_us, 0, 0, 0))
    return Recording(
        source=str(source.path),
        format="RMM log",
        devices=(Device(0, Events.of_rows(rows), *rec.no_segments()),),
        notes=("an RMM log: requests alone, without segments and stacks",),
    )


def _rmm_row(cells: list[str]) -> tuple[int, ...]:
    _, time, action, pointer, size, stream = cells
    word = _WORDS.index(action.strip())
    return word, int(pointer, 0), int(size), int(stream, 0), _time_us(time)


def _time_us(text: str) -> int:
    """Return the microseconds of HH:MM:SS:us or HH:MM:SS.us."""
    hours, minutes, rest = text.strip().split(":", 2)
    seconds, _, fraction = rest.replace(":", ".").partition(".")
    micros = int((fraction + "000000")[:6])
    return ((int(hours[-2:]) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + micros


def read_buffers(source: Source) -> Recording:
    """Read a list of buffers with their lifetimes: ``id,lower,upper,size``, upper excluded."""
    moments: list[tuple[int, int, int, int]] = []
    for number, cells in enumerate(_cells(source, BUFFER_COLUMNS, _buffer_row)):
        lower, upper, size = cells
        moments += [(lower, 1, number, size), (upper, 0, number, size)]
    rows: list[tuple[int, ...]] = []
    for time, begins, number, size in sorted(moments):
        actions = (rec.ALLOC,) if begins else (rec.FREE_REQUESTED, rec.FREE_COMPLETED)
        rows += [(action, _BASE + number, size, 0, time, 0, 0, 0) for action in actions]
    return Recording(
        source=str(source.path),
        format="minimalloc buffers",
        devices=(Device(0, Events.of_rows(rows), *rec.no_segments()),),
        notes=("a list of buffers: sizes and lifetimes alone",),
    )


def _buffer_row(cells: list[str]) -> tuple[int, ...]:
    lower, upper, size = (int(cell) for cell in cells[1:])
    if not 0 <= lower < upper or size < 0:
        raise ValueError(cells)
    return lower, upper, size


def _cells(
    source: Source, columns: tuple[str, ...], parse: Callable[[list[str]], tuple[int, ...]]
) -> Iterator[tuple[int, ...]]:
    """Yield the parsed cells of each line below the first, in the order of `columns`."""
    lines = enumerate(source.lines(), 1)
    names = [name.strip().lower() for name in next(lines, (0, ""))[1].split(",")]
    wanted = [column.lower() for column in columns]
    if not set(wanted) <= set(names):
        raise unreadable(source.path, f"the first line does not name {', '.join(columns)}")
    places = [names.index(name) for name in wanted]
    for number, line in lines:
        if not line.strip():
            continue
        try:
            cells = line.split(",")
            yield parse([cells[place] for place in places])
        except (ValueError, IndexError):
            raise unreadable(source.path, f"line {number} does not parse: {line[:80]!r}") from None
