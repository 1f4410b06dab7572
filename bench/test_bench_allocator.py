"""pytest-benchmark of the allocator itself: what a malloc and a free cost, without any tensor."""

from __future__ import annotations

import random

import pytest

from refruntime.alloc import CachingAllocator
from refruntime.alloc.upstream import VirtualUpstream

GIB = 1 << 30


@pytest.fixture
def allocator():
    return CachingAllocator(VirtualUpstream(64 * GIB))


@pytest.mark.parametrize("nbytes", [32, 4096, 3 << 20, 64 << 20])
def test_bench_malloc_free_of_a_cached_size(benchmark, allocator, nbytes):
    benchmark.group = "allocator"

    def pair():
        allocator.free(allocator.malloc(nbytes))

    for _ in range(2000):  # past the point at which the core compiles
        pair()
    benchmark(pair)


def test_bench_thousand_mixed_requests(benchmark, allocator):
    """Time a thousand requests of random size with half of them alive at any time."""
    benchmark.group = "allocator"
    draw = random.Random(0)
    sizes = [int(2 ** draw.uniform(5, 25)) for _ in range(1000)]

    def churn():
        alive = []
        for nbytes in sizes:
            alive.append(allocator.malloc(nbytes))
            if len(alive) > 500:
                allocator.free(alive.pop(0))
        for address in alive:
            allocator.free(address)

    churn()
    benchmark(churn)
