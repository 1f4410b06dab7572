"""The report in words: figures, verdicts, and who held the memory at its peak.

State
-----
None.

Invariants
----------
* A sentence states what was measured; it advises only where the measure alone decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from refruntime.viz.lab import moments
from refruntime.viz.lab.analysis import Analysis
from refruntime.viz.lab.inputs import StrategyRun
from refruntime.viz.lab.moments import Failure
from refruntime.viz.report import bytes_text

Column = NDArray[Any]
Holder = tuple[str, int, int]

# Rows of a table of the largest holders, and failures that get a sentence each.
MOST_HOLDERS: Final = 20
MOST_FAILURES: Final = 3


def figures(analysis: Analysis) -> list[tuple[str, str]]:
    """Return the headline numbers, each with its name."""
    totals = analysis.totals
    found = [("peak allocated", bytes_text(int(totals.allocated.max())))]
    if len(analysis.pieces.begin):
        reserved = int(totals.reserved.max())
        waste = reserved - int(totals.allocated[totals.peak_reserved])
        found += [
            ("peak reserved", bytes_text(reserved)),
            ("of it not in use", f"{bytes_text(waste)}, {waste / max(reserved, 1):.0%}"),
        ]
    found += [
        ("failed requests", f"{len(analysis.failures):,}"),
        ("events", f"{analysis.moments - 1:,}"),
        ("blocks", f"{len(analysis.blocks):,}"),
        ("segments", f"{len(analysis.units.place):,}"),
    ]
    return found


def verdicts(analysis: Analysis) -> Iterator[tuple[str, bool]]:
    """Yield the sentences that a person wants first; the flag says that one is about a failure."""
    # The last failure comes first: it ended the run, if one did.
    for failure in reversed(analysis.failures[-MOST_FAILURES:]):
        yield failure_text(failure, analysis), True
    left = len(analysis.failures) - MOST_FAILURES
    if left > 0:
        yield f"{left:,} more requests failed before; the timeline marks them.", True
    if not analysis.failures:
        yield peak_finding(analysis), False


def failure_text(failure: Failure, analysis: Analysis) -> str:
    """Return why a request failed: what was asked, what was free, and in which pieces."""
    reserved = int(analysis.totals.reserved[failure.moment])
    allocated = int(analysis.totals.allocated[failure.moment])
    text = (
        f"Out of memory at event {failure.moment:,}: a request of {bytes_text(failure.asked)} "
        f"failed while {bytes_text(allocated)} were allocated and {bytes_text(reserved)} reserved."
    )
    if failure.device_free >= 0:
        text += f" The device had {bytes_text(failure.device_free)} left."
    return text + _hole_text(failure)


def _hole_text(failure: Failure) -> str:
    holes = failure.holes
    if not holes.count:
        return ""
    if holes.total < failure.asked:
        return f" All free spans in segments together had {bytes_text(holes.total)}."
    text = (
        f" {bytes_text(holes.total)} lay free inside segments, in {holes.count:,} spans, "
        f"the largest {bytes_text(holes.largest)}:"
    )
    if holes.largest < failure.asked:
        return text + " enough memory, in pieces too small."
    return (
        text + " one was large enough, but its pool, its stream or a setting kept it from serving."
    )


def peak_finding(analysis: Analysis) -> str:
    """Return the peak in a sentence."""
    totals = analysis.totals
    moment = totals.peak_allocated
    text = (
        f"Memory peaked at event {moment:,}: {bytes_text(int(totals.allocated[moment]))} were "
        f"allocated, in {len(moments.alive(analysis.blocks, moment)):,} blocks."
    )
    if not len(analysis.pieces.begin):
        return text
    reserved = int(totals.reserved[moment])
    return text + f" To serve them, {bytes_text(reserved)} were reserved."


def holders_at_peak(analysis: Analysis) -> Iterator[tuple[str, list[Holder]]]:
    """Yield the largest holders at the peak by category and by line, where they are known."""
    rows = moments.alive(analysis.blocks, analysis.totals.peak_allocated)
    names = analysis.source.categories
    if names and len(rows):
        category = _categories_at(analysis, rows)
        yield "category", _largest(category, analysis.blocks.held[rows], (*names, "no category"))
    stack = analysis.blocks.stack[rows]
    if len(rows) and stack.max() >= 0:
        line = np.where(stack >= 0, analysis.stacks.line[stack], -1)
        names = (*analysis.stacks.labels, "no stack recorded")
        yield "line", _largest(line, analysis.blocks.held[rows], names)


def _categories_at(analysis: Analysis, rows: Column) -> Column:
    """Return the categories of blocks at the peak: a tag up to then overrules the first one."""
    category = analysis.blocks.category.copy()
    tags = analysis.tags
    done = tags.moment <= analysis.totals.peak_allocated
    # Later tags of a block come later, and the last assignment stays.
    category[tags.block[done]] = tags.category[done]
    return category[rows]


def _largest(key: Column, size: Column, names: Sequence[str]) -> list[Holder]:
    """Return name, bytes and blocks of the keys that hold most; key -1 has the last name."""
    keys, place = np.unique(key, return_inverse=True)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, place, size)
    count = np.bincount(place, minlength=len(keys))
    order = np.argsort(-total, kind="stable")[:MOST_HOLDERS]
    return [(names[keys[i]], int(total[i]), int(count[i])) for i in order.tolist()]


def strategy_finding(runs: Sequence[StrategyRun]) -> str:
    """Return which replay reserved least, and which called the upstream least."""
    text = "The recorded requests in their order, replayed without the device."
    serving = [run for run in runs if not run.ooms]
    if not serving:
        return text + " None of them served all requests."
    least = min(serving, key=lambda run: run.peak_reserved)
    calm = min(serving, key=lambda run: run.upstream_calls)
    return (
        f"{text} Of those that served everything, {least.name} reserves least "
        f"({bytes_text(least.peak_reserved)}) and {calm.name} goes to the upstream least often "
        f"({calm.upstream_calls:,} calls)."
    )
