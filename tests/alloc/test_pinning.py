from __future__ import annotations

import pytest

from refruntime.alloc import pinning
from refruntime.alloc.pinned_upstream import HostPinnedUpstream, VirtualPinnedUpstream
from refruntime.errors import ArgumentValueError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has pinned nothing."""
    monkeypatch.setattr(pinning, "_allocator", None)
    monkeypatch.setattr(pinning, "_make_upstream", HostPinnedUpstream)


def test_there_is_one_allocator() -> None:
    assert pinning.pinned() is pinning.pinned()
    assert isinstance(pinning.pinned().upstream, HostPinnedUpstream)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "pinned_reserve_segment_size_mb:3")
    assert pinning.pinned().settings.pinned_reserve_segment_size == 3 << 20


def test_the_upstream_is_named_before_it_is_used() -> None:
    pinning.serve_from(VirtualPinnedUpstream)
    assert isinstance(pinning.pinned().upstream, VirtualPinnedUpstream)
    with pytest.raises(ArgumentValueError, match="serve_from: expected a process that has pinned"):
        pinning.serve_from(HostPinnedUpstream)
