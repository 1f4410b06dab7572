"""The statistics as a text table, with the rows of PyTorch's memory summary.

State
-----
None.

Invariants
----------
* Every figure comes from the statistics dict, so the table of any allocator can be printed.
* All lines have the same width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_FIELDS: Final = ("current", "peak", "allocated", "freed")
_HEADINGS: Final = ("Now", "Peak", "Total in", "Total out")
_LABEL: Final = 24
_CELL: Final = 11
_WIDTH: Final = _LABEL + 4 * (_CELL + 3) + 2
_POOLS: Final = (("all", ""), ("large_pool", "  large pool"), ("small_pool", "  small pool"))

# Row, statistic, and whether it counts bytes.
_ROWS: Final = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("Reserved memory", "reserved_bytes", True),
    ("Non-releasable memory", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Active allocations", "active", False),
    ("Reserved segments", "segment", False),
    ("Non-releasable blocks", "inactive_split", False),
)
_OVERSIZE: Final = (
    ("Oversize allocations", "oversize_allocations"),
    ("Oversize segments", "oversize_segments"),
)
_BYTE_UNITS: Final = ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT_UNITS: Final = ("", "K", "M", "G", "T")


def summary_table(stats: Mapping[str, int], device: str) -> str:
    """Return the table; `stats` is keyed as by ``memory_stats``."""
    rule = "-" * _WIDTH
    lines = [rule, _centred(f"{device} memory"), rule, _centred(_incidents(stats)), rule]
    lines.append(_line("", _HEADINGS))
    for label, name, is_bytes in _ROWS:
        lines.append(rule)
        for pool, pool_label in _POOLS:
            values = [stats[f"{name}.{pool}.{field}"] for field in _FIELDS]
            write = format_bytes if is_bytes else format_count
            lines.append(_line(pool_label or label, tuple(map(write, values))))
    lines.append(rule)
    for label, name in _OVERSIZE:
        counts = (format_count(stats[f"{name}.{field}"]) for field in _FIELDS)
        lines.append(_line(label, tuple(counts)))
    return "\n".join([*lines, rule])


def format_bytes(nbytes: int) -> str:
    """Return bytes in the unit that keeps the number below 768."""
    return _scaled(nbytes, 1024, 768, _BYTE_UNITS)


def format_count(count: int) -> str:
    """Return a count in the unit that keeps the number below 750,000."""
    return _scaled(count, 1000, 750_000, _COUNT_UNITS).strip()


def _scaled(value: int, base: int, limit: int, units: tuple[str, ...]) -> str:
    size, place = float(value), 0
    while abs(size) >= limit and place < len(units) - 1:
        size /= base
        place += 1
    number = f"{value}" if place == 0 else f"{size:.1f}" if limit < base else f"{size:.0f}"
    return f"{number} {units[place]}"


def _incidents(stats: Mapping[str, int]) -> str:
    retries, ooms = stats["num_alloc_retries"], stats["num_ooms"]
    return f"cache released to serve a request: {retries}    out of memory: {ooms}"


def _centred(text: str) -> str:
    return f"|{text:^{_WIDTH - 2}}|"


def _line(label: str, cells: tuple[str, ...]) -> str:
    columns = [f"{label:<{_LABEL - 2}}", *(f"{cell:>{_CELL}}" for cell in cells)]
    return f"| {' | '.join(columns)} |"
