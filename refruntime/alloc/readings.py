"""What can be seen of a caching allocator: statistics, categories, history, snapshots.

State
-----
None of its own but where counting starts (`Baseline`): it reads the allocator's tables.

Invariants
----------
* Frees and tags that were queued have been carried out before anything is read, unless a call is in
  progress, which will see to them.
"""

from __future__ import annotations

from typing import Any

from refruntime.alloc import statistics
from refruntime.alloc.configuration import Configuration
from refruntime.alloc.guard import Guard
from refruntime.alloc.rows import find
from refruntime.alloc.settings import AllocatorSettings
from refruntime.alloc.snapshot import history_before, snapshot_of
from refruntime.alloc.summary import summary_table
from refruntime.alloc.tables import (
    ALLOCATED_BYTES,
    NUM_ALLOC_RETRIES,
    NUM_OOMS,
    RESERVED_BYTES,
    Tables,
)
from refruntime.alloc.trace import Trace


class Readings:
    """The part of a `CachingAllocator` that changes no block."""

    device: str
    tables: Tables
    trace: Trace
    _guard: Guard
    _baseline: statistics.Baseline
    _configuration: Configuration
    _first_settings: AllocatorSettings

    def settle(self) -> Any:
        """Carry out what was queued, unless a call in progress will."""
        raise NotImplementedError

    def _bind_calls(self) -> None:
        """Choose the hot calls for what is recorded now."""
        raise NotImplementedError

    @property
    def settings(self) -> AllocatorSettings:
        """The settings in force."""
        return self._configuration.settings

    @property
    def allocated_bytes(self) -> int:
        """The bytes of blocks in use, as rounded."""
        return statistics.current_of(self.tables.header, ALLOCATED_BYTES)

    @property
    def reserved_bytes(self) -> int:
        """The bytes of segments held."""
        return statistics.current_of(self.tables.header, RESERVED_BYTES)

    def owns(self, address: int) -> bool:
        """Whether a block in use has this address."""
        with self._guard:
            return bool(find(self.tables.header, self.tables.blocks, address) != 0)

    @property
    def retries(self) -> int:
        """How often the cache was released to serve a request, ever."""
        return int(self.tables.header[NUM_ALLOC_RETRIES])

    @property
    def ooms(self) -> int:
        """How many requests failed, ever."""
        return int(self.tables.header[NUM_OOMS])

    def stats(self) -> dict[str, int]:
        """Return all statistics under the keys of ``torch.cuda.memory_stats``."""
        self.settle()
        return statistics.memory_stats(self.tables, self._baseline, self._first_settings)

    def category_bytes(self) -> dict[str, int]:
        """Return the bytes in use (as asked for) of each category, by name."""
        self.settle()
        return statistics.category_bytes(self.tables.header)

    def attribution(self) -> dict[str, int]:
        """Return every reserved byte by what it is for; see `statistics.attribution`."""
        self.settle()
        return statistics.attribution(self.tables.header)

    def reset_peak_stats(self) -> None:
        """Make every peak the current value."""
        with self._guard:
            statistics.reset_peaks(self.tables)

    def reset_accumulated_stats(self) -> None:
        """Start the totals (allocated, freed, retries, failures) anew."""
        with self._guard:
            self._baseline.move(self.tables)

    def record(
        self, enabled: bool = True, *, stacks: bool = False, max_entries: int | None = None
    ) -> None:
        """Start the event trace anew, or stop it; see `Trace`.

        Parameters
        ----------
        enabled : bool
            Start or stop.
        stacks : bool
            Keep the Python frames of each request and free (about a microsecond each).
        max_entries : int, optional
            Keep only so many events, the latest.
        """
        with self._guard:
            if enabled:
                self.trace.start(history_before(self.tables), stacks, max_entries)
            else:
                self.trace.stop()
            self._bind_calls()

    def snapshot(self) -> dict[str, Any]:
        """Return segments, blocks and trace in the form of ``torch.cuda.memory_snapshot`` files."""
        with self._guard:
            return snapshot_of(self.tables, self.trace, self.settings)

    def summary(self) -> str:
        """Return a table of the statistics."""
        return summary_table(self.stats(), self.device)
