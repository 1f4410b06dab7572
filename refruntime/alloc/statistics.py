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

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from refruntime.alloc import categories
from refruntime.alloc.tables import (
    ALLOCATED_BYTES,
    CATEGORY_BYTES,
    CURRENT,
    INACTIVE_SPLIT_BYTES,
    LARGE,
    NUM_ALLOC_RETRIES,
    NUM_DEVICE_ALLOC,
    NUM_DEVICE_FREE,
    NUM_OOMS,
    NUM_SYNC_ALL_STREAMS,
    PEAK,
    PEAK_ALL,
    REQUESTED_BYTES,
    RESERVED_BYTES,
    SMALL,
    STATISTICS,
    TOTAL,
)

Header = Any

COUNTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "num_alloc_retries": NUM_ALLOC_RETRIES,
        "num_ooms": NUM_OOMS,
        "num_sync_all_streams": NUM_SYNC_ALL_STREAMS,
        "num_device_alloc": NUM_DEVICE_ALLOC,
        "num_device_free": NUM_DEVICE_FREE,
    }
)
_POOLS: Final = (("small_pool", SMALL), ("large_pool", LARGE))
# With no limit on splitting no block is oversize, and with no refusal in advance none is refused.
_ALWAYS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **{
            f"oversize_{what}.{field}": 0
            for what in ("allocations", "segments")
            for field in ("current", "peak", "allocated", "freed")
        },
        "num_oom_rejections": 0,
        "max_split_size": -1,
    }
)


class Baseline:
    """Where counting starts: totals, currents and counts at the last reset."""

    def __init__(self) -> None:
        self._total: dict[tuple[int, int], int] = {}
        self._current: dict[tuple[int, int], int] = {}
        self._counts: dict[str, int] = {}

    def move(self, h: Header) -> None:
        """Count from now on."""
        for stat in STATISTICS.values():
            for _, pool in _POOLS:
                self._total[stat, pool] = h[stat + TOTAL + pool]
                self._current[stat, pool] = h[stat + CURRENT + pool]
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


def current(h: Header, stat: int) -> int:
    """Return the current value of a statistic over both pools."""
    return int(h[stat + CURRENT + SMALL] + h[stat + CURRENT + LARGE])


def reset_peaks(h: Header) -> None:
    """Make every peak the current value."""
    for stat in STATISTICS.values():
        for _, pool in _POOLS:
            h[stat + PEAK + pool] = h[stat + CURRENT + pool]
        h[stat + PEAK_ALL] = current(h, stat)


def memory_stats(h: Header, baseline: Baseline) -> dict[str, int]:
    """Return all statistics, keyed as ``torch.cuda.memory_stats`` keys them, sorted by key."""
    stats = dict(_ALWAYS)
    for name, stat in STATISTICS.items():
        pools = {label: (pool, *baseline.totals(h, stat, pool)) for label, pool in _POOLS}
        for label, (pool, allocated, freed) in pools.items():
            stats[f"{name}.{label}.current"] = h[stat + CURRENT + pool]
            stats[f"{name}.{label}.peak"] = h[stat + PEAK + pool]
            stats[f"{name}.{label}.allocated"] = allocated
            stats[f"{name}.{label}.freed"] = freed
        stats[f"{name}.all.current"] = current(h, stat)
        stats[f"{name}.all.peak"] = h[stat + PEAK_ALL]
        stats[f"{name}.all.allocated"] = sum(row[1] for row in pools.values())
        stats[f"{name}.all.freed"] = sum(row[2] for row in pools.values())
    stats.update({name: baseline.count(h, name) for name in COUNTS})
    return dict(sorted(stats.items()))


def category_bytes(h: Header) -> dict[str, int]:
    """Return the bytes in use (as asked for) of each category."""
    return {name: h[CATEGORY_BYTES + number] for number, name in enumerate(categories.NAMES)}


def attribution(h: Header) -> dict[str, int]:
    """Return every reserved byte by what it is for: the categories, and three kinds of waste.

    ``rounding_waste`` is the difference between blocks and what was asked, ``split_waste`` is free
    in segments that are partly in use, and ``cached`` is free in whole segments.
    """
    allocated = current(h, ALLOCATED_BYTES)
    split = current(h, INACTIVE_SPLIT_BYTES)
    return {
        **category_bytes(h),
        "rounding_waste": allocated - current(h, REQUESTED_BYTES),
        "split_waste": split,
        "cached": current(h, RESERVED_BYTES) - allocated - split,
    }
