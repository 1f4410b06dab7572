"""The Python stack as compiled code sees it: one number for it, without making frame objects.

Recording who asks for memory must cost little, and a walk over Python's frame objects takes a
microsecond for every five frames. So compiled code follows the interpreter's own records instead.
This is the one module that knows how CPython lays those out.

State
-----
A hash table of stacks already seen: pairs of words, the hash of a stack and its number.

Invariants
----------
* Layouts are used only for the versions listed in `_LAYOUTS`, and only after `is_trusted` has
  compared a walk with Python's own; else stacks are walked in Python (see `trace.Stacks`).
* A stack is known by a 63-bit hash of its code objects and the places in them; what a number
  stands for keeps those code objects alive, so no other code can take their addresses.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

import numpy as np

from refruntime._native import Lazy, device_function, ptr_i64
from refruntime.config import config

# Version -> offsets in bytes: in the thread state, of the pointer that leads to the current frame
# record; in what that points to, of the frame (-1: it is the frame); in a frame record, of its
# code, of the frame before it, and of the instruction it stands at.
_LAYOUTS: Final[dict[tuple[int, int], tuple[int, int, int, int, int]]] = {
    (3, 11): (56, 8, 32, 48, 56),
    (3, 12): (56, 0, 0, 8, 56),
    (3, 13): (72, -1, 0, 8, 56),
}
_STATE, _RECORD, _CODE, _BEFORE, _PLACE = _LAYOUTS.get(sys.version_info[:2], (0, 0, 0, 0, 0))

_MOST_FRAMES: Final = 1 << 14
_MIX: Final = 0x1B873593CC9E2D51
_MASK: Final = (1 << 63) - 1
_FIRST_SLOTS: Final = 1024
UNKNOWN_STACK: Final = -1
LEAST_HASH: Final = 1 << 16


class _ThreadState(Lazy):
    """The address of the calling thread's state."""

    def __call__(self) -> int:
        ask = ctypes.pythonapi.PyThreadState_Get
        ask.restype = ctypes.c_void_p
        return int(ask())

    def resolve(self) -> Any:
        from numba import types as nb

        return nb.ExternalFunction("PyThreadState_Get", nb.intp())


thread_state = _ThreadState()


@device_function
def word_at(address):
    """Return the word at an address."""
    return ptr_i64(address)[0]


@device_function
def stack_hash():
    """Return a hash of the calling thread's Python stack, at least `LEAST_HASH`."""
    frame = word_at(thread_state() + _STATE)
    if _RECORD >= 0:
        frame = word_at(frame + _RECORD)
    mixed = 1
    depth = 0
    while frame != 0 and depth < _MOST_FRAMES:
        mixed = ((mixed ^ word_at(frame + _CODE)) * _MIX) & _MASK
        mixed ^= mixed >> 29
        mixed = ((mixed ^ word_at(frame + _PLACE)) * _MIX) & _MASK
        mixed ^= mixed >> 32
        frame = word_at(frame + _BEFORE)
        depth += 1
    return mixed | LEAST_HASH


@device_function
def known_stack(table, slots, wanted):
    """Return the number of a stack in the table at an address, or UNKNOWN_STACK."""
    t = ptr_i64(table)
    slot = (wanted >> 20) & (slots - 1)
    while t[2 * slot] != 0:
        if t[2 * slot] == wanted:
            return t[2 * slot + 1]
        slot = (slot + 1) & (slots - 1)
    return UNKNOWN_STACK


class KnownStacks:
    """The table: which stacks have a number."""

    def __init__(self) -> None:
        self._table = np.zeros((_FIRST_SLOTS, 2), np.int64)
        self._outgrown = self._table
        self._count = 0

    @property
    def address(self) -> int:
        """Where the table is, for compiled code."""
        # Not by `ctypes`, which imports, and that fails while the interpreter goes down.
        return int(self._table.__array_interface__["data"][0])

    @property
    def slots(self) -> int:
        """How many stacks there is room for: a power of two."""
        return len(self._table)

    def enter(self, hashed: int, number: int) -> None:
        """Give a stack its number; the table may move."""
        if 2 * (self._count + 1) > self.slots:
            known = self._table[self._table[:, 0] != 0]
            # Compiled calls of other threads look into the old table until the header has the new.
            self._outgrown = self._table
            self._table = np.zeros((4 * self.slots, 2), np.int64)
            for other, its_number in known.tolist():
                self._put(other, its_number)
        self._put(hashed, number)
        self._count += 1

    def _put(self, hashed: int, number: int) -> None:
        slot = (hashed >> 20) & (self.slots - 1)
        while self._table[slot, 0]:
            slot = (slot + 1) & (self.slots - 1)
        self._table[slot] = hashed, number


_trusted: bool | None = None


def is_trusted() -> bool:
    """Whether compiled code may walk the stack in this interpreter; tried once."""
    global _trusted
    if _trusted is None:
        _trusted = _is_supported() and _agrees()
    return _trusted


def _is_supported() -> bool:
    known = sys.version_info[:2] in _LAYOUTS and sys.implementation.name == "cpython"
    # Without the interpreter lock, or on 32 bits, the records look different.
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    return known and sys.maxsize > 1 << 32 and not free_threaded and not config.pure


def _agrees() -> bool:
    """Whether the frames found by address are Python's: the same code, the same places in it."""
    by_address, frame = dict.fromkeys(_places_by_address()), sys._getframe().f_back
    distances: set[int] = set()
    while frame is not None:
        code, place = id(frame.f_code), frame.f_lasti
        found = [at - code - place for other, at in by_address if other == code]
        if not found:
            return False
        # A function that calls itself has several records; one of them is this frame's.
        distances = {each for each in found if not distances or each in distances}
        frame = frame.f_back
    return len(distances) > 0


def _places_by_address() -> list[tuple[int, int]]:
    """Return code and instruction of each frame, by following the records in Python."""
    frame = word_at(thread_state() + _STATE)
    if _RECORD >= 0:
        frame = word_at(frame + _RECORD)
    found: list[tuple[int, int]] = []
    while frame and len(found) < _MOST_FRAMES:
        found.append((word_at(frame + _CODE), word_at(frame + _PLACE)))
        frame = word_at(frame + _BEFORE)
    return found
