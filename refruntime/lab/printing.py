"""Results of the lab as text for a terminal.

State
-----
None.

Invariants
----------
* Each function prints one result of `commands`; what it leaves out is in the JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from refruntime.alloc.oom import format_size
from refruntime.lab.gate import Row
from refruntime.lab.waste import CAUSES

Record = dict[str, Any]

_MOST_LINES: Final = 10


def _title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def _rows(rows: list[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"  {name.ljust(width)}  {value}")


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def _notes(title: str, notes: list[str]) -> None:
    if notes:
        print(f"\n  {title}:")
        for note in notes:
            print(f"  - {note}")


def inspection(result: Record) -> None:
    """Print what a recording holds."""
    _title(f"{result['file']}: {result['format']}")
    events = ", ".join(f"{count} {name}" for name, count in result["events"].items())
    bounds = result["bounds"]
    _rows(
        [
            ("device", str(result["device"])),
            ("settings", result["settings"] or "(defaults)"),
            ("events", events or "none"),
            ("time", f"{result['seconds']:.3f} s"),
            ("streams", str(result["streams"])),
            ("peak in use", format_size(result["peak_requested_bytes"])),
            ("peak reserved", format_size(result["recorded_peak_reserved_bytes"])),
            ("packed offline", format_size(bounds["packed_bytes"])),
        ]
    )
    waste = result["waste_at_peak"]
    reserved = format_size(waste["reserved_bytes"])
    print(f"\n  right after the request that brought reserved memory to its peak, {reserved}:")
    _rows(
        [
            ("asked for", format_size(waste["requested_bytes"])),
            *(
                (CAUSES[cause], format_size(nbytes))
                for cause, nbytes in waste["waste_bytes"].items()
                if nbytes
            ),
        ]
    )
    print("\n  in use at the peak, by line:")
    lines = list(result["by_line"].items())[:_MOST_LINES]
    _rows([(format_size(nbytes), line) for line, nbytes in lines])
    for finding in result["patterns"]:
        print(f"\n  {finding['name']} ({format_size(finding['nbytes'])}): {finding['evidence']}.")
        print(f"    {finding['remedy']}")
    _notes("notes", result["notes"])


def replay(result: Record) -> None:
    """Print a replay, or those of all strategies."""
    _title(result["file"])
    if "strategies" in result:
        rows = [
            (
                each["strategy"], format_size(each["peak_allocated_bytes"]),
                format_size(each["peak_reserved_bytes"]), str(each["upstream_calls"]),
                str(each["ooms"]), f"{each['seconds']:.2f} s",
            )
            for each in sorted(result["strategies"], key=lambda each: each["peak_reserved_bytes"])
        ]  # fmt: skip
        _table(("strategy", "allocated", "reserved", "calls", "failed", "time"), rows)
        return
    _rows(
        [
            ("settings", result["conf"] or "(defaults)"),
            ("peak allocated", format_size(result["peak_allocated_bytes"])),
            ("peak reserved", format_size(result["peak_reserved_bytes"])),
            ("upstream calls", str(result["upstream_calls"])),
            ("failed requests", str(result["ooms"])),
            ("retries", str(result["retries"])),
        ]
    )
    if result["recorded_peak_reserved_bytes"] is None:
        return
    recorded, replayed = result["recorded_peak_reserved_bytes"], result["peak_reserved_bytes"]
    error = 100 * (replayed / recorded - 1) if recorded else 0.0
    _rows(
        [
            ("recorded peak", f"{format_size(recorded)} (replayed {error:+.3f} %)"),
            ("segment events", f"{result['recorded_segment_events']} recorded, "
             f"{result['segment_event_mismatches']} without a partner"),
        ]
    )  # fmt: skip
    if result["first_mismatch"]:
        print(f"  first difference: {result['first_mismatch']}")
    _notes("what explains differences", list(result["reasons"]))


def advice(result: Record) -> None:
    """Print the Pareto set of a search."""
    _title(f"{result['file']}: {result['tried']} settings replayed")
    rows = [
        (
            format_size(each["peak_reserved_bytes"]), str(each["upstream_calls"]),
            str(each["ooms"]), format_size(each["smallest_device_bytes"]),
            each["conf"] or "(defaults)",
        )
        for each in (result["baseline"], *result["choices"])
    ]  # fmt: skip
    _table(("reserved", "calls", "failed", "fits on", "settings"), rows)
    print("  (the first row is the recorded settings)")
    if result["baseline"]["ooms"]:
        best = result["avoiding"][:3]
        text = "; ".join(conf or "(defaults)" for conf in best)
        print(f"\n  this out-of-memory would have been avoided by: {text or 'none of them'}")


def autopsies(result: Record) -> None:
    """Print why requests failed."""
    if not result["requests"]:
        _title(f"{result['file']}: no request failed")
        print("  suppose one with --request BYTES")
    for each in result["requests"]:
        _title(f"{result['file']}: {format_size(each['size'])} at event {each['event']}")
        _rows(
            [
                ("asked of the device", format_size(each["segment_size"])),
                ("left on the device", format_size(each["device_left"])),
                ("in use", format_size(each["allocated"])),
                ("free in pinned segments", format_size(each["free_in_segments"])),
            ]
        )
        print("\n  segments with the most free bytes, and what pins them:")
        for segment in each["segments"][:_MOST_LINES]:
            pins = ", ".join(
                f"{format_size(pin['size'])} {pin['line']}" for pin in segment["pins"][:3]
            )
            more = len(segment["pins"]) - 3
            print(
                f"  {segment['address']:#x}  {format_size(segment['free'])} of "
                f"{format_size(segment['size'])} free: {pins}{f' and {more} more' * (more > 0)}"
            )
        if not each["remedy"]:
            print(f"\n  {each['how']}")
            continue
        print(f"\n  room would have been made by freeing {format_size(each['remedy_bytes'])}")
        print(f"  ({each['how']}):")
        _rows([(format_size(pin["size"]), pin["line"]) for pin in each["remedy"][:_MOST_LINES]])


def difference(result: Record) -> None:
    """Print what changed between two recordings."""
    _title(f"{result['before']} -> {result['after']}")
    rows = []
    for name, (before, after) in result["peaks"].items():
        shown = format_size if name.endswith("bytes") else str
        change = f"{100 * (after / before - 1):+.2f} %" if before else ""
        rows.append((name.replace("_", " "), shown(before), shown(after), change))
    _table(("figure", "before", "after", "change"), rows)
    print("\n  in use at the peak, by line:")
    for line, (before, after) in list(result["lines"].items())[:_MOST_LINES]:
        sign = "+" if after > before else "-"
        print(f"  {sign}{format_size(abs(after - before))}  {line}")


def gate(rows: list[Row]) -> None:
    """Print which limits hold."""
    for row in rows:
        word = "ok  " if row.holds else "FAIL"
        was = "" if row.baseline is None else f" (baseline {format_size(row.baseline)})"
        name = f"{row.file}: " if row.file else ""
        print(
            f"{word} {name}{row.figure.replace('_', ' ')} {format_size(row.now)}, "
            f"allowed {format_size(row.most)}{was}"
        )
