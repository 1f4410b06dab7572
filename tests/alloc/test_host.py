from __future__ import annotations

import ctypes
import threading

from refruntime import alloc


def test_host_allocator_is_one_for_the_process() -> None:
    found: list[alloc.CachingAllocator] = []
    threads = [threading.Thread(target=lambda: found.append(alloc.host())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(one is alloc.host() for one in found)
    assert isinstance(alloc.host().upstream, alloc.HostUpstream)


def test_host_bytes_can_be_written_and_are_given_back() -> None:
    allocator = alloc.host()
    before = allocator.allocated_bytes
    address = allocator.malloc(5_000_000)
    ctypes.memset(address, 3, 5_000_000)
    assert ctypes.string_at(address + 4_999_999, 1) == b"\x03"
    assert allocator.allocated_bytes >= before + 5_000_000
    allocator.free(address)
    assert allocator.allocated_bytes == before
