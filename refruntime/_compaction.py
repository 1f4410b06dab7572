"""Compaction of live tensors: finding who owns which block, and moving the bytes under them.

Every tensor reaches its memory through a `Storage`, and asks it for the address each time. So a
storage can be given another address between two operations, and every tensor, view, saved value and
optimizer state follows. What has left the runtime pins its storage: addresses that were given out
(`Storage.exports`: `data_ptr`, NumPy, DLPack), and arrays over the memory (`_impl.array_of`).
Storages of others (`ExternalStorage`, page-locked memory) are in no such allocator.

State
-----
None. The garbage collector knows all storages, so nothing is kept up to date for this.

Invariants
----------
* Nothing is moved while a thread is inside an operation, which may have read an address already:
  the stack of every thread is looked at before the first move and in each, and `SafePointError` is
  raised. Threads that begin an operation in the very moment are the caller's to keep out.
* A storage names the old place or the new one, each with all its bytes, whatever is raised.
* The garbage collector, and so the finalizers that it calls, do not run between two moves.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from refruntime._impl import Exported
from refruntime._storage import Storage
from refruntime.alloc import heap, relocation
from refruntime.alloc.compaction import Compaction
from refruntime.alloc.moves import Move
from refruntime.errors import ArgumentValueError, SafePointError

_ROOT: Final = Path(__file__).parent
# The rooms whose code has addresses in its hands.
_WITH_ADDRESSES: Final = tuple(
    str(_ROOT / room)
    for room in (
        "_dispatch.py", "_impl.py", "_ops", "interop.py", "kernels", "serialization",
        "_storage.py",
    )
)  # fmt: skip
# Where the threads of the kernels wait for work.
_IDLE: Final = (str(_ROOT / "kernels" / "launch.py"), "_serve")


def compact(
    allocator: Any, *, request: int | None = None, stream: int = 0, dry_run: bool = False
) -> Compaction:
    """Move tensors together, so that memory goes back to the upstream or a request fits.

    Parameters
    ----------
    allocator : CachingAllocator
        Whose memory.
    request : int, optional
        Bytes for which to make room, with as little copying as possible; by default as much as
        possible is given back.
    stream : int
        The stream of the request.
    dry_run : bool
        Only say what would be gained.

    Returns
    -------
    Compaction
        What was, or would be, moved and gained; what cannot be moved, and why.

    Raises
    ------
    SafePointError
        If a thread, also this one, is in the middle of an operation, or captures a graph.
    ArgumentValueError
        If the request makes no sense.
    """
    if dry_run:
        _, pinned = _owners(allocator)
        return relocation.plan(allocator, pinned.reason, request, stream)
    with _finalizers_at_rest():
        _require_safe_point()
        relocation.settle(allocator)
        owners, pinned = _owners(allocator)
        planned = relocation.plan(allocator, pinned.reason, request, stream)
        return _carry_out(allocator, planned, owners)


class _Pinned:
    """Why blocks in use stay, by address."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.reasons: dict[int, str] = {}

    def reason(self, address: int) -> str:
        """Return why a block stays, or "" if its storage can follow it."""
        if address in self.reasons:
            return self.reasons[address]
        return "" if address in self.known else heap.UNKNOWN


def _owners(allocator: Any) -> tuple[dict[int, Storage], _Pinned]:
    """Return the storages of an allocator by address, and which of them are pinned."""
    owners: dict[int, Storage] = {}
    pinned = _Pinned()
    for thing in gc.get_objects():
        kind = type(thing)
        if kind is Exported and _is_of(thing.storage, allocator):
            pinned.reasons[thing.storage.ptr] = heap.EXTERNAL_VIEW
        elif issubclass(kind, Storage) and _is_of(thing, allocator):
            if thing.ptr in owners:
                pinned.reasons[thing.ptr] = heap.UNKNOWN
            owners[thing.ptr] = thing
            if thing.exports:
                pinned.reasons[thing.ptr] = heap.EXPORTED
    pinned.known.update(owners)
    return owners, pinned


def _is_of(storage: Storage, allocator: Any) -> bool:
    """Whether a storage, which may be half made, has memory of an allocator."""
    return getattr(storage, "allocator", None) is allocator and hasattr(storage, "exports")


def _carry_out(allocator: Any, planned: Compaction, owners: dict[int, Storage]) -> Compaction:
    upstream = allocator.upstream

    def carry(move: Move) -> None:
        storage = owners[move.source]
        if storage.exports:
            raise SafePointError(
                "compact", what=f"the address of {storage} was given out meanwhile"
            )
        version = storage.version
        upstream.copy(move.target, move.source, storage.nbytes, move.stream)
        _require_safe_point()
        if storage.version != version:
            raise SafePointError("compact", what=f"{storage} was written meanwhile")
        # Last: after what is raised earlier, the block stays, and with it this address.
        storage.ptr = move.target

    if planned.moves:
        # What was launched has the old addresses, on whichever stream.
        upstream.synchronize(None)
    try:
        return relocation.carry_out(allocator, planned, carry)
    except ArgumentValueError as error:
        raise SafePointError(
            "compact",
            what=f"another thread allocated or freed meanwhile ({error})",
            remedy="call it while no other thread works on tensors",
        ) from error
    finally:
        if planned.moves:
            upstream.synchronize(None)


@contextmanager
def _finalizers_at_rest() -> Iterator[None]:
    """Keep the garbage collector from running."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _require_safe_point() -> None:
    """Raise if a thread may have the address of a tensor in its hands."""
    for thread, top in sys._current_frames().items():
        busy = _frame_with_addresses(top)
        # Frames in variables of their own frames are cycles, which would keep storages alive.
        del top
        if busy is not None:
            raise _busy(thread, busy)


def _frame_with_addresses(top: FrameType) -> FrameType | None:
    frame: FrameType | None = top
    while frame is not None and not _has_addresses(frame):
        frame = frame.f_back
    return frame


def _has_addresses(frame: FrameType) -> bool:
    code = frame.f_code
    return (
        code.co_filename.startswith(_WITH_ADDRESSES) and (code.co_filename, code.co_name) != _IDLE
    )


def _busy(thread: int, frame: FrameType) -> SafePointError:
    names = {each.ident: each.name for each in threading.enumerate()}
    file = Path(frame.f_code.co_filename).relative_to(_ROOT)
    return SafePointError(
        "compact",
        what=f"thread {names.get(thread, thread)!r} is in the middle of an operation",
        got=f"{frame.f_code.co_qualname} in {file}, line {frame.f_lineno}",
        remedy="call it between operations, while no other thread works on tensors",
    )
