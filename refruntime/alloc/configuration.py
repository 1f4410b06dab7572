"""Settings as the words of the header that the core reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from refruntime.alloc.settings import AllocatorSettings
from refruntime.alloc.tables import (
    ADDRESS_BYTES,
    DIVISION_COUNT,
    DIVISIONS,
    EXPANDABLE,
    GC_THRESHOLD,
    LARGE_SEGMENT,
    LIMIT,
    MAX_NON_SPLIT_ROUNDING,
    MAX_SPLIT,
    MEND_EXPANDABLE_MAX_SPLIT,
    MEND_GC_WITHOUT_FRACTION,
    MEND_REJECTION_RELEASES_CACHE,
    MEND_SEARCH_AFTER_SYNC,
    MENDS,
    REJECT_ABOVE,
    REUSE_IN_CAPTURE,
)

FIRST_WORD: Final = MAX_SPLIT
WORD_COUNT: Final = DIVISIONS + DIVISION_COUNT - MAX_SPLIT

_MENDS: Final = {
    "mend_search_after_sync": MEND_SEARCH_AFTER_SYNC,
    "mend_rejection_releases_cache": MEND_REJECTION_RELEASES_CACHE,
    "mend_gc_without_fraction": MEND_GC_WITHOUT_FRACTION,
    "mend_expandable_max_split": MEND_EXPANDABLE_MAX_SPLIT,
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the policy depends on besides its state.

    Attributes
    ----------
    settings : AllocatorSettings
        What the program set.
    device_bytes : int
        The device's memory in all.
    limit : int
        Bytes that may be reserved, or -1 for all that there are.
    """

    settings: AllocatorSettings
    device_bytes: int
    limit: int = -1

    @classmethod
    def first(cls, settings: AllocatorSettings | str | None, device_bytes: int) -> Configuration:
        """Return what an allocator begins with: settings, or their text."""
        if not isinstance(settings, AllocatorSettings):
            settings = AllocatorSettings().updated(settings or "")
        fraction = settings.per_process_memory_fraction
        return cls(settings, device_bytes).with_fraction(fraction)

    def with_fraction(self, fraction: float, device_bytes: int | None = None) -> Configuration:
        """Return it with the limit that a share of the device's memory is; 1 is no limit."""
        total = self.device_bytes if device_bytes is None else device_bytes
        return replace(self, limit=int(fraction * total) if fraction < 1 else -1)

    @property
    def gc_threshold(self) -> int:
        """Reserved bytes from which garbage is collected; 0: never."""
        share = self.settings.garbage_collection_threshold
        if self.limit >= 0:
            return int(share * self.limit)
        if self.settings.mend_gc_without_fraction:
            return int(share * self.device_bytes)
        return 0

    @property
    def rejection_threshold(self) -> int:
        """Reserved bytes above which requests are refused unasked, or -1.

        They follow the setting, whatever `limit` was set since.
        """
        if not self.settings.throw_on_cudamalloc_oom:
            return -1
        return int(self.settings.per_process_memory_fraction * self.device_bytes)

    def words(self) -> list[int]:
        """Return the words of the header from `FIRST_WORD` on."""
        settings = self.settings
        values = {
            MAX_SPLIT: settings.max_split_size,
            MAX_NON_SPLIT_ROUNDING: settings.max_non_split_rounding,
            LARGE_SEGMENT: settings.large_segment_size,
            EXPANDABLE: int(settings.expandable_segments),
            LIMIT: self.limit,
            GC_THRESHOLD: self.gc_threshold,
            REJECT_ABOVE: self.rejection_threshold,
            REUSE_IN_CAPTURE: int(settings.graph_capture_record_stream_reuse),
            MENDS: sum(bit for name, bit in _MENDS.items() if getattr(settings, name)),
            ADDRESS_BYTES: settings.reserve_bytes(self.device_bytes),
        }
        words = [values[FIRST_WORD + word] for word in range(DIVISIONS - FIRST_WORD)]
        return [*words, *settings.roundup_power2_divisions]

    def write(self, header: memoryview) -> None:
        """Put the settings in force."""
        for word, value in enumerate(self.words()):
            header[FIRST_WORD + word] = value
