"""Statistics of pinned host memory under the names that ``torch.cuda.host_memory_stats`` gives.

State
-----
Counters of blocks and bytes taken from the upstream; counters of blocks and bytes in use, one pair
for each power of two; durations of the upstream's calls, in microseconds.

Invariants
----------
* ``current == allocated - freed`` of every counter, since the last reset of the totals.
* The peak in use is the sum of the peaks of the powers of two, as in PyTorch: an upper bound, since
  they need not have peaked together.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counter:
    """A figure that rises and falls, with its peak and the sums of its rises and falls."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def increase(self, amount: int) -> None:
        """Add to the figure."""
        self.current += amount
        self.allocated += amount
        self.peak = max(self.peak, self.current)

    def decrease(self, amount: int) -> None:
        """Take from the figure."""
        self.current -= amount
        self.freed += amount

    def reset_totals(self) -> None:
        """Count rises and falls from now on."""
        self.allocated = self.freed = 0

    def reset_peak(self) -> None:
        """Make the present figure the peak."""
        self.peak = self.current

    def as_dict(self) -> dict[str, int]:
        """Return the four figures."""
        return {name: getattr(self, name) for name in ("allocated", "current", "freed", "peak")}


@dataclass(slots=True)
class Durations:
    """Microseconds spent in calls of one kind."""

    total: int = 0
    max: int = 0
    min: int = 0
    count: int = 0

    def add(self, microseconds: int) -> None:
        """Count a call."""
        self.total += microseconds
        self.count += 1
        self.max = max(self.max, microseconds)
        # A least of 0 means none yet, as in PyTorch: calls of less than 1 us do not lower it.
        self.min = min(self.min, microseconds) if self.min else microseconds

    def reset_totals(self) -> None:
        """Sum and count from now on."""
        self.total = self.count = 0

    def reset_peak(self) -> None:
        """Forget the shortest and the longest call."""
        self.max = self.min = 0

    def as_dict(self) -> dict[str, int]:
        """Return the figures, with the mean in whole microseconds."""
        mean = self.total // self.count if self.count else 0
        return {
            "avg": mean, "count": self.count, "max": self.max, "min": self.min, "total": self.total,
        }  # fmt: skip


@dataclass(slots=True)
class HostStatistics:
    """All counters of a pinned allocator."""

    allocations: Counter = field(default_factory=Counter)
    allocated_bytes: Counter = field(default_factory=Counter)
    requests: defaultdict[int, Counter] = field(default_factory=lambda: defaultdict(Counter))
    bytes: defaultdict[int, Counter] = field(default_factory=lambda: defaultdict(Counter))
    alloc_time: Durations = field(default_factory=Durations)
    free_time: Durations = field(default_factory=Durations)

    def block_made(self, bucket: int, size: int) -> None:
        """Count a block that the upstream gave, in use from the start."""
        self.allocations.increase(1)
        self.allocated_bytes.increase(size)
        self.block_taken(bucket, size)

    def block_taken(self, bucket: int, size: int) -> None:
        """Count a block that went into use."""
        self.requests[bucket].increase(1)
        self.bytes[bucket].increase(size)

    def block_cached(self, bucket: int, size: int) -> None:
        """Count a block that went out of use."""
        self.requests[bucket].decrease(1)
        self.bytes[bucket].decrease(size)

    def block_gone(self, size: int) -> None:
        """Count a block that went back to the upstream."""
        self.allocations.decrease(1)
        self.allocated_bytes.decrease(size)

    def _counters(self) -> list[Counter | Durations]:
        whole = [self.allocations, self.allocated_bytes]
        parts = [*self.requests.values(), *self.bytes.values()]
        return [*whole, *parts, self.alloc_time, self.free_time]

    def reset_totals(self) -> None:
        """Count rises, falls and calls from now on."""
        for counter in self._counters():
            counter.reset_totals()

    def reset_peaks(self) -> None:
        """Make the present figures the peaks."""
        for counter in self._counters():
            counter.reset_peak()

    def nested(self) -> dict[str, dict[str, int] | int]:
        """Return the statistics as ``torch.cuda.host_memory_stats_as_nested_dict`` does."""
        return {
            "active_bytes": _sum(self.bytes).as_dict(),
            "active_requests": _sum(self.requests).as_dict(),
            "allocated_bytes": self.allocated_bytes.as_dict(),
            "allocations": self.allocations.as_dict(),
            "host_alloc_time": self.alloc_time.as_dict(),
            "host_free_time": self.free_time.as_dict(),
            "num_host_alloc": self.allocations.allocated,
            "num_host_free": self.allocations.freed,
        }

    def flat(self) -> dict[str, int]:
        """Return the statistics as ``torch.cuda.host_memory_stats`` does: dotted keys, sorted."""
        found: dict[str, int] = {}
        for name, value in self.nested().items():
            if isinstance(value, int):
                found[name] = value
            else:
                found.update({f"{name}.{field}": figure for field, figure in value.items()})
        return dict(sorted(found.items()))


def _sum(buckets: dict[int, Counter]) -> Counter:
    return Counter(
        *(sum(getattr(counter, name) for counter in buckets.values()) for name in Counter.__slots__)
    )
