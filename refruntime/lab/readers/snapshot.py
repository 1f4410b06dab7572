"""PyTorch snapshots, of every version: from the reader's cells to a `Recording`.

State
-----
None.

Invariants
----------
* A key that a version does not have yet, or no more, is no error: the column is zero, and what
  matters of it is noted.
* Sizes are taken as they stand; block addresses that a version leaves out follow from the sizes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from refruntime.lab import recording as rec
from refruntime.lab.readers import cells
from refruntime.lab.readers.arena import Arena, Rows
from refruntime.lab.readers.scan import scan
from refruntime.lab.readers.source import Source, unreadable
from refruntime.lab.recording import Array, Blocks, Device, Events, Recording, Segments

_ROW_MASK: Final = (1 << cells.ROW_BITS) - 1
_STATE_OF: Final = {
    "active_allocated": rec.ALLOCATED,
    "active_pending_free": rec.PENDING,
    "active_awaiting_free": rec.PENDING,
    "inactive": rec.INACTIVE,
}
_ACTION_OF: Final = {name: place for place, name in enumerate(rec.ACTIONS)} | {
    "user_defined": rec.ANNOTATE,
    "free": rec.FREE_COMPLETED,
}


def read_snapshot(source: Source, kernel: Any, format: str) -> Recording:
    """Read a snapshot with the reader of its encoding."""
    arena = scan(source, kernel)
    return _Builder(source, arena).recording(format)


class _Builder:
    """Turns the root of an arena into a recording."""

    def __init__(self, source: Source, arena: Arena) -> None:
        self.source = source
        self.arena = arena
        self.pools: dict[rec.Pool, int] = {rec.DEFAULT_POOL: 0}
        self.categories: dict[str, int] = {"unknown": 0}
        self.notes: list[str] = []
        self._stack_entries = arena.entries_of(cells.STACK)
        self._frame_entries = arena.entries_of(cells.FRAME)

    def recording(self, format: str) -> Recording:
        """Build it."""
        top = self._top()
        traces = self._lists(top.get("device_traces"))
        held = self._cells(top.get("segments"))
        if traces is None and held is None:
            raise unreadable(self.source.path, "no PyTorch snapshot: it has no segments or traces")
        settings = self._python(top.get("allocator_settings"), {})
        if not settings:
            self.notes.append("the file has no allocator settings: defaults are assumed")
        events = [_Table(self.arena, trace).events(self) for trace in traces or []]
        segments = self._segments(held if held is not None else np.zeros(0, np.int64))
        self._note_host(top)
        return Recording(
            source=str(self.source.path),
            format=format,
            devices=_devices(events, segments),
            frames=self._frames(),
            stacks=self._stacks(),
            pools=tuple(self.pools),
            categories=tuple(self.categories),
            settings=settings if isinstance(settings, dict) else {},
            annotations=self._annotations(top.get("external_annotations")),
            notes=tuple(self.notes),
        )

    # --- the top level --------------------------------------------------------------------------

    def _top(self) -> dict[str, int]:
        """Return the cells of the top level by key; a bare list is one of segments."""
        root = self.arena.root()
        if root & 255 in (cells.LIST, cells.EMPTY_LIST):
            self.notes.append("the file holds segments alone, and no trace")
            return {"segments": root}
        if root & 255 != cells.DICT:
            raise unreadable(self.source.path, "no PyTorch snapshot: it is no dict and no list")
        table = _Table(self.arena, np.array([root]))
        return {key: table.cell(key) for key in table.names()}

    def _cells(self, cell: int | None) -> Array | None:
        if cell is None:
            return None
        return self.arena.items(cell >> 8) if cell & 255 == cells.LIST else np.zeros(0, np.int64)

    def _lists(self, cell: int | None) -> list[Array] | None:
        """Return the items of each list in a list."""
        outer = self._cells(cell)
        if outer is None:
            return None
        return [found for item in outer if (found := self._cells(int(item))) is not None]

    def _python(self, cell: int | None, default: Any) -> Any:
        return default if cell is None else self.arena.value(cell)

    def _annotations(self, cell: int | None) -> tuple[dict[str, Any], ...]:
        marks = self._python(cell, [])
        return tuple(mark for mark in marks or [] if isinstance(mark, dict))

    def _note_host(self, top: dict[str, int]) -> None:
        for key, what in (("host_segments", "pinned host segments"), ("host_traces", "host trace")):
            count = len(self._python(top.get(key), []) or [])
            if count:
                self.notes.append(f"{count} entries of {what} are left aside: host memory")

    # --- stacks ---------------------------------------------------------------------------------

    def _frames(self) -> tuple[rec.Frame, ...]:
        text = self.arena.text
        triples = (self.arena.words(int(entry)).tolist() for entry in self._frame_entries)
        return tuple((text(file), line, text(name)) for name, file, line in triples)

    def _stacks(self) -> tuple[Array, ...]:
        words = [self.arena.words(int(entry)) for entry in self._stack_entries]
        found = [np.searchsorted(self._frame_entries, frames).astype(np.int32) for frames in words]
        return (np.zeros(0, np.int32), *found)

    def stack_places(self, tags: Array, payloads: Array) -> Array:
        """Return the places of stacks in the recording's table."""
        places = np.zeros(len(tags), np.int32)
        known = tags == cells.STACK
        places[known] = np.searchsorted(self._stack_entries, payloads[known]) + 1
        return places

    # --- names ----------------------------------------------------------------------------------

    def pool_places(self, tags: Array, payloads: Array) -> Array:
        """Return the places of pools in the recording's table."""
        places = np.zeros(len(tags), np.int32)
        for tag in (cells.PAIR, cells.LIST):
            mask = tags == tag
            for payload in np.unique(payloads[mask]).tolist():
                value = self.arena.value((payload << 8) | tag)
                pair = tuple(value) if len(value) == 2 else rec.DEFAULT_POOL
                places[mask & (payloads == payload)] = self.pools.setdefault(pair, len(self.pools))
        return places

    def category_places(self, tags: Array, payloads: Array) -> Array:
        """Return the places of categories in the recording's table."""
        table = self.categories
        return self.by_text(tags, payloads, lambda text: table.setdefault(text, len(table)), 0)

    def by_text(self, tags: Array, payloads: Array, number: Any, other: int) -> Array:
        """Return a number for each string."""
        out = np.full(len(tags), other, np.int64)
        mask = tags == cells.STRING
        kinds, inverse = np.unique(payloads[mask], return_inverse=True)
        numbers = [number(self.arena.text(int(kind))) for kind in kinds]
        out[mask] = np.array(numbers, np.int64)[inverse] if len(kinds) else 0
        return out

    # --- segments -------------------------------------------------------------------------------

    def _segments(self, held: Array) -> dict[int, tuple[Segments, Blocks]]:
        table = _Table(self.arena, held)
        device = table.ints("device")
        address = table.ints("address")
        rows = np.column_stack(
            [
                address, table.ints("total_size"), table.ints("stream"),
                self.pool_places(*table.tagged("segment_pool_id")),
                self.by_text(*table.tagged("segment_type"), lambda text: text == "small", 0),
                table.ints("is_expandable"),
            ]
        )  # fmt: skip
        tags, lists = table.tagged("blocks")
        order = np.lexsort((address, device))
        found = {}
        for number in np.unique(device).tolist():
            mine = order[device[order] == number]
            blocks = self._blocks(rows[mine, 0], tags[mine], lists[mine])
            found[number] = (Segments.of_rows(rows[mine].tolist()), blocks)
        return found

    def _blocks(self, addresses: Array, tags: Array, lists: Array) -> Blocks:
        parts = [
            self.arena.items(int(number)) if tag == cells.LIST else np.zeros(0, np.int64)
            for tag, number in zip(tags, lists)
        ]
        counts = [len(part) for part in parts]
        table = _Table(self.arena, np.concatenate(parts) if parts else np.zeros(0, np.int64))
        segment = np.repeat(np.arange(len(parts)), counts)
        size = table.ints("size")
        before = np.cumsum(size) - size
        firsts = (np.cumsum(counts) - counts).astype(np.int64)
        starts = before[np.minimum(firsts, max(len(before) - 1, 0))] if len(before) else firsts
        address = addresses[segment] + before - starts[segment]
        requested, stack = table.ints("requested_size"), self.stack_places(*table.tagged("frames"))
        if "requested_size" not in table.names():
            requested, stack = self._histories(table, size, stack)
        number = _STATE_OF.get
        state = self.by_text(
            *table.tagged("state"), lambda text: number(text, rec.INACTIVE), rec.INACTIVE
        )
        category = self.category_places(*table.tagged("category"))
        return Blocks(segment, address, size, requested, state, stack, category)

    def _histories(self, table: _Table, size: Array, stack: Array) -> tuple[Array, Array]:
        """Return requested sizes and stacks of the oldest versions: they are in ``history``."""
        requested = size.copy()
        tags, lists = table.tagged("history")
        for i in np.flatnonzero(tags == cells.LIST).tolist():
            last = _Table(self.arena, self.arena.items(int(lists[i]))[:1])
            requested[i] = last.ints("real_size")[0] or size[i]
            stack[i] = self.stack_places(*last.tagged("frames"))[0]
        if len(size):
            self.notes.append("a snapshot of an early version: sizes asked for are in part unknown")
        return requested, stack


class _Table:
    """Dicts of a list, as columns, whatever their shapes are."""

    def __init__(self, arena: Arena, items: Array) -> None:
        self._arena = arena
        items = items[(items & 255) == cells.DICT]
        payload = items >> 8
        self._shape = (payload >> cells.ROW_BITS).astype(np.int32)
        self._row = payload & _ROW_MASK
        self._shapes = np.unique(self._shape).tolist()

    def names(self) -> list[str]:
        """Return every key that occurs."""
        return list(dict.fromkeys(key for k in self._shapes for key in self._arena.rows[k].keys))

    def cell(self, key: str) -> int:
        """Return the value of the first dict."""
        tags, payloads = self.tagged(key)
        return int(payloads[0]) << 8 | int(tags[0])

    def tagged(self, key: str) -> tuple[Array, Array]:
        """Return the tags and payloads under a key; NONE where it is missing."""
        tags = np.zeros(len(self._row), np.uint8)
        payloads = np.zeros(len(self._row), np.int64)
        for shape in self._shapes:
            rows: Rows = self._arena.rows[shape]
            if key not in rows.keys:
                continue
            mask = slice(None) if len(self._shapes) == 1 else self._shape == shape
            tags[mask] = rows.tag(key)
            payloads[mask] = rows.column(key)[self._row[mask]]
        return tags, payloads

    def ints(self, key: str, instead: str = "") -> Array:
        """Return the integers under a key (or under another), 0 where there are none."""
        tags, payloads = self.tagged(key)
        if instead:
            other, others = self.tagged(instead)
            missing = tags == cells.NONE
            tags, payloads = np.where(missing, other, tags), np.where(missing, others, payloads)
        for tag in (cells.WIDE, cells.FLOAT):
            mask = tags == tag
            if mask.any():
                payloads[mask] = self._arena.numbers(payloads[mask], tag)
        payloads[~np.isin(tags, (cells.INT, cells.BOOL, cells.WIDE, cells.FLOAT))] = 0
        return payloads

    def events(self, builder: _Builder) -> Events:
        """Return the dicts as events of a trace."""
        number = _ACTION_OF.get
        action = builder.by_text(
            *self.tagged("action"), lambda text: number(text, rec.OTHER), rec.OTHER
        )
        return Events(
            action.astype(np.uint8),
            self.ints("addr", "device_free"),
            self.ints("size"),
            self.ints("stream"),
            self.ints("time_us"),
            builder.pool_places(*self.tagged("pool_id")),
            builder.stack_places(*self.tagged("frames")),
            builder.category_places(*self.tagged("category")).astype(np.int16),
        )


def _devices(
    events: list[Events], segments: dict[int, tuple[Segments, Blocks]]
) -> tuple[Device, ...]:
    count = max([len(events), *(number + 1 for number in segments)], default=0)
    found = []
    for number in range(min(count, 1 << 10)):
        trace = events[number] if number < len(events) else Events.empty()
        held = segments.get(number, rec.no_segments())
        if len(trace) or len(held[0]):
            found.append(Device(number, trace, *held))
    return tuple(found)
