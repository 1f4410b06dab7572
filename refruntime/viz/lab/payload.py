"""The analysis as the columns and texts that the page's script reads (see ``recording.js``).

State
-----
None.

Invariants
----------
* Columns hold small steps where they can: lengths instead of ends, waste instead of whole sizes.
* A strategy's timeline has at most `POINTS` points; each keeps the peak of what it stands for.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from refruntime.viz.lab import columns
from refruntime.viz.lab.analysis import Analysis
from refruntime.viz.lab.inputs import ReportInput, StrategyRun
from refruntime.viz.lab.lifetimes import moment_of

Column = NDArray[Any]

POINTS: Final = 400
MOST_FAILURES: Final = 8


def pack_report(analysis: Analysis) -> str:
    """Return all that the page's script needs, as one base64 string."""
    streams, stream = np.unique(analysis.blocks.stream, return_inverse=True)
    parts = {
        "time": _times(analysis.source),
        **_block_columns(analysis, stream),
        **_segment_columns(analysis),
        **_moment_columns(analysis),
        **_stack_columns(analysis),
        **_strategy_columns(analysis.source.strategies),
    }
    return columns.pack(parts, _texts(analysis, [str(value) for value in streams.tolist()]))


def _i32(column: Column) -> Column:
    return np.asarray(column).astype(np.int32)


def _times(source: ReportInput) -> Column:
    """Return microseconds at each moment since the first; clocks that step back stand still."""
    after = np.asarray(source.events.time_us[source.start :], np.int64)
    if not len(after):
        return np.zeros(1, np.int64)
    times = np.maximum.accumulate(after) - after[0]
    return np.concatenate([times[:1], times])


def _block_columns(analysis: Analysis, stream: Column) -> dict[str, Column]:
    blocks = analysis.blocks
    return {
        "block.begin": _i32(blocks.begin),
        "block.life": _i32(blocks.end - blocks.begin),
        "block.wait": _i32(blocks.end - blocks.requested),
        "block.address": blocks.address,
        "block.size": blocks.size,
        "block.extra": blocks.held - blocks.size,
        "block.stream": _i32(stream),
        "block.category": _i32(blocks.category),
        "block.stack": _i32(blocks.stack),
        "block.unit": _i32(analysis.block_unit),
        "tag.block": _i32(analysis.tags.block),
        "tag.moment": _i32(analysis.tags.moment),
        "tag.category": _i32(analysis.tags.category),
    }


def _segment_columns(analysis: Analysis) -> dict[str, Column]:
    pieces, units = analysis.pieces, analysis.units
    return {
        "piece.begin": _i32(pieces.begin),
        "piece.end": _i32(pieces.end),
        "piece.address": pieces.address,
        "piece.size": pieces.size,
        "piece.unit": _i32(pieces.unit),
        "unit.address": units.address,
        "unit.place": units.place,
        "unit.pool": _i32(units.pool),
        "unit.expandable": _i32(units.expandable),
    }


def _moment_columns(analysis: Analysis) -> dict[str, Column]:
    marks = np.array([mark.event for mark in analysis.source.marks], np.int64)
    return {
        "oom.moment": np.array([failure.moment for failure in analysis.failures], np.int32),
        "oom.asked": np.array([failure.asked for failure in analysis.failures], np.int64),
        "mark.moment": _i32(np.maximum(moment_of(analysis.source, marks) - 1, 0)),
    }


def _stack_columns(analysis: Analysis) -> dict[str, Column]:
    table = analysis.stacks
    return {
        "stack.start": table.start,
        "stack.frame": table.frame,
        "stack.own": table.own,
        "stack.line": table.line,
        "stack.file": table.frame_file,
        "stack.number": table.frame_number,
        "stack.name": table.frame_name,
    }


def _strategy_columns(runs: tuple[StrategyRun, ...]) -> dict[str, Column]:
    allocated = [peaks(run.allocated) for run in runs]
    reserved = [peaks(run.reserved) for run in runs]
    start = np.cumsum([0, *map(len, allocated)])
    none = [np.zeros(0, np.int64)]
    return {
        "strategy.start": _i32(start),
        "strategy.allocated": np.concatenate(none + allocated),
        "strategy.reserved": np.concatenate(none + reserved),
    }


def peaks(values: Column, points: int = POINTS) -> Column:
    """Return at most `points` values, each the highest of an equal share of the given ones."""
    if len(values) <= points:
        return np.asarray(values, np.int64)
    edges = np.linspace(0, len(values), points, endpoint=False).astype(np.int64)
    return np.maximum.reduceat(np.asarray(values, np.int64), edges)


def _texts(analysis: Analysis, streams: list[str]) -> dict[str, Any]:
    source, totals = analysis.source, analysis.totals
    return {
        "categories": list(source.categories),
        "streams": streams,
        "unitStreams": [str(stream) for stream in analysis.units.stream.tolist()],
        "frames": analysis.stacks.texts,
        "lines": analysis.stacks.labels,
        "marks": [mark.label for mark in source.marks],
        "capacity": source.capacity,
        "mapBytes": analysis.units.map_bytes,
        "peakReserved": int(totals.reserved.max()),
        "jumps": _jumps(analysis),
        "keyMoments": _key_moments(analysis),
    }


def _jumps(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the moments of the peaks; the page itself knows those of the failures."""
    found = [("peak allocated", analysis.totals.peak_allocated)]
    if len(analysis.pieces.begin):
        found.append(("peak reserved", analysis.totals.peak_reserved))
    return [{"label": label, "moment": moment} for label, moment in found]


def _key_moments(analysis: Analysis) -> list[int]:
    """Return the moments that matter most; the page opens at the first.

    That is the last failure, which ended the run if one did, or else the peak.
    """
    failed = [failure.moment for failure in analysis.failures[-MOST_FAILURES:]]
    return [*reversed(failed), analysis.totals.peak_allocated, analysis.totals.peak_reserved]
