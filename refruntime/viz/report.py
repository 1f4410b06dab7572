"""The report of a training run as one HTML page that needs nothing else.

State
-----
None: `render` is a pure function of its data. The style and the script are files beside this
module and are copied into the page.

Invariants
----------
* The page loads nothing: its content policy forbids every connection.
* Everything that a chart shows also stands in a table or a sentence, so the page says the same
  without scripts, to a screen reader, and in print.
* Text from outside is escaped; data inside the script element cannot end it.
"""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any, TypedDict


class Epoch(TypedDict):
    """One pass over the training set: mean loss, test accuracy in [0, 1], seconds."""

    epoch: int
    loss: float
    accuracy: float
    seconds: float


class Layer(TypedDict):
    """Live bytes of one category at each sample; `name` is one of `CATEGORIES`."""

    name: str
    label: str
    bytes: list[int]


class MemoryCurve(TypedDict):
    """Memory at moments: number of the event, seconds, live bytes by category, reserved bytes."""

    event: list[int]
    time: list[float]
    categories: list[Layer]
    reserved: list[int]
    labels: list[str]


class Block(TypedDict):
    """A span of a segment; category ``free`` is cached memory."""

    offset: int
    size: int
    requested: int
    category: str
    label: str


class Segment(TypedDict):
    """What the allocator got from the upstream in one piece."""

    address: int
    size: int
    pool: str
    blocks: list[Block]


class StrategyResult(TypedDict):
    """The run's trace replayed by one strategy."""

    name: str
    label: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    upstream_calls: int
    seconds: float


class ReportData(TypedDict):
    """What `render` draws. `memory` has ``run`` (all of it) and ``step`` (one training step)."""

    title: str
    lead: str
    environment: list[str]
    figures: list[tuple[str, str]]
    training: dict[str, Any]
    memory: dict[str, MemoryCurve]
    segments: list[Segment]
    strategies: list[StrategyResult]


# Bottom to top in the stacked chart: what lives longest comes first.
CATEGORIES = (
    "parameter", "optimizer", "gradient", "saved", "activation", "temporary", "communication",
    "external",
)  # fmt: skip
LABELS = {
    "parameter": "parameters",
    "optimizer": "optimizer state",
    "gradient": "gradients",
    "saved": "saved for backward",
    "activation": "activations",
    "temporary": "temporaries and data",
    "communication": "communication",
    "external": "external",
    "free": "free (cached)",
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(value: float) -> str:
    """Return a byte count as people read it: three digits and a binary unit."""
    unit = 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    digits = 0 if unit == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def render(data: ReportData) -> str:
    """Return the HTML page of a run.

    Parameters
    ----------
    data : ReportData
        Figures, curves, segments and strategies; an empty part leaves its section out.

    Returns
    -------
    str
        A page that opens from a file, with no network.
    """
    sections = [
        _training(data["training"]),
        _memory(data["memory"]),
        _segments(data["segments"]),
        _strategies(data["strategies"]),
    ]
    return _PAGE.format(
        title=html.escape(data["title"]),
        style=_asset("report.css"),
        script=_asset("report.js"),
        header=_header(data),
        sections="\n".join(part for part in sections if part),
        data=_embedded(data),
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{header}
<main>
{sections}
</main>
<footer>Written by refruntime. The page is complete in itself: it can be mailed or archived.
Charts answer to the pointer, and to the arrow keys when focused.</footer>
<script type="application/json" id="report-data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _embedded(data: ReportData) -> str:
    """Return the data as JSON that cannot close its script element."""
    charts = {key: data[key] for key in ("training", "memory", "segments")}
    return json.dumps(charts, separators=(",", ":")).replace("<", "\\u003c")


def _header(data: ReportData) -> str:
    figures = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in data["figures"]
    )
    return (
        f'<header><p class="kicker">{html.escape(" · ".join(data["environment"]))}</p>'
        f"<h1>{html.escape(data['title'])}</h1>"
        f'<p class="lead">{html.escape(data["lead"])}</p>'
        f'<dl class="figures">{figures}</dl></header>'
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table; the first cell of a row is its heading. Cells are HTML already."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _chart(name: str, label: str) -> str:
    return (
        f'<div class="chart" id="{name}-chart" tabindex="0" role="img" '
        f'aria-label="{html.escape(label)}"></div>'
    )


# ---------------------------------------------------------------------------------------------
# Sections


def _training(training: dict[str, Any]) -> str:
    epochs: list[Epoch] = training.get("epochs", [])
    if not epochs:
        return ""
    last = epochs[-1]
    rows = [
        [
            str(epoch["epoch"]),
            f"{epoch['loss']:.4f}",
            f"{epoch['accuracy']:.2%}",
            f"{epoch['seconds']:.2f} s",
        ]
        for epoch in epochs
    ]
    loss = f"Loss of {len(training['loss'])} steps, from {training['loss'][0]:.2f} down"
    accuracy = f"Test accuracy by epoch, {last['accuracy']:.1%} at the end"
    return (
        "<section><h2>Learning</h2>"
        f'<p class="finding">After {len(epochs)} epochs the network reads '
        f"<strong>{last['accuracy']:.1%}</strong> of the test images correctly; "
        f"the mean loss of the last epoch is {last['loss']:.3f}.</p>"
        f'<div class="pair"><div><h3>Training loss</h3>{_chart("loss", loss)}</div>'
        f"<div><h3>Test accuracy</h3>{_chart('accuracy', accuracy)}</div></div>"
        "<details><summary>Epochs as a table</summary>"
        + _table(["epoch", "mean loss", "test accuracy", "time"], rows)
        + "</details></section>"
    )


def peak_of(curve: MemoryCurve) -> tuple[int, int]:
    """Return the sample with the most live bytes, and how many they are."""
    columns = zip(*(layer["bytes"] for layer in curve["categories"]), strict=True)
    totals = list(map(sum, columns))
    index = max(range(len(totals)), key=totals.__getitem__)
    return index, totals[index]


def _memory(memory: dict[str, MemoryCurve]) -> str:
    if not memory:
        return ""
    curve = memory["run"]
    index, peak = peak_of(curve)
    parts = sorted(
        ((c["bytes"][index], c["label"]) for c in curve["categories"] if c["bytes"][index]),
        reverse=True,
    )
    shares = ", ".join(f"{label} {value / peak:.0%}" for value, label in parts[:3])
    rows = [
        [_swatch(c["name"]) + html.escape(c["label"]), bytes_text(max(c["bytes"])),
         bytes_text(c["bytes"][index]), bytes_text(c["bytes"][-1])]
        for c in curve["categories"]
    ]  # fmt: skip
    choices = (("run", "Whole run"), ("step", "One training step"))
    buttons = "".join(
        f'<label><input type="radio" name="span" value="{value}"'
        f"{' checked' if value == 'run' else ''}><span>{text}</span></label>"
        for value, text in choices
        if value in memory
    )
    when = curve["labels"][index] if curve["labels"] else f"{curve['time'][index]:.2f} s"
    return (
        "<section><h2>Memory over time</h2>"
        f'<p class="finding">At the peak the tensors hold <strong>{bytes_text(peak)}</strong> '
        f"({html.escape(when)}): {html.escape(shares)}. "
        f"The allocator held at most {bytes_text(max(curve['reserved']))} to serve them. "
        "The chart goes by allocator events, so pauses take no room.</p>"
        f'<div class="bar"><div class="choice" role="radiogroup" aria-label="span">{buttons}</div>'
        f"{_legend(curve)}</div>"
        + _chart("memory", f"Live bytes by category over time, peak {bytes_text(peak)}")
        + "<details><summary>Categories as a table</summary>"
        + _table(["category", "highest", "at the peak", "at the end"], rows)
        + "</details></section>"
    )


def _swatch(name: str) -> str:
    return (
        f'<span class="swatch" style="display:inline-block;margin-right:7px;'
        f'--swatch:var(--{name})"></span>'
    )


def _legend(curve: MemoryCurve) -> str:
    items = [
        f'<li><span class="swatch" style="--swatch:var(--{c["name"]})"></span>'
        f"{html.escape(c['label'])}</li>"
        for c in reversed(curve["categories"])
    ]
    items.append('<li><span class="swatch dashed"></span>reserved</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _segments(segments: list[Segment]) -> str:
    if not segments:
        return ""
    total = sum(segment["size"] for segment in segments)
    blocks = [block for segment in segments for block in segment["blocks"]]
    used = [block for block in blocks if block["category"] != "free"]
    holes = [block["size"] for block in blocks if block["category"] == "free"]
    rows = [
        [f"<code>{segment['address']:#x}</code>", html.escape(segment["pool"]),
         bytes_text(segment["size"]), _used_share(segment),
         str(sum(b["category"] != "free" for b in segment["blocks"]))]
        for segment in segments
    ]  # fmt: skip
    legend = "".join(
        f'<li><span class="swatch{" free" if name == "free" else ""}" '
        f'style="--swatch:var(--{name})"></span>{LABELS[name]}</li>'
        for name in (*CATEGORIES, "free")
        if any(block["category"] == name for block in blocks)
    )
    return (
        "<section><h2>Segments at the peak</h2>"
        f'<p class="finding"><strong>{len(used)}</strong> blocks live in {len(segments)} segments '
        f"of {bytes_text(total)}. The largest free block is {bytes_text(max(holes, default=0))}: "
        "a larger request would need a new segment.</p>"
        f'<div class="bar"><ul class="legend">{legend}</ul></div>'
        '<div id="segments-chart"></div>'
        '<p class="reading" id="segment-reading" aria-live="polite">'
        "Point at a block, or focus a segment and use the arrow keys.</p>"
        "<details><summary>Segments as a table</summary>"
        + _table(["address", "pool", "size", "used", "live blocks"], rows)
        + "</details></section>"
    )


def _used_share(segment: Segment) -> str:
    used = sum(block["size"] for block in segment["blocks"] if block["category"] != "free")
    return f"{used / segment['size']:.0%}"


def _strategies(results: list[StrategyResult]) -> str:
    if not results:
        return ""
    worst = {
        key: max(float(result[key]) for result in results) or 1.0
        for key in ("peak_reserved_bytes", "upstream_calls")
    }
    rows = [
        [
            html.escape(result["label"]),
            bytes_text(result["peak_allocated_bytes"]),
            bytes_text(result["peak_reserved_bytes"])
            + _meter(result["peak_reserved_bytes"] / worst["peak_reserved_bytes"]),
            f"{result['upstream_calls']:,}"
            + _meter(result["upstream_calls"] / worst["upstream_calls"]),
            f"{result['seconds'] * 1e3:.0f} ms",
        ]
        for result in results
    ]
    return (
        "<section><h2>The same run under other strategies</h2>"
        f'<p class="finding">{_strategy_finding(results)}</p>'
        + _table(
            ["strategy", "peak allocated", "peak reserved", "upstream calls", "replayed in"], rows
        )
        + "</section>"
    )


def _meter(share: float) -> str:
    return f'<span class="meter"><i style="width:{max(share, 0.0):.2%}"></i></span>'


def _strategy_finding(results: list[StrategyResult]) -> str:
    text = "The allocations of this run, in their order, replayed without running the network."
    busiest = max(results, key=lambda result: result["upstream_calls"])
    calmest = min(results, key=lambda result: result["upstream_calls"])
    if calmest["upstream_calls"] and busiest is not calmest:
        times = busiest["upstream_calls"] / calmest["upstream_calls"]
        text += (
            f" <strong>{html.escape(calmest['label'])}</strong> goes to the upstream "
            f"{times:,.0f} times less often than {html.escape(busiest['label'])}."
        )
    return text
