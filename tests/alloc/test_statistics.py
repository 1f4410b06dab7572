from __future__ import annotations

from refruntime.alloc import CachingAllocator, VirtualUpstream

MIB = 1 << 20


def test_keys_are_those_of_torch() -> None:
    keys = set(CachingAllocator(VirtualUpstream(1 << 30)).stats())
    metrics = (
        "active", "active_bytes", "allocated_bytes", "allocation", "inactive_split",
        "inactive_split_bytes", "requested_bytes", "reserved_bytes", "segment",
    )  # fmt: skip
    fields = ("allocated", "current", "freed", "peak")
    pools = ("all", "large_pool", "small_pool")
    assert keys == {
        *(f"{m}.{p}.{f}" for m in metrics for p in pools for f in fields),
        *(f"oversize_{what}.{f}" for what in ("allocations", "segments") for f in fields),
        "max_split_size", "num_alloc_retries", "num_device_alloc", "num_device_free",
        "num_oom_rejections", "num_ooms", "num_sync_all_streams",
    }  # fmt: skip


def test_peak_of_all_pools_is_that_of_the_sum() -> None:
    allocator = CachingAllocator(VirtualUpstream(1 << 30))
    small = allocator.malloc(MIB)
    allocator.free(small)
    large = allocator.malloc(20 * MIB)
    stats = allocator.stats()
    assert stats["allocated_bytes.small_pool.peak"] == MIB
    assert stats["allocated_bytes.large_pool.peak"] == 20 * MIB
    assert stats["allocated_bytes.all.peak"] == 20 * MIB
    allocator.malloc(MIB)
    assert allocator.stats()["allocated_bytes.all.peak"] == 21 * MIB
    allocator.free(large)
    assert allocator.stats()["allocated_bytes.all.peak"] == 21 * MIB
