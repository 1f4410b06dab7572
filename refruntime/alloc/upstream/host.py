"""The memory of this machine as an upstream.

State
-----
The `mmap` object of each span; the ranges and pages of virtual memory.

Invariants
----------
* Host pages are private and anonymous, so a forked child keeps its own copy of every tensor.
* Figures are summed, not counted: a finalizer may reserve in the middle of another reserve.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path
from typing import Final

from refruntime.alloc.upstream import pages
from refruntime.alloc.upstream.events import ImmediateEvents
from refruntime.alloc.upstream.pages import HUGE_PAGE, LazyHostPages
from refruntime.alloc.upstream.protocol import UpstreamExhausted
from refruntime.alloc.upstream.spans import AddressRanges, check_span
from refruntime.config import config

_CGROUPS: Final = Path("/sys/fs/cgroup")


class HostUpstream(ImmediateEvents):
    """Anonymous pages of this process, huge ones for spans of 2 MiB and more.

    Parameters
    ----------
    capacity : int, optional
        Bytes that can be reserved at once; by default `host_capacity`.

    Notes
    -----
    Running out of memory on a host means that the kernel kills, so a large span is also refused
    when the machine has less than its size available: the allocator then gives its cache back and
    asks again. Work on the host is done when the call that does it returns, so events are always
    done and streams are never waited for.
    """

    supports_virtual_memory = pages.SUPPORTED

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = host_capacity() if capacity is None else capacity
        self._spans: dict[int, int] = {}
        self._mappings: dict[int, tuple[ctypes.c_char, mmap.mmap]] = {}
        self._ranges = AddressRanges()
        self._lazy = LazyHostPages()

    @property
    def used(self) -> int:
        """The bytes given out now."""
        # Summed, not counted: a finalizer may reserve in the middle of another reserve.
        return sum(self._spans.values()) + self._ranges.mapped

    def memory_info(self) -> tuple[int, int]:
        """Return what can still be given out, and the capacity."""
        free = max(self.capacity - self.used, 0)
        return min(free, _meminfo("MemAvailable")), self.capacity

    # --- spans --------------------------------------------------------------------------------

    def reserve(self, nbytes: int, stream: int) -> int:
        """Map fresh zero pages; `stream` does not matter on the host."""
        self._check_room(nbytes)
        huge = nbytes >= HUGE_PAGE
        # Python cannot unmap part of a mapping, but the slack for alignment is never touched.
        length = nbytes + HUGE_PAGE if huge else nbytes
        try:
            mapping = _map_pages(length)
        except (OSError, ValueError, OverflowError):
            raise UpstreamExhausted from None
        first_byte = ctypes.c_char.from_buffer(mapping)
        start = ctypes.addressof(first_byte)
        address = -(-start // HUGE_PAGE) * HUGE_PAGE if huge else start
        if huge:
            _advise_huge(mapping, address - start, nbytes)
        self._mappings[address] = (first_byte, mapping)
        self._spans[address] = nbytes
        return address

    def release(self, address: int, nbytes: int) -> None:
        """Unmap a span."""
        check_span(self._spans, address, nbytes)
        del self._spans[address]
        first_byte, mapping = self._mappings.pop(address)
        # The mapping counts its exported views, and cannot close before the last one is gone.
        del first_byte
        mapping.close()

    def _check_room(self, nbytes: int) -> None:
        if self.used + nbytes > self.capacity or nbytes > _available_bytes(nbytes):
            raise UpstreamExhausted

    # --- virtual memory -----------------------------------------------------------------------

    def reserve_addresses(self, nbytes: int) -> int:
        """Return the start of a range of addresses that cost nothing yet."""
        try:
            address = self._lazy.take(nbytes)
        except OSError:
            raise UpstreamExhausted from None
        self._ranges.add(address, nbytes)
        return address

    def release_addresses(self, address: int, nbytes: int) -> None:
        """Give a range back to the system."""
        self._ranges.check_remove(address, nbytes)
        self._lazy.give(address, nbytes)
        self._ranges.remove(address)

    def map(self, address: int, nbytes: int, page: int) -> None:
        """Let zero pages stand behind addresses of a range."""
        self._ranges.check_map(address, nbytes, page)
        self._check_room(nbytes)
        try:
            self._lazy.commit(address, nbytes)
        except OSError:
            raise UpstreamExhausted from None
        self._ranges.note_mapped(address, nbytes, page)

    def unmap(self, address: int, nbytes: int, page: int, stream: int) -> None:
        """Give the pages behind these addresses back to the system."""
        self._ranges.check_unmap(address, nbytes, page)
        self._lazy.decommit(address, nbytes)
        self._ranges.note_unmapped(address, nbytes, page)

    # --- contents -----------------------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes at once; `stream` does not matter on the host."""
        pages.copy(target, source, nbytes)


def _map_pages(length: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, length)
    return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _advise_huge(mapping: mmap.mmap, offset: int, nbytes: int) -> None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE, offset, nbytes)
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
