"""Ranges of host addresses, with memory behind them or not, straight from the system.

State
-----
The C library, opened when it is first needed. `LazyHostPages` remembers the ranges it holds.

Invariants
----------
* A range starts at a multiple of 2 MiB and costs no memory before it is committed.
* Committed pages are private, anonymous and zero, and cost memory only when they are touched.
* What the system refuses raises OSError and changes nothing.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
import weakref
from typing import Any, Final

from refruntime.errors import DeviceError

HUGE_PAGE: Final = 2 << 20
SUPPORTED: Final = sys.platform != "win32"
_NONE: Final = 0
# Of these flags, the mmap module does not name all on every system and version.
_FIXED: Final = 0x10
_NO_RESERVE: Final = 0x40 if sys.platform == "darwin" else 0x4000
_FAILED: Final = ctypes.c_void_p(-1).value


class LazyHostPages:
    """Addresses of this process, with pages that cost memory only once they are touched.

    A device far larger than the host's memory can so run CPU kernels, as long as they touch no
    more than the host has.
    """

    def __init__(self) -> None:
        self._ranges: dict[int, int] = {}
        weakref.finalize(self, _release_all, self._ranges).atexit = False

    def take(self, nbytes: int) -> int:
        """Return the start of a fresh range."""
        address = reserve_range(nbytes)
        self._ranges[address] = nbytes
        return address

    def give(self, address: int, nbytes: int) -> None:
        """Unmap a range."""
        release_range(address, self._ranges.pop(address))

    def commit(self, address: int, nbytes: int) -> None:
        """Make pages readable and writable."""
        commit(address, nbytes)

    def decommit(self, address: int, nbytes: int) -> None:
        """Drop the contents of pages, and forbid touching them."""
        decommit(address, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy what stands at addresses."""
        copy(target, source, nbytes)


def _release_all(ranges: dict[int, int]) -> None:
    for address, nbytes in ranges.items():
        release_range(address, nbytes)


def reserve_range(nbytes: int) -> int:
    """Return the start of a fresh range of addresses, aligned to 2 MiB.

    Raises
    ------
    OSError
        If there are no such addresses left.
    DeviceError
        If the system is none that this is written for.
    """
    if not SUPPORTED:
        raise DeviceError(
            "host pages",
            expected="a Unix system",
            got=sys.platform,
            remedy="use addresses without memory (BumpAddresses), or no expandable segments",
        )
    length = nbytes + HUGE_PAGE
    start = _map(0, length, 0)
    address = -(-start // HUGE_PAGE) * HUGE_PAGE
    # The edges that the alignment does not need go back.
    end, aligned_end = start + length, address + _whole_pages(nbytes)
    if address > start:
        release_range(start, address - start)
    if end > aligned_end:
        release_range(aligned_end, end - aligned_end)
    return address


def release_range(address: int, nbytes: int) -> None:
    """Give addresses, and the memory behind them, back."""
    _check(_libc().munmap(address, _whole_pages(nbytes)))


def commit(address: int, nbytes: int) -> None:
    """Let memory stand behind these addresses."""
    _check(_libc().mprotect(address, _whole_pages(nbytes), mmap.PROT_READ | mmap.PROT_WRITE))
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None and nbytes >= HUGE_PAGE:
        # A kernel without huge pages refuses the hint; small pages are slower, and as good.
        _libc().madvise(address, nbytes, advice)


def decommit(address: int, nbytes: int) -> None:
    """Give the memory behind these addresses back, and keep the addresses."""
    # Fresh pages over the old ones: both are gone in one step, on every Unix.
    _map(address, nbytes, _FIXED)


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy bytes of this process, with the interpreter's lock held."""
    _memmove()(target, source, nbytes)


@functools.cache
def _memmove() -> Any:
    pointer = ctypes.c_void_p
    # `ctypes.memmove` itself lets other threads run meanwhile, which may write what is copied.
    kept = ctypes.PYFUNCTYPE(pointer, pointer, pointer, ctypes.c_size_t)
    return kept(ctypes.cast(ctypes.memmove, pointer).value or 0)


def _map(address: int, nbytes: int, flags: int) -> int:
    if nbytes > sys.maxsize:
        # More than a machine word holds, of which ctypes would take the lower part.
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    flags |= mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    found: int = _libc().mmap(address, nbytes, _NONE, flags, -1, 0)
    if found == _FAILED:
        _raise_errno()
    return found


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _check(code: int) -> None:
    if code != 0:
        _raise_errno()


def _raise_errno() -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))


@functools.cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.restype = pointer
    library.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    library.munmap.argtypes = [pointer, size]
    library.mprotect.argtypes = [pointer, size, number]
    library.madvise.argtypes = [pointer, size, number]
    return library
