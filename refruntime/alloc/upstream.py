"""Upstreams: where an allocator gets whole segments from, and where it gives them back.

State
-----
Each upstream remembers the spans it has given out. `HostUpstream` keeps the `mmap` object of each;
`VirtualUpstream` hands out addresses that no memory stands behind.

Invariants
----------
* `used` is the sum of the spans given out and not released, and never passes `capacity`.
* A span is released whole, once, at the address and size at which it was reserved.
* A failed `reserve` changes nothing and raises `UpstreamExhausted`; it never raises anything else
  for lack of memory.
* Host pages are private and anonymous, so a forked child keeps its own copy of every tensor.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path
from typing import Final, Protocol

from refruntime.config import config
from refruntime.errors import ArgumentValueError

HUGE_PAGE: Final = 2 << 20
_CGROUPS: Final = Path("/sys/fs/cgroup")


class UpstreamExhausted(Exception):  # noqa: N818  it tells a state, not a mistake
    """The upstream cannot give a span of this size now."""


class Upstream(Protocol):
    """What an allocator needs from the outside."""

    @property
    def capacity(self) -> int:
        """The most bytes that can be given out at once."""

    @property
    def used(self) -> int:
        """The bytes given out now."""

    def reserve(self, nbytes: int, stream: int) -> int:
        """Return the address of a fresh span, or raise `UpstreamExhausted`."""

    def release(self, address: int, nbytes: int) -> None:
        """Take a span back."""


class VirtualUpstream:
    """A device that exists only as an address space: for replay, planning and tests.

    Parameters
    ----------
    capacity : int
        Bytes that can be reserved at once.
    base : int
        The first address. Addresses only rise, so that no two spans of a run share one.
    """

    def __init__(self, capacity: int, *, base: int = 1 << 32) -> None:
        self.capacity = capacity
        self.used = 0
        self.calls = 0
        self._next = base
        self._spans: dict[int, int] = {}

    def reserve(self, nbytes: int, stream: int) -> int:
        """Return the next address, aligned to 2 MiB."""
        self.calls += 1
        if self.used + nbytes > self.capacity:
            raise UpstreamExhausted
        address = self._next
        self._next += -(-nbytes // HUGE_PAGE) * HUGE_PAGE
        self._spans[address] = nbytes
        self.used += nbytes
        return address

    def release(self, address: int, nbytes: int) -> None:
        """Forget a span."""
        self.calls += 1
        _check_span(self._spans, address, nbytes)
        del self._spans[address]
        self.used -= nbytes


class HostUpstream:
    """Anonymous pages of this process, huge ones for spans of 2 MiB and more.

    Parameters
    ----------
    capacity : int, optional
        Bytes that can be reserved at once; by default `host_capacity`.

    Notes
    -----
    Running out of memory on a host means that the kernel kills, so a large span is also refused
    when the machine has less than its size available: the allocator then gives its cache back and
    asks again.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = host_capacity() if capacity is None else capacity
        self._spans: dict[int, int] = {}
        self._pages: dict[int, tuple[ctypes.c_char, mmap.mmap]] = {}

    @property
    def used(self) -> int:
        """The bytes given out now."""
        # Summed, not counted: a finalizer may reserve in the middle of another reserve.
        return sum(self._spans.values())

    def reserve(self, nbytes: int, stream: int) -> int:
        """Map fresh zero pages; `stream` does not matter on the host."""
        if self.used + nbytes > self.capacity or nbytes > _available_bytes(nbytes):
            raise UpstreamExhausted
        huge = nbytes >= HUGE_PAGE
        # Python cannot unmap part of a mapping, but the slack for alignment is never touched.
        length = nbytes + HUGE_PAGE if huge else nbytes
        try:
            pages = _map_pages(length)
        except (OSError, ValueError, OverflowError):
            raise UpstreamExhausted from None
        first_byte = ctypes.c_char.from_buffer(pages)
        start = ctypes.addressof(first_byte)
        address = -(-start // HUGE_PAGE) * HUGE_PAGE if huge else start
        if huge:
            _advise_huge(pages, address - start, nbytes)
        self._pages[address] = (first_byte, pages)
        self._spans[address] = nbytes
        return address

    def release(self, address: int, nbytes: int) -> None:
        """Unmap a span."""
        _check_span(self._spans, address, nbytes)
        del self._spans[address]
        first_byte, pages = self._pages.pop(address)
        # The mapping counts its exported views, and cannot close before the last one is gone.
        del first_byte
        pages.close()


def _check_span(spans: dict[int, int], address: int, nbytes: int) -> None:
    if spans.get(address) != nbytes:
        raise ArgumentValueError(
            "release",
            expected="a reserved span, whole",
            got=f"{nbytes} bytes at {address:#x} (reserved there: {spans.get(address, 0)})",
        )


def _map_pages(length: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, length)
    return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _advise_huge(pages: mmap.mmap, offset: int, nbytes: int) -> None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    try:
        pages.madvise(mmap.MADV_HUGEPAGE, offset, nbytes)
    except OSError:
        # A kernel without huge pages refuses the hint; small pages are slower, and as good.
        return


def host_capacity() -> int:
    """Return the bytes CPU tensors may take: a share of RAM, or of the cgroup's limit if lower."""
    limits = [_meminfo("MemTotal"), *_cgroup_limits()]
    return int(min(limits) * config.host_capacity_share)


def _cgroup_limits() -> list[int]:
    """Return the memory limits of this process's control group and of those above it."""
    found = []
    for directory in _cgroup_directories():
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(directory / name).strip()
            if text.isdigit():
                found.append(int(text))
    return found


def _cgroup_directories() -> list[Path]:
    directories = [_CGROUPS, _CGROUPS / "memory"]
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        root = _CGROUPS / "memory" if "memory" in controllers.split(",") else _CGROUPS
        own = root / path.lstrip("/")
        directories += [own, *(parent for parent in own.parents if root in parent.parents)]
    return directories


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _available_bytes(nbytes: int) -> int:
    """Return what the machine can still give; only asked for large spans, because it is slow."""
    return nbytes if nbytes <= HUGE_PAGE else _meminfo("MemAvailable")


def _meminfo(field: str) -> int:
    """Return a figure of the kernel's memory report in bytes."""
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    return _physical_bytes()


def _physical_bytes() -> int:
    """Return the size of RAM where there is no such report; no limit where nobody says."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62
