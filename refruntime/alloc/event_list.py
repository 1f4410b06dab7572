"""Event lists: files of allocation events, one JSON object a line, as rows for the replay loop.

State
-----
None: a list is read once, and its settings are worked out in its order.

Invariants
----------
* Names of blocks become dense numbers; a name that was freed may be used again.
* A row never refers to a name, pool or setting that the loop has no place for.

The format is that of the recordings that are replayed: ``{"op": "alloc", "id": 1, "size": 512,
"stream": 0}`` and so on; the table in `_ENCODERS` has them all.
"""

from __future__ import annotations

import gzip
import json
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from refruntime.alloc import replay_loop as loop
from refruntime.alloc.configuration import Configuration
from refruntime.alloc.driver import STREAM_COUNT
from refruntime.alloc.settings import AllocatorSettingsError
from refruntime.errors import ArgumentValueError

Event = dict[str, Any]
Row = tuple[int, int, int, int]

_UNITS: Final = {"K": 10, "M": 20, "G": 30, "T": 40}


def parse_bytes(text: str | int) -> int:
    """Return the bytes of a size such as ``80G``, ``1.5M`` or ``4096``."""
    word = str(text).strip()
    shift = _UNITS.get(word[-1:].upper(), 0)
    try:
        return int(float(word[:-1]) * (1 << shift)) if shift else int(word)
    except ValueError:
        raise ArgumentValueError(
            "size", expected="bytes, or a number with K, M, G or T", got=repr(text)
        ) from None


def read_events(path: str | Path) -> tuple[Event, list[Event]]:
    """Return the config line of an event list (empty if it has none) and its events.

    Raises
    ------
    ArgumentValueError
        If a line is no JSON object with an ``op``.
    """
    events = []
    opened = gzip.open if str(path).endswith(".gz") else open
    try:
        with opened(path, "rt") as file:
            for number, line in enumerate(file, 1):
                text = line.strip()
                if text and not text.startswith("#"):
                    events.append(_parsed(text, path, number))
    except UnicodeDecodeError:
        raise ArgumentValueError(
            str(path), expected="an event list: JSON lines", got="bytes that are no text",
            remedy="`refruntime lab convert` makes one of a snapshot",
        ) from None  # fmt: skip
    if events and events[0]["op"] == "config":
        return events[0], events[1:]
    return {}, events


def _parsed(text: str, path: str | Path, number: int) -> Event:
    try:
        event = json.loads(text)
    except json.JSONDecodeError:
        event = None
    if not isinstance(event, dict) or "op" not in event:
        raise ArgumentValueError(
            f"{path}, line {number}",
            expected='a JSON object with an "op"',
            got=text[:60],
        )
    return event


@dataclass(slots=True)
class EncodedList:
    """An event list for the replay loop.

    Attributes
    ----------
    rows : int64 array of shape (events, 4)
        See `replay_loop`.
    names, pools : int
        How many blocks and pools can have a name at once.
    settings : list of Configuration
        What the CONFIGURE events refer to; the first one is in force from the start.
    """

    rows: np.ndarray[Any, np.dtype[np.int64]]
    names: int
    pools: int
    settings: list[Configuration]


def encode(events: Iterable[Event], start: Configuration) -> EncodedList:
    """Encode events for the replay loop.

    Parameters
    ----------
    events : iterable of dict
        The events.
    start : Configuration
        The settings in force before the first one.
    """
    encoder = _Encoder(start)
    rows = [encoder.row(number, event) for number, event in enumerate(events)]
    table = np.array(rows, np.int64).reshape(len(rows), loop.EVENT_WORDS)
    return EncodedList(table, len(encoder.names), len(encoder.pools), encoder.settings)


@dataclass(slots=True)
class _Encoder:
    """What has been seen so far."""

    start: Configuration
    capacity: int = 0
    settings: list[Configuration] = field(default_factory=list)
    names: dict[Any, int] = field(default_factory=dict)
    pools: dict[Any, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings.append(self.start)
        self.capacity = self.start.device_bytes

    def row(self, number: int, event: Event) -> Row:
        """Return the row of an event."""
        op = event["op"]
        encode_one = _ENCODERS.get(op) if isinstance(op, str) else None
        if encode_one is None:
            raise _bad(number, event, f"one of {', '.join(sorted(_ENCODERS))}")
        try:
            row = [operator.index(word) for word in encode_one(self, event)]
        except KeyError as missing:
            raise _bad(number, event, f"a value for {missing}") from None
        except (TypeError, AttributeError):
            raise _bad(number, event, "values of the right types") from None
        if any(not -(1 << 63) <= word < 1 << 63 for word in row):
            raise _bad(number, event, "numbers of 64 bits")
        return (*row, *(0,) * (loop.EVENT_WORDS - len(row)))  # type: ignore[return-value]

    def name(self, event: Event) -> int:
        return self.names.setdefault(event["id"], len(self.names))

    def pool(self, event: Event) -> int:
        return self.pools.setdefault(event["pool"], len(self.pools))

    def configure(self, configuration: Configuration) -> tuple[int, int]:
        self.settings.append(configuration)
        return loop.CONFIGURE, len(self.settings) - 1


def _bad(number: int, event: Event, expected: str) -> ArgumentValueError:
    return ArgumentValueError(f"event {number}", expected=expected, got=json.dumps(event)[:80])


def _stream(event: Event, default: int | None = None) -> int:
    stream = event["stream"] if default is None else event.get("stream", default)
    if not 0 <= stream < STREAM_COUNT:
        raise ArgumentValueError(
            "stream", expected=f"a number from 0 to {STREAM_COUNT - 1}", got=repr(stream)
        )
    return int(stream)


def _alloc(encoder: _Encoder, event: Event) -> tuple[int, ...]:
    size = event["size"]
    if not isinstance(size, int) or not 0 <= size < 1 << 60:
        raise ArgumentValueError("alloc", expected="a size of 0 bytes or more", got=repr(size))
    return loop.ALLOC, encoder.name(event), size, _stream(event, 0)


def _complete(encoder: _Encoder, event: Event) -> tuple[int, ...]:
    if "stream" not in event:
        return loop.COMPLETE, -1, -1
    return loop.COMPLETE, _stream(event), event.get("n", -1)


def _fraction(encoder: _Encoder, event: Event) -> tuple[int, ...]:
    now = encoder.settings[-1].with_fraction(event["fraction"], encoder.capacity)
    return encoder.configure(now)


def _capacity(encoder: _Encoder, event: Event) -> tuple[int, ...]:
    encoder.capacity = event["bytes"]
    return loop.SET_CAPACITY, event["bytes"]


def _settings(encoder: _Encoder, event: Event) -> tuple[int, ...]:
    now = encoder.settings[-1]
    try:
        settings = now.settings.updated(event["conf"])
    except AllocatorSettingsError as error:
        # What stands before the fault holds, as in PyTorch.
        settings = error.kept
    return encoder.configure(Configuration(settings, now.device_bytes, now.limit))


_ENCODERS: Final[dict[str, Callable[[_Encoder, Event], tuple[int, ...]]]] = {
    "alloc": _alloc,
    "free": lambda encoder, event: (loop.FREE, encoder.name(event)),
    "record_stream": lambda encoder, event: (
        loop.RECORD_STREAM, encoder.name(event), _stream(event)
    ),
    "sync": lambda encoder, event: (loop.SYNC,),
    "sync_stream": lambda encoder, event: (loop.SYNC_STREAM, _stream(event)),
    "complete": _complete,
    "events": lambda encoder, event: (loop.EVENTS_MANUAL, int(event["mode"] == "manual")),
    "empty_cache": lambda encoder, event: (loop.EMPTY_CACHE,),
    "set_fraction": _fraction,
    "set_capacity": _capacity,
    "set_foreign": lambda encoder, event: (loop.SET_FOREIGN, event["bytes"]),
    "fail_next": lambda encoder, event: (loop.FAIL_NEXT, event["n"]),
    "settings": _settings,
    "pool_begin": lambda encoder, event: (loop.POOL_BEGIN, encoder.pool(event)),
    "pool_end": lambda encoder, event: (loop.POOL_END, encoder.pool(event)),
    "pool_delete": lambda encoder, event: (loop.POOL_DELETE, encoder.pool(event)),
    "reset_peak": lambda encoder, event: (loop.RESET_PEAK,),
    "snapshot": lambda encoder, event: (loop.SNAPSHOT,),
}  # fmt: skip
