from __future__ import annotations

import ctypes
import subprocess
import sys
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


def test_tensors_that_outlive_the_modules_are_dropped_in_silence() -> None:
    program = """
import atexit
from refruntime.alloc import caching

@atexit.register  # runs last, as the interpreter's own cleaning of modules does
def clean():
    caching.core = None
    del tensor.storage

import refruntime
tensor = refruntime.ones(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stderr == ""
