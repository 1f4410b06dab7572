from __future__ import annotations

from refruntime.alloc.pinned import PinnedAllocator
from refruntime.alloc.pinned_history import PinnedHistory
from refruntime.alloc.pinned_upstream import VirtualPinnedUpstream


def test_entries_are_those_of_a_snapshot() -> None:
    history = PinnedHistory()
    allocator = PinnedAllocator(VirtualPinnedUpstream(), observer=history)
    address = allocator.malloc(1000)
    allocator.free(address)
    allocator.empty_cache()
    entries = history.entries()
    assert [entry["action"] for entry in entries] == [
        "segment_alloc", "alloc", "free_requested", "free_completed", "segment_free",
    ]  # fmt: skip
    assert all(isinstance(entry.pop("time_us"), int) for entry in entries)
    assert entries[0] == {
        "action": "segment_alloc", "addr": address, "size": 1024, "stream": 0,
        "compile_context": "", "user_metadata": "", "pool_id": (0, 0),
    }  # fmt: skip


def test_only_the_newest_entries_are_kept() -> None:
    history = PinnedHistory(max_entries=2)
    allocator = PinnedAllocator(VirtualPinnedUpstream(), observer=history)
    allocator.free(allocator.malloc(1000))
    assert [entry["action"] for entry in history.entries()] == ["free_requested", "free_completed"]
    history.clear()
    assert history.entries() == []
