"""The statistics as a text table, laid out as PyTorch lays out its memory summary.

State
-----
None.

Invariants
----------
* Every figure comes from the statistics dict, so the table of any allocator can be printed.
* All lines have the same width. The cells of a group share the unit of its first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

_FIELDS: Final = ("current", "peak", "allocated", "freed")
_HEADINGS: Final = ("Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed")
_WIDTH: Final = 75
_POOLS: Final = (
    ("all", ""),
    ("large_pool", "from large pool"),
    ("small_pool", "from small pool"),
)

# Row, statistic, and whether it counts bytes.
_ROWS: Final = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("GPU reserved memory", "reserved_bytes", True),
    ("Non-releasable memory", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Active allocs", "active", False),
    ("GPU reserved segments", "segment", False),
    ("Non-releasable allocs", "inactive_split", False),
)
_OVERSIZE: Final = (
    ("Oversize allocations", "oversize_allocations"),
    ("Oversize GPU segments", "oversize_segments"),
)
_BYTE_UNITS: Final = ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB")
_BYTE_LIMIT: Final = 768 * 1024
_COUNT_UNITS: Final = (" ", "K", "M")
_COUNT_LIMIT: Final = 750_000


def summary_table(
    stats: Mapping[str, int], device: int | str, *, abbreviated: bool = False
) -> str:
    """Return the table.

    Parameters
    ----------
    stats : mapping
        The statistics, keyed as by ``memory_stats``.
    device : int or str
        The index of a GPU, or the name of another device.
    abbreviated : bool
        Leave the rows of the single pools out.
    """
    on_gpu = isinstance(device, int)
    name = f"PyTorch CUDA memory summary, device ID {device:<17}" if on_gpu else f"{device} memory"
    incidents = (
        f"  {'':9} CUDA OOMs: {stats['num_ooms']:<12d} | "
        f"{'':6} cudaMalloc retries: {stats['num_alloc_retries']:<8d}"
    )
    lines = ["=" * _WIDTH, f"{'':18}{name}", "-" * _WIDTH, incidents, "=" * _WIDTH]
    lines.append(f"{'Metric':^23}|" + "|".join(f" {heading:<11}" for heading in _HEADINGS))
    for row in _ROWS:
        lines += ["-" * _WIDTH, *_group(stats, *row, abbreviated)]
    for label, key in _OVERSIZE:
        values = [stats[f"{key}.{field}"] for field in _FIELDS]
        lines += ["-" * _WIDTH, _line(label, [format_count(value) for value in values])]
    return "\n".join(f"|{line:<{_WIDTH}}|" for line in [*lines, "=" * _WIDTH]) + "\n"


def _group(
    stats: Mapping[str, int], label: str, key: str, is_bytes: bool, abbreviated: bool
) -> Iterator[str]:
    """Yield the rows of a statistic: all of it, then each pool, in the units of the first row."""
    write = format_bytes if is_bytes else format_count
    guides = [stats[f"{key}.all.{field}"] for field in _FIELDS]
    for pool, pool_label in _POOLS[:1] if abbreviated else _POOLS:
        values = [stats[f"{key}.{pool}.{field}"] for field in _FIELDS]
        cells = [write(value, guide) for value, guide in zip(values, guides, strict=True)]
        yield _line(f"{'':6}{pool_label}" if pool_label else label, cells)


def format_bytes(nbytes: int, guide: int | None = None) -> str:
    """Return bytes in the unit that keeps `guide` (by default themselves) below 768 Ki."""
    value, unit = _scaled(nbytes, guide, 1024, _BYTE_LIMIT, _BYTE_UNITS)
    return f"{value:6d} {unit}"


def format_count(count: int, guide: int | None = None) -> str:
    """Return a count in the unit that keeps `guide` (by default itself) below 750,000."""
    value, unit = _scaled(count, guide, 1000, _COUNT_LIMIT, _COUNT_UNITS)
    return f"{value:7d} {unit} "


def _scaled(
    value: int, guide: int | None, base: int, limit: int, units: tuple[str, ...]
) -> tuple[int, str]:
    """Divide a value until its guide is below the limit; return it and its unit."""
    size, place = float(value if guide is None else guide), 0
    while size >= limit and place < len(units) - 1:
        size /= base
        value //= base
        place += 1
    return value, units[place]


def _line(label: str, cells: list[str]) -> str:
    return f" {label:<21} | {' | '.join(cells)} "
