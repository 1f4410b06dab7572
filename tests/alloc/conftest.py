from __future__ import annotations

from collections.abc import Callable

import pytest

from refruntime.alloc import CachingAllocator, Upstream, VirtualUpstream

MakeAllocator = Callable[..., CachingAllocator]
NEVER = 1 << 40


@pytest.fixture(params=["interpreted", "compiled"])
def make(request: pytest.FixtureRequest) -> MakeAllocator:
    """Makes allocators over a virtual device of so many MiB (or a given upstream)."""

    def build(mebibytes: int = 1 << 20, upstream: Upstream | None = None) -> CachingAllocator:
        source = VirtualUpstream(mebibytes << 20) if upstream is None else upstream
        allocator = CachingAllocator(source, compile_after=NEVER)
        if request.param == "compiled":
            allocator.compile()
        assert allocator.compiled is (request.param == "compiled")
        return allocator

    return build
