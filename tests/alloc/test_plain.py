from __future__ import annotations

import pytest

from refruntime.alloc import PlainAllocator, VirtualUpstream
from refruntime.errors import ArgumentValueError, OutOfMemoryError

MIB = 1 << 20


def test_each_request_is_one_span_of_the_upstream() -> None:
    upstream = VirtualUpstream(1 << 30)
    allocator = PlainAllocator(upstream)
    first, second = allocator.malloc(1), allocator.malloc(513)
    assert upstream.used == allocator.reserved_bytes == allocator.allocated_bytes == 1536
    allocator.free(first)
    allocator.free(second)
    assert (upstream.used, upstream.calls, allocator.allocated_bytes) == (0, 4, 0)


def test_zero_bytes_ask_nothing() -> None:
    upstream = VirtualUpstream(1 << 30)
    allocator = PlainAllocator(upstream)
    allocator.free(allocator.malloc(0))
    assert upstream.calls == 0


def test_failure_is_counted_and_changes_nothing() -> None:
    allocator = PlainAllocator(VirtualUpstream(MIB))
    allocator.malloc(MIB)
    with pytest.raises(OutOfMemoryError, match=r"0 bytes is free"):
        allocator.malloc(1)
    assert (allocator.ooms, allocator.allocated_bytes) == (1, MIB)


def test_unknown_address_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="free: expected the address of a block in use"):
        PlainAllocator(VirtualUpstream(MIB)).free(4096)
