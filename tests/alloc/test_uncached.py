from __future__ import annotations

import pytest

from refruntime.alloc import HostUpstream, VirtualUpstream
from refruntime.alloc.uncached import UncachedAllocator
from refruntime.errors import ArgumentValueError, OutOfMemoryError
from tests.alloc.conftest import NEVER


def test_each_request_is_a_span_of_exactly_its_bytes() -> None:
    upstream = VirtualUpstream(1000)
    allocator = UncachedAllocator(upstream)
    blocks = [allocator.malloc(nbytes) for nbytes in (1, 0, 333)]
    assert blocks[1] == 0 and upstream.used == 334
    assert allocator.owns(blocks[2]) and not allocator.owns(7)
    for block in blocks:
        allocator.record_stream(block, 3)
        allocator.tag(block, 1)
        allocator.free(block)
    assert upstream.used == 0
    allocator.empty_cache()
    assert allocator.stats()["allocation.all.allocated"] == 0
    assert allocator.snapshot()["segments"] == []


def test_a_full_device_is_told_with_its_figures() -> None:
    allocator = UncachedAllocator(VirtualUpstream(1000))
    allocator.malloc(900)
    with pytest.raises(OutOfMemoryError, match=r"allocate 101 bytes.* 1000 bytes .* 100 bytes is"):
        allocator.malloc(101)
    allocator.malloc(100)


def test_what_is_no_span_is_refused() -> None:
    allocator = UncachedAllocator(VirtualUpstream(1000), compile_after=NEVER)
    block = allocator.malloc(5)
    allocator.free(block)
    for call in (allocator.free, lambda address: allocator.tag(address, 0)):
        with pytest.raises(ArgumentValueError):
            call(block)
    with pytest.raises(ArgumentValueError):
        allocator.malloc(-1)
    with pytest.raises(ArgumentValueError):
        allocator.malloc(5, 0, 99)


def test_a_span_that_could_not_be_released_can_be_freed_later() -> None:
    class Stubborn(VirtualUpstream):
        fails = True

        def release(self, address: int, nbytes: int) -> None:
            if self.fails:
                raise RuntimeError
            super().release(address, nbytes)

    upstream = Stubborn(1000)
    allocator = UncachedAllocator(upstream)
    block = allocator.malloc(5)
    with pytest.raises(RuntimeError):
        allocator.free(block)
    upstream.fails = False
    allocator.free(block)
    assert upstream.used == 0


def test_bytes_of_the_host_come_and_go() -> None:
    allocator = UncachedAllocator(HostUpstream(1 << 24))
    block = allocator.malloc(100_001)
    allocator.free(block)
    assert allocator.upstream.used == 0
