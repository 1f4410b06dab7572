"""Everything that is derived from a recording, once, for the words and for the charts.

State
-----
None.

Invariants
----------
* `analyse` is the only place where the parts are put together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from refruntime.viz.lab import lines, moments
from refruntime.viz.lab.inputs import ReportInput
from refruntime.viz.lab.lifetimes import Blocks, Tags, blocks_of, moments_of
from refruntime.viz.lab.lines import StackTable
from refruntime.viz.lab.moments import Failure, Totals
from refruntime.viz.lab.segments import Pieces, Units, segments_of, units_of_blocks

Column = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """A recording's lifetimes, segments, totals, failures and stacks; `block_unit` by block."""

    source: ReportInput
    moments: int
    blocks: Blocks
    block_unit: Column
    tags: Tags
    pieces: Pieces
    units: Units
    totals: Totals
    failures: tuple[Failure, ...]
    stacks: StackTable


def analyse(source: ReportInput) -> Analysis:
    """Derive from a recording what its report shows."""
    count = moments_of(source)
    blocks, tags = blocks_of(source)
    pieces, units = segments_of(source)
    block_unit = units_of_blocks(blocks, pieces)
    return Analysis(
        source=source,
        moments=count,
        blocks=blocks,
        block_unit=block_unit,
        tags=tags,
        pieces=pieces,
        units=units,
        totals=moments.totals_of(count, blocks, pieces),
        failures=tuple(moments.failures_of(source, blocks, block_unit, (pieces, units))),
        stacks=lines.intern(source.stacks),
    )
