"""The allocator lab's report: one HTML page that shows a recording's memory, at every moment.

State
-----
None: `render` is a pure function of its input. The page's parts are files in ``lab/``.

Invariants
----------
* The page loads nothing, and its content policy forbids every connection.
* Figures, failures, strategies and the peak stand in words and tables as well as in charts, so the
  page says the same without scripts, to a screen reader, and in print.
* Text from outside is escaped, or packed where no markup can stand.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Final

from refruntime.viz.lab import findings, payload
from refruntime.viz.lab.analysis import Analysis, analyse
from refruntime.viz.lab.inputs import ReportInput, StrategyRun, Waste
from refruntime.viz.report import bytes_text

# In the order in which they run: each adds its part to one object that the page holds.
SCRIPTS: Final = (
    "columns", "format", "recording", "series", "use", "groups", "canvas", "words", "view",
    "moment", "timeline", "timelinehand", "overview", "segmentmap", "strategies", "app",
)  # fmt: skip
# Colours for things that have none of their own; the style numbers them from 0.
TINTS: Final = 12


def write(source: ReportInput, path: str | Path) -> Path:
    """Write the report of a recording to a file, and return its path."""
    target = Path(path)
    target.write_text(render(source), encoding="utf-8")
    return target


def render(source: ReportInput) -> str:
    """Return the report of a recording.

    Parameters
    ----------
    source : ReportInput
        The recording and what the lab found out about it; empty parts leave their sections out.

    Returns
    -------
    str
        A page that opens from a file, with no network.
    """
    analysis = analyse(source)
    sections = (_strategies(source), _waste(source.waste), _peak(analysis))
    return _asset("lab/page.html").format(
        title=html.escape(source.title),
        notes=html.escape(" · ".join(source.notes)),
        style=_asset("report.css") + _asset("lab/lab.css"),
        verdicts="\n".join(_verdict(text, failed) for text, failed in findings.verdicts(analysis)),
        figures="".join(_figure(name, value) for name, value in findings.figures(analysis)),
        sections="\n".join(section for section in sections if section),
        data=payload.pack_report(analysis),
        scripts="\n".join(f"<script>\n{_asset(f'lab/{name}.js')}</script>" for name in SCRIPTS),
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _verdict(text: str, failed: bool) -> str:
    return f'<p class="verdict{" failed" if failed else ""}">{html.escape(text)}</p>'


def _figure(name: str, value: str) -> str:
    return f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], tinted: bool = False) -> str:
    """Return a table of texts; a row's first cell is its heading, with a tint if asked for."""
    top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{_swatch(place) if tinted else ""}{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for place, (first, *rest) in enumerate(rows)
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _swatch(place: int) -> str:
    return f'<span class="swatch" style="--swatch:{_tint(place)}"></span>'


def _tint(place: int) -> str:
    return f"var(--tint-{place % TINTS})"


def _strategies(source: ReportInput) -> str:
    """Return the section of the replays: a chart each on one scale, and a table of all."""
    if not source.strategies:
        return ""
    charts = "".join(
        f'<div><h3>{html.escape(run.name)}</h3><div class="strategy-chart"></div></div>'
        for run in source.strategies
    )
    head = ("strategy", "peak allocated", "peak reserved", "upstream calls", "failures", "retries")
    return (
        '<section><h2>The same requests under other strategies</h2><p class="finding">'
        + html.escape(findings.strategy_finding(source.strategies))
        + " Reserved memory is the line, memory in use the darker area; all charts have one scale."
        + f'</p><div class="strategies" aria-hidden="true">{charts}</div>'
        + _table(head, map(_strategy_row, source.strategies))
        + "</section>"
    )


def _strategy_row(run: StrategyRun) -> tuple[str, ...]:
    return (
        run.name, bytes_text(run.peak_allocated), bytes_text(run.peak_reserved),
        f"{run.upstream_calls:,}", f"{run.ooms:,}", f"{run.retries:,}",
    )  # fmt: skip


def _waste(waste: tuple[Waste, ...]) -> str:
    """Return the section of the lab's own split of the waste at the peak."""
    if not waste:
        return ""
    total = sum(part.bytes for part in waste)
    parts = sorted(waste, key=lambda part: -part.bytes)
    rows = (
        (part.cause, bytes_text(part.bytes), f"{part.bytes / max(total, 1):.0%}", part.meaning)
        for part in parts
    )
    return (
        '<section class="waste"><h2>Waste by cause</h2><p class="finding">At the peak of reserved '
        f"memory, <strong>{bytes_text(total)}</strong> were reserved and not asked for.</p>"
        f'<div class="use-bar" aria-hidden="true">{_bar(parts, max(total, 1))}</div>'
        + _table(("cause", "bytes", "share", "meaning"), rows, tinted=True)
        + "</section>"
    )


def _bar(parts: list[Waste], total: int) -> str:
    """Return the pieces of a bar, in the tints of the table's rows."""
    return "".join(
        f'<span style="width:{part.bytes / total:.2%};background:{_tint(place)}"></span>'
        for place, part in enumerate(parts)
    )


def _peak(analysis: Analysis) -> str:
    """Return who held the memory at its peak, for readers without the charts."""
    parts = []
    for name, rows in findings.holders_at_peak(analysis):
        cells = ((holder, bytes_text(size), f"{count:,}") for holder, size, count in rows)
        parts.append(_table((name, "bytes", "blocks"), cells))
    if not parts:
        return ""
    return (
        "<section><h2>At the peak</h2>"
        f'<p class="finding">{html.escape(findings.peak_finding(analysis))}</p>'
        f"<details><summary>Who held it, as tables</summary>{''.join(parts)}</details></section>"
    )
