from __future__ import annotations

import ctypes
import itertools
import os
from pathlib import Path

import pytest

from refruntime.alloc import HostUpstream, UpstreamExhausted, VirtualUpstream, upstream
from refruntime.alloc.upstream import HUGE_PAGE, host_capacity
from refruntime.config import config
from refruntime.errors import ArgumentValueError

MIB = 1 << 20


@pytest.fixture(params=["virtual", "host"])
def source(request: pytest.FixtureRequest) -> VirtualUpstream | HostUpstream:
    return {"virtual": VirtualUpstream, "host": HostUpstream}[request.param](64 * MIB)


def test_used_counts_what_is_given_out(source: VirtualUpstream | HostUpstream) -> None:
    first, second = source.reserve(2 * MIB, 0), source.reserve(20 * MIB, 1)
    assert source.used == 22 * MIB
    source.release(first, 2 * MIB)
    assert source.used == 20 * MIB
    source.release(second, 20 * MIB)
    assert source.used == 0


def test_spans_are_aligned_and_apart(source: VirtualUpstream | HostUpstream) -> None:
    spans = sorted(source.reserve(nbytes, 0) for nbytes in (2 * MIB, 5 * MIB + 4096, 4 * MIB))
    assert all(address % HUGE_PAGE == 0 for address in spans)
    assert all(after - before >= 2 * MIB for before, after in itertools.pairwise(spans))
    assert len(set(spans)) == 3


def test_capacity_is_never_passed(source: VirtualUpstream | HostUpstream) -> None:
    address = source.reserve(60 * MIB, 0)
    with pytest.raises(UpstreamExhausted):
        source.reserve(6 * MIB, 0)
    assert source.used == 60 * MIB
    source.release(address, 60 * MIB)
    source.release(source.reserve(64 * MIB, 0), 64 * MIB)


@pytest.mark.parametrize("wrong", ["address", "size", "twice"])
def test_only_whole_reserved_spans_are_taken_back(
    source: VirtualUpstream | HostUpstream, wrong: str
) -> None:
    address, nbytes = source.reserve(4 * MIB, 0), 4 * MIB
    if wrong == "twice":
        source.release(address, nbytes)
    used = source.used
    with pytest.raises(ArgumentValueError, match="release: expected a reserved span, whole"):
        source.release(address + (wrong == "address"), nbytes - (wrong == "size"))
    assert source.used == used


def test_virtual_addresses_rise_and_are_never_given_twice() -> None:
    source = VirtualUpstream(64 * MIB)
    seen = []
    for _ in range(5):
        seen.append(source.reserve(3 * MIB, 0))
        source.release(seen[-1], 3 * MIB)
    assert seen == sorted(set(seen))
    assert source.calls == 10


@pytest.mark.parametrize("nbytes", [4096, 2 * MIB, 10 * MIB])
def test_host_pages_are_zero_and_writable_to_the_last_byte(nbytes: int) -> None:
    source = HostUpstream(64 * MIB)
    address = source.reserve(nbytes, 0)
    assert ctypes.string_at(address, nbytes) == bytes(nbytes)
    ctypes.memset(address, 255, nbytes)
    assert ctypes.string_at(address + nbytes - 1, 1) == b"\xff"
    source.release(address, nbytes)


def test_released_host_pages_go_back_to_the_system() -> None:
    source = HostUpstream(64 * MIB)
    address = source.reserve(32 * MIB, 0)
    with_span = _mapped_bytes()
    source.release(address, 32 * MIB)
    assert with_span - _mapped_bytes() >= 32 * MIB


def _mapped_bytes() -> int:
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not tell the size of a process")
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_host_refuses_what_the_system_cannot_map() -> None:
    with pytest.raises(UpstreamExhausted):
        HostUpstream(1 << 62).reserve(1 << 61, 0)


def test_host_refuses_large_spans_beyond_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"MemAvailable": 30 * MIB, "MemTotal": 1 << 40}
    monkeypatch.setattr(upstream, "_meminfo", report.__getitem__)
    source = HostUpstream(1 << 40)
    with pytest.raises(UpstreamExhausted):
        source.reserve(32 * MIB, 0)
    assert source.used == 0
    source.release(source.reserve(20 * MIB, 0), 20 * MIB)


def test_host_capacity_is_a_share_of_the_lowest_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(upstream, "_CGROUPS", tmp_path)
    monkeypatch.setattr(upstream, "_meminfo", {"MemTotal": 64 << 30}.__getitem__)
    with config.patch(host_capacity_share=0.5):
        assert host_capacity() == 32 << 30
        (tmp_path / "memory.max").write_text("max\n")
        assert host_capacity() == 32 << 30
        (tmp_path / "memory.max").write_text(f"{8 << 30}\n")
        assert host_capacity() == 4 << 30
        (tmp_path / "memory").mkdir()
        (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{2 << 30}\n")
        assert host_capacity() == 1 << 30


def test_own_control_group_and_those_above_it_are_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = tmp_path / "work.slice" / "job"
    inner.mkdir(parents=True)
    read = upstream._read
    groups = {Path("/proc/self/cgroup"): "0::/work.slice/job\n"}
    monkeypatch.setattr(upstream, "_CGROUPS", tmp_path)
    monkeypatch.setattr(upstream, "_read", lambda path: groups.get(path) or read(path))
    (inner / "memory.max").write_text("700\n")
    (inner.parent / "memory.max").write_text("900\n")
    assert sorted(upstream._cgroup_limits()) == [700, 900]
