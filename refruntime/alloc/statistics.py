"""The statistics of an allocator under PyTorch's names, read from the header of its tables.

State
-----
`Baseline` remembers the totals at the last reset; the core only ever adds to them.

Invariants
----------
* ``allocated - freed == current`` for every statistic, since the last reset of the totals.
* ``all`` is the sum of the pools, except for the peak, which is that of the sum.
* The bytes of `attribution` sum up to the reserved bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from refruntime.alloc import categories
from refruntime.alloc.counters import reset_all_peaks
from refruntime.alloc.settings import AllocatorSettings
from refruntime.alloc.tables import (
    ACTIVE_BYTES,
    ALLOCATED_BYTES,
    CATEGORY_BYTES,
    CURRENT,
    FIRST_RESERVED,
    INACTIVE_SPLIT_BYTES,
    NAME_FIRST,
    NAME_SECOND,
    NEXT,
    NUM_ALLOC_RETRIES,
    NUM_DEVICE_ALLOC,
    NUM_DEVICE_FREE,
    NUM_OOM_REJECTIONS,
    NUM_OOMS,
    NUM_SYNC_ALL_STREAMS,
    OVERSIZE,
    PEAK,
    PEAK_ALL,
    PRIVATE_PEAK_ALL,
    RESERVED_BYTES,
    STATISTICS,
    TOTAL,
    Tables,
)

Header = Any

COUNTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "num_alloc_retries": NUM_ALLOC_RETRIES,
        "num_ooms": NUM_OOMS,
        "num_sync_all_streams": NUM_SYNC_ALL_STREAMS,
        "num_device_alloc": NUM_DEVICE_ALLOC,
        "num_device_free": NUM_DEVICE_FREE,
        "num_oom_rejections": NUM_OOM_REJECTIONS,
    }
)
_POOLS: Final = (("small_pool", 0), ("large_pool", 1))
_ALL_STATISTICS: Final = {**STATISTICS, **OVERSIZE}


class Baseline:
    """Where counting starts: totals, currents and counts at the last reset."""

    def __init__(self) -> None:
        self._total: dict[tuple[int, int], int] = {}
        self._current: dict[tuple[int, int], int] = {}
        self._counts: dict[str, int] = {}

    def move(self, tables: Tables) -> None:
        """Count from now on."""
        h = tables.header
        places = [(h, stat) for stat in _ALL_STATISTICS.values()]
        places += [(tables.blocks, row) for row in _private_rows(tables)]
        for words, stat in places:
            for _, pool in _POOLS:
                self._total[stat, pool] = words[stat + TOTAL + pool]
                self._current[stat, pool] = words[stat + CURRENT + pool]
        self._counts = {name: h[word] for name, word in COUNTS.items()}

    def totals(self, h: Header, stat: int, pool: int) -> tuple[int, int]:
        """Return the increases and decreases of a statistic of a pool."""
        key = stat, pool
        allocated = h[stat + TOTAL + pool] - self._total.get(key, 0)
        net = h[stat + CURRENT + pool] - self._current.get(key, 0)
        return allocated, allocated - net

    def count(self, h: Header, name: str) -> int:
        """Return one of `COUNTS`."""
        return int(h[COUNTS[name]]) - self._counts.get(name, 0)


def current_of(h: Header, stat: int) -> int:
    """Return the current value of a statistic over both pools."""
    return int(h[stat + CURRENT] + h[stat + CURRENT + 1])


def reset_peaks(tables: Tables) -> None:
    """Make every peak the current value."""
    reset_all_peaks(tables.header, tables.blocks)


def memory_stats(
    tables: Tables, baseline: Baseline, first: AllocatorSettings
) -> dict[str, int]:
    """Return all statistics, keyed as ``torch.cuda.memory_stats`` keys them, sorted by key.

    As there, ``max_split_size`` is that of the `first` settings, whatever was set since.
    """
    h = tables.header
    stats: dict[str, int] = {"max_split_size": first.as_snapshot()["max_split_size"]}
    for name, stat in STATISTICS.items():
        pools = {label: (pool, *baseline.totals(h, stat, pool)) for label, pool in _POOLS}
        for label, (pool, allocated, freed) in pools.items():
            current, peak = h[stat + CURRENT + pool], h[stat + PEAK + pool]
            stats |= _fields(f"{name}.{label}", current, peak, allocated, freed)
        came, went = (sum(row[field] for row in pools.values()) for field in (1, 2))
        stats |= _fields(f"{name}.all", current_of(h, stat), h[stat + PEAK_ALL], came, went)
    for name, stat in OVERSIZE.items():
        stats |= _fields(name, h[stat], h[stat + PEAK], *baseline.totals(h, stat, 0))
    stats |= _private_stats(tables, baseline)
    stats |= {name: baseline.count(h, name) for name in COUNTS}
    return dict(sorted(stats.items()))


def _fields(prefix: str, current: int, peak: int, allocated: int, freed: int) -> dict[str, int]:
    return {
        f"{prefix}.current": current,
        f"{prefix}.peak": peak,
        f"{prefix}.allocated": allocated,
        f"{prefix}.freed": freed,
    }


def _private_stats(tables: Tables, baseline: Baseline) -> dict[str, int]:
    """Return the reserved bytes of each private pool that ever had any."""
    b = tables.blocks
    stats: dict[str, int] = {}
    for row in _private_rows(tables):
        if b[row + TOTAL] + b[row + TOTAL + 1] == 0:
            continue
        name = f"reserved_bytes_by_private_pools.{b[row + NAME_FIRST]}_{b[row + NAME_SECOND]}"
        pools = {label: (word, *baseline.totals(b, row, word)) for label, word in _POOLS}
        for label, (word, allocated, freed) in pools.items():
            current, peak = b[row + CURRENT + word], b[row + PEAK + word]
            stats |= _fields(f"{name}.{label}", current, peak, allocated, freed)
        came, went = (sum(entry[field] for entry in pools.values()) for field in (1, 2))
        peak = b[row + PRIVATE_PEAK_ALL]
        stats |= _fields(f"{name}.all", current_of(b, row), peak, came, went)
    return stats


def _private_rows(tables: Tables) -> Iterator[int]:
    row = tables.header[FIRST_RESERVED]
    while row:
        yield row
        row = tables.blocks[row + NEXT]


def category_bytes(h: Header) -> dict[str, int]:
    """Return the bytes in use (as asked for) of each category."""
    return {name: h[CATEGORY_BYTES + number] for number, name in enumerate(categories.NAMES)}


def attribution(h: Header) -> dict[str, int]:
    """Return every reserved byte by what it is for: the categories, and four kinds of waste.

    ``rounding_waste`` is the difference between blocks and what was asked, ``pending`` was freed
    but waits for events, ``split_waste`` is free in segments that are partly in use, and ``cached``
    is free in whole segments and pages.
    """
    wanted = category_bytes(h)
    allocated, active = current_of(h, ALLOCATED_BYTES), current_of(h, ACTIVE_BYTES)
    split = current_of(h, INACTIVE_SPLIT_BYTES)
    return {
        **wanted,
        "rounding_waste": allocated - sum(wanted.values()),
        "pending": active - allocated,
        "split_waste": split,
        "cached": current_of(h, RESERVED_BYTES) - active - split,
    }
